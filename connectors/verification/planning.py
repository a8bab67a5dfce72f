"""Decide which ranges of a flow are compared: by its offset map, positions, the logs' ends and what is verified. The
target's ends are read first: so whatever the target has, the source's range has too, and what only the source has
behind the stored position is not copied yet."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from connect.core.errors import ConfigError, PermanentError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, known_offsets
from connect.kafka.log.topic_admin import Admin, known_topic, topic_values
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.gap import GapRecord, decode_gap
from connectors.formats.position import KeyKind, decode_kind
from connectors.formats.types import TopicPartition, is_recreated
from connectors.internal_topics import read_copied
from connectors.offset_map.reader import ChunkRewritten, MapReader
from connectors.offset_map.runs_and_chunks import MapPair
from connectors.topic_sync.partition_assignment import selected
from connectors.verification.ranges import MOST_RUNS, NO_MAP, RangePlan
from connectors.verification.report import ExplainedRange, PartitionResult, RangeReason
from connectors.verification.state import Verified, joined

#: Source offsets of one range, cut at multiples of it, so that a run that continues has the same ranges. With records
#: of 1 KB this is two seconds of one core, which is what a kill loses.
RANGE_OFFSETS: Final = 200_000
#: How often the map is followed when it has changed.
_TRIES: Final = 3

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to verify and how.

    Args:
        topics: Names, or regular expressions for whole names, of source topics; empty for all of the flow.
        from_ms: Only records from this time on; likewise ``to_ms``, exclusive. Nothing is stored then.
        is_full: Compare everything again.
        bytes_s: Limit of all tasks together for the source bytes read; 0 is none.
        memory_bytes: For each task.
        tasks: How many tasks run at once.
        within_s: The run ends then, and its result is not complete; None: no limit.
    """

    topics: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    is_full: bool = False
    bytes_s: int = 0
    memory_bytes: int = 64 * 1024 * 1024
    tasks: int = 1
    within_s: float | None = None

    @property
    def is_part(self) -> bool:
        return self.from_ms is not None or self.to_ms is not None

    def wants(self, topic: str) -> bool:
        return not self.topics or any(re.fullmatch(one, topic) for one in self.topics)


@dataclass(frozen=True, slots=True)
class FlowClusters:
    """The clusters of a flow; ``store`` is the target, by the clients that read and write positions."""

    source: Cluster
    target: Cluster
    store: Cluster
    admin: Admin


@dataclass(slots=True)
class PartitionScope:
    """One partition's work: ``verified`` is what is done, ``begin`` and ``target_begin`` where the next range begins.
    ``bounds`` are the places where a range has to end, source and target, ascending; the last is the end of both
    logs."""

    source: TopicPartition
    target: TopicPartition
    pair: MapPair | None
    verified: Verified
    begin: int
    target_begin: int
    end: int
    target_end: int
    due: int
    is_compacted: tuple[bool, bool]
    may_begin_later: tuple[bool, bool]
    is_committed: bool = True
    gaps: tuple[tuple[int, int], ...] = ()
    target_gaps: tuple[tuple[int, int], ...] = ()
    map_begin: tuple[int, int] | None = None
    is_open: bool = True
    failure: str = ""
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.begin

    @property
    def offsets(self) -> int:
        """How many source offsets are compared in all."""
        return max(min(self.due, self.end) if self.due >= 0 else self.end, self.first) - self.first

    async def next_range(self, reader: MapReader) -> RangePlan | None:
        """Return the next range; None if there is none."""
        if self.failure or not self.is_open:
            return None
        until = await self._bound(reader)
        is_last = until is None
        end, target_end = until or (self.end, self.target_end)
        plan = RangePlan(
            topic=self.source.topic,
            partition=self.source.partition,
            target_topic=self.target.topic,
            target_partition=self.target.partition,
            begin=self.begin,
            end=max(end, self.begin),
            target_begin=self.target_begin,
            target_end=max(target_end, self.target_begin),
            due=self.due,
            is_compacted=self.is_compacted,
            is_last=is_last,
            may_begin_later=self.may_begin_later,
            gaps=tuple(one for one in self.gaps if one[1] >= self.begin and one[0] < end),
            target_gaps=tuple(one for one in self.target_gaps if one[1] >= self.target_begin),
            copies=await _while_rewritten(reader, partial(self._copies, reader, max(target_end, self.target_begin))),
            map_begin=self.map_begin[1] if self.map_begin is not None else NO_MAP,
            runs=await _while_rewritten(reader, partial(self._runs, reader)),
            is_committed=self.is_committed,
            ids=(self.verified.source_id, self.verified.target_id),
        )
        self.is_open = not is_last
        self.begin, self.target_begin = plan.end, plan.target_end
        self.may_begin_later = (False, False)
        return None if plan.begin == plan.end and plan.target_begin == plan.target_end else plan

    async def _copies(self, reader: MapReader, target_end: int) -> tuple[tuple[int, int], ...] | None:
        """Return the copies that the map knows around the next range, up to the first one behind it."""
        if self.pair is None or self.map_begin is None:
            return None
        # Of what is before the map, any may be a copy.
        begins = self.target_begin, self.map_begin[1]
        found = [begins] if begins[0] < begins[1] else []
        for chunk in reader.chunks(self.pair):
            if chunk.limit is not None and chunk.limit[1] <= self.target_begin:
                continue
            for run in await reader.runs(self.pair, chunk):
                if found and run.downstream <= found[-1][1]:  # its source offsets have a gap, its copies have none
                    found[-1] = (found[-1][0], run.downstream_end)
                elif run.downstream_end > self.target_begin:
                    found.append((run.downstream, run.downstream_end))
                if run.downstream >= target_end:
                    return tuple(found)
        return tuple(found)

    async def _runs(self, reader: MapReader) -> tuple[tuple[int, int, int], ...]:
        """Return the last runs of the map, for a source that a cleaner works on."""
        if self.pair is None or not self.is_compacted[0]:
            return ()
        found: deque[tuple[int, int, int]] = deque(maxlen=MOST_RUNS)
        for chunk in reader.chunks(self.pair):
            found.extend((one.upstream, one.downstream, one.length) for one in await reader.runs(self.pair, chunk))
        return tuple(found)

    async def _bound(self, reader: MapReader) -> tuple[int, int] | None:
        """Return where the next range ends before the logs do. Without a map only their ends are known to be at the
        same record; a compacted log is compared as a whole, because later records of a key explain earlier ones."""
        if self.pair is None or any(self.is_compacted):
            return None
        if self.map_begin is not None and self.begin < self.map_begin[0]:
            return self.map_begin
        cut = (self.begin // RANGE_OFFSETS + 1) * RANGE_OFFSETS
        if cut >= min(self.due, self.end):
            return None
        found = await reader.forward(self.pair, cut)
        return None if found is None else (cut, min(found.offset, self.target_end))


async def _while_rewritten(reader: MapReader, read: Callable[[], Awaitable[_T]]) -> _T:
    """Return what ``read`` finds in the map, which the flow may change meanwhile."""
    for _ in range(_TRIES):
        try:
            return await read()
        except ChunkRewritten:
            await reader.follow()
    return await read()


async def plan_partitions(
    settings: MirrorSourceSettings,
    clusters: FlowClusters,
    reader: MapReader,
    stored: Mapping[TopicPartition, Verified],
    options: VerifyOptions,
) -> tuple[list[PartitionScope], list[str]]:
    """Return the partitions to verify, and why others cannot be. Raises what the clusters raise."""
    here, there = clusters.source, clusters.target
    known = (await here.metadata(None)).topics
    topics = [one for one in selected(settings.should_mirror, known) if options.wants(one.name)]
    if not topics:
        raise ConfigError(f"{settings.flow} mirrors no topic {' '.join(options.topics)}".rstrip(), "--topics")
    partitions = [TopicPartition(one.name, index) for one in topics for index in sorted(one.partitions)]
    await reader.follow()
    # Now, because a look-up may follow the map further, to positions behind the ends that are read next.
    positions = {one: reader.position(one) for one in partitions}
    copied = await read_copied(clusters.store, settings, partitions)
    targets = {one: _target_of(one, reader, settings) for one in partitions}
    remote = (await there.metadata({one.topic for one in targets.values()})).topics
    unread = []
    found = []
    for one in partitions:
        target = targets[one]
        if target.topic in remote and target.partition in remote[target.topic].partitions:
            found.append(one)
        elif one in copied:
            unread.append(f"{one}: {target} does not exist at {there.name}, although the flow has copied into it")
    # The target's ends first: see above.
    target_ends, lost = await known_offsets(there, [targets[one] for one in found], LATEST, READ_COMMITTED)
    target_highs, _ = await known_offsets(there, list(target_ends), LATEST)
    target_starts, more = await known_offsets(there, list(target_ends), EARLIEST)
    isolation = READ_COMMITTED if settings.read_committed else READ_UNCOMMITTED
    ends, silent = await known_offsets(here, found, LATEST, isolation)
    starts, silent_too = await known_offsets(here, list(ends), EARLIEST)
    unread += [*_silent(there, {**lost, **more}), *_silent(here, {**silent, **silent_too})]
    compacted, doubtful = await _compacted(here, {one.topic for one in found})
    compacted_there, doubtful_there = await _compacted(there, {targets[one].topic for one in found})
    gaps = await _gaps(clusters, settings)
    scopes = []
    for one in found:
        target = targets[one]
        if one not in starts or target not in target_starts:
            continue
        if (doubt := doubtful.get(one.topic) or doubtful_there.get(target.topic)) is not None:
            unread.append(f"{one}: {doubt}")
            continue
        topics_now = known[one.topic], remote[target.topic]
        if (name := _copied_before(reader.current(one), *topics_now, clusters)) is not None:
            unread.append(f"{one}: {name} was recreated, and the flow has copied nothing since; see heliograph status")
            continue
        position = positions[one]
        due = position.next_source_offset if position is not None else copied.get(one, -2) + 1
        pair = reader.current(one) if reader.current(one) in reader.pairs(one) else None
        # Without a map, and with a position where the source begins, nothing is known to be copied.
        is_copied = pair is not None or due > starts[one]
        scope = PartitionScope(
            source=one,
            target=target,
            pair=pair,
            verified=_verified(one, target, topics_now, (ends[one], target_ends[target]), stored.get(one), options),
            begin=starts[one],
            target_begin=target_starts[target],
            # What the target has of a partition of which the flow copied nothing was written by others.
            end=ends[one] if is_copied else starts[one],
            target_end=target_ends[target] if is_copied else target_starts[target],
            due=due,
            is_compacted=(one.topic in compacted, target.topic in compacted_there),
            may_begin_later=(starts[one] > 0, target_starts[target] > 0),
            is_committed=settings.read_committed,
        )
        try:
            await _expect_what_is_readable(scope, reader, target_highs.get(target, -1))
            await _place(scope, reader, options, clusters)
        except PermanentError as error:  # of this partition
            unread.append(str(error))
            continue
        if not is_copied and ends[one] > starts[one]:
            not_copied = ExplainedRange(*one, starts[one], ends[one] - 1, RangeReason.NOT_COPIED)
            result = scope.verified.result
            result = replace(result, explained=joined((*result.explained, not_copied)))
            scope.verified = replace(scope.verified, result=result)
        _add_gaps(scope, [each for each in gaps if each.source_topic == one.topic and each.source_partition == one[1]])
        scopes.append(scope)
    return scopes, unread


def _copied_before(
    pair: MapPair | None, source: TopicMetadata, target: TopicMetadata, clusters: FlowClusters
) -> str | None:
    """Return which topic has another id than when the flow copied last; None if neither has."""
    if pair is not None:
        for cluster, topic, before in (
            (clusters.source, source, pair.source_topic_id),
            (clusters.target, target, pair.target_topic_id),
        ):
            if is_recreated(topic.topic_id, before):
                return f"cluster {cluster.name}: {topic.name}"
    return None


async def _compacted(cluster: Cluster, topics: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """Return the topics that are compacted, and why it is unknown of others."""
    policies = await topic_values(cluster, topics, "cleanup.policy")
    return {topic for topic, policy in policies.items() if "compact" in policy}, {
        topic: f"cluster {cluster.name}: whether {topic} is compacted is unknown, so what a cleaner has removed would "
        f"count as missing; grant DESCRIBE_CONFIGS on topic {topic}"
        for topic in topics
        if topic not in policies
    }


def _silent(cluster: Cluster, reasons: Mapping[tuple[str, int], str]) -> Iterator[str]:
    """Yield a sentence for each partition whose leader has not said where its log begins and ends."""
    for one, why in reasons.items():
        name = str(TopicPartition(*one))
        reason = why.removeprefix(name).lstrip(": ")
        yield (
            f"cluster {cluster.name}: {name}: begin and end could not be read: {reason}; check that the cluster's "
            "brokers answer, then run this again"
        )


async def _expect_what_is_readable(scope: PartitionScope, reader: MapReader, target_high: int) -> None:
    """Expect no copies behind a transaction that is open at the target, the flow's or another producer's: they are in
    the log up to ``target_high``, but no consumer can read them yet."""
    if target_high > scope.target_end:
        place = await reader.reverse(scope.pair, scope.target_end) if scope.pair is not None else None
        scope.due = min(scope.due, place.offset) if place is not None else -1


def _target_of(one: TopicPartition, reader: MapReader, settings: MirrorSourceSettings) -> TopicPartition:
    pair = reader.current(one)
    return pair.target if pair is not None else TopicPartition(settings.remote_topic(one.topic), one.partition)


def _verified(
    source: TopicPartition,
    target: TopicPartition,
    topics: tuple[TopicMetadata, TopicMetadata],
    ends: tuple[int, int],
    stored: Verified | None,
    options: VerifyOptions,
) -> Verified:
    """Return what is verified already of these topics; nothing is if all or a part is to be compared, or if a log was
    recreated or truncated since. ``topics`` and ``ends``: of source and target."""
    source_id, target_id = (str(one.topic_id or "") for one in topics)
    if (
        stored is not None
        and stored.is_of(source_id, target_id)
        and stored.result.verified_to <= ends[0]
        and stored.target_to <= ends[1]
        and not options.is_full
        and not options.is_part
    ):
        return stored
    nothing = PartitionResult(*source, *target, 0, 0, 0, -1, -1, -1, 0)
    return Verified(nothing, -1, source_id, target_id)


async def _place(scope: PartitionScope, reader: MapReader, options: VerifyOptions, clusters: FlowClusters) -> None:
    """Set where the partition's work begins, and explain what is before that."""
    done = scope.verified
    log_start, target_start = scope.begin, scope.target_begin
    explained: list[ExplainedRange] = []

    def explain(first: int, end: int, reason: RangeReason, side: str = "source") -> None:
        if first < end:
            explained.append(ExplainedRange(*scope.source, first, end - 1, reason, side))

    # A run that was killed may have stored where it begins, and nothing more.
    is_new = done.result.verified_to <= done.result.verified_from
    if not is_new:
        scope.begin, scope.target_begin = done.result.verified_to, done.target_to
        scope.may_begin_later = (log_start > scope.begin, target_start > scope.target_begin)
        explain(scope.begin, log_start, RangeReason.RETENTION_SOURCE)
        scope.begin = max(scope.begin, log_start)
    chunks = reader.chunks(scope.pair) if scope.pair is not None else []
    if scope.pair is not None and chunks:
        scope.map_begin = upstream, downstream = chunks[0].begin
        if scope.begin < upstream and downstream <= target_start:
            reason = RangeReason.RETENTION_TARGET if target_start else RangeReason.BEFORE_FLOW
            explain(scope.begin, upstream, reason)
            scope.begin = upstream
        if target_start > max(scope.target_begin if not is_new else 0, downstream):
            place = await reader.reverse(scope.pair, target_start)
            if place is not None and place.offset > scope.begin:
                explain(scope.begin, place.offset, RangeReason.RETENTION_TARGET)
                scope.begin = place.offset
        if scope.begin >= upstream and (is_new or scope.begin > done.result.verified_to):
            place = await reader.forward(scope.pair, scope.begin)
            if place is not None and place.offset > target_start:
                # A source that has all from its first offset on has deleted no record of which that is a copy.
                reason = RangeReason.RETENTION_SOURCE if log_start else RangeReason.NOT_OF_FLOW
                explain(max(scope.target_begin, target_start), place.offset, reason, "target")
                scope.target_begin = place.offset
            scope.may_begin_later = (False, False)
    scope.target_begin = max(scope.target_begin, target_start)
    if options.is_part:
        await _cut_by_time(scope, reader, options, clusters)
    scope.first = scope.begin
    result = replace(
        done.result,
        verified_from=scope.begin if is_new else done.result.verified_from,
        verified_to=max(scope.begin, done.result.verified_to),
        copied_to=scope.due,
        explained=joined((*done.result.explained, *explained)),
    )
    scope.verified = Verified(result, max(scope.target_begin, done.target_to), done.source_id, done.target_id)


async def _cut_by_time(
    scope: PartitionScope, reader: MapReader, options: VerifyOptions, clusters: FlowClusters
) -> None:
    """Leave only the records of a time. Raises PermanentError without a map, which says where that is in the target."""
    if scope.pair is None or any(scope.is_compacted):
        raise PermanentError(
            f"{scope.source}: --from and --to need an offset map, and no cleaner; verify the partition as a whole"
        )
    here = clusters.source
    offsets: list[int | None] = []
    for time_ms in (options.from_ms, options.to_ms):
        if time_ms is None:
            offsets.append(None)
            continue
        found, why = await known_offsets(here, [scope.source], time_ms)
        if why:
            raise PermanentError(next(_silent(here, why)))
        offset = found.get(scope.source, -1)
        offsets.append(offset if offset >= 0 else scope.end)
    begin, end = offsets
    if begin is not None and scope.due >= 0:
        begin = min(begin, scope.due)  # the map knows no place behind that, and copies go on
    if begin is not None and begin > scope.begin:
        place = await reader.forward(scope.pair, begin)
        if place is not None:
            scope.begin, scope.target_begin = begin, place.offset
            scope.may_begin_later = (False, False)
    if end is not None and end < scope.end:
        scope.end = min(end, scope.due)
        place = await reader.forward(scope.pair, scope.end)
        if place is not None:
            scope.target_end = min(place.offset, scope.target_end)


async def _gaps(clusters: FlowClusters, settings: MirrorSourceSettings) -> Sequence[GapRecord]:
    """Return the gaps that the flow has passed."""
    found: list[GapRecord] = []

    def fold(record: LogRecord) -> None:
        if decode_kind(record.key) is KeyKind.GAP and record.key is not None and record.value is not None:
            gap = decode_gap(record.key, record.value)
            if gap.connector == settings.name:
                found.append(gap)

    if await known_topic(clusters.store, settings.map_topic) is not None:
        await read_to_end(clusters.store, settings.map_topic, fold, only_last=True)
    return found


def _add_gaps(scope: PartitionScope, gaps: Collection[GapRecord]) -> None:
    """Explain the partition's gaps, and let their ranges explain what is found in them."""
    explained = list(scope.verified.result.explained)
    known = {(one.first, one.last, one.side) for one in explained if one.reason is RangeReason.GAP}
    for one in gaps:
        gap = one.gap
        for side, first, last in (("source", gap.first, gap.last), ("target", gap.target_first, gap.target_last)):
            if 0 <= first <= last:
                if (first, last, side) not in known:
                    what = RangeReason.GAP, side
                    explained.append(ExplainedRange(*scope.source, first, last, *what, detail=gap.kind.label))
                if side == "source":
                    scope.gaps = (*scope.gaps, (first, last))
                else:
                    scope.target_gaps = (*scope.target_gaps, (first, last))
    scope.verified = replace(scope.verified, result=replace(scope.verified.result, explained=tuple(explained)))
