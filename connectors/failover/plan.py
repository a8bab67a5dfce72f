"""The rules of a move: which groups may go, which are at their target offset already, and what blocks the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from connectors.failover.snapshot import DIFFERS, GroupFinding, GroupMove, GroupRule, Groups, How, SampleCheck, Snapshot

if TYPE_CHECKING:
    from connect.kafka.log.committed_offsets import Partition

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
    LEFT = "left"  # it has no offsets that could be moved


def has(groups: Collection[str], group: str) -> bool:
    """Whether a set of groups holds one."""
    return group in groups or EVERY in groups


def _every(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator wants. Sets of groups may hold :data:`EVERY`.

    Args:
        takes: Which groups.
        rewinds: Groups that may go back on the target.
        keeps: Groups that keep an offset of theirs that lies further on the target.
        accepts: By a rule that :data:`ACCEPTABLE` names, the groups that are moved in spite of it.
        named: Groups that have one name, and no pattern.
        at_ms: Target offsets by time; None by offset.
        is_gone: The source counts as gone, whether it answers or not.
        leaves_unreplicated: The flow back may pass over records that only the target holds.
        sample: Records of each partition of a group that are compared.
    """

    takes: Callable[[str], bool] = _every
    rewinds: frozenset[str] = frozenset()
    keeps: frozenset[str] = frozenset()
    accepts: Mapping[GroupRule, frozenset[str]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    at_ms: int | None = None
    is_gone: bool = False
    sample: int = 10
    denies_writes: bool = False
    leaves_unreplicated: bool = False
    timeout_s: float = 600.0

    def rewinds_group(self, group: str) -> bool:
        return has(self.rewinds, group)

    def accepts_for(self, group: str, rule: GroupRule) -> bool:
        return has(self.accepts.get(_WORDS.get(rule, rule), frozenset()), group)


@dataclass(frozen=True, slots=True)
class GroupFailoverPlan:
    """What becomes of a group. ``moves`` are its offsets, also those that it has already."""

    group: str
    outcome: GroupOutcome
    moves: tuple[GroupMove, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def due(self) -> tuple[GroupMove, ...]:
        """Moves that are still to be made."""
        return tuple(one for one in self.moves if not one.is_done)


@dataclass(frozen=True, slots=True)
class Plan:
    """``obstacles`` keep every group from moving; none: those that are ready go."""

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
        """Of all groups that are not blocked."""
        return tuple(move for one in self.groups if one.outcome is not GroupOutcome.BLOCKED for move in one.moves)

    @property
    def can_go(self) -> bool:
        """Whether anything is left to be done, or is done already."""
        return not self.obstacles and any(
            one.outcome in (GroupOutcome.READY, GroupOutcome.IN_PLACE) for one in self.groups
        )

    def with_blocked(self, findings: Sequence[GroupFinding]) -> Plan:
        """The same with more findings, which block their groups."""
        more: dict[str, list[Reason]] = {}
        for one in findings:
            more.setdefault(one.group, []).append(Reason(str(one), _remedy(one)))
        groups = tuple(
            replace(one, outcome=GroupOutcome.BLOCKED, reasons=(*one.reasons, *more[one.group]))
            if one.group in more
            else one
            for one in self.groups
        )
        return replace(self, groups=groups)


#: What ``--accept`` calls a rule.
ACCEPTABLE: Final[Mapping[str, GroupRule]] = {
    "not-mirrored": GroupRule.NOT_MIRRORED,
    "checkpoints": GroupRule.STALE_CHECKPOINT,
    "deleted": GroupRule.DELETED,
    "copy-time": GroupRule.COPY_TIME,
    "diverged": GroupRule.DIVERGED,
}
_WORDS: Final[Mapping[GroupRule, GroupRule]] = {GroupRule.NOT_COPIED: GroupRule.DELETED}
_RUN_AGAIN: Final = "run the command again"
#: What to do about a finding that blocks its group; a rule that is not here blocks none.
_REMEDIES: Final[Mapping[GroupRule, str]] = {
    GroupRule.USED_AT_SOURCE: f"stop its consumers at the source, then {_RUN_AGAIN}",
    GroupRule.USED_AT_TARGET: f"stop its consumers on the target, then {_RUN_AGAIN}",
    GroupRule.USED_MEANWHILE: f"stop its consumers on both clusters, then {_RUN_AGAIN}",
    GroupRule.NOT_MIRRORED: "move it without this topic: --accept not-mirrored={group}",
    GroupRule.NO_OFFSET: f"wait until the flow has copied that offset, then {_RUN_AGAIN}",
    GroupRule.STOPPED: f"have it copied (docs/runbooks/stopped-partition.md), then {_RUN_AGAIN}",
    GroupRule.NOT_COPIED: (
        "let it read these records at the source first, or see whether heliograph map --rebuild finds older copies; to "
        "skip them: --accept deleted={group}"
    ),
    GroupRule.DELETED: "let it read these records at the source first; to skip them: --accept deleted={group}",
    GroupRule.DIVERGED: (
        "export these records and compare (heliograph unreplicated --export DIR); to move it in spite of them: "
        "--accept diverged={group}"
    ),
    GroupRule.STALE_CHECKPOINT: (
        "if its consumers were ahead of the copy: --accept checkpoints={group}; else set it by time: --at TIME --group "
        "{group}"
    ),
    GroupRule.NO_CHECKPOINT: (
        "set it by time: kafka-consumer-groups.sh --reset-offsets --to-datetime TIME --group {group} --topic TOPIC"
    ),
    GroupRule.COPY_TIME: "choose the time by when records were copied, and say --accept copy-time={group}",
    GroupRule.UNREADABLE: f"bring that broker or leader back, then {_RUN_AGAIN}, for this group alone: --group "
    f"{{group}}",
    GroupRule.AHEAD: (
        "to take it back: --rewind {group}; if its consumers have read so far on the target themselves: --keep-offset "
        "{group}"
    ),
    GroupRule.DIFFERS: "do not move it; compare the topics with heliograph map, and report this difference",
    GroupRule.NOT_MOVED: _RUN_AGAIN,
}


def _remedy(one: GroupFinding) -> str:
    return _REMEDIES[one.rule].format(group=one.group)


def is_blocking(one: GroupFinding, wish: Wish | None = None) -> bool:
    """Whether a finding keeps its group from moving."""
    return one.rule in _REMEDIES and not (wish or Wish()).accepts_for(one.group, one.rule)


def plan(snapshot: Snapshot, wish: Wish) -> Plan:
    """Decide what becomes of each group."""
    groups = snapshot.groups
    if snapshot.is_gone and wish.at_ms is None:
        groups = with_moved(groups, snapshot.moved, wish)
    groups = without_rewinds(groups, wish)
    stopped: dict[str, list[GroupFinding]] = {}
    if not snapshot.is_gone:
        for move in groups.moves:
            name = f"{move.source[0]}-{move.source[1]}"
            if (why := snapshot.stopped.get(name)) and not move.is_done:
                one = GroupFinding(move.group, GroupRule.STOPPED, f"is not copied to its end: {why}", f"{name} ")
                stopped.setdefault(move.group, []).append(one)
    planned = []
    for group in groups.found:
        of_group = [one for one in groups.findings if one.group == group] + stopped.get(group, [])
        moves = tuple(one for one in groups.moves if one.group == group)
        planned.append(_group(group, moves, of_group, wish))
    return Plan(snapshot, tuple(planned), tuple(_obstacles(snapshot)))


def _group(group: str, moves: tuple[GroupMove, ...], findings: Sequence[GroupFinding], wish: Wish) -> GroupFailoverPlan:
    is_done = all(one.is_done for one in moves)
    # A group that has its offsets already may be used: nothing of it is changed.
    reasons = tuple(
        Reason(str(one), _remedy(one))
        for one in findings
        if is_blocking(one, wish) and not (one.rule is GroupRule.USED_AT_TARGET and moves and is_done)
    )
    notes = tuple(str(one) for one in findings if not is_blocking(one, wish))
    if reasons:
        return GroupFailoverPlan(group, GroupOutcome.BLOCKED, moves, reasons, notes)
    outcome = GroupOutcome.LEFT if not moves else GroupOutcome.IN_PLACE if is_done else GroupOutcome.READY
    return GroupFailoverPlan(group, outcome, moves, (), notes)


def _obstacles(snapshot: Snapshot) -> list[str]:
    found = list(snapshot.obstacles)
    if snapshot.source_error and not snapshot.is_gone:
        found.append(
            f"cluster {snapshot.source} does not answer: {snapshot.source_error}; if it is gone, and no producer "
            f"writes there, say --source-gone {snapshot.source}"
        )
    if not snapshot.groups.found:
        found.append("no group was found: see --group, and the groups of the file")
    return found


def with_moved(groups: Groups, moved: Mapping[tuple[str, Partition], int], wish: Wish) -> Groups:
    """Groups that an interrupted run has moved stay there: it knew what they had committed at the source, and
    checkpoints are older."""
    kept = tuple(
        replace(one, after=one.before, how=How.MOVED)
        if one.goes_back
        and one.before is not None
        and moved.get((one.group, one.target)) == one.before
        and not wish.rewinds_group(one.group)
        else one
        for one in groups.moves
    )
    return replace(groups, moves=kept)


def without_rewinds(groups: Groups, wish: Wish) -> Groups:
    """Without moves that would take a group back, unless that is wanted. Whether its consumers have read so far on the
    target, or it was taken back at the source, is not known; if it was, it would skip records. So the operator has to
    say which."""
    if wish.at_ms is not None:
        return groups
    kept, findings = [], []
    for one in groups.moves:
        if not one.goes_back or wish.rewinds_group(one.group):
            kept.append(one)
        elif has(wish.keeps, one.group):
            # It is watched as if it was moved there.
            kept.append(replace(one, after=one.before or 0, metadata=one.before_metadata))
        else:
            kept.append(one)
            why = f"is at offset {one.before} on the target, and would go back to {one.after}"
            findings.append(GroupFinding(one.group, GroupRule.AHEAD, why, f"{one.target[0]}-{one.target[1]} "))
    return replace(groups, moves=tuple(kept), findings=(*groups.findings, *findings))


def differing(proofs: Sequence[SampleCheck]) -> list[GroupFinding]:
    """Groups whose next records are not the same on both sides."""
    return [
        GroupFinding(one.group, GroupRule.DIFFERS, f"the next records differ, {one.source} and {one.target}: {one.why}")
        for one in proofs
        if one.outcome == DIFFERS
    ]


def gone_on(before: Plan, now: Groups) -> list[GroupFinding]:
    """Groups that are not blocked in ``before`` and were used at the source since."""
    ours = {one.group for one in before.groups if one.outcome is not GroupOutcome.BLOCKED}
    was = {(one.group, one.source): one.source_offset for one in before.moves}
    used = {one.group for one in now.moves if was.get((one.group, one.source), -1) != one.source_offset}
    used |= {one.group for one in now.findings if one.rule is GroupRule.USED_AT_SOURCE}
    return [
        GroupFinding(group, GroupRule.USED_MEANWHILE, "was used at the source while it was moved")
        for group in used & ours
    ]
