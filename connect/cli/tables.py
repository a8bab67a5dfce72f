"""Tables and other output of commands on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from connect.core.wording import printable, reason_of

#: The style of what needs attention.
ERROR: Final = "bold red"
_WAITING: Final = ("PAUSED", "STOPPED", "UNASSIGNED", "RESTARTING")
_STYLES: Final = {"RUNNING": "green", **dict.fromkeys(_WAITING, "yellow"), "FAILED": ERROR}
#: A pipe has no width; this one does not break the lines of tables.
_PIPE_COLUMNS: Final = 240
#: Between two columns.
_GAP: Final = "   "
#: Most rows of one kind that are shown without --all.
_ROWS: Final = 20
T = TypeVar("T")


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_connectors(names: Iterable[str], details: Mapping[str, Any]) -> None:
    """Print all connectors: type, state, and running tasks. A connector without a status yet has no details."""
    columns = ("connector", "type", "state", "tasks running", "worker")
    _show(table(columns, (_connector(name, details.get(name, {})) for name in sorted(names))), "no connectors")


def _connector(name: str, details: Mapping[str, Any]) -> tuple[str | Text, ...]:
    status = details.get("status")
    if status is None:
        return name, "", _state("UNASSIGNED")
    states, connector = [task["state"] for task in status["tasks"]], status["connector"]
    running = f"{states.count('RUNNING')} of {len(states)}"
    counted = Text(running, style=_STYLES["FAILED"] if "FAILED" in states else "")
    return name, status["type"], _state(connector["state"]), counted, connector["worker_id"]


def show_status(status: Mapping[str, Any]) -> None:
    """Print a connector and its tasks, each with its error if it failed."""
    parts = [("connector", status["connector"]), *((f"task {task['id']}", task) for task in status["tasks"])]
    rows = ((name, _state(one["state"]), one["worker_id"], reason_of(one.get("trace"))) for name, one in parts)
    _show(table((status["name"], "state", "worker", "error"), rows), "")


def show_offsets(offsets: Sequence[Mapping[str, Any]]) -> None:
    rows = ([json.dumps(one[part], ensure_ascii=False) for part in ("partition", "offset")] for one in offsets)
    _show(table(("partition", "offset"), rows), "no offsets")


def show_audit(entries: Sequence[Mapping[str, Any]]) -> None:
    columns = ("when", "who", "what", "how")
    _show(table(columns, ([one[column] for column in columns] for one in entries), whole=("when",)), "no entries")


def table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    whole: Collection[str] = (),
    right: Collection[str] = (),
) -> Table:
    """Return a table; the columns ``whole`` are never folded, those in ``right`` are aligned right."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        side: JustifyMethod = "right" if column in right else "left"
        made.add_column(text(column), overflow="fold", no_wrap=column in whole, justify=side)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else text(cell) for cell in row))
    return made


def change_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of changes; the last two columns are what changes, and how. They share one where the terminal is
    too narrow for a name next to a value."""
    cells = list(rows)
    names = sum(max(map(cell_len, column)) + len(_GAP) for column in list(zip(columns, *cells, strict=True))[:-1])
    value = max((cell_len(word) for row in cells for word in row[-1].split()), default=0)
    if names + value + len("  ") <= console().width:
        return table(columns, cells, whole=columns[:-1])
    shared: Iterable[list[str | Text]] = ([*row[:-2], Text("\n").join(map(text, row[-2:]))] for row in cells)
    return table(columns[:-1], shared, whole=columns[:-2])


def listed(
    rows: Sequence[T], cells: Callable[[T], Sequence[str]], *, everything: bool, before: Sequence[str] = ()
) -> Iterator[Sequence[str]]:
    """Yield the cells of each row or, unless ``everything`` is wanted, of the first ones and a row that counts the
    others, with the cells ``before`` the count."""
    shown = rows if everything else rows[:_ROWS]
    yield from map(cells, shown)
    if len(shown) < len(rows):
        yield *before, f"and {len(rows) - len(shown)} more", "--all shows them"


def show(part: Table | str, style: str = "") -> None:
    """Print a line as it is, or a table that has rows."""
    if isinstance(part, str):
        console().print(printable(part), markup=False, soft_wrap=True, style=style)
    elif part.row_count:
        console().print(part)


def show_flow(headline: str, found: Table, notes: Iterable[str], unknown: Iterable[str]) -> None:
    """Print the findings about a flow, and what could not be checked."""
    show(headline)
    show(found)
    show_remarks(notes, unknown)


def show_remarks(notes: Iterable[str], unknown: Iterable[str]) -> None:
    """Print notes, and what could not be checked."""
    for note in notes:
        show(f"  note: {note}")
    for problem in unknown:
        show(f"  not checked: {problem}", ERROR)


def _show(found: Table, nothing: str) -> None:
    console().print(found if found.row_count else nothing)


def _state(state: str) -> Text:
    return text(state, _STYLES.get(state, ""))


def text(value: str, style: str = "") -> Text:
    return Text(printable(value), style=style)
