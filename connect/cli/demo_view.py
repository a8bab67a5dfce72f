"""The demo's face: a calm live table on a terminal, plain lines without one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connect.cli.rates import BATCH_KINDS, FlowRates, TopicRates, bytes_text, flow_line, troubles

REFRESH_PER_S: Final = 4
#: A terminal with so many columns has room for every figure.
WIDE_COLUMNS: Final = 106
_PLAIN_INTERVAL_S: Final = 2.0
_PLAIN_UNCHANGED_S: Final = 10.0


class View(Protocol):
    """Shows what happens; a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def say(self, text: str) -> None:
        """A sentence that stays."""

    def show(self, now_s: float, flows: Sequence[FlowRates], status: str) -> None:
        """The picture of this moment; ``status`` says in a few words what is going on."""


class PlainView:
    """Lines for a pipe or a log: one per flow every other second, less often while nothing changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = float("-inf")
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, now_s: float, flows: Sequence[FlowRates], status: str) -> None:
        lines = [f"{flow_line(flow)} ({status})" for flow in flows]
        if now_s - self._shown_s < (_PLAIN_UNCHANGED_S if lines == self._shown else _PLAIN_INTERVAL_S):
            return
        self._shown_s, self._shown = now_s, lines
        for line in lines:
            self.say(line)


class LiveView:
    """The table, redrawn in place. What is said scrolls by above it."""

    def __init__(self, console: Console, notes: LastWarning) -> None:
        self._console = console
        self._notes = notes
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, auto_refresh=False)
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        if self._started:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def show(self, now_s: float, flows: Sequence[FlowRates], status: str) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        wide = self._console.width >= WIDE_COLUMNS
        self._live.update(picture(flows, status, self._notes.text, wide=wide), refresh=True)


def picture(flows: Sequence[FlowRates], status: str, note: str = "", *, wide: bool = True) -> RenderableType:
    """The tables of all flows, with a status line beneath them; with fewer columns where that is too wide."""
    parts: list[RenderableType] = [_table(flow, wide) for flow in flows]
    parts.append(Text(f"  {status}", style="dim"))
    if note:
        parts.append(Text(f"  {note}", style="yellow", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _table(flow: FlowRates, wide: bool) -> Table:
    source, target = flow.flow
    title = Text.assemble(
        (f"  {source} ", "bold"), ("──▶", "bold yellow"), (f" {target}", "bold"), f"   {flow.state}", "   Spark epoch "
    )
    title.append(str(flow.spark_epoch), "bold")
    title.append(troubles(flow), "yellow")
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_footer=True)
    table.padding, table.pad_edge = (0, 0, 0, 1), False
    table.add_column("topic", "total", no_wrap=True)
    if wide:
        table.add_column("mirrored as", "", style="cyan", no_wrap=True)
        table.add_column("parts", str(sum(topic.partitions for topic in flow.topics)), justify="right")
        table.add_column("records", f"{flow.records:,}", justify="right", min_width=9, no_wrap=True)
    # The widths are held so that the table does not twitch while figures grow.
    for name, width, total in (
        ("records/s", 9, f"{flow.records_per_s:,.0f}"),
        ("bytes/s", 7, bytes_text(flow.bytes_per_s)),
        ("behind", 6, f"{flow.lag_records:,}"),
        ("ms", 5, f"{flow.lag_ms:,}"),
        *((kind, 7, f"{flow.batches(kind):,}") for kind in BATCH_KINDS),
    ):
        table.add_column(name, total, justify="right", min_width=width, footer_style="bold", no_wrap=True)
    for topic in flow.topics:
        copy = [topic.target_topic, str(topic.partitions), f"{topic.records:,}"] if wide else []
        table.add_row(topic.source_topic, *copy, *_figures(topic))
    return table


def _figures(topic: TopicRates) -> list[str | Text]:
    return [
        f"{topic.records_per_s:,.0f}",
        bytes_text(topic.bytes_per_s),
        f"{topic.lag_records:,}",
        f"{topic.lag_ms:,}",
        *(Text(f"{topic.batches.get(kind, 0):,}", "" if topic.batches.get(kind) else "dim") for kind in BATCH_KINDS),
    ]


class LastWarning(logging.Handler):
    """Keeps the last warning for the line below the table; the log itself goes to a file."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = " ".join(record.getMessage().split())
