"""``python -m bench``: each load written once, then rounds of every contender on the same data, and the page."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console
from rich.table import Table

from bench import page, tables
from bench.bed import Bed, BenchError, Contents, start_bed
from bench.ceiling import Variant, variants
from bench.ciphers import measure_ciphers
from bench.contenders import CONTENDERS, Contender, older
from bench.latency import measure_latency
from bench.loads import DEFAULT, LOADS, AnyLoad, Load, Paced, Start, write_payloads
from bench.machine import this_run
from bench.measure import Window, measure, measure_ceiling, measure_start
from bench.plan import COLD_TIMES, WARM_LATENCY_S, Asked
from bench.profile import profile
from bench.rows import Ceiling, Ciphers, Held, Latency, Result, Row, Rows, Run, Started
from connect.core.errors import HeliographError
from tests.kit.java_program import JavaToolFailed, run_tool

_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
_FAILED: Final = 1
_WIDTH: Final = 150
_BUSY_PERCENT: Final = 15.0
_PROBE_S: Final = 4.0
#: Brokers are warm when so many probes, one after the other, are no faster by so much than the best before them. Each
#: lasts long enough to fill what the target keeps of its logs.
_WARM_PROBE_S: Final = 12.0
_STEADY_PROBES: Final = 2
_STEADY: Final = 1.05
_WARM_WINDOW: Final = Window(0.0, 12.0)
_WARM_PROBES: Final = 10
_LOADING_S: Final = 1800.0
#: Of a load that only has to be there.
_FEW_RECORDS: Final = 8000

_Turn = TypeVar("_Turn")


def main() -> None:
    options = _arguments()
    console = Console(width=max(_WIDTH, Console().width), highlight=False)
    if options.list:
        for load in LOADS:
            console.print(f"{load.name:24} {load.about}", soft_wrap=True)
        return
    if options.page:
        page.write(Rows.read(options.json))
        console.print(f"written: {page.PAGE}")
        return
    try:
        with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as folder:
            asyncio.run(_bench(options, Path(folder), console))
    except (BenchError, HeliographError, JavaToolFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit("bench: stopped")


async def _bench(options: argparse.Namespace, folder: Path, console: Console) -> None:
    asked = _asked(options)
    contenders = [*CONTENDERS, *(older(clone) for clone in options.older)]
    bench = Bench(asked, options, contenders, folder, console)
    if not options.profile:
        console.print(f"this takes about {asked.duration_s() / 60:.0f} minutes")
    try:
        for (replication, is_secured), loads in asked.beds():
            with start_bed(replication, is_secured=is_secured, folder=folder) as bed:
                try:
                    for load in loads:
                        await bench.try_to_play(load, bed)
                finally:
                    await bed.close()
    finally:
        if not options.profile:
            bench.summarize()
    if bench.failed:
        raise BenchError(f"not measured, as said above: {', '.join(bench.failed)}")


class Bench:
    """One load after the other: written, copied in rounds, and what was found kept after each."""

    def __init__(
        self, asked: Asked, options: argparse.Namespace, contenders: Sequence[Contender], folder: Path, console: Console
    ) -> None:
        self._asked = asked
        self._options = options
        self._contenders = contenders
        self._folder = folder
        self._console = console
        self._run: Run = this_run(asked.command())
        self._rows = Rows.read(options.json)
        self.failed: list[str] = []
        self._warm_beds: list[Bed] = []
        self._paced_beds: list[Bed] = []
        #: What the source holds, by topic.
        self._written: dict[str, Contents] = {}

    async def try_to_play(self, load: AnyLoad, bed: Bed) -> None:
        """A load that cannot be measured must not cost hours of the others."""
        try:
            await self.play(load, bed)
        except (BenchError, HeliographError, JavaToolFailed, TimeoutError) as error:
            self._written.clear()
            self.failed.append(load.name)
            self._say(f"{load.name} is given up: {str(error) or type(error).__name__}")

    async def play(self, load: AnyLoad, bed: Bed) -> None:
        names = self._asked.contenders_of(load)
        contenders = [contender for contender in self._contenders if contender.name in names]
        match load:
            case Load() if self._options.profile:
                await self._profile(load, bed, contenders)
            case Load():
                await self._copy(load, bed, contenders)
            case Paced():
                await self._pace(load, bed, contenders)
            case Start():
                await self._start(load, bed, contenders)

    def summarize(self) -> None:
        """What the run has found, as tables, beside what was known before; and the page of it."""
        for title, table in (
            ("three target brokers", tables.details(self._rows, "replicated")),
            ("one target broker", tables.details(self._rows, "single")),
            ("tiny batches at a distance", tables.details(self._rows, "tiny")),
            ("distance", tables.far(self._rows)),
            ("TLS and SCRAM", tables.secured(self._rows)),
            ("latency", tables.latency(self._rows)),
            ("start", tables.started(self._rows)),
        ):
            if table is not None:
                self._console.print(_printable(title, table))
        self._console.print(f"kept in {self._options.json}")
        if self._options.json == page.RESULTS:
            page.write(self._rows)
            self._console.print(f"written: {page.PAGE}")

    async def _copy(self, load: Load, bed: Bed, contenders: Sequence[Contender]) -> None:
        """Every contender and the ceiling once a round, in an order that turns from round to round, because brokers
        become faster for minutes."""
        held = await self._warm(load, bed, contenders)
        self._keep(
            Held(load=load.name, records=held.records, record_bytes=held.record_bytes, batch_bytes=held.batch_bytes)
        )
        variant = await self._best_variant(load, bed, held) if load.has_ceiling else None
        runs: list[Contender | Variant] = [*contenders, *([] if variant is None else [variant])]
        for number in range(1, self._asked.rounds_of(load) + 1):
            named = self._asked.contenders_in(load, number)
            for one in _turned(runs, number):
                if isinstance(one, Contender) and one.name not in named:
                    continue
                if isinstance(one, Variant):
                    self._keep(await measure_ceiling(load, number, bed, held, one, self._asked.seconds_of(load)))
                else:
                    await self._measure(one, load, number, bed, held)
            if load.listener == "SCRAM_TLS":
                self._keep(await asyncio.to_thread(measure_ciphers, load.name, number))

    async def _measure(self, contender: Contender, load: Load, number: int, bed: Bed, held: Contents) -> None:
        window = Window(self._asked.ramp_of(load), self._asked.seconds_of(load))
        try:
            self._keep(await measure(contender, load, number, bed, held, window, self._logs(load, number)))
        except BenchError as error:
            self._not_counted(load, contender, number, error)

    async def _pace(self, load: Paced, bed: Bed, contenders: Sequence[Contender]) -> None:
        if bed not in self._paced_beds:
            self._paced_beds.append(bed)
            alike = (one for one in LOADS if isinstance(one, Paced) and one.replication == load.replication)
            warming = max(alike, key=lambda one: (one.records_per_s, not one.has_company))
            for contender in [*contenders] * (1 if bed in self._warm_beds else COLD_TIMES):
                with contextlib.suppress(BenchError):  # which its counted runs will show
                    await measure_latency(contender, warming, 0, bed, 0.0, WARM_LATENCY_S, self._logs(warming, 0))
        self._written.clear()
        for number in range(1, self._asked.rounds_of(load) + 1):
            for contender in _turned(contenders, number):
                logs = self._logs(load, number)
                ramp_s, seconds = self._asked.ramp_of(load), self._asked.seconds_of(load)
                try:
                    self._keep(await measure_latency(contender, load, number, bed, ramp_s, seconds, logs))
                except BenchError as error:
                    self._not_counted(load, contender, number, error)

    async def _start(self, load: Start, bed: Bed, contenders: Sequence[Contender]) -> None:
        """Round 0 warms the machine and does not count."""
        await self._clear(bed)
        await bed.source.create(load.topic, load.partitions, 1)
        few = ["--bootstrap-server", bed.source.bootstrap, "--topic", load.topic, "--num-records", str(_FEW_RECORDS)]
        await asyncio.to_thread(run_tool, _PERFORMANCE, [*few, "--record-size", "100", "--throughput", "-1"])
        for number in range(self._asked.rounds_of(load) + 1):
            for contender in _turned(contenders, number):
                try:
                    row = await measure_start(contender, load, number, bed, self._logs(load, number))
                except BenchError as error:
                    self._not_counted(load, contender, number, error)
                    continue
                if number:
                    self._keep(row)

    async def _profile(self, load: Load, bed: Bed, contenders: Sequence[Contender]) -> None:
        """A flame graph of each contender that is Python."""
        held = await self._write(load, bed)
        window = Window(self._asked.ramp_of(load), self._asked.seconds_of(load))
        for contender in (each for each in contenders if not each.java):
            made = await profile(contender, load, bed, held, window, self._logs(load, 0), self._options.out)
            self._say(f"{load.name:22} {contender.title:12} {made.records_per_s:11,.0f} rec/s while profiled")
            self._say(f"flame graph {made.svg}, functions and lines {made.text}")
            self._say(f"say in {made.sentence} what is left, then make the page (--page)")

    async def _warm(self, load: Load, bed: Bed, contenders: Sequence[Contender]) -> Contents:
        """Write the load. Let brokers that have not run yet run until they become no faster: in their first minute they
        take up to twice the CPU, and what is measured first would pay for it. Then let a contender run, because its
        producer has an id, which takes brokers through other code."""
        held = await self._write(load, bed)
        if bed in self._warm_beds:
            return held
        variant = next(iter(variants(load)))[-1]
        best, since_best = 0.0, 0
        for _ in range(_WARM_PROBES):
            probe = await measure_ceiling(load, 0, bed, held, variant, _WARM_PROBE_S)
            since_best = since_best + 1 if probe.records_per_s < best * _STEADY else 0
            best = max(best, probe.records_per_s)
            if since_best == _STEADY_PROBES:
                break
        for contender in contenders[-1:]:
            with contextlib.suppress(BenchError):  # which its counted runs will show
                await measure(contender, load, 0, bed, held, _WARM_WINDOW, self._logs(load, 0))
        self._warm_beds.append(bed)
        self._say(f"{load.name:22} brokers are warm at {best:,.0f} rec/s")
        return held

    async def _best_variant(self, load: Load, bed: Bed, held: Contents) -> Variant:
        """Short probes; each step varies the best of the steps before."""
        found: list[tuple[float, Variant]] = []
        for step in variants(load):
            base = max(found, key=lambda one: one[0])[1] if found else None
            for other in step:
                variant = other if base is None else _varied(base, other)
                probe = await measure_ceiling(load, 0, bed, held, variant, _PROBE_S)
                self._say(_line(probe))
                found.append((probe.records_per_s, variant))
        return max(found, key=lambda one: one[0])[1]

    async def _clear(self, bed: Bed) -> None:
        await bed.clear(())
        self._written.clear()

    async def _write(self, load: Load, bed: Bed) -> Contents:
        """Write the load's topic, unless the load before had the same."""
        if load.topic not in self._written:
            payloads = self._folder / "payloads.jsonl"
            if not payloads.exists():
                write_payloads(payloads)
            await self._clear(bed)
            source = bed.source
            await source.create(load.topic, load.partitions, 1)
            arguments = load.arguments(source.bootstrap, payloads)
            await asyncio.to_thread(run_tool, _PERFORMANCE, arguments, timeout_s=_LOADING_S)
            held = await source.contents(load.topic, load.partitions)
            if held.records < load.records:
                raise BenchError(f"{load.topic} holds {held.records} records, {load.records} were written")
            self._written[load.topic] = held
        return self._written[load.topic]

    def _keep(self, row: Row) -> None:
        """In the file at once, so that what ends early has kept what it found."""
        self._rows.add(self._run, row)
        self._rows.write(self._options.json)
        self._say(_line(row))
        if isinstance(row, Result | Latency | Started) and row.busy_before_percent > _BUSY_PERCENT:
            self._say(f"         something else took {row.busy_before_percent:.0f} % of this machine just before")

    def _not_counted(self, load: AnyLoad, contender: Contender, number: int, error: BenchError) -> None:
        self._say(f"round {number}  {load.name:22} {contender.title:12} not counted: {error}")

    def _logs(self, load: AnyLoad, number: int) -> Path:
        return (self._options.logs or self._folder / "logs") / f"{load.name}-{number}"

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _turned(runs: Sequence[_Turn], number: int) -> Sequence[_Turn]:
    turn = (number - 1) % len(runs) if runs else 0
    return [*runs[turn:], *runs[:turn]]


def _varied(base: Variant, other: Variant) -> Variant:
    """``other`` with what an earlier step has found: its numbers of connections, or how requests are made."""
    if not other.connections:
        return Variant(base.connections, together=other.together, merged=base.merged)
    return Variant(other.connections, together=base.together, merged=base.merged)


def _line(row: Row) -> str:
    head = f"{f'round {row.round}' if row.round else 'probe':8} {row.load:22} {tables.title_of(row.contender):12} "
    match row:
        case Held():
            size = row.records * row.record_bytes / 1e6
            held = f"{row.records:,} records, {size:,.0f} MB, batches of {row.batch_bytes:,.0f} B"
            return f"{'loaded':8} {row.load:22} {held}"
        case Result():
            return head + (
                f"{row.records_per_s:11,.0f} rec/s {row.wire_mb_per_s:7.1f} MB/s "
                f"{row.cpu_s_per_gb:6.1f} CPU-s/GB, target's {row.target_cpu_s_per_gb:5.1f}, "
                f"{row.memory_peak_mb:5.0f} MB, batches of {row.target_batch_bytes / 1000:6.1f} KB, "
                f"first record {row.first_record_s:4.1f} s"
            )
        case Ceiling():
            return f"{head}{row.records_per_s:11,.0f} rec/s {row.wire_mb_per_s:7.1f} MB/s ceiling: {row.variant}"
        case Latency():
            return (
                f"{head}p50 {row.p50_ms:.1f}, p99 {row.p99_ms:.1f}, p99.9 {row.p999_ms:.1f}, "
                f"most {row.most_ms:.0f} ms of {row.records:,} records"
            )
        case Started():
            return f"{head}first record {row.first_record_s:.1f} s, stop {row.stop_s:.1f} s"
        case Ciphers():
            return f"{head}cipher alone {row.cpu_s_per_gb:.2f} CPU-s/GB, TLS in memory {row.tls_cpu_s_per_gb:.2f}"
    raise AssertionError(f"no line for {row}")


def _printable(title: str, table: tables.Table) -> Table:
    made = Table(title=title, title_justify="left")
    for index, heading in enumerate(table.headings):
        made.add_column(heading, justify="right" if index else "left", no_wrap=not index)
    for row in table.rows:
        made.add_row(*row)
    return made


def _asked(options: argparse.Namespace) -> Asked:
    names = [load.name for load in LOADS] if options.all else options.profile or options.loads
    only = options.only
    if options.profile and only is None:
        only = [tables.OURS]
    return Asked(
        loads=names,
        only=only,
        older=[clone.resolve().name for clone in options.older],
        rounds=options.rounds,
        seconds=options.seconds,
        ramp_s=options.ramp,
        scale=options.scale,
        has_ceiling=options.ceiling,
    )


def _arguments() -> argparse.Namespace:
    loads, contenders = [load.name for load in LOADS], [contender.name for contender in CONTENDERS]
    copying = [load.name for load in LOADS if isinstance(load, Load)]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--list", action="store_true", help="every load in one line")
    add("--loads", nargs="+", choices=loads, default=DEFAULT, metavar="LOAD", help=f"({', '.join(DEFAULT)})")
    add("--all", action="store_true", help="all loads, which takes four hours")
    who = f"which contenders of {', '.join(contenders)} (those of each load)"
    add("--only", nargs="*", choices=contenders, metavar="CONTENDER", help=who)
    add("--older", nargs="+", type=Path, default=[], metavar="CLONE", help="clones of other versions, as contenders")
    add("--rounds", type=int, default=3, help="rounds (3; latency has one)")
    add("--seconds", type=float, help="how long is measured (30; latency 63)")
    add("--ramp", type=float, metavar="SECONDS", help="how long is not, behind the first record (6; latency 20)")
    add("--scale", type=float, help="share of the records (as many as --seconds and --ramp need)")
    add("--no-ceiling", dest="ceiling", action="store_false", help="only contenders")
    add("--json", type=Path, default=page.RESULTS, metavar="FILE", help="keep results here, and make no page")
    add("--page", action="store_true", help="only make docs/benchmarks.md and its plots, of the results that are kept")
    add("--profile", nargs="+", choices=copying, metavar="LOAD", help="only flame graphs of Heliograph on these loads")
    add("--out", type=Path, default=page.FLAMES, metavar="FOLDER", help="where flame graphs go (bench/results)")
    add("--logs", type=Path, metavar="FOLDER", help="keep the contenders' logs here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
