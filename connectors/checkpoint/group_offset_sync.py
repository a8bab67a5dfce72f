"""Move the target's consumer groups to their checkpoints (``sync.group.offsets``), and plan these moves. Java's rule
(``MirrorCheckpointTask.syncGroupOffset``): a group with active members is skipped, and no group goes back. Java checks
the group an interval before it writes; here the broker refuses a group in use."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster, TopicMetadata, error_name
from connect.kafka.concurrency import closing, gather_limited
from connect.kafka.log.committed_offsets import (
    Committed,
    GroupInUse,
    GroupListing,
    Partition,
    committed,
    list_groups,
    move,
)
from connectors.checkpoint.group_checkpoints import Checkpoints, GroupFinder, GroupLook
from connectors.config.connector_configs import CheckpointSettings
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.types import TopicPartition, is_recreated
from connectors.topic_sync.cluster_changes import MoveGroup

log = logging.getLogger(__name__)

AHEAD: Final = "it is ahead, and no group is moved back"
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
#: A call that takes longer is left to the next run.
_CALL_S: Final = 5.0


def to_move(
    checkpoints: Mapping[TopicPartition, Checkpoint], present: Mapping[Partition, Committed]
) -> dict[Partition, Committed]:
    """Return what to store for a group: checkpoints later than ``present``, or where no offset is stored."""
    return {
        place: Committed(checkpoint.downstream_offset, checkpoint.metadata)
        for place, checkpoint in checkpoints.items()
        if (known := present.get(place)) is None or known.offset < checkpoint.downstream_offset
    }


def count_ahead(checkpoints: Mapping[TopicPartition, Checkpoint], present: Mapping[Partition, Committed]) -> int:
    """Count partitions in which a group is past its checkpoint, because a consumer has read there."""
    return sum(place in present and present[place].offset > one.downstream_offset for place, one in checkpoints.items())


def why_left(group: GroupListing | None) -> str:
    """Why a group of the target is not moved; empty if it may be."""
    if group is None:
        return ""
    if not group.has_offsets:
        return f"on the target it is a group of another kind ({group.kind}, {group.protocol or 'no protocol'})"
    if not group.is_idle:
        return f"on the target it has members (it is {group.state})"
    return ""


def why_elsewhere(looked_at: UUID | None, now: TopicMetadata | None) -> str:
    """Why a remote topic is not the one an offset was translated for, as far as ids tell; empty if it is."""
    if now is None or now.error_code:
        return error_name(_UNKNOWN_TOPIC_OR_PARTITION if now is None else now.error_code)
    if is_recreated(now.topic_id, looked_at):
        return "it was recreated since the groups of the source were read"
    return ""


class GroupOffsetSync:
    """Moves ``groups``, those of one task; logs once, until the reason changes, why a group is skipped."""

    def __init__(self, flow: str, target: Cluster, groups: Sequence[str], checkpoints: Checkpoints) -> None:
        self._flow, self._target, self._groups, self._checkpoints = flow, target, groups, checkpoints
        self._left: dict[str, str] = {}
        self._ahead: set[str] = set()

    async def run(self) -> None:
        """Move every group once; a failure does not delay the others. Raises HeliographError if listing groups fails.
        An offset may be older than its topic, if that was recreated and the source has not been read since. Only the
        target is queried for that, so it works without the source."""
        listed = await list_groups(self._target)

        async def sync(group: str) -> None:
            # Groups that do not answer may delay a run, so read what is known now, not at its beginning.
            current, looked_at = self._checkpoints.current(group), self._checkpoints.topic_ids(group)
            if current:
                self._report(group, why_left(listed.get(group)) or await self._sync(group, current, looked_at))

        await gather_limited(sync, self._groups)

    async def _sync(
        self, group: str, checkpoints: Mapping[TopicPartition, Checkpoint], looked_at: Mapping[str, UUID | None]
    ) -> str:
        """Move a group as :meth:`_move` does, in topics that are still those that were ``looked_at``."""
        reasons: list[str] = []
        try:
            elsewhere = await self._elsewhere(looked_at)
            reasons += (f"{topic}: {why}" for topic, why in elsewhere.items())
            if kept := {place: one for place, one in checkpoints.items() if place.topic not in elsewhere}:
                reasons.append(await self._move(group, kept))
        except HeliographError as error:
            reasons.append(str(error))
        return ", ".join(filter(None, reasons))

    async def _elsewhere(self, looked_at: Mapping[str, UUID | None]) -> dict[str, str]:
        """Return topics in which offsets mean nothing now, and why."""
        there = (await self._target.metadata(set(looked_at))).topics
        return {topic: why for topic, one in sorted(looked_at.items()) if (why := why_elsewhere(one, there.get(topic)))}

    async def _move(self, group: str, checkpoints: Mapping[TopicPartition, Checkpoint]) -> str:
        """Move a group; return why it was skipped, in full or in part; empty if it was not."""
        # A commit in an open transaction may be ahead of the stored offset; storing anything would undo it.
        present = await committed(self._target, group, [*checkpoints], stable=True, timeout_s=_CALL_S, once=True)
        self._report_ahead(group, count_ahead(checkpoints, present))
        wanted = to_move(checkpoints, present)
        if not wanted:
            return ""
        try:
            refused = await move(self._target, group, wanted, timeout_s=_CALL_S, once=True)
        except GroupInUse as error:
            return str(error)
        if done := len(wanted) - len(refused):
            log.info("%s: group %s was moved in %d partitions", self._flow, group, done)
        return ", ".join(f"{topic}-{index}: {why}" for (topic, index), why in sorted(refused.items()))

    def _report(self, group: str, why: str) -> None:
        if why and self._left.get(group) != why:
            log.warning("%s: group %s is skipped: %s", self._flow, group, why)
        self._left[group] = why

    def _report_ahead(self, group: str, partitions: int) -> None:
        """Log once, whatever the number of partitions later; again after there were none."""
        if not partitions:
            self._ahead.discard(group)
        elif group not in self._ahead:
            self._ahead.add(group)
            log.warning("%s: group %s was not moved in %d partitions: %s", self._flow, group, partitions, AHEAD)


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """A group that stays at ``found`` (None: no offset) instead of ``expected``, and why."""

    group: str
    topic: str
    partition: int
    expected: int
    found: int | None
    why: str


@dataclass(frozen=True, slots=True)
class GroupOffsetSyncPlan:
    """``alone``: by group, why it is skipped entirely. ``unknown``: what could not be read."""

    moves: tuple[MoveGroup, ...] = ()
    left: tuple[GroupLeft, ...] = ()
    alone: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


async def plan_groups(settings: CheckpointSettings) -> GroupOffsetSyncPlan:
    """Plan the moves; none if the sync is off. Raises HeliographError if a cluster cannot be queried."""
    if settings.sync_interval_s is None or settings.emit_interval_s is None:
        return GroupOffsetSyncPlan()
    source = Cluster(settings.connection("source", "admin", "checkpoint-source-admin"), settings.source_alias)
    target = Cluster(settings.connection("target", "admin", "checkpoint-target-admin"), settings.target_alias)
    async with closing(source, target):
        groups = await GroupFinder(settings, source).find()
        look = GroupLook(settings, groups, source, target, source if settings.syncs_on_source else target)
        await look.begin()
        return await _look_at(look, target, groups)


async def _look_at(look: GroupLook, target: Cluster, groups: Sequence[str]) -> GroupOffsetSyncPlan:
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
        wanted = look.checkpoints.current(group)
        left += groups_left(wanted, present, why)
        if not why:
            moves += (
                MoveGroup(group, *place, before.offset if (before := present.get(place)) else None, after.offset)
                for place, after in sorted(to_move(wanted, present).items())
            )
    return GroupOffsetSyncPlan(tuple(moves), tuple(left), alone, tuple(unknown))


def groups_left(
    wanted: Mapping[TopicPartition, Checkpoint], present: Mapping[Partition, Committed], why: str
) -> Iterator[GroupLeft]:
    """Return what stays different: all differences if the group is skipped (``why``), else partitions ahead."""
    for place, checkpoint in sorted(wanted.items()):
        known = present.get(place)
        found = None if known is None else known.offset
        is_ahead = found is not None and found > checkpoint.downstream_offset
        if is_ahead or (why and found != checkpoint.downstream_offset):
            yield GroupLeft(checkpoint.group, *place, checkpoint.downstream_offset, found, why or AHEAD)
