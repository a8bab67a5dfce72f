"""What ``sync.group.offsets`` would do to the target's groups now, and what it would leave: asked with the parts that
do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Committed, Partition, committed, list_groups
from connectors.changes import MoveGroup
from connectors.checkpoint.groups import GroupFinder
from connectors.checkpoint.looking import GroupLook
from connectors.checkpoint.offset_sync import AHEAD, to_move, why_left
from connectors.checkpoint.settings import CheckpointSettings
from connectors.dataplane.plan import TopicPartition
from connectors.mirror_records import Checkpoint


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """A group that stands at ``found`` in a remote partition (None: nowhere) and not where its source stands,
    ``expected``, and why it is left there."""

    group: str
    topic: str
    partition: int
    expected: int
    found: int | None
    why: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """``alone``: by group, why it is not touched at all. ``unknown``: what could not be looked at."""

    moves: tuple[MoveGroup, ...] = ()
    left: tuple[GroupLeft, ...] = ()
    alone: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


async def plan_groups(settings: CheckpointSettings) -> GroupPlan:
    """Nothing where it is off. Raises HeliographError where a cluster cannot be asked at all."""
    if settings.sync_interval_s is None or settings.emit_interval_s is None:
        return GroupPlan()
    async with AsyncExitStack() as closing:
        source = Cluster(settings.connection("source", "admin", "checkpoint-source-admin"), settings.source_alias)
        target = Cluster(settings.connection("target", "admin", "checkpoint-target-admin"), settings.target_alias)
        closing.push_async_callback(source.close)
        closing.push_async_callback(target.close)
        groups = await GroupFinder(settings, source).find()
        look = GroupLook(settings, groups, source, target, source if settings.syncs_on_source else target)
        await look.begin()
        return await _look_at(look, target, groups)


async def _look_at(look: GroupLook, target: Cluster, groups: Sequence[str]) -> GroupPlan:
    moves: list[MoveGroup] = []
    left: list[GroupLeft] = []
    alone: dict[str, str] = {}
    unknown: list[str] = []
    listed = await list_groups(target)
    for group in groups:
        if why := why_left(listed.get(group)):
            alone[group] = why
        try:
            await look.newer(group)
            present = await committed(target, group)
        except HeliographError as error:
            unknown.append(str(error))
            continue
        wanted = look.checkpoints.standing(group)
        left += groups_left(wanted, present, why)
        if not why:
            moves += (
                MoveGroup(group, *place, before.offset if (before := present.get(place)) else None, after.offset)
                for place, after in sorted(to_move(wanted, present).items())
            )
    return GroupPlan(tuple(moves), tuple(left), alone, tuple(unknown))


def groups_left(
    wanted: Mapping[TopicPartition, Checkpoint], present: Mapping[Partition, Committed], why: str
) -> Iterator[GroupLeft]:
    """What stays different of a group: all that differs where it is left alone (``why``), else what is ahead. Pure."""
    for place, checkpoint in sorted(wanted.items()):
        known = present.get((place.topic, place.partition))
        found = None if known is None else known.offset
        is_ahead = found is not None and found > checkpoint.downstream_offset
        if is_ahead or (why and found != checkpoint.downstream_offset):
            at = (place.topic, place.partition, checkpoint.downstream_offset, found)
            yield GroupLeft(checkpoint.group, *at, why or AHEAD)
