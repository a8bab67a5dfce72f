"""``docs/scale.md``: how many executors a rate needs, by the costs that the bench has measured, and the next limit.

The model is linear. A copier takes some CPU while it runs, and more with bytes, with the batches and the records in
which they come, and with partitions that only have to be watched. It is fitted to the loads of one day: rows of other
days are of another version and of a machine that was busy with something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Final

from bench import tables
from bench.loads import Load
from bench.rows import BUSY, IDLE, Ceiling, Held, Partitions, Result, Rows, Run

_GB: Final = 1e9
_COSTS: Final = 4
#: A run's id begins with its day.
_DAY: Final = len("2026-11-01")
#: So many loads at least: as many as there are costs would be met exactly, whatever they say.
_LEAST_LOADS: Final = _COSTS + 1
#: What a loop takes that only receives a GB and sends it on (``python -m bench.floor``), in CPU seconds: no copy of one
#: takes less, and rows that say so do not tell costs apart.
LEAST_GB_S: Final = 0.25
#: A load that is modelled worse says that the model lacks something.
_MOST_ERROR: Final = 0.4
#: A leader remembers the last five batches of a producer, so no more are under way for each partition.
_UNDER_WAY: Final = 5
_MERGED_BYTES: Final = 1_048_576
_GROUPS: Final = ("replicated", "single")
#: What a partition costs, by rows: the command that measures it, and what it measures.
_OF_PARTITIONS: Final = {
    IDLE: ("make scale", "an idle partition, in worker, Spark and slices"),
    BUSY: ("make late", "a partition with one record a second, in the worker"),
}
_AIM_GB_PER_S: Final = 10.0
_AIM_PARTITIONS: Final = 100_000
_CORES_SHOWN: Final = 64
_DPI: Final = 110


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured of a load: GB are of the source's batches, ``records`` and ``batches`` those in a GB."""

    name: str
    batches: float
    records: float
    cpu_s_per_gb: float
    gb_per_s: float

    @property
    def cores(self) -> float:
        return self.cpu_s_per_gb * self.gb_per_s


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU of the copier: cores while it runs, and seconds for a GB, for each batch of the source, for each record."""

    running_cores: float
    gb_s: float
    batch_s: float
    record_s: float

    def cores(self, gb_per_s: float, batches: float, records: float) -> float:
        """What a copy takes; ``batches`` and ``records`` are those in a GB."""
        moving = gb_per_s * (self.gb_s + self.batch_s * batches + self.record_s * records)
        return self.running_cores + moving


class NoModel(Exception):
    """No costs can be had of these rows; the text says why."""


@dataclass(frozen=True, slots=True)
class Model:
    """The costs, the runs of the day whose rows carry them, and their loads."""

    costs: Costs
    runs: Sequence[Run]
    loads: Sequence[Point]


def model(rows: Rows) -> Model:
    """The model of the day with the most loads, of the later one of two. Raises NoModel."""
    by_day = {run.id[:_DAY]: points(rows, run.id[:_DAY]) for run in rows.runs.values()}
    carrying = max(by_day, key=lambda day: (len(by_day[day]), day), default=None)
    if carrying is None:
        raise NoModel("nothing was measured yet")
    runs = [run for run in rows.runs.values() if points(rows, run.id)]
    return Model(fit(by_day[carrying]), [run for run in runs if run.id.startswith(carrying)], by_day[carrying])


def points(rows: Rows, when: str) -> list[Point]:
    """Of every load of uncompressed batches whose copy was measured in runs whose ids, which are times, begin with
    ``when``. To open and compress a GB costs what its records make of it, which is no cost of a GB."""
    found = []
    for group in _GROUPS:
        for load in tables.measured(rows, Result, group):
            measured_rows = [row for row in rows.of(Result, load.name, tables.OURS) if row.run.startswith(when)]
            held = rows.of(Held, load.name)
            if measured_rows and held and isinstance(load, Load) and load.record_bytes is not None:
                a_batch, a_record = _GB / held[0].batch_bytes, _GB / held[0].record_bytes
                cpu_s, speed = median(map(tables.cpu, measured_rows)), median(map(tables.speed, measured_rows))
                found.append(Point(load.name, a_batch, a_record, cpu_s, speed / 1000))
    return found


def fit(measured: Sequence[Point]) -> Costs:
    """Return the costs whose squared relative errors are least: none below 0, and a GB not below ``LEAST_GB_S``.

    Raises:
        NoModel: The loads are too few, or one is far from what the costs say of it.
    """
    import numpy as np  # takes a while, which only pages need

    if len(measured) < _LEAST_LOADS:
        raise NoModel(f"{_LEAST_LOADS} loads of one day are needed, and the fullest day has {len(measured)}")
    rows = [[1.0, point.gb_per_s, point.gb_per_s * point.batches, point.gb_per_s * point.records] for point in measured]
    matrix = np.array(rows) / np.array([[point.cores] for point in measured])
    # What is above the bounds is looked for.
    wanted = 1.0 - LEAST_GB_S * matrix[:, 1]
    best, least = [0.0] * _COSTS, float("inf")
    # Of the best costs without a bound, those below 0 need not be the ones that are 0 in the best costs with it.
    for used in (used for count in range(1, _COSTS + 1) for used in combinations(range(_COSTS), count)):
        solved, *_ = np.linalg.lstsq(matrix[:, used], wanted, rcond=None)
        error = float(np.square(matrix[:, used] @ solved - wanted).sum())
        if (solved >= 0).all() and error < least:
            found = dict(zip(used, map(float, solved), strict=True))
            best, least = [found.get(index, 0.0) for index in range(_COSTS)], error
    costs = Costs(best[0], LEAST_GB_S + best[1], *best[2:])
    worst = max(measured, key=lambda point: abs(_error(costs, point)))
    if abs(_error(costs, worst)) > _MOST_ERROR:
        raise NoModel(f"`{worst.name}` is off by {_error(costs, worst):+.0%}, and {_MOST_ERROR:.0%} is the most")
    return costs


def _error(costs: Costs, point: Point) -> float:
    """How far the costs are from what was measured, as a share of that."""
    return costs.cores(point.gb_per_s, point.batches, point.records) / point.cores - 1


def fitted_text(found: Model) -> str:
    """Which rows carry the model."""
    day = found.runs[0].id[:_DAY]
    runs = " and ".join(f"`{run.command}` (version {run.versions.get('Heliograph', 'unknown')})" for run in found.runs)
    return f"Fitted to {len(found.loads)} loads of one day, {day}: {runs}."


def partition_cores(rows: Rows, load: str) -> float | None:
    """What each partition of ``IDLE`` or ``BUSY`` costs, with its share of what a mirror without work costs."""
    return rows.median(Partitions, load, "", lambda row: row.cores / row.partitions)


def partitions_text(rows: Rows) -> str:
    """How many partitions the cost of one was measured with, or that it was not measured."""
    said = []
    for load, (command, what) in _OF_PARTITIONS.items():
        found = rows.of(Partitions, load)
        how = f"measured with {found[0].partitions:,} partitions" if found else "not measured yet, so not included"
        said.append(f"* {what}: {how} (`{command}`).")
    return "\n".join(said)


def costs_table(costs: Costs, rows: Rows) -> tables.Table:
    lines = [
        ["a running copier", f"{costs.running_cores:.2f} cores"],
        ["a GB that is copied unchanged", f"{costs.gb_s:.2f} CPU-s" + " (the bound)" * (costs.gb_s == LEAST_GB_S)],
        ["a batch of the source", f"{costs.batch_s * 1e6:.2f} us"],
        ["a record, if batches are merged", f"{costs.record_s * 1e9:.1f} ns"],
    ]
    for load, (_, what) in _OF_PARTITIONS.items():
        if (cores := partition_cores(rows, load)) is not None:
            lines.append([what, f"{cores * 1e6:.0f} us a second"])
    return tables.Table(["", "costs"], lines)


def checks_table(costs: Costs, measured: Iterable[Point]) -> tables.Table:
    """What the model says of each load that was measured, with the measured figures."""
    lines = []
    for point in measured:
        modelled = costs.cores(point.gb_per_s, point.batches, point.records)
        lines.append(
            [
                f"`{point.name}`",
                f"{_GB / point.batches / 1000:,.1f}",
                f"{_GB / point.records:,.0f}",
                f"{1000 * point.gb_per_s:,.0f}",
                f"{point.cores:.2f}",
                f"{modelled:.2f}",
                f"{_error(costs, point):+.0%}",
            ]
        )
    headings = ["load", "KB a batch", "B a record", "MB/s", "cores measured", "modelled", "error"]
    return tables.Table(headings, lines)


#: Of the aim: KB a batch and B a record.
_KINDS: Final = ((1000, 1000), (16, 1000), (1, 1000), (16, 100))


def aim_table(costs: Costs, rows: Rows) -> tables.Table:
    watching_cores = _AIM_PARTITIONS * (partition_cores(rows, IDLE) or 0.0)
    lines = []
    for batch_kb, record_bytes in _KINDS:
        cores = costs.cores(_AIM_GB_PER_S, _GB / batch_kb / 1000, _GB / record_bytes) + watching_cores
        lines.append([f"{batch_kb} KB", f"{record_bytes} B", f"{cores:.0f}", f"{1000 * _AIM_GB_PER_S / cores:.0f}"])
    return tables.Table(["batches", "records", "executor cores", "MB/s a core"], lines)


def walls_table(rows: Rows) -> tables.Table:
    lines = []
    if (busy_cores := partition_cores(rows, BUSY)) is not None:
        lines.append(["worker, busy partitions", f"{1 / busy_cores:,.0f} partitions for each worker"])
    replicated = [row for load in tables.loads_of("replicated") for row in rows.of(Ceiling, load.name)]
    if replicated:
        cores = min(row.target_cpu_s_per_gb for row in replicated) * _AIM_GB_PER_S
        lines.append(["target's brokers, three replicas", f"{cores:.0f} broker cores for {_AIM_GB_PER_S:.0f} GB/s"])
    for trip_ms in (5, 100):
        most = _UNDER_WAY * _MERGED_BYTES / (trip_ms / 1000) / 1e6
        lines.append([f"one partition, responses after {trip_ms} ms", f"{most:,.0f} MB/s"])
    return tables.Table(["limit", "at"], lines)


def draw(costs: Costs, measured: Sequence[Point], file: Path) -> None:
    """Rate against cores for each kind of batches, with what was measured as points."""
    from matplotlib.figure import Figure  # takes a second, which only pages need

    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    rates = [10 ** (step / 10) for step in range(-20, 18)]
    for batch_kb, record_bytes in _KINDS:
        cores = [costs.cores(rate, _GB / batch_kb / 1000, _GB / record_bytes) for rate in rates]
        axes.plot(cores, rates, label=f"batches of {batch_kb} KB, records of {record_bytes} B")
    axes.plot([point.cores for point in measured], [point.gb_per_s for point in measured], "k.", label="measured")
    axes.axhline(_AIM_GB_PER_S, color="#bbbbbb", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(0.05, _CORES_SHOWN), ylim=(0.02, 50))
    axes.set_xlabel("cores of the copier in use", fontsize=8)
    axes.set_ylabel("GB/s of the source's batches", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(file, dpi=_DPI, metadata={"Software": None})
