"""Translate offsets between two clusters: by the map of the flow there, or the inverted map of the reverse flow. The
offset decides between them, because a topic that keeps its name holds copies and its own records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited, together
from connect.kafka.log.committed_offsets import Partition
from connect.kafka.log.log_ranges import has_records
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, known_offsets, list_offset
from connectors.checkpoint.offset_translation import OffsetSyncReader, Translator
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, How, LastKnown, TargetOffset
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition, is_recreated
from connectors.offset_map.reader import MapLimits, MapReader
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset
from connectors.offset_map.runs_and_chunks import OffsetLocation as Lies

if TYPE_CHECKING:
    from connectors.failover.clusters_and_lease import Site

_HOW = {Lies.INSIDE: How.EXACT, Lies.GAP: How.GAP, Lies.BEYOND: How.END, Lies.BELOW: How.BEGIN}
#: How long the leader of a partition may take to answer where it begins or ends.
LEADER_S: Final = 10.0
#: Groups that move read most partitions of a flow: the chunks of ten thousand take some 4 MB.
_LIMITS: Final = MapLimits(max_kept_bytes=32 << 20)
_LookUp = Callable[[int], Awaitable[MappedOffset | None]]
#: How close before an offset the map's last known record is, and the target offset.
_Candidate = tuple[int, TargetOffset]


class _Map:
    """The map of one flow, for topics that are still the same according to their ids. ``source`` and ``target`` are the
    flow's; None if one is gone."""

    def __init__(self, reader: MapReader, source: Cluster | None, target: Cluster | None) -> None:
        self.reader = reader
        self._clusters = source, target
        self._ids: tuple[dict[str, UUID | None], dict[str, UUID | None]] = {}, {}

    async def follow(self) -> None:
        await self.reader.follow()
        pairs = self.pairs()
        topics = {one.source_topic for one in pairs}, {one.target_topic for one in pairs}
        for cluster, ids, names in zip(self._clusters, self._ids, topics, strict=True):
            if cluster is not None and names:
                known = (await cluster.metadata(names)).topics
                ids.update({name: one.topic_id for name, one in known.items() if one.partitions})

    def pairs(self) -> list[MapPair]:
        """Return all that is copied now."""
        return [pair for one in self.reader.sources() if (pair := self.reader.current(one)) is not None]

    def pair_of(self, source: TopicPartition) -> MapPair | None:
        pair = self.reader.current(source)
        return pair if pair is not None and self._is_there(pair) else None

    def pair_to(self, target: TopicPartition) -> MapPair | None:
        for pair in self.reader.pairs_to(target):
            if pair == self.reader.current(pair.source) and self._is_there(pair):
                return pair
        return None

    def _is_there(self, pair: MapPair) -> bool:
        reported = (pair.source_topic, pair.source_topic_id), (pair.target_topic, pair.target_topic_id)
        for cluster, ids, (name, topic_id) in zip(self._clusters, self._ids, reported, strict=True):
            if cluster is not None and (name not in ids or is_recreated(ids[name], topic_id)):
                return False
        return True

    async def candidate(self, pair: MapPair | None, offset: int, *, back: bool = False) -> _Candidate | None:
        """Translate ``offset`` of the pair's source to its target; with ``back`` the other way."""
        if pair is None:
            return None
        look_up, inverse = (
            (self.reader.reverse, self.reader.forward) if back else (self.reader.forward, self.reader.reverse)
        )
        position = self.reader.position(pair.source)
        passed = -1 if position is None else position.target_end if back else position.next_source_offset
        target = pair.source if back else pair.target
        found = await look_up(pair, offset)
        return await _candidate(found, offset, target, partial(inverse, pair), is_passed=offset <= passed)


class Maps:
    """Readers of offset maps, one for each map, shared by one command. A later read fetches only what is new, and no
    chunk that is still kept (see :class:`connectors.offset_map.reader.MapLimits`)."""

    def __init__(self) -> None:
        self._readers: dict[tuple[Cluster, str, str, bool], MapReader] = {}

    def of(self, cluster: Cluster, flow: MirrorSourceSettings, *, must_be_seen: bool = True) -> MapReader:
        """Return the reader of the map that ``flow`` stores on ``cluster``; ``must_be_seen`` as in MapReader."""
        key = cluster, flow.map_topic, flow.name, must_be_seen
        if key not in self._readers:
            self._readers[key] = MapReader(
                cluster, flow.map_topic, connector=flow.name, must_be_seen=must_be_seen, limits=_LIMITS
            )
        return self._readers[key]


class TargetOffsets:
    """Target offsets between the clusters of a site. ``source`` is None if it is gone. If the reverse flow is not
    enabled, its map need not be visible."""

    def __init__(self, site: Site, source: Cluster | None) -> None:
        back, checkpoints, target, maps = site.back, site.checkpoints, site.target, site.maps
        self.flow, self._target = site.flow, target
        #: The map of the flow to the target.
        self.there = maps.of(target, site.flow)
        self._there = _Map(self.there, source, target)
        self._back: _Map | None = None
        self._by_syncs: Translator | None = None
        self._back_flow = back.flow
        if source is not None:
            self._back = _Map(maps.of(source, back, must_be_seen=back.enabled), target, source)
            syncs = OffsetSyncReader(
                source if checkpoints.syncs_on_source else target, checkpoints.offset_syncs_topic, only_last=False
            )
            self._by_syncs = Translator(checkpoints, source, target, self.there, syncs)

    async def begin(self) -> None:
        """Read both maps. Errors are those of :meth:`MapReader.follow`."""
        await together("maps", [one.follow() for one in (self._there, self._back) if one is not None])
        if self._by_syncs is not None:
            await self._by_syncs.follow()

    def notes(self) -> list[str]:
        """Return what is unknown, for people."""
        if self._back is None or not self._back.reader.unseen:
            return []
        return [f"{self._back_flow} is not enabled, so its offset map counts as empty: {self._back.reader.unseen}"]

    def is_mirrored(self, topic: str) -> bool:
        """Whether a topic of the source is copied to the target, or came from there."""
        came = self._back is not None and any(pair.target_topic == topic for pair in self._back.pairs())
        return came or self.flow.should_mirror(topic)

    def filled(self) -> set[str]:
        """Return topics of the target into which the flow has copied."""
        return {pair.target_topic for pair in self._there.pairs()}

    def last_known(self, ahead: int) -> LastKnown:
        """Return how far a source that is gone was copied; ``ahead`` as in LastKnown."""
        return LastKnown(self.there.stored_ms, len(self.there.sources()), ahead)

    async def of(self, topic: str, partition: int, offset: int) -> TargetOffset | None:
        """Return where a group whose next record is ``offset`` of the source continues; None if that is unknown."""
        source = TopicPartition(topic, partition)
        both = [await self._there.candidate(self._there.pair_of(source), offset)]
        if self._back is not None:
            both.append(await self._back.candidate(self._back.pair_to(source), offset, back=True))
        found = [one for one in both if one]
        best = max(found, key=lambda one: one[0])[1] if found else None
        if best is not None and best.how is not How.BEGIN:
            return best
        translated = [] if self._by_syncs is None else await self._by_syncs.translate(source, offset)
        for one in translated:  # a map of one connector knows one target
            # The map says that it begins there; it is unknown whether earlier records were to be copied.
            return TargetOffset(*one.target, one.offset, How.BEGIN if one.by_map else How.SYNCS)
        if best is None:
            return None
        # There may be copies older than the map: skip none of them.
        return best._replace(offset=await list_offset(self._target, (best.topic, best.partition), EARLIEST))

    async def first_there(self, log: Partition, target: Partition, offset: int) -> int | None:
        """Return the first offset of ``log``, on the source, whose copy is at ``offset`` of ``target`` or later; None
        if neither map knows."""
        source = TopicPartition(*log)
        found = list[MappedOffset | None]()
        if (pair := self._there.pair_of(source)) is not None and pair.target == target:
            position = self.there.position(source)
            assert position is not None, "it is copied"
            # Without a map nothing has arrived: the first is the one to be copied next.
            found.append(
                await self.there.reverse(pair, offset) or MappedOffset(position.next_source_offset, Lies.BELOW)
            )
        if self._back is not None and (pair := self._back.pair_to(source)) is not None and pair.source == target:
            found.append(await self._back.reader.forward(pair, offset))
        return first_of(found)

    def leaving_out(self, log: Partition, target: Partition) -> str:
        """Return the setting by which the flow may have left out records of ``log``, on the source, before the first
        that it copied into ``target``. Empty if there is none, or if the flow did not begin at the first record: then
        records left out cannot be distinguished from records never read."""
        flow, pair = self.flow, self.there.current(TopicPartition(*log))
        begins_later = flow.auto_offset_reset == "latest" or flow.initial_offsets_group
        return "" if pair is None or pair.target != target or begins_later else flow.changing_key

    async def by_checkpoint(self, target: Partition, upstream: int) -> TargetOffset | None:
        """Translate a checkpoint's upstream offset by the map; None if the map does not know its topic."""
        candidate = await self._there.candidate(self._there.pair_to(TopicPartition(*target)), upstream)
        known = candidate is not None and candidate[1].how is not How.BEGIN
        return candidate[1]._replace(how=How.CHECKPOINT) if candidate is not None and known else None

    def copied_from(self, target: TopicPartition) -> Position | None:
        """Return how far, and from which topic, ``target`` is copied now; None if that is unknown."""
        for pair in self.there.pairs_to(target):
            position = self.there.position(pair.source)
            if position is not None and pair == MapPair.of(position):
                return position
        return None


def first_of(found: Sequence[MappedOffset | None]) -> int | None:
    """Return the furthest offset that two maps give."""
    known = [one for one in found if one is not None]
    inside = [one for one in known if one.place is not Lies.BELOW]
    return max((one.offset for one in inside or known), default=None)


async def _candidate(
    found: MappedOffset | None, offset: int, target: Partition, inverse: _LookUp, *, is_passed: bool
) -> _Candidate | None:
    """Rate ``found``, what a map says of ``offset``; ``inverse`` reads the same map the other way. ``is_passed``: the
    copy has come this far, so the map's last record is followed only by markers and aborted records."""
    if found is None:
        return None
    how = How.EXACT if is_passed and found.place is Lies.BEYOND else _HOW[found.place]
    return await _nearness(found, offset, inverse), TargetOffset(*target, found.offset, how)


async def _nearness(found: MappedOffset, offset: int, inverse: _LookUp) -> int:
    if found.place is Lies.BELOW:
        return -1
    same = await inverse(found.offset)
    if same is not None and same.place is Lies.INSIDE and same.offset == offset:
        return offset
    before = await inverse(found.offset - 1) if found.offset else None
    if before is None or before.place is Lies.BELOW:
        return 0
    return min(before.offset + 1 if before.place is Lies.INSIDE else before.offset, offset)


async def readable(
    moves: Sequence[GroupMove], source: Cluster | None, target: Cluster, target_offsets: TargetOffsets
) -> tuple[list[GroupMove], list[GroupFinding]]:
    """Raise target offsets to the beginning of the log: before it consumers would be reset, perhaps to the end. Report
    records that groups skip by that, or at the beginning of the copy; ``source`` is None if it is gone."""
    starts, failed = await known_offsets(target, {one.target for one in moves}, EARLIEST, leader_s=LEADER_S)
    left = [
        about(one, GroupRule.UNREADABLE, f"could not be read: {failed[one.target]}")
        for one in moves
        if one.target in failed and not one.is_done
    ]
    found = [
        replace(one, after=starts[one.target], how=How.BEGIN) if one.after < starts.get(one.target, 0) else one
        for one in moves
    ]
    begun = [(one, before) for one, before in zip(found, moves, strict=True) if one.how is How.BEGIN]
    passed = [one for one, _ in begun]
    held = dict.fromkeys(passed, False) if source is None else await _held(source, passed, target_offsets)
    for one, before in begun:
        if one not in held:
            continue  # it has read all there is
        at, log = f"at {one.after}", f"{one.source[0]}-{one.source[1]}"
        # A log that still has its beginning has all that was copied.
        key = "" if one.after or not held[one] else target_offsets.leaving_out(one.source, one.target)
        if not held[one]:
            if one != before:
                left.append(
                    about(one, GroupRule.LOG_BEGIN, f"continues {at}, where the log begins: older records were deleted")
                )
        elif key:
            why = (
                f"continues where the copy begins: the records of {log} from offset {one.source_offset} up to there "
                f"were not copied, because {key} may leave records out"
            )
            left.append(about(one, GroupRule.LEFT_OUT, why))
        elif one != before:
            why = (
                f"begins {at} on the target, but the group's target offset is {before.after}: it would skip records "
                f"that cluster {target_offsets.flow.source_alias} still has"
            )
            left.append(about(one, GroupRule.DELETED, why))
        else:
            why = (
                f"begins {at} on the target, and the offset map has nothing older: from offset {one.source_offset} the "
                f"group would skip records of {log} that cluster {target_offsets.flow.source_alias} has and that were "
                "not copied"
            )
            left.append(about(one, GroupRule.NOT_COPIED, why))
    return found, left


async def _held(source: Cluster, begun: Sequence[GroupMove], target_offsets: TargetOffsets) -> dict[GroupMove, bool]:
    """Tell for each group that has not read all of the source whether it would skip records there; yes in doubt."""
    logs = {one.source for one in begun}
    begins, _ = await known_offsets(source, logs, EARLIEST, leader_s=LEADER_S)
    ends, _ = await known_offsets(source, logs, LATEST, leader_s=LEADER_S)

    async def is_held(one: GroupMove) -> bool:
        begin = begins.get(one.source, 0)
        if begin > one.source_offset:
            first = await target_offsets.of(*one.source, begin)
            if first is not None and first.how is not How.BEGIN and first.offset >= one.after:
                return False
        behind = await target_offsets.first_there(one.source, one.target, one.after)
        return behind is None or await has_records(source, one.source, max(begin, one.source_offset), behind)

    behind = [one for one in begun if one.source_offset < ends.get(one.source, one.source_offset + 1)]
    return dict(zip(behind, await gather_limited(is_held, behind), strict=True))


async def without_empty_steps(moves: Sequence[GroupMove], target: Cluster) -> list[GroupMove]:
    """Keep a group's committed offset on the target if only transaction markers or aborted records are between its
    target offset and that one: going back would repeat nothing. Undecided or missing records do not count as empty.
    Raises RetriableError if the target does not name its leaders."""
    back = {one.target for one in moves if one.goes_back}
    decided, _ = await known_offsets(target, back, LATEST, READ_COMMITTED, leader_s=LEADER_S)

    async def kept(one: GroupMove) -> GroupMove:
        moved_to = one.after + one.goes_back
        if not one.goes_back or moved_to > decided.get(one.target, -1):
            return one
        try:
            is_empty = not await has_records(target, one.target, one.after, moved_to)
        except HeliographError:
            return one  # it stays blocked
        return replace(one, after=moved_to) if is_empty else one

    return await gather_limited(kept, moves)


def about(one: GroupMove, rule: GroupRule, why: str) -> GroupFinding:
    """Return a finding about one partition of a group, by its name on the target."""
    return GroupFinding(one.group, rule, why, f"{one.target[0]}-{one.target[1]} ")
