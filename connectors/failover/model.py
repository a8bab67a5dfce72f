"""What a failover finds and does, as data (pure); docs/runbooks tell how it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from connect.kafka.group_offsets import Committed, Partition
from connectors.lag import FlowLag

#: Outcomes of a proof.
SAME: Final = "same"
DIFFERS: Final = "differs"
NOT_COMPARED: Final = "not compared"


class How(StrEnum):
    """How a place on the target was found."""

    EXACT = "exact"  # the offset map: the next record is the same one
    GAP = "gap"  # the map: nothing was mirrored there, so behind what was mirrored before
    END = "end of the copy"  # the map: not copied yet
    BEGIN = "begin of the copy"  # the map: older than what is left of the copy
    SYNCS = "offset syncs"  # Java's rule: the record or one before it
    CHECKPOINT = "checkpoint"  # where the flow had last seen the group, as the source is gone
    TIME = "time"  # --at
    MOVED = "moved before"  # by a run that was interrupted, and knew more


class Place(NamedTuple):
    """The next record to read on the target."""

    topic: str
    partition: int
    offset: int
    how: How


@dataclass(frozen=True, slots=True)
class GroupMove:
    """One partition of one group.

    Args:
        source: Where the group stood; its offset is -1 where nobody knows.
        before: What the group has stored on the target; None for nothing.
    """

    group: str
    source: Partition
    source_offset: int
    target: Partition
    before: int | None
    before_metadata: str
    after: int
    metadata: str
    how: How

    @property
    def is_done(self) -> bool:
        return self.before == self.after

    @property
    def goes_back(self) -> int:
        """Records that the group would read again, of those that it has read on the target."""
        return max((self.before or 0) - self.after, 0)


def move_of(
    group: str, source: Partition, at: Committed, place: Place, present: Mapping[Partition, Committed]
) -> GroupMove:
    """From ``source``, where the group stands ``at``, to ``place``; ``present``: what it has stored on the target."""
    target = (place.topic, place.partition)
    before = present.get(target)
    return GroupMove(
        group=group,
        source=source,
        source_offset=at.offset,
        target=target,
        before=before.offset if before else None,
        before_metadata=before.metadata if before else "",
        after=place.offset,
        metadata=at.metadata,
        how=place.how,
    )


@dataclass(frozen=True, slots=True)
class Left:
    """A group, or ``what`` of it, that is not moved, and why. ``is_obstacle``: it should have been, or nobody has said
    yet that it need not."""

    group: str
    what: str
    why: str
    is_obstacle: bool = True
    #: Somebody reads at the source.
    is_of_source: bool = False


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """What is to become of the groups. ``found`` are those that were looked at; ``ahead`` are moves that would take a
    group back, and are not made."""

    found: tuple[str, ...] = ()
    moves: tuple[GroupMove, ...] = ()
    left: tuple[Left, ...] = ()
    ahead: tuple[GroupMove, ...] = ()

    @property
    def due(self) -> tuple[GroupMove, ...]:
        """Moves that are still to be made."""
        return tuple(one for one in self.moves if not one.is_done)


@dataclass(frozen=True, slots=True)
class Proof:
    """The next records of a group on both sides. ``outcome``: same, differs or not compared; ``why`` says more."""

    group: str
    source: str
    target: str
    records: int
    outcome: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was looked at before anything is done.

    Args:
        source_error: Why the source cannot be asked; empty where it can.
        lag: None where nobody can tell.
        not_mirrored: Topics that groups read and no flow carries to the target.
        stopped: Partitions that are not copied now, with the reason.
        unknown: What could not be looked at.
        in_the_way: What is looked at again by the step that it concerns.
        refused: What would go wrong.
    """

    source: str
    target: str
    source_error: str = ""
    is_gone: bool = False
    lag: FlowLag | None = None
    groups: GroupsPlan = field(default_factory=GroupsPlan)
    not_mirrored: tuple[str, ...] = ()
    stopped: Mapping[str, str] = field(default_factory=dict)
    in_the_way: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def obstacles(self) -> list[str]:
        """Why not to go; none: go."""
        found = [*self.in_the_way, *self.refused]
        if self.source_error and not self.is_gone:
            found.append(
                f"cluster {self.source} does not answer: {self.source_error}; if it is gone for good, and nobody "
                "writes there, say --source-gone"
            )
        found += [f"group {one.group}: {one.what}{one.why}" for one in self.groups.left if one.is_obstacle]
        found += [f"{name} is not copied: {why}" for name, why in self.stopped.items()]
        found += [f"not looked at: {one}" for one in self.unknown]
        if not self.groups.found:
            found.append("no group was found: see --group, and the groups of the file")
        return found


def with_rewinds(plan: GroupsPlan, *, allowed: bool, keeps: bool = False) -> GroupsPlan:
    """Without the moves that would take a group back, unless that is ``allowed``. Whether the group has read on the
    target, or was taken back on the source, nobody can tell: then it would skip what it has not read. So somebody has
    to say that it ``keeps`` its place."""
    if allowed:
        return plan
    back = tuple(one for one in plan.moves if one.goes_back)
    left = [
        Left(
            one.group,
            f"{one.target[0]}-{one.target[1]} ",
            f"stands at {one.before} on the target, and would go back to {one.after}: --rewind takes it back, --accept "
            "ahead leaves it, and is right only if the group itself has read so far on the target",
            is_obstacle=not keeps,
        )
        for one in back
    ]
    kept = tuple(one for one in plan.moves if not one.goes_back)
    return replace(plan, moves=kept, left=(*plan.left, *left), ahead=back)


def with_moved(plan: GroupsPlan, moved: Mapping[tuple[str, Partition], int]) -> GroupsPlan:
    """Groups that stand where an interrupted run has ``moved`` them stay there: it knew where its source stood, and
    checkpoints are older (pure)."""
    kept = tuple(
        replace(one, after=one.before, how=How.MOVED)
        if one.goes_back and one.before is not None and moved.get((one.group, one.target)) == one.before
        else one
        for one in plan.moves
    )
    return replace(plan, moves=kept)


def gone_on(before: GroupsPlan, now: GroupsPlan) -> list[str]:
    """Groups that were moved, or kept as they stood, and were used at the source since (pure)."""
    stood = {(one.group, one.source): one.source_offset for one in (*before.moves, *before.ahead)}
    moved = [one for one in (*now.moves, *now.ahead) if stood.get((one.group, one.source), -1) != one.source_offset]
    known = set(before.left)
    groups = [one.group for one in moved]
    groups += [one.group for one in now.left if one.is_of_source and one not in known]
    return [f"group {group} was used at the source while it was moved" for group in sorted(set(groups))]


def to_commit(moves: Sequence[GroupMove]) -> dict[str, dict[Partition, Committed]]:
    """What to store, by group."""
    found: dict[str, dict[Partition, Committed]] = {}
    for one in moves:
        found.setdefault(one.group, {})[one.target] = Committed(one.after, one.metadata)
    return found
