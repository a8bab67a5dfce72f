"""Output of a failover's plan and result, on a terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from connect.cli.console import FORMAT
from connect.cli.tables import ERROR, listed, show, table
from connect.core.wording import counted, in_utc, named
from connect.kafka.concurrency import wall_ms
from connectors.failover.execute import FailoverResult, Rehearsal
from connectors.failover.plan import GroupOutcome, Plan
from connectors.failover.snapshot import DIFFERS, NOT_COMPARED, SAME, GroupMove, SampleCheck, Snapshot
from connectors.flow_progress import together

_COLUMNS: Final = ("group", "partition", "offset", "goes to", "old", "new", "by")
_REASONS: Final = 10


def as_json(plan: Plan, done: FailoverResult | None) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    found = plan.snapshot
    blocked = [
        {"group": one.group, "why": reason.why, "remedy": reason.remedy}
        for one in plan.blocked
        for reason in one.reasons
    ]
    return {
        "format": FORMAT,
        "from": found.source,
        "to": found.target,
        "go": plan.can_go,
        "executed": done is not None,
        "obstacles": list(plan.obstacles),
        "notes": list(found.notes),
        "source": "gone" if found.is_gone else found.source_error or "answers",
        "copied_until_ms": None if found.copied_until_ms < 0 else found.copied_until_ms,
        "last_known": None if found.last_known is None else asdict(found.last_known),
        "lag": None if found.lag is None else found.lag.to_json(10),
        "not_mirrored": list(found.groups.not_mirrored),
        "groups": [one.group for one in plan.groups],
        "ready": [one.group for one in plan.ready],
        "in_place": [one.group for one in plan.of(GroupOutcome.IN_PLACE)],
        "blocked": blocked,
        "moves": [
            {
                "group": one.group,
                "topic": one.source[0],
                "partition": one.source[1],
                "offset": one.source_offset,
                "to_topic": one.target[0],
                "to_partition": one.target[1],
                "old": one.before,
                "new": one.after,
                "by": one.how.value,
                "done": one.is_done,
            }
            for one in plan.moves
        ],
        "left": [{"group": one.group, "why": note} for one in plan.groups for note in one.notes],
        "proof": None if done is None else [asdict(one) for one in done.proofs],
        "written_late": None if done is None else done.late,
    }


def show_plan(plan: Plan, *, everything: bool) -> None:
    """Print a summary, what is blocked, and the old and new offset of every partition that moves."""
    found = plan.snapshot
    show(f"from {found.source} to {found.target}: {_summary(plan)}")
    if found.lag is not None:
        whole = together(found.lag.partitions)
        count = counted(whole.partitions, "partition")
        behind = f"{counted(whole.records, 'record')} behind" if whole.records else "no lag"
        show(f"  {found.source}->{found.target}: {behind} in {count}")
        if whole.lost:
            lost = counted(whole.lost, "offset")
            show(f"  deleted on cluster {found.source} before they were copied: {lost}", ERROR)
    for line in _last_known(found):
        show(f"  {line}")
    _show_blocked(plan)
    _show_moves(plan.moves, everything=everything)
    for note in found.notes:
        show(f"  note: {note}")


def _last_known(found: Snapshot) -> Iterator[str]:
    """Say until when all was copied and, if the source is lost, how far it was, with the age of that."""
    now_ms = wall_ms()
    if found.copied_until_ms >= 0:
        yield (
            f"copied until {in_utc(found.copied_until_ms)} ({_ago(now_ms - found.copied_until_ms)}), by the last "
            f"mirrored heartbeat of {found.source}"
        )
    if (known := found.last_known) is None:
        return
    if not known.partitions:
        yield f"last known lag: unknown, because cluster {found.target} has no stored position of the flow"
        return
    age = f", last stored {_ago(now_ms - known.stored_ms)}" if known.stored_ms >= 0 else ""
    behind = (
        f"at least {counted(known.ahead, 'record')} behind, by checkpoints" if known.ahead else "no checkpoint is ahead"
    )
    yield f"last known lag, by stored positions of {counted(known.partitions, 'partition')}{age}: {behind}"


def _ago(age_ms: int) -> str:
    return f"{max(age_ms, 0) / 1000:.0f} s ago"


def _show_blocked(plan: Plan, shown: Plan | None = None) -> None:
    """Print what is blocked and the notes on groups, except what was ``shown`` before."""
    known = {} if shown is None else _blocked(shown)
    for line, style in _blocked(plan).items():
        if line not in known:
            show(f"  {line}", style)


def _blocked(plan: Plan) -> dict[str, str]:
    """Return what blocks the move or a group, and the notes on groups, each with its style."""
    lines = [f"blocked: {obstacle}" for obstacle in plan.obstacles]
    lines += [
        f"blocked: group {one.group}: {reason.why}; {reason.remedy}" for one in plan.blocked for reason in one.reasons
    ]
    notes = [f"note: group {one.group}: {note}" for one in plan.groups for note in one.notes]
    return {**dict.fromkeys(lines, ERROR), **dict.fromkeys(notes, "yellow")}


def show_rehearsal(done: Rehearsal) -> None:
    """Print how long a failover would take, what it would lose, and what is blocked."""
    plan = done.plan
    show(f"rehearsal from {plan.snapshot.source} to {plan.snapshot.target}: {_summary(plan)}; nothing was changed")
    measured, estimated = (
        ", ".join(f"{step} {step_s:.1f} s" for step, step_s in some.items()) for some in (done.took_s, done.estimated_s)
    )
    show(f"  RTO: {done.rto_s:.1f} s (measured: {measured}; estimated: {estimated})")
    until_ms = plan.snapshot.copied_until_ms
    ago = f"{max(wall_ms() - until_ms, 0) / 1000:.1f} s, by the last mirrored heartbeat" if until_ms >= 0 else "unknown"
    show(f"  RPO, if {plan.snapshot.source} were lost now: {ago}")
    show(f"  read from {done.read} of {len(plan.moves)} target offsets")
    show_proofs(done.proofs, everything=False)
    _show_blocked(plan)


def show_done(done: FailoverResult, looked: Plan, file: Path, *, everything: bool) -> None:
    """Print the result: changes since the plan ``looked``, the sample check, groups that were not moved, next steps."""
    plan = done.plan
    known = set(looked.moves)
    if changed := [one for one in plan.moves if one not in known]:
        show("changed since the plan:")
        _show_moves(changed, everything=everything)
    show_proofs(done.proofs, everything=everything)
    _show_blocked(plan, looked)
    if done.late:
        show(f"  {done.late}", ERROR)
    moved = len(plan.ready)
    left = f" ({named([one.group for one in plan.blocked])})" if plan.blocked else ""
    show(
        f"done: {counted(moved, 'group')} moved, {len(plan.of(GroupOutcome.IN_PLACE))} already in place, "
        f"{len(plan.blocked)} not moved{left}. Start consumers and producers on cluster {plan.snapshot.target}. "
        f"To undo: heliograph undo {file} --to {plan.snapshot.target} --execute"
    )


def show_proofs(proofs: Sequence[SampleCheck], *, everything: bool) -> None:
    """Print how many samples are the same, each that differs, and why others were not compared."""
    counts = Counter(one.outcome for one in proofs)
    records = sum(one.records for one in proofs if one.outcome == SAME)
    show(
        f"sample: {counts[SAME]} of {len(proofs)} target offsets match ({counted(records, 'record')}), "
        f"{counts[DIFFERS]} differ, {counts[NOT_COMPARED]} could not be compared"
    )
    together: dict[tuple[str, str], list[SampleCheck]] = {}
    for one in proofs:
        if one.outcome == DIFFERS:
            show(f"  {one.outcome}: {_named(one)}: {one.why}", ERROR)
        elif one.why and everything:
            show(f"  {one.outcome}: {_named(one)}: {one.why}")
        elif one.why:
            together.setdefault((one.outcome, one.why), []).append(one)
    most = sorted(together.items(), key=lambda each: -len(each[1]))
    for (outcome, why), some in most[:_REASONS]:
        so_many = "" if len(some) == 1 else f"{len(some)} target offsets, such as "
        show(f"  {outcome}: {so_many}{_named(some[0])}: {why}")
    if rest := sum(len(some) for _, some in most[_REASONS:]):
        show(f"  and {rest} more, for other reasons: --all shows them")


def _named(one: SampleCheck) -> str:
    return f"group {one.group}, {one.source} and {one.target}"


def _summary(plan: Plan) -> str:
    in_place = len(plan.of(GroupOutcome.IN_PLACE))
    parts = [f"{counted(len(plan.ready), 'group')} ready", f"{len(plan.blocked)} blocked"]
    parts += [f"{in_place} already in place"] if in_place else []
    return ", ".join(parts) + ("" if plan.can_go else "; nothing can be moved now")


def _show_moves(moves: Sequence[GroupMove], *, everything: bool) -> None:
    show(table(_COLUMNS, listed(moves, _cells, everything=everything), right=("offset", "old", "new")))


def _cells(one: GroupMove) -> tuple[str, ...]:
    return (
        one.group,
        f"{one.source[0]}-{one.source[1]}",
        "" if one.source_offset < 0 else str(one.source_offset),
        f"{one.target[0]}-{one.target[1]}",
        "" if one.before is None else str(one.before),
        f"{one.after} (there)" if one.is_done else str(one.after),
        one.how.value,
    )
