"""What lags look like: a table for each flow, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connect.cli.connectors_view import console, new_table, printable
from connect.cli.console import counted
from connect.cli.rates import age_text, moved_texts
from connectors.contact import since_text

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
#: Below it offsets are left out.
_WIDE: Final = 110
#: Partitions of which it is said why they could not be looked at.
_UNKNOWN_NAMED: Final = 5


def show_lags(told: Sequence[Mapping[str, Any]]) -> None:
    """One flow behind the other."""
    out = console()
    for one in told:
        for part in _flow(one, None, is_wide=out.width >= _WIDE):
            out.print(part, soft_wrap=isinstance(part, Text))


@contextmanager
def live() -> Iterator[Callable[[Sequence[Mapping[str, Any]], float], None]]:
    """Gives what shows lags in the place of those before, with the time of a monotonic clock, in seconds."""
    screen = Console(highlight=False)
    before: dict[str, tuple[float, int]] = {}
    with Live(console=screen, auto_refresh=False) as shown:

        def show(told: Sequence[Mapping[str, Any]], now_s: float) -> None:
            parts: list[RenderableType] = []
            for one in told:
                name = f"{one.get('connector', '')} {one['flow']}"
                parts += _flow(one, _speed(before.get(name), now_s, one["records"]), is_wide=screen.width >= _WIDE)
                before[name] = (now_s, one["records"])
            shown.update(Group(*parts), refresh=True)

        yield show


def _speed(before: tuple[float, int] | None, now_s: float, records: int) -> float | None:
    """By how many records a second the lag grows."""
    if before is None or now_s <= before[0] or min(records, before[1]) < 0:
        return None
    return (records - before[1]) / (now_s - before[0])


def _flow(one: Mapping[str, Any], speed: float | None, *, is_wide: bool) -> Iterator[RenderableType]:
    yield Text(printable(f"{one['flow']}: {_headline(one)}{_trend(speed)}"))
    if one.get("problem"):
        yield Text(printable(f"  {one['problem']}"), style="bold red")
    if "source_answers" in one:
        yield Text(f"  {_contact(one)}")
    if one["furthest"]:
        yield _table(one["furthest"], is_wide=is_wide)
    unknown = list(one["unknown"].items())
    for _, why in unknown[:_UNKNOWN_NAMED]:
        yield Text(printable(f"  not looked at: {why}"), style="bold red")
    if len(unknown) > _UNKNOWN_NAMED:
        yield Text(f"  not looked at: {len(unknown) - _UNKNOWN_NAMED} more", style="bold red")


def _headline(one: Mapping[str, Any]) -> str:
    lost = f", {one['lost']:,} lost" if one["lost"] else ""
    count = counted(one["partitions"], "partition")
    missed = f", {counted(len(one['unknown']), 'partition')} not looked at" if one["unknown"] else ""
    if one["records"] < 0:
        since_ms = one["unknown_since_ms"]
        where = f" in {count}{lost}" if one["partitions"] else ", not even its partitions are known"
        return f"lag unknown {since_text(-1 if since_ms is None else since_ms)}{where}"
    if not one["partitions"]:
        return f"lag unknown{missed}" if missed else "nothing to copy: 0 partitions"
    if not one["records"]:
        return f"all is copied in {count}{lost}{missed}"
    size, age = bytes_text(one["bytes"]), age_text(one["ms"])
    return f"{one['records']:,} records behind in {count}, about {size}, the oldest {age} old{lost}{missed}"


def _contact(one: Mapping[str, Any]) -> str:
    """Whether the clusters answer the worker, and when records last moved."""
    said = {True: "answers", False: "does not answer", None: "not asked by this worker"}
    sides = [f"{side}: {said[one[f'{side}_answers']]}" for side in ("source", "target")]
    return ", ".join([*sides, *moved_texts(one)])


def _trend(speed: float | None) -> str:
    if speed is None or abs(speed) < 1:
        return ""
    return f", {'growing' if speed > 0 else 'shrinking'} by {abs(speed):,.0f} a second"


def _table(rows: Sequence[Mapping[str, Any]], *, is_wide: bool) -> Table:
    numbers = (*(("position", "end") if is_wide else ()), "records", "bytes (est.)", "oldest", "lost")
    table = new_table("partition", *numbers, whole=numbers, right=numbers)
    for one in rows:
        offsets = (str(one["position"]), str(one["end"])) if is_wide else ()
        table.add_row(
            printable(f"{one['topic']}-{one['partition']}"),
            *offsets,
            f"{one['records']:,}",
            bytes_text(one["bytes"]),
            age_text(one["ms"]),
            f"{one['lost']:,}" if one["lost"] else "",
        )
    return table


def bytes_text(count: int) -> str:
    """In powers of 1024; a negative count is unknown."""
    if count < 0:
        return "unknown"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"
