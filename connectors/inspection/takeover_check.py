"""The check before a start of a flow: where it would continue, and whether a predecessor still runs, which is
MirrorMaker 2 in the same group, Java's or Heliograph, or MirrorMaker 1 by the offsets of its group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from connect.core import status_and_offset_topics
from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.active_producers import list_transactions
from connect.kafka.log.committed_offsets import GroupState, committed_offsets, group_state
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.dataplane import log_divergence
from connectors.formats.gap import Gap, GapKind, GapPolicy
from connectors.formats.position import Position, StoredPosition
from connectors.formats.types import TopicPartition
from connectors.internal_topics import read_stored_positions
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import MapPair, MapRun
from connectors.source.positions.gap_policy import rewound
from connectors.source.positions.partition_pairs import Entry, PartitionPair
from connectors.source.positions.position_checks import refuse_topic, refuse_truncated
from connectors.source.positions.stored_positions import Start, read_offsets, start_of
from connectors.source.positions.takeover import begin_at
from connectors.source.worker_context import FlowParts
from connectors.topic_sync.partition_assignment import begin_of, first_offsets
from connectors.topic_sync.remote_topics import ConfigSync, TopicPlan, plan_topics

_OF_SOURCE_LOG: Final = (GapKind.SOURCE_GAP, GapKind.SOURCE_TRUNCATED)
#: How long the logs and the stored offsets are watched for changes.
WATCH_S: Final = 3.0
UNKNOWN: Final = -1
_TRUNCATED: Final = GapKind.TARGET_TRUNCATED.label


@dataclass(frozen=True, slots=True)
class Met:
    """A change of a partition's logs that a run would find, and ``reported``, a sentence about it. ``state``: the state
    of a partition that is stopped by it. ``stops``: whether the partition stops there; else it continues at source
    offset ``goes_on_at``."""

    state: str
    reported: str
    stops: bool
    goes_on_at: int = -1


def judged(
    source: TopicPartition,
    target: TopicPartition,
    start: Start,
    topics: tuple[TopicMetadata, TopicMetadata | None],
    target_end: int | None,
) -> Entry:
    """Return an entry, stopped if the stored position is not of these logs. ``topics``: source and target;
    ``target_end``: None if it is not known."""
    here, there = topics
    entry = Entry(PartitionPair(source, here.topic_id, target, there.topic_id if there else None))
    refuse_topic("source", entry, start, here)
    position = start.unmoved_position
    if entry.is_stopped or position is None or position.target != target:
        return entry
    refuse_topic("target", entry, start, there)
    if entry.gap is None and target_end is not None:
        refuse_truncated(entry, position, target_end)
    return entry


def findings_at_start(
    entry: Entry, start: Start, policy: GapPolicy, log_start: int, newest_runs: Sequence[MapRun]
) -> Met | None:
    """Return what a run finds for a ``judged`` entry. ``newest_runs`` are of the offset map, if the target was
    truncated; ``log_start`` is the source's."""
    gap, position = entry.gap, start.position
    if gap is None or position is None:
        return None
    happened = log_divergence.facts(entry.reason)
    if gap.kind is GapKind.TARGET_TRUNCATED:
        back = rewound(newest_runs, gap.target_first)
        if back is None:
            return Met(gap.state, f"{happened}; a run stops there, because the offset map lacks them", stops=True)
        reported = f"{happened}; a run copies them again from source offset {back.upstream}"
        return Met(gap.state, reported, stops=False, goes_on_at=back.upstream)
    # Because the connector creates a missing remote topic before a task reads its id.
    meant = replace(gap, kind=GapKind.TARGET_RECREATED) if gap.kind is GapKind.TARGET_DELETED else gap
    return _decided(meant, happened, policy, log_start)


def met_by_reading(source: TopicPartition, next_offset: int, log_start: int, end: int, policy: GapPolicy) -> Met | None:
    """Return what a run finds if the source's log does not have the next offset to copy."""
    if next_offset < log_start:
        gap = log_divergence.source_gap(source, next_offset, log_start).gap
        happened = f"{log_start - next_offset} offsets from {next_offset} are no longer on the source"
    elif next_offset > end:
        gap = log_divergence.source_shorter(source, next_offset, end).gap
        happened = f"the source ends at {end}, before the next offset to copy, {next_offset}"
    else:
        return None
    assert gap is not None, "a verdict on a log names its gap"
    return _decided(gap, happened, policy, gap.go_on_at)


def _decided(gap: Gap, happened: str, policy: GapPolicy, goes_on_at: int) -> Met:
    of_log, of_topic = f"on.source.gap={policy.on_source_gap}", f"on.topic.recreated={policy.on_topic_recreated}"
    setting = of_log if gap.kind in _OF_SOURCE_LOG else of_topic
    if policy.goes_on(gap):
        reported = f"{happened}; a run continues at source offset {goes_on_at} ({setting})"
        return Met(gap.state, reported, stops=False, goes_on_at=goes_on_at)
    return Met(gap.state, f"{happened}; a run stops there ({setting})", stops=True)


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """One source partition, and where a run would start.

    Args:
        begins_at: The source offset that a run would copy next, if the source has it.
        because: What decides that: ``position`` (Heliograph's), ``stored-offset`` (Java's, or altered by an operator),
            ``group`` (``initial.offsets.group``), ``earliest``, ``latest``, ``restart`` after a recreated topic, or
            ``offset-map`` after a truncated target.
        log_start: First offset of the source; ``end`` is its end offset.
        lost: Offsets from ``begins_at`` to ``log_start``, which cannot be copied any more.
        beyond: Offsets from ``end`` to ``begins_at``: the source's log is not the one that was copied.
        target_end: End offset of the remote partition; -1 if it does not exist.
        met: What a run would find in the logs.
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
    """A group that must be empty, and its cluster. ``role`` is ``workers`` or ``mirror-maker-1``."""

    role: str
    cluster: str
    group: str
    state: GroupState

    @property
    def is_active(self) -> bool:
        return bool(self.state.members)


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """A transactional id that the first start fences, and its state in Kafka's words."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class TakeoverCheck:
    """The result for a flow. ``moving``: stored offsets and remote partitions that grew while they were watched.
    ``unknown``: what could not be checked."""

    flow: str
    partitions: tuple[PartitionStart, ...] = ()
    groups: tuple[ActiveGroup, ...] = ()
    moving: tuple[str, ...] = ()
    transactional_ids: tuple[TransactionalId, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether a predecessor still copies."""
        return bool(self.moving) or any(group.is_active for group in self.groups)

    @property
    def obstacles(self) -> list[str]:
        """What blocks a start now, or would stop a partition."""
        found = [
            f"group {one.group} on cluster {one.cluster} has members: {', '.join(one.state.members)}"
            for one in self.groups
            if one.is_active
        ]
        if self.moving:
            found.append(f"a mirror still writes: {', '.join(self.moving[:5])}{' ...' if self.moving[5:] else ''}")
        return found + self._met(stopping=True)

    @property
    def notes(self) -> list[str]:
        """What a run would find and continue after."""
        return self._met(stopping=False)

    def _met(self, *, stopping: bool) -> list[str]:
        return [
            f"{part.topic}-{part.partition}: {one.reported}"
            for part in self.partitions
            for one in part.met
            if one.stops is stopping
        ]


class Stored(NamedTuple):
    """Source offsets in Java's records, and the keys of those without Heliograph's position."""

    offsets: status_and_offset_topics.SourceOffsets
    plain: set[bytes]


async def check_takeover(
    settings: MirrorSourceSettings, parts: FlowParts, group_id: str, watch_s: float = WATCH_S
) -> TakeoverCheck:
    """Check a flow while watching it for ``watch_s``. ``group_id`` is the workers'. Raises HeliographError if a cluster
    does not answer."""
    source, target = parts.clusters.source, parts.clusters.target
    configs = ConfigSync(settings.flow, source, target, settings.property_filter)
    topics = await plan_topics(settings, source, target, configs)
    before = await read_stored(settings, parts.store)
    ends = await _target_ends(target, topics)
    unknown: list[str] = list(topics.naming.problems.values())
    groups = await _groups(settings, parts, group_id, unknown)
    ids = await _transactional_ids(target, f"{group_id}-{settings.name}-", unknown)
    await asyncio.sleep(watch_s)
    # Read between two reads of Java's records, so that a commit in between is seen as movement.
    positions = await read_stored_positions(parts.store, settings.map_topic, settings.name)
    stored = await read_stored(settings, parts.store)
    # Read after the positions, because an older end would look like a truncated log while a mirror copies.
    ends_then = await _target_ends(target, topics)
    then, now = (offsets_of(settings, one, topics.partitions) for one in (before, stored))
    moving = [f"stored offset of {one}" for one, offset in then.items() if offset != now[one]]
    moving += [f"remote partition {TopicPartition(*one)}" for one, end in ends_then.items() if end > ends.get(one, end)]
    known = starts_of(settings, stored, positions, topics.partitions)
    starts = await _starts(settings, parts, topics, known, ends_then)
    return TakeoverCheck(settings.flow, tuple(starts), tuple(groups), tuple(moving), tuple(ids), tuple(unknown))


async def _target_ends(target: Cluster, topics: TopicPlan) -> dict[tuple[str, int], int]:
    there = [(name, index) for name in topics.there.values() for index in topics.target[name].partitions]
    return await list_offsets(target, there, LATEST) if there else {}


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
        met = findings_at_start(entries[one], start, policy, lows[one], runs.get(one, ()))
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
    """Return where each partition starts if its logs are those that were copied, and what decides that."""
    fresh = [
        one for one, start in known.items() if start.unmoved_position is None and start.committed_source_offset is None
    ]
    begin = begin_of(settings)
    firsts = await first_offsets(source, fresh, begin)
    of_group = await committed_offsets(source, begin.group) if begin.group and fresh else {}
    found = {}
    for one, start in known.items():
        if one in firsts:
            because = "group" if one in of_group else settings.auto_offset_reset
        else:
            because = "stored-offset" if start.unmoved_position is None else "position"
        found[one] = begin_at(start.unmoved_position, start.committed_source_offset, firsts.get(one)), because
    return found


def _judged(
    topics: TopicPlan, known: Mapping[TopicPartition, Start], ends: Mapping[tuple[str, int], int]
) -> dict[TopicPartition, Entry]:
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
    """Return the newest runs of the offset maps of truncated targets."""
    truncated = {
        entry.pair.source: MapPair.of(position) for entry, position in entries if position and entry.state == _TRUNCATED
    }
    if not truncated:
        return {}
    reader = MapReader(store, settings.map_topic, connector=settings.name, partitions=truncated)
    await reader.follow()
    chunks = {one: reader.chunks(pair) for one, pair in truncated.items()}
    return {one: list(await reader.runs(truncated[one], places[-1])) for one, places in chunks.items() if places}


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
    """Return the transactional ids of the connector's tasks on the target, which a start fences."""
    try:
        states = await list_transactions(target)
    except HeliographError as error:
        unknown.append(f"transactional ids: {error}")
        return []
    return [TransactionalId(*one) for one in sorted(states.items()) if one[0].startswith(prefix)]


def stop_order(checked: TakeoverCheck) -> Sequence[str]:
    """Return the steps to a start that neither loses nor duplicates records."""
    steps = []
    for one in checked.groups:
        if one.is_active:
            whose = "every node of the mirror in" if one.role == "workers" else "every MirrorMaker 1 of"
            steps.append(
                f"stop {whose} group {one.group} with SIGTERM, and wait until kafka-consumer-groups.sh "
                f"--describe --members --group {one.group} on cluster {one.cluster} lists no member"
            )
    if checked.is_running:
        steps.append("run this check again until no group has members and nothing is written")
    last = "run this check again when everything can be checked"
    return [*steps, last if checked.unknown else "start heliograph mirror with the same file"]


async def read_stored(settings: MirrorSourceSettings, store: Cluster) -> Stored:
    """Read the topics of source offsets that exist. Raises HeliographError if the cluster does not answer."""
    known = (await store.metadata(set(settings.offsets_topics))).topics
    there = [topic for topic in settings.offsets_topics if topic in known and known[topic].partitions]
    return Stored(*await read_offsets(store, *there))


def offsets_of(
    settings: MirrorSourceSettings, stored: Stored, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return the source offset of the last record copied, by source partition."""
    return {one: stored.offsets.mirrored_offset(settings.name, settings.source_alias, *one) for one in partitions}


def starts_of(
    settings: MirrorSourceSettings,
    stored: Stored,
    positions: Mapping[TopicPartition, StoredPosition],
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, Start]:
    """Return what a task would find stored for each partition."""
    found = {}
    for one, offset in offsets_of(settings, stored, partitions).items():
        java_key = status_and_offset_topics.mirror_key(settings.name, settings.source_alias, *one)
        found[one] = start_of(positions.get(one), offset, plainly=java_key in stored.plain)
    return found
