"""Tables and other output of commands on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

_STYLES: Final = {
    "RUNNING": "green",
    "PAUSED": "yellow",
    "STOPPED": "yellow",
    "UNASSIGNED": "yellow",
    "RESTARTING": "yellow",
    "FAILED": "bold red",
}
#: A pipe has no width; this one does not break the lines of tables.
_PIPE_COLUMNS: Final = 240
_TRACE_CHARACTERS: Final = 200
#: Most rows of one kind that are shown without --all.
_ROWS: Final = 20
T = TypeVar("T")


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_connectors(names: Iterable[str], details: Mapping[str, Any]) -> None:
    """Print all connectors: type, state, and running tasks. A connector without a status yet has no details."""
    table = new_table("connector", "type", "state", "tasks running", "worker")
    for name in sorted(names):
        status = details.get(name, {}).get("status")
        if status is None:
            table.add_row(_text(name), "", _state("UNASSIGNED"), "", "")
            continue
        tasks = status["tasks"]
        running = sum(task["state"] == "RUNNING" for task in tasks)
        failed = any(task["state"] == "FAILED" for task in tasks)
        counted = Text(f"{running} of {len(tasks)}", style=_STYLES["FAILED"] if failed else "")
        connector = status["connector"]
        table.add_row(
            _text(name), _text(status["type"]), _state(connector["state"]), counted, _text(connector["worker_id"])
        )
    _show(table, "no connectors")


def show_status(status: Mapping[str, Any]) -> None:
    """Print a connector and its tasks, each with its error if it failed."""
    table = new_table(status["name"], "state", "worker", "error")
    for label, each in [
        ("connector", status["connector"]),
        *((f"task {task['id']}", task) for task in status["tasks"]),
    ]:
        table.add_row(label, _state(each["state"]), _text(each["worker_id"]), _text(_reason(each.get("trace"))))
    _show(table, "")


def show_offsets(offsets: Sequence[Mapping[str, Any]]) -> None:
    """Print partitions with their offsets."""
    table = new_table("partition", "offset")
    for each in offsets:
        table.add_row(_text(_compact(each["partition"])), _text(_compact(each["offset"])))
    _show(table, "no offsets")


def _reason(trace: str | None) -> str:
    """Return the error in a trace: the first line in Java, the last in Python."""
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    if not lines:
        return ""
    reason = lines[-1] if lines[0].startswith("Traceback ") else lines[0]
    return reason if len(reason) <= _TRACE_CHARACTERS else reason[:_TRACE_CHARACTERS] + "…"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def new_table(*columns: str, whole: Collection[str] = (), right: Collection[str] = ()) -> Table:
    """Return an empty table; the columns ``whole`` are never folded, those in ``right`` are aligned right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        side: JustifyMethod = "right" if column in right else "left"
        table.add_column(_text(column), overflow="fold", no_wrap=column in whole, justify=side)
    return table


def shortened(rows: Sequence[T], *, everything: bool) -> Sequence[T]:
    """Return all rows of one kind if there are few or ``everything`` is wanted, else the first ones."""
    return rows if everything or len(rows) <= _ROWS else rows[: _ROWS // 2]


def show_flow(headline: str, table: Table, notes: Iterable[str], unknown: Iterable[str]) -> None:
    """Print the findings about a flow, and what could not be checked."""
    out = console()
    out.print(printable(headline), markup=False, soft_wrap=True)
    if table.row_count:
        out.print(table)
    for note in notes:
        out.print(f"  note: {printable(note)}", markup=False, soft_wrap=True)
    for problem in unknown:
        out.print(f"  not checked: {printable(problem)}", markup=False, soft_wrap=True, style="bold red")


def _show(table: Table, nothing: str) -> None:
    console().print(table if table.row_count else nothing)


def _state(state: str) -> Text:
    return Text(printable(state), style=_STYLES.get(state, ""))


def _text(value: str) -> Text:
    return Text(printable(value))


def printable(text: str) -> str:
    """Replace control characters, because names and traces may hold terminal commands."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
