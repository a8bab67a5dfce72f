"""Show flows as a page on the terminal that is drawn again after each look: ``--watch`` of ``status`` and ``lag``."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from connect.cli.commands.flow_looks import FlowSeen, Looks
from connect.cli.console import EXIT_OK, stop_signals
from connect.cli.tables import ERROR, table, text
from connect.core.errors import ConfigError, HeliographError
from connect.core.wording import age_text, counted, printable
from connect.kafka.concurrency import Scope, is_set_within, unless
from connectors.flow_verdict import Urgency

_BARS: Final = "▁▂▃▄▅▆▇█"
#: Looks that a sparkline shows, and that fit on a narrow terminal.
_LOOKS: Final = 24
_FEW_LOOKS: Final = 10
#: More flows do not all get a sentence when they run well.
_FEW_FLOWS: Final = 3
#: Actions of a flow that are shown.
_ACTIONS: Final = 3
_STYLES: Final = {Urgency.ERROR: ERROR, Urgency.WARNING: "yellow", Urgency.UNKNOWN: "yellow", Urgency.OK: "green"}
#: A narrower terminal shows neither heartbeats nor the growth of the lag.
_WIDE: Final = 110
#: A page without an answer for this time says so.
_LATE_S: Final = 5.0
#: Ctrl-C ends the page within this time, although an open request to a worker cannot be cancelled.
_STOP_S: Final = 5.0
#: Lines of the table of partitions besides its rows.
_AROUND_ROWS: Final = 4


def watch(title: str, looks: AbstractAsyncContextManager[Looks], every_s: float, *, as_json: bool) -> int:
    """Show the page until Ctrl-C and return 0. Raises ConfigError if there is no terminal that can be drawn on, or for
    JSON."""
    if as_json or not sys.stdout.isatty():
        raise ConfigError("--watch needs a terminal and cannot be combined with --json", "--watch")
    if Console().is_dumb_terminal:
        raise ConfigError("--watch needs a terminal that can be drawn on. Set TERM, or leave --watch out", "--watch")
    asyncio.run(_watch(title, looks, every_s))
    return EXIT_OK


async def _watch(title: str, opened: AbstractAsyncContextManager[Looks], every_s: float) -> None:
    screen, loop = Console(highlight=False), asyncio.get_running_loop()
    page = FlowPage(title)
    async with stop_signals(exit_within_s=_STOP_S, exit_late=EXIT_OK) as stop, opened as looks:
        with Live(console=screen, screen=True, auto_refresh=False) as live:

            def draw() -> None:
                live.update(page.drawn(screen), refresh=True)

            async def say_late() -> None:
                await asyncio.sleep(_LATE_S)
                page.problem = f"no answer for {_LATE_S:g} s. It still waits, and what is below may have changed"
                draw()

            loop.add_signal_handler(signal.SIGWINCH, draw)
            draw()
            while not stop.is_set():
                try:
                    async with Scope("late look") as scope:
                        scope.spawn(say_late(), "say that a look is late")
                        seen = await unless(stop, looks.look(), "look at flows")
                except ConfigError:
                    raise
                except HeliographError as error:
                    page.problem = str(error)
                else:
                    if seen is not None:
                        page.take(seen, datetime.now(UTC).strftime("%H:%M:%S UTC"))
                draw()
                await is_set_within(stop, every_s)
            loop.remove_signal_handler(signal.SIGWINCH)


class FlowPage:
    """The page, with the lags of the last looks."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._seen: Sequence[FlowSeen] = ()
        self._at = "looking ..."
        self._lags: dict[str, deque[int]] = {}
        #: Why the last look failed.
        self.problem = ""

    def take(self, seen: Sequence[FlowSeen], at: str) -> None:
        """Take a look at all flows, made at the time ``at``."""
        order = list(Urgency)
        self._seen = sorted(seen, key=lambda one: (order.index(one.verdict.urgency), one.facts.flow))
        self._at, self.problem = at, ""
        for one in seen:
            self._lags.setdefault(_name(one), deque(maxlen=_LOOKS)).append(one.facts.lag.records)

    def drawn(self, screen: Console) -> RenderableType:
        """Return the page for a screen. What does not fit is left out: first of the partitions, then from below."""
        width, height = screen.size
        parts: list[RenderableType] = [_heading(self._title, f"{self._at}, Ctrl-C ends", width)]
        if self.problem:
            parts.append(text(f"The last look failed: {self.problem}", ERROR))
        if not self._seen:
            return Group(*parts)
        most = max(height // 3 - 3, 1)
        parts.append(self._flows(self._seen[:most], width))
        if len(self._seen) > most:
            parts.append(Text(f"and {counted(len(self._seen) - most, 'flow')} more"))
        parts += _sentences(self._seen)
        below = list(_failovers(self._seen))
        lines = sum(len(screen.render_lines(one, pad=False)) for one in (*parts, *below))
        left = height - lines - _AROUND_ROWS
        if (rows := _partitions(self._seen)) and left > 0:
            numbers = ("records", "oldest")
            whole = ("partition", *numbers)
            parts.append(table((*whole, "state"), rows[:left], whole=whole, right=numbers))
        return Group(*parts, *below)

    def _flows(self, seen: Sequence[FlowSeen], width: int) -> Table:
        numbers = ("records/s", "behind", "oldest")
        is_wide = width >= _WIDE
        beat = ("last heartbeat",) if is_wide else ()
        whole = ("flow", "state", *numbers, "lag")
        shown = table((*whole, *beat), (), whole=whole, right=numbers)
        for one in seen:
            lag, verdict, rate = one.facts.lag, one.verdict, one.facts.records_per_s
            growth = lag.growth_per_s or 0
            rise = f" {growth:+,.0f}/s" if is_wide and abs(growth) >= 1 else ""
            lags = [*self._lags[_name(one)]][-(_LOOKS if is_wide else _FEW_LOOKS) :]
            shown.add_row(
                text(str(one.facts.flow)),
                text(verdict.state.value, _STYLES[verdict.urgency]),
                "" if rate is None else f"{rate:,.0f}",
                "unknown" if lag.records < 0 else f"{lag.records:,}",
                "" if lag.records <= 0 else age_text(lag.ms),
                f"{sparkline(lags)}{rise}",
                *((one.last_heartbeat,) if is_wide else ()),
            )
        return shown


def _name(one: FlowSeen) -> str:
    return f"{one.facts.flow} {one.facts.connector}"


def _heading(left: str, right: str, width: int) -> Text:
    shown = printable(left)[: width - len(right) - 2].ljust(width - len(right)) + right
    return Text(shown, style="reverse", no_wrap=True, overflow="crop")


def sparkline(values: Sequence[int]) -> str:
    """Draw numbers as bars, from 0 to the highest; a negative number is unknown, and a point."""
    most = max([*values, 1])
    return "".join("·" if one < 0 else _BARS[one * (len(_BARS) - 1) // most] for one in values)


def _sentences(seen: Sequence[FlowSeen]) -> Iterator[RenderableType]:
    for one in seen:
        verdict = one.verdict
        if verdict.urgency is Urgency.OK and len(seen) > _FEW_FLOWS:
            continue
        yield text(verdict.sentence, _STYLES[verdict.urgency])
        below = [text(sentence) for sentence in verdict.also]
        below += [Text.assemble(("Do: ", "bold"), printable(str(one))) for one in verdict.actions[:_ACTIONS]]
        if (more := len(verdict.actions) - _ACTIONS) > 0:
            below.append(Text(f"and {counted(more, 'action')} more"))
        yield from (Padding(line, (0, 0, 0, 2)) for line in below)


def _failovers(seen: Sequence[FlowSeen]) -> Iterator[RenderableType]:
    for one in seen:
        yield Text.assemble((f"Failover {one.facts.flow}: ", "bold"), printable(one.verdict.failover.sentence))
        if one.verdict.verified:
            yield Text.assemble((f"Copy of {one.facts.flow}: ", "bold"), printable(one.verdict.verified))


def _partitions(seen: Sequence[FlowSeen]) -> list[tuple[str, str, str, str]]:
    """Return rows of partitions: those that have stopped, then those of greatest lag of any flow."""
    rows = []
    for one in seen:
        states = {str(each.source): each.state for each in (*one.facts.stopped, *one.facts.waiting)}
        for lag in one.lag["furthest"]:
            name = f"{lag['topic']}-{lag['partition']}"
            rows.append((str(one.facts.flow), name, lag["records"], age_text(lag["ms"]), states.pop(name, "")))
        rows += [(str(one.facts.flow), name, -1, "", state) for name, state in states.items()]
    rows.sort(key=lambda row: (not row[4], -row[2], row[:2]))
    return [(f"{row[0]} {row[1]}", "" if row[2] < 0 else f"{row[2]:,}", row[3], row[4]) for row in rows]
