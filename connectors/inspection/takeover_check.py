"""What a start of a flow would continue, and from where; asked of its clusters, changing nothing.

A predecessor is Java's MirrorMaker 2 in the same group, we ourselves, or MirrorMaker 1 by the offsets of its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kafka.errors import for_code
from kafka.protocol.admin import ListTransactionsRequest

from connect.core import status_and_offset_topics
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata, error_name
from connect.kafka.connection import UnsupportedVersion
from connect.kafka.log.committed_offsets import GroupState, committed_offsets, group_state
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.dataplane import log_divergence
from connectors.formats.gap import Gap, GapKind, GapPolicy
from connectors.formats.position import Position, StoredPosition
from connectors.formats.types import TopicPartition
from connectors.internal_topics import read_stored_positions
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import MapPair as MapPair
from connectors.offset_map.runs_and_chunks import MapRun
from connectors.source.positions.gap_policy import rewound
from connectors.source.positions.partition_pairs import Entry, PartitionPair
from connectors.source.positions.position_checks import refuse_topic, refuse_truncated, target_of
from connectors.source.positions.stored_positions import Start, read_offsets, start_of
from connectors.source.positions.takeover import begin_at
from connectors.source.worker_context import FlowParts
from connectors.topic_sync.partition_assignment import begin_of, first_offsets
from connectors.topic_sync.remote_topics import ConfigSync, TopicPlan, plan_topics

_OF_SOURCE_LOG: Final = (GapKind.SOURCE_GAP, GapKind.SOURCE_TRUNCATED)
#: How long the logs and the stored offsets are watched for somebody who still writes.
WATCH_S: Final = 3.0
UNKNOWN: Final = -1
_TRUNCATED: Final = GapKind.TARGET_TRUNCATED.label


@dataclass(frozen=True, slots=True)
class Met:
    """Something that a run meets.

    Args:
        state: What happened, as the state of a partition is called that stopped of it.
        told: The same in words, with what a run does.
        stops: Whether the partition stops there; else it goes on at source offset ``goes_on_at``.
    """

    state: str
    told: str
    stops: bool
    goes_on_at: int = -1


def judged(
    source: TopicPartition,
    target: TopicPartition,
    start: Start,
    topics: tuple[TopicMetadata, TopicMetadata | None],
    target_end: int | None,
) -> Entry:
    """An entry that is stopped where the stored position does not speak of these logs. ``topics``: of both sides;
    ``target_end``: None where nobody knows."""
    here, there = topics
    entry = Entry(PartitionPair(source, here.topic_id, target, there.topic_id if there else None))
    refuse_topic("source", entry, start, here)
    position = None if start.moved else start.position
    if entry.is_stopped or position is None or target_of(position) != target:
        return entry
    refuse_topic("target", entry, start, there)
    if entry.gap is None and target_end is not None:
        refuse_truncated(entry, position, target_end)
    return entry


def met_at_start(
    entry: Entry, start: Start, policy: GapPolicy, log_start: int, newest_runs: Sequence[MapRun]
) -> Met | None:
    """Of an entry that was ``judged``. ``newest_runs``: of the position's map, where its target was truncated;
    ``log_start``: of the source."""
    gap, position = entry.gap, start.position
    if gap is None or position is None:
        return None
    happened = log_divergence.facts(entry.reason)
    if gap.kind is GapKind.TARGET_TRUNCATED:
        back = rewound(newest_runs, gap.target_first)
        if back is None:
            return Met(gap.state, f"{happened}; a run stops there, as the offset map does not tell which", stops=True)
        told = f"{happened}; a run copies them again from source offset {back.upstream} on"
        return Met(gap.state, told, stops=False, goes_on_at=back.upstream)
    # The connector makes a remote topic that is gone before a task looks at it.
    meant = replace(gap, kind=GapKind.TARGET_RECREATED) if gap.kind is GapKind.TARGET_DELETED else gap
    return _decided(meant, happened, policy, log_start)


def met_by_reading(source: TopicPartition, next_offset: int, log_start: int, end: int, policy: GapPolicy) -> Met | None:
    """Where the source's log does not have the offset that is to be copied next."""
    if next_offset < log_start:
        gap = log_divergence.source_gap(source, next_offset, log_start).gap
        happened = f"{log_start - next_offset} offsets from {next_offset} on are gone"
    elif next_offset > end:
        gap = log_divergence.source_shorter(source, next_offset, end).gap
        happened = f"the source ends at {end}, and offset {next_offset} is to be copied next"
    else:
        return None
    assert gap is not None, "a verdict on a log names its gap"
    return _decided(gap, happened, policy, gap.go_on_at)


def _decided(gap: Gap, happened: str, policy: GapPolicy, goes_on_at: int) -> Met:
    if gap.kind in _OF_SOURCE_LOG:
        setting = f"on.source.gap={policy.on_source_gap}"
    else:
        setting = f"on.topic.recreated={policy.on_topic_recreated}"
    if policy.goes_on(gap):
        told = f"{happened}; a run goes on at source offset {goes_on_at} ({setting})"
        return Met(gap.state, told, stops=False, goes_on_at=goes_on_at)
    return Met(gap.state, f"{happened}; a run stops there ({setting})", stops=True)


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """One source partition.

    Args:
        begins_at: The source offset that a run would copy next, if the source has it.
        because: Whose word that is: ``position`` (ours), ``stored-offset`` (Java's, or altered by an operator),
            ``group`` (``initial.offsets.group``), ``earliest`` or ``latest``; ``restart`` where a topic was made anew,
            ``offset-map`` where a truncated target is copied to again.
        log_start: First offset that the source still has; ``end`` is behind its last.
        lost: Offsets between ``begins_at`` and ``log_start``: nobody can copy them any more.
        beyond: Offsets by which ``begins_at`` lies behind ``end``: the source's log is not the one that was copied.
        target_end: Of the remote partition; -1 where there is none yet.
        met: What a run meets in the logs, and what it does there.
    """

    topic: str
    partition: int
    remote_topic: str
    begins_at: int
    because: str
    log_start: int
    end: int
    target_end: int = UNKNOWN
    met: tuple[Met, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether a run copies nothing of it."""
        return any(one.stops for one in self.met)

    @property
    def lag(self) -> int:
        return max(self.end - max(self.begins_at, self.log_start), 0)

    @property
    def lost(self) -> int:
        return max(self.log_start - self.begins_at, 0)

    @property
    def beyond(self) -> int:
        return max(self.begins_at - self.end, 0)


@dataclass(frozen=True, slots=True)
class ActiveGroup:
    """A group that would have to be empty, and the cluster it is on. ``role``: ``workers`` or ``mirror-maker-1``."""

    role: str
    cluster: str
    group: str
    state: GroupState

    @property
    def is_active(self) -> bool:
        return bool(self.state.members)


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """An id that the first start fences; its ``state`` in Kafka's words."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class TakeoverCheck:
    """What would be continued.

    Args:
        moving: Stored offsets and remote partitions that grew while they were watched.
        unknown: What could not be looked at.
    """

    flow: str
    partitions: tuple[PartitionStart, ...] = ()
    groups: tuple[ActiveGroup, ...] = ()
    moving: tuple[str, ...] = ()
    transactional_ids: tuple[TransactionalId, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether somebody still copies."""
        return bool(self.moving) or any(group.is_active for group in self.groups)

    @property
    def obstacles(self) -> list[str]:
        """Why a start now would be wrong, or would not copy all; none: it is fine."""
        found = [
            f"group {one.group} of cluster {one.cluster} has members: {', '.join(one.state.members)}"
            for one in self.groups
            if one.is_active
        ]
        if self.moving:
            found.append(f"somebody still writes: {', '.join(self.moving[:5])}{' ...' if self.moving[5:] else ''}")
        return found + self._met(stopping=True)

    @property
    def notes(self) -> list[str]:
        """What a run would meet and go on behind."""
        return self._met(stopping=False)

    def _met(self, *, stopping: bool) -> list[str]:
        return [
            f"{part.topic}-{part.partition}: {one.told}"
            for part in self.partitions
            for one in part.met
            if one.stops is stopping
        ]


class Stored(NamedTuple):
    """Source offsets in Java's records, and the keys of those that were written plainly."""

    offsets: status_and_offset_topics.SourceOffsets
    plain: set[bytes]


async def check_takeover(
    settings: MirrorSourceSettings, parts: FlowParts, group_id: str, watch_s: float = WATCH_S
) -> TakeoverCheck:
    """Look, for ``watch_s`` and a little more. ``group_id`` is the workers'. Raises as the clusters do."""
    source, target = parts.clusters.source, parts.clusters.target
    topics = await plan_topics(
        settings, source, target, ConfigSync(settings.flow, source, target, settings.property_filter)
    )
    before = await read_stored(settings, parts.store)
    ends = await _target_ends(target, topics)
    unknown: list[str] = list(topics.naming.problems.values())
    groups = await _groups(settings, parts, group_id, unknown)
    ids = await _transactional_ids(target, f"{group_id}-{settings.name}-", unknown)
    await asyncio.sleep(watch_s)
    # Between two readings of Java's records: a commit in which both disagree is then seen to move.
    positions = await read_stored_positions(parts.store, settings.map_topic, settings.name)
    stored = await read_stored(settings, parts.store)
    # Behind the positions: where somebody copies, an older end would look like a truncated log.
    ends_then = await _target_ends(target, topics)
    moving = [f"stored offset of {key}" for key in _moved(settings, topics, before, stored)]
    moving += [f"remote partition {TopicPartition(*one)}" for one, end in ends_then.items() if end > ends.get(one, end)]
    known = starts_of(settings, stored, positions, topics.partitions)
    starts = await _starts(settings, parts, topics, known, ends_then)
    return TakeoverCheck(settings.flow, tuple(starts), tuple(groups), tuple(moving), tuple(ids), tuple(unknown))


async def _target_ends(target: Cluster, topics: TopicPlan) -> dict[tuple[str, int], int]:
    there = [(name, index) for name in topics.there.values() for index in topics.target[name].partitions]
    return await list_offsets(target, there, LATEST) if there else {}


def _moved(settings: MirrorSourceSettings, topics: TopicPlan, before: Stored, after: Stored) -> list[str]:
    then, now = (offsets_of(settings, one, topics.partitions) for one in (before, after))
    return [str(one) for one in then if then[one] != now[one]]


async def _starts(
    settings: MirrorSourceSettings,
    parts: FlowParts,
    topics: TopicPlan,
    known: Mapping[TopicPartition, Start],
    ends: Mapping[tuple[str, int], int],
) -> list[PartitionStart]:
    if not known:
        return []
    source, policy = parts.clusters.source, settings.gap_policy
    begins = await _begins(settings, source, known)
    entries = _judged(topics, known, ends)
    runs = await _newest_runs(settings, parts.store, [(entries[one], start.position) for one, start in known.items()])
    lows = await list_offsets(source, known, EARLIEST)
    highs = await list_offsets(source, known, LATEST)
    found = []
    for one, start in known.items():
        target, (first, because) = entries[one].pair.target, begins[one]
        met = met_at_start(entries[one], start, policy, lows[one], runs.get(one, ()))
        if met and not met.stops:
            first, because = met.goes_on_at, "offset-map" if met.state == _TRUNCATED else "restart"
        read = None if met and met.stops else met_by_reading(one, first, lows[one], highs[one], policy)
        of_both = tuple(each for each in (met, read) if each)
        end = ends.get(target, UNKNOWN)
        found.append(PartitionStart(*one, target.topic, first, because, lows[one], highs[one], end, of_both))
    return found


async def _begins(
    settings: MirrorSourceSettings, source: Cluster, known: Mapping[TopicPartition, Start]
) -> dict[TopicPartition, tuple[int, str]]:
    """Where each partition begins if its logs are those that were copied, and whose word that is."""
    fresh = [one for one, start in known.items() if _counts(start) is None and start.committed_source_offset is None]
    begin = begin_of(settings)
    firsts = await first_offsets(source, fresh, begin)
    of_group = await committed_offsets(source, begin.group) if begin.group and fresh else {}
    found = {}
    for one, start in known.items():
        if one in firsts:
            because = "group" if one in of_group else settings.auto_offset_reset
        else:
            because = "stored-offset" if _counts(start) is None else "position"
        found[one] = begin_at(_counts(start), start.committed_source_offset, firsts.get(one)), because
    return found


def _judged(
    topics: TopicPlan,
    known: Mapping[TopicPartition, Start],
    ends: Mapping[tuple[str, int], int],
) -> dict[TopicPartition, Entry]:
    """An entry of each partition, thrown away afterwards."""
    here = {topic.name: topic for topic in topics.topics}
    there = {name: topic for name, topic in topics.target.items() if topic.exists}
    found = {}
    for one, start in known.items():
        target = TopicPartition(topics.naming.remote[one.topic], one.partition)
        found[one] = judged(one, target, start, (here[one.topic], there.get(target.topic)), ends.get(target))
    return found


async def _newest_runs(
    settings: MirrorSourceSettings, store: Cluster, entries: Sequence[tuple[Entry, Position | None]]
) -> dict[TopicPartition, Sequence[MapRun]]:
    """Of the maps by which truncated targets are copied to again."""
    truncated = {
        entry.pair.source: MapPair.of(position) for entry, position in entries if position and entry.state == _TRUNCATED
    }
    if not truncated:
        return {}
    reader = MapReader(store, settings.map_topic, connector=settings.name, partitions=truncated)
    await reader.follow()
    chunks = {one: reader.chunks(pair) for one, pair in truncated.items()}
    return {one: list(await reader.runs(truncated[one], places[-1])) for one, places in chunks.items() if places}


def _counts(start: Start) -> Position | None:
    """The position, unless the stored offset was altered since."""
    return None if start.moved else start.position


async def _groups(
    settings: MirrorSourceSettings, parts: FlowParts, group_id: str, unknown: list[str]
) -> list[ActiveGroup]:
    wanted = [("workers", parts.clusters.target, settings.target_alias, group_id)]
    if settings.initial_offsets_group:
        wanted.append(("mirror-maker-1", parts.clusters.source, settings.source_alias, settings.initial_offsets_group))
    found = []
    for role, cluster, alias, group in wanted:
        try:
            found.append(ActiveGroup(role, alias, group, await group_state(cluster, group)))
        except HeliographError as error:
            unknown.append(str(error))
    return found


async def _transactional_ids(target: Cluster, prefix: str, unknown: list[str]) -> list[TransactionalId]:
    """Those of the connector's tasks that the target knows: a start fences them."""
    found: list[TransactionalId] = []
    try:
        for node in (await target.metadata(())).brokers:
            answer = await (await target.connection(node)).call(ListTransactionsRequest())
            if answer.error_code:
                kind = RetriableError if for_code(answer.error_code).retriable else PermanentError
                raise kind(f"cluster {target.name} does not list transactions: {error_name(answer.error_code)}")
            found += [
                TransactionalId(row.transactional_id, row.transaction_state)
                for row in answer.transaction_states
                if row.transactional_id.startswith(prefix)
            ]
    except UnsupportedVersion as error:  # brokers before 3.0
        unknown.append(f"transactional ids: {error}")
    except HeliographError as error:
        unknown.append(str(error))
    return sorted(found, key=lambda one: one.name)


def stop_order(checked: TakeoverCheck) -> Sequence[str]:
    """What is to be done, in order, so that nothing is copied twice or lost."""
    steps = []
    for one in checked.groups:
        if one.is_active:
            whose = "every node of the mirror in" if one.role == "workers" else "every MirrorMaker 1 of"
            steps.append(
                f"stop {whose} group {one.group} with SIGTERM, and wait until kafka-consumer-groups.sh "
                f"--describe --members --group {one.group} on cluster {one.cluster} lists nobody"
            )
    if checked.is_running:
        steps.append("run this check again: no members, nothing moves")
    steps.append("start heliograph mirror with the same file")
    return steps


async def read_stored(settings: MirrorSourceSettings, store: Cluster) -> Stored:
    """What the topic of source offsets says; nothing where it is not there. Errors as those of the cluster."""
    topic = settings.offsets_topic
    known = (await store.metadata({topic})).topics.get(topic)
    if known is None or not known.partitions:
        return Stored(status_and_offset_topics.SourceOffsets(), set())
    return Stored(*await read_offsets(store, topic))


def offsets_of(
    settings: MirrorSourceSettings, stored: Stored, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Of the last record copied, by source partition."""
    return {one: stored.offsets.mirrored_offset(settings.name, settings.source_alias, *one) for one in partitions}


def starts_of(
    settings: MirrorSourceSettings,
    stored: Stored,
    positions: Mapping[TopicPartition, StoredPosition],
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, Start]:
    """What a task would find of each partition."""
    return {
        one: start_of(positions.get(one), offset, plainly=_java_key(settings, one) in stored.plain)
        for one, offset in offsets_of(settings, stored, partitions).items()
    }


def _java_key(settings: MirrorSourceSettings, partition: TopicPartition) -> bytes:
    return status_and_offset_topics.mirror_key(settings.name, settings.source_alias, *partition)
