"""What a failover found and did, on a terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from connect.cli.connectors_view import console, printable
from connect.cli.console import counted
from connectors.failover.model import DIFFERS, NOT_COMPARED, SAME, GroupMove, Preflight, Proof
from connectors.lag import together

#: Of the JSON; it changes where a reader of an older one would misunderstand.
FORMAT: Final = 1
_ROWS: Final = 30
_REASONS: Final = 10


def as_json(
    looked: Preflight, proofs: Sequence[Proof] | None, undo_file: str | None, other_undo_files: Sequence[str] = ()
) -> dict[str, Any]:
    """See docs/operations.md."""
    return {
        "format": FORMAT,
        "from": looked.source,
        "to": looked.target,
        "go": not looked.obstacles,
        "executed": proofs is not None,
        "obstacles": looked.obstacles,
        "notes": list(looked.notes),
        "source": "gone" if looked.is_gone else looked.source_error or "answers",
        "lag": None if looked.lag is None else looked.lag.to_json(10),
        "not_mirrored": list(looked.not_mirrored),
        "groups": list(looked.groups.found),
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
            for one in looked.groups.moves
        ],
        "left": [{"group": one.group, "why": f"{one.what}{one.why}"} for one in looked.groups.left],
        "proof": None if proofs is None else [asdict(one) for one in proofs],
        "undo_file": undo_file,
        "other_undo_files": list(other_undo_files),
    }


def show_preflight(looked: Preflight, *, everything: bool, is_done: bool = False) -> None:
    """With the old and the new offset of everything that moves."""
    _say(f"from {looked.source} to {looked.target}: {_summary(looked, is_done=is_done)}")
    if looked.lag is not None:
        whole = together(looked.lag.partitions)
        count = counted(whole.partitions, "partition")
        behind = f"{whole.records} records behind" if whole.records else "all is copied"
        _say(f"  {looked.source}->{looked.target}: {behind} in {count}")
        if whole.lost:
            _say(f"  {whole.lost} offsets were lost on cluster {looked.source} before they could be copied", "bold red")
    else:
        _say(f"  how much of cluster {looked.source} was not copied is not known")
    if looked.groups.moves:
        console().print(_table(looked.groups.moves, everything=everything))
    for topic in looked.not_mirrored:
        _say(f"  not mirrored: {topic}; its readers get no offset of it on {looked.target}", "yellow")
    for one in looked.groups.left:
        _say(f"  left: group {one.group}: {one.what}{one.why}", "yellow")
    for note in looked.notes:
        _say(f"  note: {note}")
    if not is_done:
        for obstacle in looked.obstacles:
            _say(f"  in the way: {obstacle}", "bold red")


def show_proofs(proofs: Sequence[Proof], *, everything: bool) -> None:
    """How many are the same; each that differs by name, and why others could not be compared, or go on otherwise."""
    counts = Counter(one.outcome for one in proofs)
    records = sum(one.records for one in proofs if one.outcome == SAME)
    _say(
        f"proof: {counts[SAME]} of {len(proofs)} places compared are the same on both sides ({records} records), "
        f"{counts[DIFFERS]} differ, {counts[NOT_COMPARED]} could not be compared"
    )
    together: dict[tuple[str, str], list[Proof]] = {}
    for one in proofs:
        if one.outcome == DIFFERS:
            _say(f"  {one.outcome}: {_named(one)}: {one.why}", "bold red")
        elif one.why and everything:
            _say(f"  {one.outcome}: {_named(one)}: {one.why}")
        elif one.why:
            together.setdefault((one.outcome, one.why), []).append(one)
    most = sorted(together.items(), key=lambda each: -len(each[1]))
    for (outcome, why), some in most[:_REASONS]:
        so_many = "" if len(some) == 1 else f"{len(some)} places, such as "
        _say(f"  {outcome}: {so_many}{_named(some[0])}: {why}")
    if rest := sum(len(some) for _, some in most[_REASONS:]):
        _say(f"  and {rest} more, for other reasons: --all names them")


def _named(one: Proof) -> str:
    return f"group {one.group}, {one.source} and {one.target}"


def _summary(looked: Preflight, *, is_done: bool) -> str:
    due = looked.groups.moves if is_done else looked.groups.due
    moves = f"{len(looked.groups.found)} groups, {len(due)} offsets {'moved' if is_done else 'to move'}"
    if is_done:
        return moves
    return f"{moves}; {'no-go' if looked.obstacles else 'go'}"


def _table(moves: Sequence[GroupMove], *, everything: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("group", "partition", "offset", "goes to", "old", "new", "by"):
        table.add_column(name, overflow="fold", justify="right" if name in ("offset", "old", "new") else "left")
    for row in _rows(moves, everything=everything):
        table.add_row(*map(printable, row))
    return table


def _rows(moves: Sequence[GroupMove], *, everything: bool) -> Iterator[tuple[str, ...]]:
    shown = moves if everything else moves[:_ROWS]
    for one in shown:
        yield (
            one.group,
            f"{one.source[0]}-{one.source[1]}",
            "" if one.source_offset < 0 else str(one.source_offset),
            f"{one.target[0]}-{one.target[1]}",
            "" if one.before is None else str(one.before),
            f"{one.after} (there)" if one.is_done else str(one.after),
            one.how.value,
        )
    if len(shown) < len(moves):
        yield (f"and {len(moves) - len(shown)} more", "--all shows them", "", "", "", "", "")


def _say(line: str, style: str = "") -> None:
    console().print(printable(line), markup=False, soft_wrap=True, style=style)
