"""Places that the target has deleted: groups go on where its log begins, and it is said what that passes over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Partition
from connect.kafka.offsets import EARLIEST, LATEST, told_offsets
from connectors.failover.model import GroupMove, How, Left
from connectors.failover.places import Places


async def readable(
    moves: Sequence[GroupMove], source: Cluster | None, target: Cluster, places: Places, *, skips_deleted: bool
) -> tuple[list[GroupMove], list[Left]]:
    """None before its log: there consumers would be reset, perhaps to the end. Beside them those that lie elsewhere by
    that, which is an obstacle where ``source`` (None where it is gone) still has what they pass over, unless somebody
    has said ``skips_deleted``. Raises as the clusters."""
    starts, _ = await told_offsets(target, {one.target for one in moves}, EARLIEST)
    deleted = [one for one in moves if one.after < starts.get(one.target, 0)]
    found = [
        replace(one, after=starts[one.target], how=How.BEGIN) if one.after < starts.get(one.target, 0) else one
        for one in moves
    ]
    if source is None or not deleted:
        return found, [_told(one, starts[one.target]) for one in deleted]
    begins, _ = await told_offsets(source, {one.source for one in deleted}, EARLIEST)
    ends, _ = await told_offsets(source, {one.source for one in deleted}, LATEST)
    left = []
    for one in deleted:
        start = starts[one.target]
        if one.source_offset >= ends.get(one.source, one.source_offset + 1):
            continue  # it has read all there is
        if await _is_held(one, start, begins, places):
            left.append(_passed_over(one, start, source, is_obstacle=not skips_deleted))
        else:
            left.append(_told(one, start))
    return found, left


async def _is_held(one: GroupMove, start: int, begins: Mapping[Partition, int], places: Places) -> bool:
    """Whether the source has records that the group has not read and that lie before ``start`` on the target; in doubt
    it has."""
    begin = begins.get(one.source, 0)
    if begin <= one.source_offset:
        return True
    first = await places.place(*one.source, begin)
    return first is None or first.offset < start


def _told(one: GroupMove, start: int) -> Left:
    why = f"goes on at {start}, where the log begins: what was before it is deleted"
    return Left(one.group, f"{one.target[0]}-{one.target[1]} ", why, is_obstacle=False)


def _passed_over(one: GroupMove, start: int, source: Cluster, *, is_obstacle: bool) -> Left:
    why = (
        f"begins at {start} on the target, and the group's place is {one.after}: it would skip records that cluster "
        f"{source.name} still has; have it read them there first, or --accept deleted"
    )
    return Left(one.group, f"{one.target[0]}-{one.target[1]} ", why, is_obstacle=is_obstacle)
