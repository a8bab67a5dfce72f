"""Plots of what was measured, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import tables
from bench.loads import Load
from bench.rows import Ceiling, Latency, Result, Rows

_COLORS: Final = {"MM2": "#c9a227", "MM2 tuned": "#8a5a00", "Heliograph": "#1f77b4", "ceiling": "#bbbbbb"}
_OTHER_COLOR: Final = "#6a9f58"
_WIDTH_INCHES: Final = 9.0
_BAR_INCHES: Final = 0.2
_DPI: Final = 110


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Every plot for which something was measured; files of earlier runs are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for group in ("replicated", "single", "tiny"):
        names = [load.name for load in tables.measured(rows, Result, group)]
        if names:
            made.append(folder / f"{group}-throughput.png")
            _bars(made[-1], names, _by_contender(rows, names), "MB/s of the source's batches (median of the rounds)")
            made.append(folder / f"{group}-cpu.png")
            _bars(made[-1], names, _cpu(rows, names), "CPU seconds of the copier for each GB (median of the rounds)")
    far = [load for load in tables.measured(rows, Result, "far") if isinstance(load, Load)]
    if far:
        made.append(folder / "far.png")
        names = [load.name for load in far]
        _bars(made[-1], names, _by_contender(rows, names), "MB/s of the source's batches (median of the rounds)")
    paced = tables.measured(rows, Latency, "latency")
    if paced:
        made.append(folder / "latency.png")
        _bars(made[-1], *_latencies(rows, [load.name for load in paced]), "latency in ms", is_log=True)
    return made


def _by_contender(rows: Rows, names: Sequence[str]) -> dict[str, list[float | None]]:
    found = {
        tables.title_of(who): [rows.median(Result, name, who, tables.speed) for name in names]
        for who in _in_order(rows.contenders(Result, names))
    }
    if any(rows.of(Ceiling, name) for name in names):
        found["ceiling"] = [rows.median(Ceiling, name, "", tables.speed) for name in names]
    return found


def _cpu(rows: Rows, names: Sequence[str]) -> dict[str, list[float | None]]:
    return {
        tables.title_of(who): [rows.median(Result, name, who, tables.cpu) for name in names]
        for who in _in_order(rows.contenders(Result, names))
    }


def _latencies(rows: Rows, names: Sequence[str]) -> tuple[list[str], dict[str, list[float | None]]]:
    shown = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms"}
    labels = [f"{name.removeprefix('latency-')}, {at}" for name in names for at in shown]
    return labels, {
        tables.title_of(who): [
            rows.median(Latency, name, who, lambda row, key=key: float(getattr(row, key)))  # type: ignore[misc]
            for name in names
            for key in shown.values()
        ]
        for who in _in_order(rows.contenders(Latency, names))
    }


def _in_order(contenders: Sequence[str]) -> list[str]:
    known = [tables.SHIPPED, tables.TUNED, tables.OURS]
    return sorted(contenders, key=lambda name: known.index(name) if name in known else len(known))


def _bars(
    file: Path, labels: Sequence[str], series: Mapping[str, Sequence[float | None]], what: str, *, is_log: bool = False
) -> None:
    """Horizontal bars, a group for each label from the top down."""
    from matplotlib.figure import Figure  # takes a second, which only pages need

    step = len(series) + 0.8
    figure = Figure(figsize=(_WIDTH_INCHES, 1.1 + _BAR_INCHES * step * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    for index, (name, values) in enumerate(series.items()):
        places = [group * step + index for group in range(len(labels))]
        drawn = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        color = _COLORS.get(name, _OTHER_COLOR)
        bars = axes.barh([place for place, _ in drawn], [value for _, value in drawn], 0.9, label=name, color=color)
        axes.bar_label(
            bars, [f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for _, value in drawn], padding=3, fontsize=7
        )
    middle = (len(series) - 1) / 2
    axes.set_yticks([group * step + middle for group in range(len(labels))], labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    if is_log:
        axes.set_xscale("log")
    axes.set_xlabel(what, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(series))
    figure.savefig(file, dpi=_DPI, metadata={"Software": None})
