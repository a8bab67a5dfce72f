"""Results as a table for people and a JSON file for machines: ratios within a round, then their median."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.bed import Contents
from bench.contenders import Contender
from bench.loads import Load
from bench.measure import Ceiling, Result


@dataclass(slots=True)
class Report:
    """What was run so far; ``contents`` by the name of the load."""

    loads: Sequence[Load]
    contenders: Sequence[Contender]
    contents: dict[str, Contents] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    ceilings: list[Ceiling] = field(default_factory=list)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": {
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "architecture": platform.machine(),
                "python": platform.python_version(),
            },
            "loads": [
                {"name": load.name, "title": load.title, **asdict(self.contents[load.name])} for load in self._played
            ],
            "results": [asdict(result) for result in self.results],
            "ceilings": [asdict(ceiling) for ceiling in self.ceilings],
            "medians": [self.medians(load, contender.name) for load in self._played for contender in self.contenders],
        }
        path.write_text(json.dumps(document, indent=2) + "\n")

    @property
    def _played(self) -> list[Load]:
        return [load for load in self.loads if load.name in self.contents]

    def print(self, console: Console) -> None:
        for load in self._played:
            console.print(self._table(load))

    def ratio(self, load: Load, contender: str, against: str, of: Callable[[Result], float]) -> float | None:
        """The median over the rounds of ``of(contender) / of(against)``; None where no round has both."""
        by_round = {(result.contender, result.round): of(result) for result in self.results if result.load == load.name}
        ratios = [
            value / by_round[against, number]
            for (name, number), value in by_round.items()
            if name == contender and by_round.get((against, number))
        ]
        return median(ratios) if ratios else None

    def ceiling_share(self, load: Load, contender: str) -> float | None:
        """The median over the rounds of the contender's rate as a share of the ceiling's."""
        tops = {each.round: each.records_per_s for each in self.ceilings if each.load == load.name}
        shares = [
            result.records_per_s / tops[result.round]
            for result in self.results
            if result.load == load.name and result.contender == contender and result.round in tops
        ]
        return median(shares) if shares else None

    def medians(self, load: Load, contender: str) -> dict[str, object]:
        mine = [result for result in self.results if result.load == load.name and result.contender == contender]
        columns: dict[str, object] = {"load": load.name, "contender": contender, "rounds": len(mine)}
        if mine:
            for name in _MEDIANS:
                columns[name] = median(getattr(result, name) for result in mine)
            rates = [result.records_per_s for result in mine]
            columns["spread"] = (max(rates) - min(rates)) / median(rates)
            for against in (other.name for other in self.contenders if other.name != contender):
                columns[f"throughput_to_{against}"] = self.ratio(load, contender, against, _rate)
                columns[f"cpu_to_{against}"] = self.ratio(load, contender, against, _cpu)
            columns["ceiling_share"] = self.ceiling_share(load, contender)
        return columns

    def _table(self, load: Load) -> Table:
        held = self.contents[load.name]
        table = Table(
            title=f"{load.title}: {held.records:,} records of {held.record_bytes:,.0f} B on the wire, "
            f"batches of {held.batch_bytes / 1000:.1f} KB",
            title_justify="left",
        )
        table.add_column("", no_wrap=True)
        for heading in _HEADINGS:
            table.add_column(heading, justify="right")
        for contender in self.contenders:
            columns = self.medians(load, contender.name)
            if columns["rounds"]:
                table.add_row(contender.title, *(text(columns) for text in _HEADINGS.values()))
        tops = [each for each in self.ceilings if each.load == load.name]
        if tops:
            rates = [each.records_per_s for each in tops]
            spread = (max(rates) - min(rates)) / median(rates)
            cells = (f"{median(rates):,.0f}", f"{spread:.0%}", f"{median(each.wire_mb_per_s for each in tops):,.1f}")
            table.add_row("ceiling", *cells, "-", f"{median(each.target_cpu_s_per_gb for each in tops):,.1f}")
        return table


def _rate(result: Result) -> float:
    return result.records_per_s


def _cpu(result: Result) -> float:
    return result.cpu_s_per_gb


_MEDIANS = (
    "records_per_s",
    "wire_mb_per_s",
    "cpu_s_per_gb",
    "source_cpu_s_per_gb",
    "target_cpu_s_per_gb",
    "memory_peak_mb",
    "first_record_s",
    "target_batch_bytes",
    "stop_s",
)


def _number(name: str, form: str, divisor: float = 1) -> Callable[[Mapping[str, object]], str]:
    def text(columns: Mapping[str, object]) -> str:
        value = columns.get(name)
        return format(value / divisor, form) if isinstance(value, (int, float)) else "-"

    return text


#: Heading to the text of its cell.
_HEADINGS: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    "rec/s": _number("records_per_s", ",.0f"),
    "spread": _number("spread", ".0%"),
    "MB/s": _number("wire_mb_per_s", ",.1f"),
    "CPU-s/GB": _number("cpu_s_per_gb", ",.1f"),
    "target's": _number("target_cpu_s_per_gb", ",.1f"),
    "memory MB": _number("memory_peak_mb", ",.0f"),
    "first s": _number("first_record_s", ",.1f"),
    "batch KB": _number("target_batch_bytes", ",.1f", 1000),
    "x tuned": _number("throughput_to_mm2-tuned", ".2f"),
    "CPU x tuned": _number("cpu_to_mm2-tuned", ".3f"),
    "of ceiling": _number("ceiling_share", ".2f"),
}
