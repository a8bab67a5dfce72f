"""Tables of what was measured: ratios within a round, then their median. One content for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.contenders import CONTENDERS
from bench.loads import LOADS, AnyLoad, Load
from bench.rows import Ceiling, Ciphers, Held, Latency, Ratio, Result, Row, Rows, Started, ratio

OURS: Final = "heliograph"
TUNED: Final = "mm2-tuned"
SHIPPED: Final = "mm2-default"
_NOTHING: Final = "-"
#: Behind a ratio of medians of different runs.
_MARK: Final = "†"
#: Behind a size of batches that a start made.
_START_MARK: Final = "‡"


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is text, the others are figures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.headings, ["---", *["---:"] * (len(self.headings) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def title_of(contender: str) -> str:
    """A contender as people call it; another version by its folder."""
    return next((each.title for each in CONTENDERS if each.name == contender), contender)


def loads_of(group: str) -> list[AnyLoad]:
    return [load for load in LOADS if load.group == group]


def measured(rows: Rows, kind: type[Row], group: str) -> list[AnyLoad]:
    return [load for load in loads_of(group) if rows.of(kind, load.name)]


def number(value: float | None, form: str = ",.0f") -> str:
    return _NOTHING if value is None else format(value, form)


def of_ratio(found: Ratio | None, form: str = ".2f") -> str:
    return _NOTHING if found is None else format(found.value, form) + ("" if found.same_run else _MARK)


def rate(row: Result | Ceiling) -> float:
    return row.records_per_s


def speed(row: Result | Ceiling) -> float:
    return row.wire_mb_per_s


def cpu(row: Result) -> float:
    return row.cpu_s_per_gb


def _target_cpu(row: Result | Ceiling) -> float:
    return row.target_cpu_s_per_gb


def copied(rows: Rows, group: str) -> Table | None:
    """One line a load: Heliograph against the ceiling and tuned MirrorMaker 2."""
    lines = []
    for load in measured(rows, Result, group):
        ours, tuned = (rows.of(Result, load.name, who) for who in (OURS, TUNED))
        top = rows.of(Ceiling, load.name)
        lines.append(
            [
                f"`{load.name}`",
                number(rows.median(Result, load.name, OURS, rate)),
                number(rows.median(Result, load.name, OURS, speed), ",.1f"),
                *([of_ratio(ratio(ours, top, rate), ".0%")] if group in _WITH_CEILING else []),
                of_ratio(ratio(ours, tuned, rate)),
                *([of_ratio(ratio(ours, rows.of(Result, load.name, SHIPPED), rate))] if group == "tiny" else []),
                number(rows.median(Result, load.name, OURS, cpu), ",.1f"),
                of_ratio(ratio(ours, tuned, cpu), ".3f"),
                of_ratio(ratio(ours, tuned, _target_cpu)),
            ]
        )
    headings = ["load", "rec/s", "MB/s", *["of ceiling"] * (group in _WITH_CEILING), "x MM2 tuned"]
    headings += [*["x MM2"] * (group == "tiny"), "CPU-s/GB", "CPU x MM2 tuned", "target's CPU x MM2 tuned"]
    return Table(headings, lines) if lines else None


#: Groups whose loads have one.
_WITH_CEILING: Final = ("replicated", "single")


def details(rows: Rows, group: str) -> Table | None:
    """One line a load and contender, with the ceiling."""
    lines = []
    for load in measured(rows, Result, group):
        who = rows.contenders(Result, [load.name])
        lines += [[f"`{load.name}`" if who[0] == name else "", *_detail(rows, load, name)] for name in who]
        lines += [["", *line] for line in _top(rows, load)]
    return Table(_DETAILS, lines) if lines else None


_DETAILS: Final = (
    "load",
    "",
    "rounds",
    "rec/s",
    "spread",
    "MB/s",
    "CPU-s/GB",
    "source's",
    "target's",
    "memory MB",
    "first s",
    "batch KB",
)


def _detail(rows: Rows, load: AnyLoad, who: str) -> list[str]:
    def median(of: Callable[[Result], float], form: str = ",.1f") -> str:
        return number(rows.median(Result, load.name, who, of), form)

    found = rows.of(Result, load.name, who)
    return [
        title_of(who),
        str(len(found)),
        median(rate, ",.0f"),
        number(rows.spread(Result, load.name, who, rate), ".0%"),
        median(speed),
        median(cpu),
        median(lambda row: row.source_cpu_s_per_gb),
        median(_target_cpu),
        median(lambda row: row.memory_peak_mb, ",.0f"),
        median(lambda row: row.first_record_s),
        median(lambda row: row.target_batch_bytes / 1000)
        + _START_MARK * (not all(row.batches_of_window for row in found)),
    ]


def _top(rows: Rows, load: AnyLoad) -> Iterator[list[str]]:
    tops = rows.of(Ceiling, load.name)
    if tops:
        median = [
            number(rows.median(Ceiling, load.name, "", of), form) for of, form in ((rate, ",.0f"), (speed, ",.1f"))
        ]
        spread = number(rows.spread(Ceiling, load.name, "", rate), ".0%")
        cpu_s = number(rows.median(Ceiling, load.name, "", _target_cpu), ",.1f")
        yield [f"ceiling: {tops[0].variant}", str(len(tops)), median[0], spread, median[1], "", "", cpu_s, "", "", ""]


def far(rows: Rows) -> Table | None:
    """Distance against none, through the same proxy."""
    lines = []
    for load in measured(rows, Result, "far"):
        if not isinstance(load, Load) or not load.round_trip_ms:
            continue
        near = load.name.replace(f"-{load.round_trip_ms:g}ms", "-0ms")
        for who in rows.contenders(Result, [load.name]):
            here, there = rows.of(Result, near, who), rows.of(Result, load.name, who)
            lines.append(
                [
                    f"{load.title}: {title_of(who)}",
                    number(rows.median(Result, near, who, speed), ",.1f"),
                    number(rows.median(Result, load.name, who, speed), ",.1f"),
                    number(rows.spread(Result, load.name, who, speed), ".0%"),
                    of_ratio(ratio(there, here, speed), ".0%"),
                    number(rows.median(Result, load.name, who, cpu), ",.1f"),
                ]
            )
    headings = ["", "MB/s at 0 ms", "MB/s at 100 ms", "spread", "of 0 ms", "CPU-s/GB at 100 ms"]
    return Table(headings, lines) if lines else None


def secured(rows: Rows) -> Table | None:
    """What TLS adds to the copier's CPU, and what its cipher alone takes."""
    lines = []
    for who in rows.contenders(Result, ["secured-tls"]):
        plain, tls = (rows.median(Result, name, who, cpu) for name in ("secured-plaintext", "secured-tls"))
        cipher = rows.median(Ciphers, "secured-tls", "", lambda row: row.cpu_s_per_gb)
        in_memory = rows.median(Ciphers, "secured-tls", "", lambda row: row.tls_cpu_s_per_gb)
        added = tls - plain if tls is not None and plain is not None else None
        lines.append(
            [
                title_of(who),
                number(rows.median(Result, "secured-plaintext", who, speed), ",.1f"),
                number(rows.median(Result, "secured-tls", who, speed), ",.1f"),
                number(plain, ",.2f"),
                number(tls, ",.2f"),
                number(added, ",.2f"),
                number(cipher, ",.2f"),
                number(added / cipher if added is not None and cipher else None, ".2f"),
                number(in_memory, ",.2f"),
                number(added / in_memory if added is not None and in_memory else None, ".2f"),
            ]
        )
    headings = ["", "MB/s plaintext", "MB/s TLS", "CPU-s/GB plaintext", "CPU-s/GB TLS", "added"]
    headings += ["cipher alone", "x cipher", "TLS in memory", "x TLS in memory"]
    return Table(headings, lines) if lines else None


def latency(rows: Rows) -> Table | None:
    lines = []
    for load in measured(rows, Latency, "latency"):
        who = rows.contenders(Latency, [load.name])
        for name in who:
            mine = rows.of(Latency, load.name, name)
            java = [] if name == SHIPPED else rows.of(Latency, load.name, SHIPPED)
            lines.append(
                [
                    load.title if name == who[0] else "",
                    title_of(name),
                    *(number(rows.median(Latency, load.name, name, of), ",.1f") for of in _PERCENTILES.values()),
                    *(of_ratio(ratio(mine, java, _PERCENTILES[at])) for at in ("p50", "p99", "p99.9")),
                ]
            )
    headings = ["", "", *(f"{at} ms" for at in _PERCENTILES), "p50 x MM2", "p99 x MM2", "p99.9 x MM2"]
    return Table(headings, lines) if lines else None


def _percentile(name: str) -> Callable[[Any], float]:
    return lambda row: float(getattr(row, name))


_PERCENTILES: Final = {
    "p50": _percentile("p50_ms"),
    "p99": _percentile("p99_ms"),
    "p99.9": _percentile("p999_ms"),
    "most": _percentile("most_ms"),
}


def started(rows: Rows) -> Table | None:
    lines = [
        [
            title_of(who),
            str(len(rows.of(Started, "start", who))),
            number(rows.median(Started, "start", who, lambda row: row.first_record_s), ".1f"),
            number(rows.spread(Started, "start", who, lambda row: row.first_record_s), ".0%"),
            number(rows.median(Started, "start", who, lambda row: row.stop_s), ".1f"),
        ]
        for who in rows.contenders(Started, ["start"])
    ]
    return Table(["", "starts", "first record s", "spread", "stop s"], lines) if lines else None


def sources(rows: Rows, loads: Iterable[str]) -> Table | None:
    """What the topics of loads held."""
    found = [held for load in loads for held in rows.of(Held, load)]
    lines = [
        [
            f"`{held.load}`",
            f"{held.records:,}",
            f"{held.record_bytes:,.0f}",
            f"{held.batch_bytes / 1000:,.1f}",
            f"{held.batch_bytes / held.record_bytes:,.0f}",
        ]
        for held in found
    ]
    return Table(["load", "records", "B a record", "KB a batch", "records a batch"], lines) if lines else None
