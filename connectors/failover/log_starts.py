"""Places before which the target holds nothing of the copy: it has deleted it, or never had it. Groups go on where its
log, or the copy, begins, and it is said what that passes over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.group_offsets import Partition
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, told_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.failover.own import Range, read_ranges
from connectors.failover.places import Places
from connectors.failover.snapshot import Finding, GroupMove, How, Rule


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
