"""Groups of the target moved to where their checkpoints say (``sync.group.offsets``).

Java's rule (``MirrorCheckpointTask.syncGroupOffset``): a group that somebody uses is left alone, and none goes back.
Java looks at the group an interval before it writes; here both are one step, and the broker refuses who is in use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import (
    Committed,
    GroupInUse,
    GroupListing,
    Partition,
    committed,
    list_groups,
    move,
)
from connectors.checkpoint.emission import Checkpoints
from connectors.dataplane.plan import TopicPartition
from connectors.mirror_records import Checkpoint

log = logging.getLogger(__name__)


def to_move(
    checkpoints: Mapping[TopicPartition, Checkpoint], present: Mapping[Partition, Committed]
) -> dict[Partition, Committed]:
    """What to store for a group: the checkpoints that lie behind ``present``, or where nothing is stored."""
    return {
        (place.topic, place.partition): Committed(checkpoint.downstream_offset, checkpoint.metadata)
        for place, checkpoint in checkpoints.items()
        if (known := present.get((place.topic, place.partition))) is None or known.offset < checkpoint.downstream_offset
    }


def why_left(group: GroupListing | None) -> str:
    """Why a group of the target is not moved; empty where it may be."""
    if group is None:
        return ""
    if not group.has_offsets:
        return f"on the target it is a group of another kind ({group.kind}, {group.protocol or 'no protocol'})"
    if not group.is_idle:
        return f"on the target it has members (it is {group.state})"
    return ""


class GroupOffsetSync:
    """Moves ``groups``, those of one task; says of each that is left alone why, once until that changes."""

    def __init__(self, flow: str, target: Cluster, groups: Sequence[str], checkpoints: Checkpoints) -> None:
        self._flow = flow
        self._target = target
        self._groups = groups
        self._checkpoints = checkpoints
        self._left: dict[str, str] = {}

    async def run(self) -> None:
        """Once for every group. One that fails does not hold up the others. Raises as ``list_groups``."""
        listed = await list_groups(self._target)
        for group in self._groups:
            if not (checkpoints := self._checkpoints.standing(group)):
                continue
            why = why_left(listed.get(group))
            if not why:
                try:
                    why = await self._move(group, checkpoints)
                except HeliographError as error:
                    why = str(error)
            self._tell(group, why)

    async def _move(self, group: str, checkpoints: Mapping[TopicPartition, Checkpoint]) -> str:
        """Returns why it was left alone, in full or in part; empty where it was not."""
        wanted = to_move(checkpoints, await committed(self._target, group))
        if not wanted:
            return ""
        try:
            refused = await move(self._target, group, wanted)
        except GroupInUse as error:
            return str(error)
        if done := len(wanted) - len(refused):
            log.info("%s: group %s was moved in %d partitions", self._flow, group, done)
        return ", ".join(f"{topic}-{index}: {why}" for (topic, index), why in sorted(refused.items()))

    def _tell(self, group: str, why: str) -> None:
        if why and self._left.get(group) != why:
            log.warning("%s: group %s is left alone: %s", self._flow, group, why)
        self._left[group] = why
