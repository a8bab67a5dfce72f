"""Values that hold what is known before readers move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from connect.kafka.log.committed_offsets import Committed, Partition
    from connectors.flow_facts import VerifiedFacts
    from connectors.flow_progress import FlowLag

#: Outcomes of a sample check.
SAME: Final = "same"
DIFFERS: Final = "differs"
NOT_COMPARED: Final = "not compared"


class How(StrEnum):
    EXACT = "exact"  # the offset map: the next record is the same one
    GAP = "gap"  # the map: not mirrored, so the next record after what was mirrored before
    END = "end of the copy"  # the map: not copied yet
    BEGIN = "begin of the copy"  # the map: older than what is left of the copy
    SYNCS = "offset syncs"  # Java's rule: the record or one before it
    CHECKPOINT = "checkpoint"  # where the flow last saw the group, if the source does not answer
    TIME = "time"  # --at
    MOVED = "moved before"  # by an interrupted run, which knew more


class GroupRule(StrEnum):
    """What was found about a group. :mod:`connectors.failover.plan` says what follows from it."""

    USED_AT_SOURCE = "used at source"
    USED_AT_TARGET = "used at target"
    USED_MEANWHILE = "used meanwhile"
    STOPPED = "stopped"
    SHARE_GROUP = "share group"
    STREAMS_GROUP = "streams group"
    STREAMS_STATE = "streams state"
    NOT_MIRRORED = "not mirrored"
    NO_OFFSET = "no target offset"
    NOT_COPIED = "not copied"
    DELETED = "deleted"
    LEFT_OUT = "left out"
    LOG_BEGIN = "log begin"
    DIVERGED = "diverged"
    STALE_CHECKPOINT = "stale checkpoint"
    TOPIC_GONE = "topic gone"
    NO_CHECKPOINT = "no checkpoint"
    PARTLY_NO_CHECKPOINT = "partly no checkpoint"
    COPY_TIME = "copy time"
    UNREADABLE = "unreadable"
    AHEAD = "ahead"
    DIFFERS = "differs"
    NOT_MOVED = "not moved"


class TargetOffset(NamedTuple):
    """The next record to read on the target."""

    topic: str
    partition: int
    offset: int
    how: How


@dataclass(frozen=True, slots=True)
class GroupMove:
    """One partition of one group. ``source_offset``: the group's committed offset at the source; -1 if unknown.
    ``before``: the group's committed offset on the target; None if it has none."""

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
        """How many records that the group has read on the target it would read again."""
        return max((self.before or 0) - self.after, 0)


def move_of(
    group: str, source: Partition, at: Committed, to: TargetOffset, present: Mapping[Partition, Committed]
) -> GroupMove:
    """Return the move to ``to`` from offset ``at`` of ``source``; ``present``: the group's offsets on the target."""
    target = (to.topic, to.partition)
    before = present.get(target)
    return GroupMove(
        group=group,
        source=source,
        source_offset=at.offset,
        target=target,
        before=before.offset if before else None,
        before_metadata=before.metadata if before else "",
        after=to.offset,
        metadata=at.metadata,
        how=to.how,
    )


@dataclass(frozen=True, slots=True)
class GroupFinding:
    """A finding about a group: ``why`` is a sentence about the group, or about ``what`` of it."""

    group: str
    rule: GroupRule
    why: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.what}{self.why}"


@dataclass(frozen=True, slots=True)
class SampleCheck:
    """The comparison of a group's next records. ``outcome``: same, differs or not compared; ``why`` explains it."""

    group: str
    source: str
    target: str
    records: int
    outcome: str
    why: str = ""

    def without_records(self) -> SampleCheck:
        """Return the same without the values of records, for readers who may not see them."""
        return replace(self, why="heliograph failover --rehearse shows them") if self.outcome == DIFFERS else self


@dataclass(frozen=True, slots=True)
class Groups:
    """``found`` are all groups read, ``moves`` their target offsets, whether they may move or not; ``not_mirrored`` are
    topics that they read and that no flow copies to the target."""

    found: tuple[str, ...] = ()
    moves: tuple[GroupMove, ...] = ()
    findings: tuple[GroupFinding, ...] = ()
    not_mirrored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LastKnown:
    """How far a source that is gone was copied. ``stored_ms``: when a position was last stored, in milliseconds since
    1970; -1 if unknown. ``partitions``: how many have a position. ``ahead``: records that groups had read at the
    source, by their checkpoints, and that were not copied. The lag was at least this many."""

    stored_ms: int = -1
    partitions: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a plan is made from.

    Args:
        source_error: Why the source does not answer; empty if it does.
        is_gone: The source counts as gone, whether it answers or not.
        lag: None if it is unknown.
        copied_until_ms: Until when records of the source arrived, by mirrored heartbeats, in milliseconds since 1970;
            -1 if unknown.
        last_known: Replaces the lag if the source is not read.
        moved: Target offsets to which an interrupted run has moved groups, by group and target partition.
        stopped: Source partitions, such as ``orders-0``, that are not copied to their end, with the reason.
        verified: What is known of the flow's last verification; None if none has ended, or for the ``verified_error``.
        obstacles: What prevents any move, such as another operator, or a read without an answer.
    """

    source: str
    target: str
    source_error: str = ""
    is_gone: bool = False
    lag: FlowLag | None = None
    copied_until_ms: int = -1
    last_known: LastKnown | None = None
    groups: Groups = field(default_factory=Groups)
    moved: Mapping[tuple[str, Partition], int] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    verified: VerifiedFacts | None = None
    verified_error: str = ""
    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
