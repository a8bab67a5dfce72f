"""What runs have measured, as rows of a JSON file: a run replaces the rows of what it measures, the others stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar


@dataclass(frozen=True, slots=True)
class Run:
    """One command on one machine. ``id`` is when it began (UTC)."""

    id: str
    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``run`` is the run's id, which :meth:`Rows.add` sets; ``contender`` is "" where a row is of the load itself;
    ``round`` counts from 1."""

    run: str = ""
    load: str
    contender: str = ""
    round: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Row):
    """What the load's topic holds; sizes are means, headers of batches included."""

    records: int
    record_bytes: float
    batch_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Row):
    """What one run did in its window, and what it cost. GB are those of the source's batches."""

    window_s: float
    records_per_s: float
    wire_mb_per_s: float
    cpu_s_per_gb: float
    source_cpu_s_per_gb: float
    target_cpu_s_per_gb: float
    memory_peak_mb: float
    first_record_s: float
    #: Mean of the batches at the target, headers included.
    target_batch_bytes: float
    stop_s: float
    #: How busy the machine was just before, with the brokers idle: what others took.
    busy_before_percent: float
    #: Whether batches of the window were looked at; else those at the beginning of the logs, small ones of the start.
    batches_of_window: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling(Row):
    """What the target's brokers took from loops that only produce, beside a reader of the source."""

    variant: str
    records_per_s: float
    wire_mb_per_s: float
    target_cpu_s_per_gb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Row):
    """From before a record is sent to the source until it is consumed at the target; milliseconds."""

    records: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    most_ms: float
    busy_before_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Row):
    """From the start of the process to its first record at the target, and from SIGTERM to its end."""

    first_record_s: float
    stop_s: float
    busy_before_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ciphers(Row):
    """CPU of decrypting a GB and encrypting it again, in TLS's cipher and largest record, and nothing else.
    ``tls_cpu_s_per_gb``: the same through Python's TLS in memory, which frames records and copies them."""

    cpu_s_per_gb: float
    tls_cpu_s_per_gb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions(Row):
    """What a number of partitions costs, in shares of a core: ``IDLE`` of all processes, ``BUSY`` of the worker. ``make
    scale`` measures the one, ``make late`` the other."""

    partitions: int
    cores: float


#: Loads of these rows.
IDLE: Final = "idle-partitions"
BUSY: Final = "busy-partitions"

_KINDS: Final = {kind.__name__.lower(): kind for kind in (Held, Result, Ceiling, Latency, Started, Ciphers, Partitions)}
T = TypeVar("T", bound=Row)


@dataclass(frozen=True, slots=True)
class Ratio:
    """``same_run``: taken within rounds of one run; else medians of two runs were divided."""

    value: float
    same_run: bool


@dataclass(slots=True)
class Rows:
    """Every row there is, with the runs they are of."""

    runs: dict[str, Run] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Rows:
        """What the file holds; nothing where there is none."""
        if not file.exists():
            return cls()
        document: dict[str, Any] = json.loads(file.read_text())
        runs = {each["id"]: Run(**each) for each in document["runs"]}
        rows: list[Row] = [_KINDS[each.pop("kind")](**each) for each in document["rows"]]
        return cls(runs, rows)

    def write(self, file: Path) -> None:
        """Runs of which no row is left are left out."""
        used = {row.run for row in self.rows}
        document = {
            "runs": [asdict(run) for run in self.runs.values() if run.id in used],
            "rows": [{"kind": type(row).__name__.lower(), **asdict(row)} for row in self.rows],
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n")

    def add(self, run: Run, row: Row) -> None:
        """Take a row of ``run``; rows of earlier runs about the same go."""

        def about(one: Row) -> tuple[type[Row], str, str]:
            return type(one), one.load, one.contender

        self.runs[run.id] = run
        kept = [one for one in self.rows if one.run == run.id or about(one) != about(row)]
        self.rows = [*kept, replace(row, run=run.id)]

    def of(self, kind: type[T], load: str, contender: str | None = None) -> list[T]:
        return [
            row
            for row in self.rows
            if isinstance(row, kind) and row.load == load and contender in (None, row.contender)
        ]

    def contenders(self, kind: type[Row], loads: Iterable[str]) -> list[str]:
        """The names in these loads' rows of a kind, in the order of the rows."""
        return list(dict.fromkeys(row.contender for load in loads for row in self.of(kind, load)))

    def median(self, kind: type[T], load: str, contender: str, of: Callable[[T], float]) -> float | None:
        values = [of(row) for row in self.of(kind, load, contender)]
        return median(values) if values else None

    def spread(self, kind: type[T], load: str, contender: str, of: Callable[[T], float]) -> float | None:
        """Between the largest and the smallest of the rounds, as a share of the median."""
        values = [of(row) for row in self.of(kind, load, contender)]
        return (max(values) - min(values)) / median(values) if values else None


def ratio(mine: Iterable[T], theirs: Iterable[Row], of: Callable[[Any], float]) -> Ratio | None:
    """The median over the rounds that have both; of the medians where no round has; None where one is empty."""
    ours, others = dict(_by_round(mine, of)), dict(_by_round(theirs, of))
    both = [value / others[key] for key, value in ours.items() if others.get(key)]
    if both:
        return Ratio(median(both), same_run=True)
    if not ours or not others or not median(others.values()):
        return None
    return Ratio(median(ours.values()) / median(others.values()), same_run=False)


def _by_round(rows: Iterable[Row], of: Callable[[Any], float]) -> Iterator[tuple[tuple[str, int], float]]:
    for row in rows:
        yield (row.run, row.round), of(row)
