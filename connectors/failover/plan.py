"""Decide about each group: whether it may move, is at its target offset already, or is blocked, and by what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from connectors.failover.snapshot import DIFFERS, GroupFinding, GroupMove, GroupRule, Groups, How, SampleCheck, Snapshot

if TYPE_CHECKING:
    from connect.kafka.log.committed_offsets import Partition

_OfGroup = TypeVar("_OfGroup", GroupMove, GroupFinding)
#: In a set of groups: every group.
EVERY: Final = "*"


class Reason(NamedTuple):
    """Why a group is not moved, and what to do about it."""

    why: str
    remedy: str


class GroupOutcome(StrEnum):
    READY = "ready"
    IN_PLACE = "in place"
    BLOCKED = "blocked"
    LEFT = "left"  # it has no offsets to move


def has(groups: Collection[str], group: str) -> bool:
    """Whether a set of groups holds one."""
    return group in groups or EVERY in groups


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    """What the operator wants. Sets of groups may hold :data:`EVERY`.

    Args:
        takes: Which groups move.
        rewinds: Groups that may go back on the target.
        keeps: Groups that keep an offset on the target that is further than their target offset.
        retired: Connectors whose stored positions do not matter any more.
        accepts: By a rule of :data:`ACCEPTABLE`, the groups that move in spite of it.
        named: Groups given by name, not by a pattern.
        at_ms: Find target offsets by this timestamp; None: by offset.
        is_gone: The source counts as gone, whether it answers or not.
        leaves_unreplicated: The reverse flow may skip records that only the target holds.
        sample: How many records are compared for each partition of a group.
        verifies: What the flow has copied is verified to its end, or no group moves.
        verify_within_s: The time limit for that, in which offsets are read too; alone, groups then move even if it is
            not whole.
    """

    takes: Callable[[str], bool] = lambda _: True
    rewinds: frozenset[str] = frozenset()
    keeps: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    accepts: Mapping[GroupRule, frozenset[str]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    at_ms: int | None = None
    is_gone: bool = False
    sample: int = 10
    denies_writes: bool = False
    leaves_unreplicated: bool = False
    timeout_s: float = 600.0
    verifies: bool = False
    verify_within_s: float | None = None

    @property
    def names(self) -> frozenset[str]:
        """Return the groups that options name."""
        return self.rewinds.union(self.keeps, *self.accepts.values())

    def rewinds_group(self, group: str) -> bool:
        return has(self.rewinds, group)


def by_group(found: Iterable[_OfGroup]) -> dict[str, list[_OfGroup]]:
    """Return moves or findings by their groups."""
    groups: dict[str, list[_OfGroup]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    return groups


@dataclass(frozen=True, slots=True)
class GroupFailoverPlan:
    """The plan for a group. ``moves`` are its offsets, including those that it has already."""

    group: str
    outcome: GroupOutcome
    moves: tuple[GroupMove, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def due(self) -> tuple[GroupMove, ...]:
        return tuple(one for one in self.moves if not one.is_done)


@dataclass(frozen=True, slots=True)
class Plan:
    """``obstacles`` keep every group from moving; if there are none, the ready groups move."""

    snapshot: Snapshot
    groups: tuple[GroupFailoverPlan, ...] = ()
    obstacles: tuple[str, ...] = ()

    def of(self, outcome: GroupOutcome) -> tuple[GroupFailoverPlan, ...]:
        return tuple(one for one in self.groups if one.outcome is outcome)

    @property
    def ready(self) -> tuple[GroupFailoverPlan, ...]:
        return self.of(GroupOutcome.READY)

    @property
    def blocked(self) -> tuple[GroupFailoverPlan, ...]:
        return self.of(GroupOutcome.BLOCKED)

    @property
    def moves(self) -> tuple[GroupMove, ...]:
        """Return the moves of all groups that are not blocked."""
        return tuple(move for one in self.groups if one.outcome is not GroupOutcome.BLOCKED for move in one.moves)

    @property
    def can_go(self) -> bool:
        """Whether a group is ready or already moved, and nothing prevents the failover."""
        movable = (GroupOutcome.READY, GroupOutcome.IN_PLACE)
        return not self.obstacles and any(one.outcome in movable for one in self.groups)

    def with_blocked(self, findings: Sequence[GroupFinding]) -> Plan:
        """Return the plan with more findings, which block their groups."""
        found = by_group(findings)
        groups = tuple(
            replace(one, outcome=GroupOutcome.BLOCKED, reasons=(*one.reasons, *map(_reason, found[one.group])))
            if one.group in found
            else one
            for one in self.groups
        )
        return replace(self, groups=groups)


#: Rules by their names in ``--accept``.
ACCEPTABLE: Final[Mapping[str, GroupRule]] = {
    "not-mirrored": GroupRule.NOT_MIRRORED,
    "checkpoints": GroupRule.STALE_CHECKPOINT,
    "deleted": GroupRule.DELETED,
    "copy-time": GroupRule.COPY_TIME,
    "diverged": GroupRule.DIVERGED,
}
_WORDS: Final[Mapping[GroupRule, GroupRule]] = {GroupRule.NOT_COPIED: GroupRule.DELETED}
_RUN_AGAIN: Final = "run the command again"
#: What to do about a finding that blocks its group; other rules block none.
_REMEDIES: Final[Mapping[GroupRule, str]] = {
    GroupRule.USED_AT_SOURCE: f"stop its consumers at the source, then {_RUN_AGAIN}",
    GroupRule.USED_AT_TARGET: f"stop its consumers on the target, then {_RUN_AGAIN}",
    GroupRule.USED_MEANWHILE: f"stop its consumers on both clusters, then {_RUN_AGAIN}",
    GroupRule.NOT_MIRRORED: "move it without this topic: --accept not-mirrored={group}",
    GroupRule.NO_OFFSET: f"wait until the flow has copied that offset, then {_RUN_AGAIN}",
    GroupRule.STOPPED: f"get the partition copied (docs/runbooks/stopped-partition.md), then {_RUN_AGAIN}",
    GroupRule.NOT_COPIED: (
        "let it read these records at the source first, or check whether heliograph map --rebuild finds older copies. "
        "To skip them: --accept deleted={group}"
    ),
    GroupRule.DELETED: "let it read these records at the source first. To skip them: --accept deleted={group}",
    GroupRule.DIVERGED: (
        "export and compare these records (heliograph unreplicated --export DIR). To move it anyway: "
        "--accept diverged={group}"
    ),
    GroupRule.STALE_CHECKPOINT: (
        "if its consumers were ahead of the copy: --accept checkpoints={group}. Otherwise set it by time: --at TIME "
        "--group {group}"
    ),
    GroupRule.NO_CHECKPOINT: (
        "set it by time: kafka-consumer-groups.sh --reset-offsets --to-datetime TIME --group {group} --topic TOPIC"
    ),
    GroupRule.COPY_TIME: "choose --at by when records were copied, and add --accept copy-time={group}",
    GroupRule.UNREADABLE: f"bring that broker or leader back, then {_RUN_AGAIN}, for this group alone with --group "
    f"{{group}}",
    GroupRule.AHEAD: (
        "to move it back: --rewind {group}. If its own consumers have read that far on the target: --keep-offset "
        "{group}"
    ),
    GroupRule.DIFFERS: "do not move it. Compare the topics with heliograph map, and report this difference",
    GroupRule.NOT_MOVED: _RUN_AGAIN,
}


def _reason(one: GroupFinding) -> Reason:
    return Reason(str(one), _REMEDIES[one.rule].format(group=one.group))


def is_blocking(one: GroupFinding, failover_options: FailoverOptions | None = None) -> bool:
    """Whether a finding keeps its group from moving."""
    accepted = failover_options.accepts.get(_WORDS.get(one.rule, one.rule), ()) if failover_options else ()
    return one.rule in _REMEDIES and not has(accepted, one.group)


def plan(snapshot: Snapshot, failover_options: FailoverOptions) -> Plan:
    """Decide what becomes of each group."""
    groups = snapshot.groups
    if snapshot.is_gone and failover_options.at_ms is None:
        groups = with_moved(groups, snapshot.moved, failover_options)
    groups = without_rewinds(groups, failover_options)
    stopped = [
        GroupFinding(move.group, GroupRule.STOPPED, f"is not copied to its end: {why}", f"{name} ")
        for move in groups.moves
        if not snapshot.is_gone
        and not move.is_done
        and (why := snapshot.stopped.get(name := f"{move.source[0]}-{move.source[1]}"))
    ]
    moves, findings = by_group(groups.moves), by_group([*groups.findings, *stopped])
    planned = [
        _group(each, tuple(moves.get(each, ())), findings.get(each, ()), failover_options) for each in groups.found
    ]
    return Plan(snapshot, tuple(planned), tuple(_obstacles(snapshot, failover_options)))


def _group(
    group: str, moves: tuple[GroupMove, ...], findings: Sequence[GroupFinding], failover_options: FailoverOptions
) -> GroupFailoverPlan:
    is_done = all(one.is_done for one in moves)
    # A group that has its offsets already may be in use: it is not changed.
    reasons = tuple(
        _reason(one)
        for one in findings
        if is_blocking(one, failover_options) and not (one.rule is GroupRule.USED_AT_TARGET and moves and is_done)
    )
    notes = tuple(str(one) for one in findings if not is_blocking(one, failover_options))
    if reasons:
        return GroupFailoverPlan(group, GroupOutcome.BLOCKED, moves, reasons, notes)
    outcome = GroupOutcome.LEFT if not moves else GroupOutcome.IN_PLACE if is_done else GroupOutcome.READY
    return GroupFailoverPlan(group, outcome, moves, (), notes)


def _obstacles(snapshot: Snapshot, failover_options: FailoverOptions) -> list[str]:
    found = list(snapshot.obstacles)
    if snapshot.source_error and not snapshot.is_gone:
        found.append(
            f"cluster {snapshot.source} does not answer: {snapshot.source_error}. If it is gone, and no producer "
            f"writes there, use --source-gone {snapshot.source}"
        )
    elif not snapshot.groups.found:
        found.append("no group was found. Check --group, and the group filter in the file")
    elif unknown := failover_options.names - {EVERY, *snapshot.groups.found}:
        found.append(f"no group is called {', '.join(sorted(unknown))}. Check --rewind, --keep-offset and --accept")
    return found


def with_moved(groups: Groups, moved: Mapping[tuple[str, Partition], int], failover_options: FailoverOptions) -> Groups:
    """Keep groups where an interrupted run has moved them: it knew what they had committed at the source, and
    checkpoints are older."""
    kept = tuple(
        replace(one, after=one.before, how=How.MOVED)
        if one.goes_back
        and one.before is not None
        and moved.get((one.group, one.target)) == one.before
        and not failover_options.rewinds_group(one.group)
        else one
        for one in groups.moves
    )
    return replace(groups, moves=kept)


def without_rewinds(groups: Groups, failover_options: FailoverOptions) -> Groups:
    """Block moves that would take a group back, unless that is wanted. Its consumers may have read that far on the
    target, or the group was reset at the source, and would skip records if it stayed. So the operator decides."""
    if failover_options.at_ms is not None:
        return groups
    kept, findings = [], []
    for one in groups.moves:
        if not one.goes_back or failover_options.rewinds_group(one.group):
            kept.append(one)
        elif one.before is not None and has(failover_options.keeps, one.group):
            # It is monitored as if it had been moved there.
            kept.append(replace(one, after=one.before, metadata=one.before_metadata))
        else:
            kept.append(one)
            why = f"is at offset {one.before} on the target, and would go back to {one.after}"
            findings.append(GroupFinding(one.group, GroupRule.AHEAD, why, f"{one.target[0]}-{one.target[1]} "))
    return replace(groups, moves=tuple(kept), findings=(*groups.findings, *findings))


def differing(proofs: Sequence[SampleCheck]) -> list[GroupFinding]:
    """Block groups whose next records differ between the two sides."""
    return [
        GroupFinding(one.group, GroupRule.DIFFERS, f"the next records differ, {one.source} and {one.target}: {one.why}")
        for one in proofs
        if one.outcome == DIFFERS
    ]


def used_meanwhile(before: Plan, now: Groups) -> list[GroupFinding]:
    """Block groups that were used at the source since ``before``, unless blocked there."""
    ours = {one.group for one in before.groups if one.outcome is not GroupOutcome.BLOCKED}
    was = {(one.group, one.source): one.source_offset for one in before.moves}
    used = {one.group for one in now.moves if was.get((one.group, one.source)) != one.source_offset}
    used |= {one.group for one in now.findings if one.rule is GroupRule.USED_AT_SOURCE}
    return [
        GroupFinding(group, GroupRule.USED_MEANWHILE, "was used at the source while it was moved")
        for group in used & ours
    ]
