"""Output of a failover's plan and result on a terminal; the words are those of :mod:`connectors.failover.words`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from connect.cli.console import FORMAT
from connect.cli.tables import ERROR, listed, show, table
from connect.core.wording import counted, named
from connect.kafka.concurrency import wall_ms
from connectors.failover import words
from connectors.failover.execute import FailoverResult, Rehearsal
from connectors.failover.plan import GroupOutcome, Plan
from connectors.failover.snapshot import GroupMove, SampleCheck
from connectors.failover.words import Line, Tone

_COLUMNS: Final = ("group", "partition", "offset", "goes to", "old", "new", "by")
_STYLES: Final = {Tone.PLAIN: "", Tone.WARN: "yellow", Tone.BAD: ERROR}


def as_json(plan: Plan, done: FailoverResult | None) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    return {"format": FORMAT, **words.plan_as_json(plan, done)}


def show_plan(plan: Plan, *, everything: bool) -> None:
    found = plan.snapshot
    show(f"from {found.source} to {found.target}: {words.summary(plan)}")
    _show(words.plan_lines(plan, wall_ms()), "  ")
    _show([words.verified_line(found, wall_ms())], "  ")
    _show_moves(plan.moves, everything=everything)
    for note in found.notes:
        show(f"  note: {note}")


def show_rehearsal(done: Rehearsal) -> None:
    _show(words.rehearsal_lines(done, wall_ms()))


def show_done(done: FailoverResult, looked: Plan, file: Path, *, everything: bool) -> None:
    """Print the result: changes since the plan ``looked``, the sample check, groups that were not moved, next steps."""
    plan = done.plan
    known = set(looked.moves)
    if changed := [one for one in plan.moves if one not in known]:
        show("changed since the plan:")
        _show_moves(changed, everything=everything)
    show_proofs(done.proofs, everything=everything)
    if done.verified:
        show(f"verified: {done.verified}")
    shown = set(words.blocked_lines(looked))
    _show((line for line in words.blocked_lines(plan) if line not in shown), "  ")
    if done.late:
        show(f"  {done.late}", ERROR)
    left = f" ({named([one.group for one in plan.blocked])})" if plan.blocked else ""
    undo = f"To undo: heliograph undo {file} --to {plan.snapshot.target} --execute"
    if done.restart:
        undo = f"Nothing was changed, so there is nothing to undo. To start the flow again: {done.restart}"
    show(
        f"done: {counted(len(plan.ready), 'group')} moved, {len(plan.of(GroupOutcome.IN_PLACE))} already in place, "
        f"{len(plan.blocked)} not moved{left}. Start consumers and producers on cluster {plan.snapshot.target}. {undo}"
    )


def show_proofs(proofs: Sequence[SampleCheck], *, everything: bool) -> None:
    _show(words.proof_lines(proofs, everything=everything))


def _show(lines: Iterable[Line], indent: str = "") -> None:
    for text, tone in lines:
        show(indent + text, _STYLES[tone])


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
