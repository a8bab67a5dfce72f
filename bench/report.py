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

from bench.contenders import Contender
from bench.loads import Load
from bench.measure import Ceiling, Result
from bench.topics import Contents


@dataclass(slots=True)
class Report:
    """What was run so far."""

    loads: Sequence[Load]
    contents: Mapping[str, Contents]
    contenders: Sequence[Contender]
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
                {
                    "name": load.name,
                    "title": load.title,
                    "records": self.contents[load.topic].records,
                    "wire_bytes": self.contents[load.topic].bytes,
                    "batch_bytes": self.contents[load.topic].batch_bytes,
                }
                for load in self.loads
            ],
            "results": [asdict(result) for result in self.results],
            "ceilings": [asdict(ceiling) for ceiling in self.ceilings],
            "medians": [self._medians(load, contender.name) for load in self.loads for contender in self.contenders],
        }
        path.write_text(json.dumps(document, indent=2) + "\n")

    def print(self, console: Console) -> None:
        for load in self.loads:
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

    def _medians(self, load: Load, contender: str) -> dict[str, object]:
        mine = [result for result in self.results if result.load == load.name and result.contender == contender]
        columns: dict[str, object] = {
            "load": load.name,
            "contender": contender,
            "rounds": len(mine),
        }
        if mine:
            for name in _MEDIANS:
                columns[name] = median(getattr(result, name) for result in mine)
            for against in ("mm2-default", "mm2-tuned", "older"):
                columns[f"throughput_to_{against}"] = self.ratio(load, contender, against, _rate)
                columns[f"cpu_to_{against}"] = self.ratio(load, contender, against, _cpu)
            columns["ceiling_share"] = self.ceiling_share(load, contender)
        return columns

    def _table(self, load: Load) -> Table:
        held = self.contents[load.topic]
        table = Table(
            title=f"{load.title}: {held.records:,} records, {held.bytes / 1e6:,.0f} MB on the wire, "
            f"batches of {held.batch_bytes / 1000:.1f} KB",
            title_justify="left",
        )
        table.add_column("", no_wrap=True)
        for heading in _HEADINGS:
            table.add_column(heading, justify="right")
        for contender in self.contenders:
            columns = self._medians(load, contender.name)
            if columns["rounds"]:
                table.add_row(contender.title, *(text(columns) for text in _HEADINGS.values()))
        tops = [each for each in self.ceilings if each.load == load.name]
        if tops:
            rate, mb = (
                median(each.records_per_s for each in tops),
                median(each.wire_mb_per_s for each in tops),
            )
            table.add_row(f"ceiling, {tops[0].loops} loops", f"{rate / 1000:,.0f}", f"{mb:,.1f}")
        return table


def _rate(result: Result) -> float:
    return result.records_per_s


def _cpu(result: Result) -> float:
    return result.cpu_s_per_gb


_MEDIANS = (
    "records_per_s",
    "wire_mb_per_s",
    "cpu_s_per_gb",
    "run_cpu_s",
    "memory_peak_mb",
    "first_record_s",
    "target_batch_bytes",
    "stop_s",
)


def _number(name: str, digits: int, divisor: float = 1) -> Callable[[Mapping[str, object]], str]:
    def text(columns: Mapping[str, object]) -> str:
        value = columns[name]
        return f"{value / divisor:,.{digits}f}" if isinstance(value, (int, float)) else "-"

    return text


#: Heading to the text of its cell.
_HEADINGS: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    "k rec/s": _number("records_per_s", 0, 1000),
    "MB/s": _number("wire_mb_per_s", 1),
    "CPU-s/GB": _number("cpu_s_per_gb", 1),
    "run CPU-s": _number("run_cpu_s", 1),
    "memory MB": _number("memory_peak_mb", 0),
    "first s": _number("first_record_s", 1),
    "batch KB": _number("target_batch_bytes", 1, 1000),
    "x tuned": _number("throughput_to_mm2-tuned", 2),
    "CPU x tuned": _number("cpu_to_mm2-tuned", 3),
    "of ceiling": _number("ceiling_share", 2),
}
