"""Records that only the old primary holds, after a failover that nobody had planned: found."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from connect.kafka.offsets import LATEST, READ_COMMITTED, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.failover.appended import Appended, read_appended
from connectors.failover.draining import CopiedEnd, copied_ends, written_on
from connectors.failover.logs import Fate, Log, logs_now
from connectors.failover.marks import Mark, read_marks
from connectors.failover.own import Own, Range, count, own_ranges, read_ranges, without
from connectors.failover.side_by_side import side_by_side
from connectors.failover.site import Site
from connectors.failover.uncopied import Uncopied, extents, not_there, uncopied
from connectors.map_reader import MapReader
from connectors.positions import Position
from connectors.source.reach import target_of
from connectors.stored_offsets import read_positions

_CREATE_TIME: Final = 0
_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Stranded:
    """Of one partition of the source. ``doubtful``: so many of these arrived, though the flow did not store that, and
    nobody knows which they are."""

    own: Own
    target: TopicPartition
    ranges: tuple[Range, ...]
    doubtful: int = 0
    topic_id: UUID | None = None
    #: See :class:`connectors.failover.uncopied.Uncopied`.
    may_have_arrived: bool = False
    #: Later ones were appended, and the first of these come behind them.
    is_late: bool = False
    #: The first of these may have been appended: the target has deleted where their headers would lie.
    may_be_appended: bool = False
    #: See :class:`connectors.failover.appended.Appended`.
    unclear: str = ""
    #: The first offset that can be stranded at all.
    since: int = 0
    #: What was appended of it before; None for nothing.
    before: Mark | None = None

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.own.topic, self.own.partition)

    def mark(self, begin: int) -> Mark:
        """For who appends them behind ``begin`` of the target."""
        return Mark(self.source, self.topic_id, self.target, begin, self.own.last) | self.before


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was appended of one partition, and what is still to be; None where all of it is."""

    source: TopicPartition
    appended: Appended
    left: Stranded | None


async def find(site: Site, *, waits: bool = True) -> list[Stranded]:
    """Of every partition that the flow has copied some of, or takes, without what was appended. ``waits`` and errors as
    of :func:`connectors.failover.appended.read_appended`; without waiting more may be found, never less."""
    return [one.left for one in await _look(site, waits=waits) if one.left is not None]


async def appended_up_to(site: Site) -> dict[TopicPartition, int]:
    """The source offset of each partition up to which all that was stranded is appended to the target; none where
    nothing was. Raises as the clusters."""
    found = {}
    for one in await _look(site, waits=True):
        first = one.appended.end if one.left is None else one.left.own.first
        up_to = min(first, one.appended.end) - 1
        if up_to >= 0:
            found[one.source] = up_to
    return found


async def _look(site: Site, *, waits: bool) -> list[_Seen]:
    stored = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    # The worker of the flow back goes on with heartbeats there, which are nobody's records.
    beats = {one for one in stored if site.flow.policy.is_heartbeats_topic(one.topic)}
    positions = {one: position for one, position in stored.items() if one not in beats}
    logs = await logs_now(site.source, positions)
    kept = await _kept(site, positions)
    missing = await not_there(site, {target_of(one) for one in positions.values()})
    ends = await _decided_ends(site, logs)
    new = await extents(site, positions)
    # In this order: what the flow back stores meanwhile is in its map too.
    brought = await _brought(site, {*ends, *new})
    copies = MapReader(site.source, site.back.map_topic, connector=site.back.name)
    await copies.follow()
    written = await copied_ends(site)

    async def look_at(one: TopicPartition) -> _Seen | None:
        position, log = positions[one], logs[one]
        begin = begin_of_stranded(log, is_kept=one in kept)
        ranges = without(await own_ranges(copies, one, log.topic_id, begin, ends[one]), brought.get(one, ()))
        if await count(site.source, one, ranges) is None:
            return None
        target = target_of(position)
        appended = Appended()
        if target not in missing:
            first = position.target_end if one in kept else 0
            appended = await _appended(site, one, target, first, topic_id=log.topic_id, waits=waits)
        arrived = await _arrived(site, one, ranges, position, written[one])
        arrived = arrived or await _arrived_before(site, one, ranges, appended, written[one].surplus)
        doubtful = 0 if arrived else written[one].surplus
        left = without(without(ranges, [(0, arrived)]), appended.ranges)
        own = await count(site.source, one, left)
        found = Stranded(own, target, tuple(left), doubtful, log.topic_id, since=begin) if own else None
        return _seen(one, appended, found)

    seen = await side_by_side(look_at, [one for one in positions if logs[one].fate is not Fate.GONE])
    found = [one for one in seen if one is not None]
    whole = await uncopied(site, new, copies, brought)
    found = await _doubting(site, [*found, *await _never_copied(site, whole, waits=waits)])
    return sorted(found, key=lambda one: one.source)


async def _doubting(site: Site, seen: list[_Seen]) -> list[_Seen]:
    """What headers do not tell that the target has deleted, marks do."""
    if not any(one.left is not None for one in seen):
        return seen
    marks = await read_marks(site.target, site.flow.map_topic, site.flow.flow)
    found = []
    for one in seen:
        if (left := one.left) is not None:
            fresh = left.mark(one.appended.log_begin)
            held = marks.may_hold(fresh, left.own.first, one.appended, left.since)
            left = replace(left, may_be_appended=held, before=marks.before(fresh, one.appended, left.since))
        found.append(replace(one, left=left))
    return found


def _seen(source: TopicPartition, appended: Appended, left: Stranded | None) -> _Seen:
    if left is not None:
        first = left.own.first
        left = replace(left, is_late=first < appended.end, unclear=appended.unclear)
    return _Seen(source, appended, left)


async def _decided_ends(site: Site, logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Where those that are there end without what transactions have open."""
    there = [one for one, log in logs.items() if log.fate is not Fate.GONE]
    ends = await list_offsets(site.source, there, LATEST, READ_COMMITTED) if there else {}
    return {one: ends[one] for one in there}


async def _brought(site: Site, among: Collection[TopicPartition]) -> dict[TopicPartition, list[Range]]:
    """What the flow back has brought to these behind what it has stored: while it runs there always is some."""
    back = site.turned()
    positions = await read_positions(back.target, back.flow.map_topic, back.flow.name)
    return written_on(positions, await copied_ends(back, among=among))


async def _never_copied(site: Site, whole: Sequence[Uncopied], *, waits: bool) -> list[_Seen]:
    missing = await not_there(site, {one.target for one in whole})

    async def look_at(one: Uncopied) -> _Seen:
        appended = Appended()
        if _may_hold_appended(one, missing):
            appended = await _appended(site, one.source, one.target, 0, topic_id=one.topic_id, waits=waits)
        ranges = without(one.ranges, appended.ranges)
        own = await count(site.source, one.source, ranges) if appended.ranges else one.own
        if own is None:
            return _Seen(one.source, appended, None)
        left = Stranded(own, one.target, tuple(ranges), 0, one.topic_id, one.may_have_arrived)
        return _seen(one.source, appended, left)

    return await side_by_side(look_at, whole)


def _may_hold_appended(one: Uncopied, missing: Collection[TopicPartition]) -> bool:
    """Whether somebody may have appended to its target: what may have arrived is never appended, and to look for it
    would be to read all that a predecessor has copied."""
    return one.target not in missing and not one.may_have_arrived


def begin_of_stranded(log: Log, *, is_kept: bool) -> int:
    """The first offset that was not copied into the topic that is on the target now (pure). ``is_kept``: it is the one
    that the flow has copied into."""
    return max(log.begin, log.same_to) if is_kept else log.begin


async def _kept(site: Site, positions: Mapping[TopicPartition, Position]) -> set[TopicPartition]:
    """Those whose topic on the target is the one that the flow has copied into."""
    if not positions:
        return set()
    topics = (await site.target.metadata({one.target_topic for one in positions.values()})).topics
    return {
        one
        for one, position in positions.items()
        if (known := topics.get(position.target_topic)) is not None
        and position.target_partition in known.partitions
        and (None in (known.topic_id, position.target_topic_id) or known.topic_id == position.target_topic_id)
    }


async def _arrived(
    site: Site, one: TopicPartition, ranges: Sequence[Range], position: Position, written: CopiedEnd
) -> int:
    """Before which offset all of them arrived: the first, as many as the flow wrote behind what it stored, if the last
    of them is the last that it wrote. 0 in doubt, for what is not known to have arrived counts as stranded."""
    if not written.surplus or site.flow.changing_key:
        return 0
    target = target_of(position)
    ours = [each async for each in _first(read_ranges(site.source, one, ranges), written.surplus)]
    theirs = [each async for each in read_ranges(site.target, target, [(written.offset - 1, written.offset)])]
    if len(ours) < written.surplus or len(theirs) != 1 or not is_same(ours[-1], theirs[0]):
        return 0
    return int(ours[-1].offset) + 1


async def _arrived_before(
    site: Site, one: TopicPartition, ranges: Sequence[Range], appended: Appended, surplus: int
) -> int:
    """Before which offset all of them arrived, of as many as the flow wrote behind what it stored: what was appended
    says so, for nothing is appended while it is not known which they are. 0 in doubt."""
    if not surplus or not appended.ranges:
        return 0
    first = appended.ranges[0][0]
    before = await count(site.source, one, without(ranges, [(first, _END)]))
    return first if before is None or before.records <= surplus else 0


async def _first(records: AsyncIterator[Any], wanted: int) -> AsyncIterator[Any]:
    async for record in records:
        yield record
        wanted -= 1
        if not wanted:
            return


def is_same(ours: Any, theirs: Any) -> bool:
    """Whether a record, as aiokafka has it, is the copy of another (pure)."""
    if theirs.timestamp_type == _CREATE_TIME and ours.timestamp != theirs.timestamp:
        return False
    headers = [[(name, bytes(value or b"")) for name, value in each.headers] for each in (ours, theirs)]
    return (ours.key, ours.value) == (theirs.key, theirs.value) and headers[0] == headers[1]


async def _appended(
    site: Site, one: TopicPartition, target: TopicPartition, begin: int, *, topic_id: UUID | None, waits: bool
) -> Appended:
    alias = site.flow.source_alias
    return await read_appended(site.target, target, begin, alias, one, topic_id=topic_id, waits=waits)


def records_of(site: Site, one: Stranded) -> AsyncGenerator[Any, None]:
    """As aiokafka has them."""
    return read_ranges(site.source, one.source, one.ranges)
