"""Where an offset of one cluster is on the other: by the map of the flow to there, or by that of the flow from there,
read the other way. Which of the two knows is decided by offset, as a topic that keeps its name holds both kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from uuid import UUID

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.group_offsets import Partition
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offset, told_offsets
from connectors.checkpoint.settings import CheckpointSettings
from connectors.checkpoint.syncs import OffsetSyncs
from connectors.checkpoint.translating import Translator
from connectors.dataplane.plan import TopicPartition
from connectors.failover.own import Range, read_ranges
from connectors.failover.snapshot import Finding, GroupMove, How, Place, Rule
from connectors.map_reader import MapReader
from connectors.offset_map import Pair, Translation
from connectors.offset_map import Place as Lies
from connectors.settings import MirrorSourceSettings

_HOW = {Lies.INSIDE: How.EXACT, Lies.GAP: How.GAP, Lies.BEYOND: How.END, Lies.BELOW: How.BEGIN}
_LookUp = Callable[[int], Awaitable[Translation | None]]
#: How near the last record that a map knows lies before an offset, and the place.
_Candidate = tuple[int, Place]


class Places:
    """Between the clusters of a flow.

    Args:
        flow: To where a reader goes.
        back: The flow the other way; it need not be enabled, and then its map need not be there to be seen.
        target: Where the reader goes; ``source`` None where it is gone.
    """

    def __init__(
        self,
        flow: MirrorSourceSettings,
        back: MirrorSourceSettings,
        checkpoints: CheckpointSettings,
        source: Cluster | None,
        target: Cluster,
    ) -> None:
        self.flow = flow
        self._source = source
        self._target = target
        self._checkpoints = checkpoints
        #: Of the flow to the target; and that of the flow from it, which lies on the source.
        self.there = MapReader(target, flow.map_topic, connector=flow.name)
        self.back = (
            None
            if source is None
            else MapReader(source, back.map_topic, connector=back.name, must_be_seen=back.enabled)
        )
        self._back_flow = back.flow
        self._by_syncs: Translator | None = None
        self._ids: dict[tuple[Cluster, str], UUID | None] = {}

    async def begin(self) -> None:
        """Read both maps. Raises as :meth:`MapReader.follow` and the clusters."""
        await self.there.follow()
        readers: list[tuple[MapReader, Cluster | None, Cluster | None]] = [(self.there, self._source, self._target)]
        if self.back is not None:
            await self.back.follow()
            readers.append((self.back, self._target, self._source))
        for reader, source, target in readers:
            pairs = [pair for one in reader.sources() if (pair := reader.current(one)) is not None]
            await self._learn_ids(source, {pair.source_topic for pair in pairs})
            await self._learn_ids(target, {pair.target_topic for pair in pairs})
        if self._source is not None:
            settings = self._checkpoints
            syncs = OffsetSyncs(
                self._source if settings.syncs_on_source else self._target, settings.offset_syncs_topic, only_last=False
            )
            self._by_syncs = Translator(settings, self._source, self._target, self.there, syncs)
            await self._by_syncs.follow()

    def notes(self) -> list[str]:
        """What is not known, for who reads the places."""
        if self.back is None or not self.back.unseen:
            return []
        return [f"{self._back_flow} is not enabled, and its offset map counts as empty: {self.back.unseen}"]

    def is_mirrored(self, topic: str) -> bool:
        """Whether a topic of the source is carried to the target, or came from there."""
        if self.flow.should_mirror(topic):
            return True
        back = self.back
        return back is not None and any(pair.target_topic == topic for pair in self._current(back))

    def filled(self) -> set[str]:
        """Topics of the target that hold what the flow has copied."""
        return {pair.target_topic for pair in self._current(self.there)}

    async def place(self, topic: str, partition: int, offset: int) -> Place | None:
        """Where who would read ``offset`` of the source next goes on; None where nothing is known of it."""
        source = TopicPartition(topic, partition)
        found = [one for one in (await self._forward(source, offset), await self._reverse(source, offset)) if one]
        best = max(found, key=lambda one: one[0])[1] if found else None
        if best is not None and best.how is not How.BEGIN:
            return best
        translated = [] if self._by_syncs is None else await self._by_syncs.translate(source, offset)
        for one in translated:  # a map of one connector knows one place
            # By the map that is where it begins: of what lies before nobody knows whether it was to be copied.
            return Place(*one.target, one.offset, How.BEGIN if one.by_map else How.SYNCS)
        return None if best is None else await self._at_begin(best)

    async def _at_begin(self, place: Place) -> Place:
        """Copies that are older than a map may be there: nothing of them is skipped."""
        start = await list_offset(self._target, (place.topic, place.partition), EARLIEST)
        return place._replace(offset=start)

    async def first_there(self, log: Partition, target: Partition, offset: int) -> int | None:
        """The offset of ``log``, on the source, from which on its records lie at ``offset`` of ``target`` or behind, as
        far as the maps know; None where neither knows of them."""
        source = TopicPartition(*log)
        found = [
            one
            for one in (
                await self._first_copied(source, target, offset),
                await self._first_back(source, target, offset),
            )
            if one
        ]
        inside = [one for one in found if one.place is not Lies.BELOW]
        return max((one.offset for one in inside or found), default=None)

    def leaving_out(self, log: Partition, target: Partition) -> str:
        """The setting by which the flow may have left out records of ``log``, on the source, that lie before all it
        has copied into ``target``. Empty where none does, and where it did not begin at the first: which of them it
        left out and which it never saw nobody can tell then."""
        flow, pair = self.flow, self.there.current(TopicPartition(*log))
        if pair is None or (pair.target_topic, pair.target_partition) != target:
            return ""
        if flow.auto_offset_reset == "latest" or flow.initial_offsets_group:
            return ""
        return flow.changing_key

    async def _first_copied(self, source: TopicPartition, target: Partition, offset: int) -> Translation | None:
        pair, position = self.there.current(source), self.there.position(source)
        if pair is None or position is None or not self._is_there(pair, self._source, self._target):
            return None
        if (pair.target_topic, pair.target_partition) != target:
            return None
        # Without a map nothing has arrived yet: the first is the one that is copied next.
        return await self.there.reverse(pair, offset) or Translation(position.next_source_offset, Lies.BELOW)

    async def _first_back(self, source: TopicPartition, target: Partition, offset: int) -> Translation | None:
        pair = self._back_pair(source)
        if self.back is None or pair is None or (pair.source_topic, pair.source_partition) != target:
            return None
        return await self.back.forward(pair, offset)

    async def by_checkpoint(self, target: Partition, upstream: int) -> Place | None:
        """The place of a checkpoint's upstream offset, found anew; None where the map does not know its topic."""
        for pair in self.there.pairs_to(TopicPartition(*target)):
            if pair == self.there.current(TopicPartition(pair.source_topic, pair.source_partition)):
                candidate = await self._forward(TopicPartition(pair.source_topic, pair.source_partition), upstream)
                if candidate is not None and candidate[1].how is not How.BEGIN:
                    return candidate[1]._replace(how=How.CHECKPOINT)
        return None

    def copied_up_to(self, target: TopicPartition) -> int | None:
        """The source offset up to which ``target`` is copied; None where nobody knows."""
        for pair in self.there.pairs_to(target):
            source = TopicPartition(pair.source_topic, pair.source_partition)
            position = self.there.position(source)
            if position is not None and pair == self.there.current(source):
                return position.next_source_offset
        return None

    def source_id(self, target: TopicPartition) -> UUID | None:
        """The id of the topic of the source that ``target`` is copied from now; None if it is not known."""
        for pair in self.there.pairs_to(target):
            if pair == self.there.current(TopicPartition(pair.source_topic, pair.source_partition)):
                return pair.source_topic_id
        return None

    async def _forward(self, source: TopicPartition, offset: int) -> _Candidate | None:
        pair = self.there.current(source)
        if pair is None or not self._is_there(pair, self._source, self._target):
            return None

        async def reverse(downstream: int, pair: Pair = pair) -> Translation | None:
            return await self.there.reverse(pair, downstream)

        found = await self.there.forward(pair, offset)
        position = self.there.position(source)
        is_passed = position is not None and offset <= position.next_source_offset
        target = (pair.target_topic, pair.target_partition)
        return await _candidate(found, offset, target, reverse, is_passed=is_passed)

    async def _reverse(self, copy: TopicPartition, offset: int) -> _Candidate | None:
        back, pair = self.back, self._back_pair(copy)
        if back is None or pair is None:
            return None

        async def forward(upstream: int) -> Translation | None:
            return await back.forward(pair, upstream)

        found = await back.reverse(pair, offset)
        position = back.position(TopicPartition(pair.source_topic, pair.source_partition))
        is_passed = position is not None and offset <= position.target_end
        target = (pair.source_topic, pair.source_partition)
        return await _candidate(found, offset, target, forward, is_passed=is_passed)

    def _back_pair(self, copy: TopicPartition) -> Pair | None:
        """Of the flow back, which fills ``copy`` now."""
        for pair in self.back.pairs_to(copy) if self.back is not None else ():
            assert self.back is not None
            is_current = self.back.current(TopicPartition(pair.source_topic, pair.source_partition)) == pair
            if is_current and self._is_there(pair, self._target, self._source):
                return pair
        return None

    @staticmethod
    def _current(reader: MapReader) -> list[Pair]:
        return [pair for one in reader.sources() if (pair := reader.current(one)) is not None]

    def _is_there(self, pair: Pair, source: Cluster | None, target: Cluster | None) -> bool:
        """Whether its topics are those that are there, as far as anybody can tell."""
        ends = ((source, pair.source_topic, pair.source_topic_id), (target, pair.target_topic, pair.target_topic_id))
        for cluster, topic, topic_id in ends:
            if cluster is None:
                continue
            if (cluster, topic) not in self._ids:
                return False
            now = self._ids[cluster, topic]
            if topic_id is not None and now is not None and now != topic_id:
                return False
        return True

    async def _learn_ids(self, cluster: Cluster | None, topics: Collection[str]) -> None:
        if cluster is None or not topics:
            return
        for name, topic in (await cluster.metadata(set(topics))).topics.items():
            if topic.partitions:
                self._ids[cluster, name] = topic.topic_id


async def _candidate(
    found: Translation | None, offset: int, target: Partition, inverse: _LookUp, *, is_passed: bool
) -> _Candidate | None:
    """``found`` is what a map says of ``offset``; ``inverse`` the same map read the other way. ``is_passed``: the copy
    has come as far, so behind the map's last record lies nothing of it but markers and what was aborted."""
    if found is None:
        return None
    how = How.EXACT if is_passed and found.place is Lies.BEYOND else _HOW[found.place]
    return await _nearness(found, offset, inverse), Place(*target, found.offset, how)


async def _nearness(found: Translation, offset: int, inverse: _LookUp) -> int:
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
    moves: Sequence[GroupMove], source: Cluster | None, target: Cluster, places: Places
) -> tuple[list[GroupMove], list[Finding]]:
    """None before its log: there consumers would be reset, perhaps to the end. With them what those pass over that go
    elsewhere by that, or to the begin of the copy; ``source`` is None if it is gone. Raises as the clusters."""
    starts, failed = await told_offsets(target, {one.target for one in moves}, EARLIEST)
    unknown = [
        Finding(one.group, Rule.UNREADABLE, f"could not be looked at: {failed[one.target]}", where(one))
        for one in moves
        if one.target in failed and not one.is_done
    ]
    found = [
        replace(one, after=starts[one.target], how=How.BEGIN) if one.after < starts.get(one.target, 0) else one
        for one in moves
    ]
    begun = [(one, before) for one, before in zip(found, moves, strict=True) if one.how is How.BEGIN]
    if source is None or not begun:
        return found, [*unknown, *(_log_begin(one) for one, before in begun if one != before)]
    begins, _ = await told_offsets(source, {one.source for one, _ in begun}, EARLIEST)
    ends, _ = await told_offsets(source, {one.source for one, _ in begun}, LATEST)
    left = unknown
    behind = [each for each in begun if each[0].source_offset < ends.get(each[0].source, each[0].source_offset + 1)]
    unread = [await _unread(one, begins, places) for one, _ in behind]
    has_it = await gather_limited(
        partial(_is_held, source), zip([one.source for one, _ in behind], unread, strict=True)
    )
    for (one, before), is_held in zip(behind, has_it, strict=True):
        if is_held:
            # A log that still has its beginning has all that was copied.
            key = "" if one.after else places.leaving_out(one.source, one.target)
            held = _deleted(one, before, source) if one != before else _not_copied(one, source)
            left.append(_left_out(one, key) if key else held)
        elif one != before:
            left.append(_log_begin(one))
    return found, left


async def without_empty_steps(moves: Sequence[GroupMove], target: Cluster) -> list[GroupMove]:
    """Where a group stands on the target, and no record lies between its place and there, but the marker of a
    transaction, or what one has aborted: it stays, for it would not be taken back by anything. What is not decided yet,
    or not there, is not known to be empty. Raises RetriableError where the target does not tell its leaders."""
    back = {one.target for one in moves if one.goes_back}
    decided, _ = await told_offsets(target, back, LATEST, READ_COMMITTED) if back else ({}, {})
    found = []
    for one in moves:
        stands = one.after + one.goes_back
        is_empty = one.goes_back and stands <= decided.get(one.target, -1) and await _is_empty(target, one, stands)
        found.append(replace(one, after=stands) if is_empty else one)
    return found


async def _is_empty(target: Cluster, one: GroupMove, end: int) -> bool:
    try:
        return not await _has_records(target, one.target, one.after, end)
    except HeliographError:
        return False  # then it stands in the way, as it does


async def _unread(one: GroupMove, begins: Mapping[Partition, int], places: Places) -> Range | None:
    """Where at the source lies what the group has not read, and what on the target is before its place, or not there;
    None in doubt."""
    begin = begins.get(one.source, 0)
    if begin > one.source_offset:
        first = await places.place(*one.source, begin)
        if first is not None and first.how is not How.BEGIN and first.offset >= one.after:
            return begin, begin
    behind = await places.first_there(one.source, one.target, one.after)
    return None if behind is None else (max(begin, one.source_offset), behind)


async def _is_held(source: Cluster, unread: tuple[Partition, Range | None]) -> bool:
    """Whether the source has records there; in doubt it has."""
    log, span = unread
    return span is None or await _has_records(source, log, *span)


async def _has_records(source: Cluster, log: Partition, begin: int, end: int) -> bool:
    """A compacted log has holes, and one of transactions markers: neither is passed over."""
    if begin >= end:
        return False
    async with aclosing(read_ranges(source, TopicPartition(*log), [(begin, end)])) as records:
        async for _ in records:
            return True
    return False


def where(one: GroupMove) -> str:
    """The partition of the target, before a sentence about it."""
    return f"{one.target[0]}-{one.target[1]} "


def _log_begin(one: GroupMove) -> Finding:
    why = f"goes on at {one.after}, where the log begins: what was before it is deleted"
    return Finding(one.group, Rule.LOG_BEGIN, why, where(one))


def _left_out(one: GroupMove, key: str) -> Finding:
    why = (
        f"goes on where the copy begins: what {one.source[0]}-{one.source[1]} has before it from offset "
        f"{one.source_offset} on was not copied, as {key} may leave records out"
    )
    return Finding(one.group, Rule.LEFT_OUT, why, where(one))


def _deleted(one: GroupMove, before: GroupMove, source: Cluster) -> Finding:
    why = (
        f"begins at {one.after} on the target, and the group's target offset is {before.after}: it would skip records "
        f"that cluster {source.name} still has"
    )
    return Finding(one.group, Rule.DELETED, why, where(one))


def _not_copied(one: GroupMove, source: Cluster) -> Finding:
    why = (
        f"begins at {one.after} on the target, and the offset map knows of nothing older: the group would skip what "
        f"cluster {source.name} has of {one.source[0]}-{one.source[1]} from offset {one.source_offset} on, which was "
        "not copied"
    )
    return Finding(one.group, Rule.NOT_COPIED, why, where(one))
