"""``python -m bench``: the loads written once, then rounds of every contender on the same data."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.bed import BROKER, Bed, BenchError, Contents, Side, target_of
from bench.ceiling import Variant, variants
from bench.contenders import CONTENDERS, Contender, older
from bench.loads import DEFAULT, LOADS, Load, write_payloads
from bench.measure import Ceiling, Result, Window, measure, measure_ceiling
from bench.profile import profile
from bench.report import Report
from connect.core.errors import HeliographError
from connect.embedded.brokers import KafkaCluster
from tests.kit.java_mm2 import JavaToolFailed, run_tool

_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
_RESULTS: Final = Path(__file__).parent / "results" / "last.json"
_PROFILES: Final = Path("build") / "profile"
_FAILED: Final = 1
_WIDTH: Final = 150
_BUSY_PERCENT: Final = 15.0
_USUAL_S: Final = 38.0
_PROBE_S: Final = 4.0
_LOADING_S: Final = 1800.0
_HEAP: Final = ("-Xms512m", "-Xmx1g")


def main() -> None:
    asked = _arguments()
    console = Console(width=max(_WIDTH, Console().width), highlight=False)
    try:
        with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as folder:
            asyncio.run(_bench(asked, Path(folder), console))
    except (BenchError, HeliographError, JavaToolFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit("bench: stopped")


async def _bench(asked: argparse.Namespace, folder: Path, console: Console) -> None:
    names = [load.name for load in LOADS] if asked.all else asked.profile or asked.loads
    loads = [load.scaled(asked.scale or _scale(asked)) for load in LOADS if load.name in names]
    contenders = [contender for contender in CONTENDERS if contender.name in asked.only]
    contenders += [older(clone) for clone in asked.older]
    report = Report(loads, contenders)
    try:
        with KafkaCluster.start("bench-us", config=BROKER, base_dir=folder, jvm_options=_HEAP) as source:
            for replication in sorted({load.replication for load in loads}, reverse=True):
                with target_of(replication, base_dir=folder, jvm_options=_HEAP) as target:
                    bed = Bed(Side(source), Side(target))
                    try:
                        for load in loads:
                            if load.replication == replication:
                                bench = Bench(asked, folder, console, bed, report)
                                await (bench.profile if asked.profile else bench.play)(load, contenders)
                    finally:
                        await bed.close()
    finally:
        if not asked.profile:
            report.write(asked.json)
            report.print(console)
            console.print(f"written to {asked.json}")


class Bench:
    """One load after the other: written, copied in rounds, deleted."""

    def __init__(self, asked: argparse.Namespace, folder: Path, console: Console, bed: Bed, report: Report) -> None:
        self._asked = asked
        self._folder = folder
        self._console = console
        self._bed = bed
        self._report = report

    async def play(self, load: Load, contenders: list[Contender]) -> None:
        """Every contender once a round, in an order that turns from round to round, then the ceiling."""
        held = self._report.contents[load.name] = await self._write(load)
        variant = await self._best_variant(load, held) if self._asked.ceiling else None
        for number in range(1, self._asked.rounds + 1):
            turn = (number - 1) % len(contenders) if contenders else 0
            for contender in contenders[turn:] + contenders[:turn]:
                await self._measure(contender, load, number, held)
            if variant is not None:
                ceiling = await self._ceiling(load, number, held, variant, self._asked.seconds)
                self._report.ceilings.append(ceiling)
                self._say(f"round {number}  {_ceiling_line(load, ceiling)}")

    async def profile(self, load: Load, contenders: list[Contender]) -> None:
        """A flame graph of each contender that is Python."""
        held = await self._write(load)
        window = Window(self._asked.ramp, self._asked.seconds)
        for contender in (each for each in contenders if not each.java):
            logs = (self._asked.logs or self._folder / "logs") / f"{load.name}-profile"
            made = await profile(contender, load, self._bed, held, window, logs, self._asked.out)
            self._say(f"{load.title:22} {contender.title:12} {made.records_per_s:11,.0f} rec/s while profiled")
            self._say(f"flame graph {made.svg}, functions and lines {made.text}")

    async def _measure(self, contender: Contender, load: Load, number: int, held: Contents) -> None:
        logs = (self._asked.logs or self._folder / "logs") / f"{load.name}-{number}"
        window = Window(self._asked.ramp, self._asked.seconds)
        try:
            result = await measure(contender, load, number, self._bed, held, window, logs)
        except BenchError as error:
            self._say(f"round {number}  {load.title:22} {contender.title:12} not counted: {error}")
            return
        self._report.results.append(result)
        self._say(_line(load, contender, result))
        if result.busy_before_percent > _BUSY_PERCENT:
            self._say(f"         something else took {result.busy_before_percent:.0f} % of this machine just before")

    async def _best_variant(self, load: Load, held: Contents) -> Variant:
        """Short probes, which warm the brokers as well; each step varies the best of the steps before."""
        found: list[tuple[float, Variant]] = []
        for step in variants(load):
            base = max(found, key=lambda one: one[0])[1] if found else None
            for other in step:
                variant = other if base is None else _varied(base, other)
                probe = await self._ceiling(load, 0, held, variant, _PROBE_S)
                self._say(f"probe    {_ceiling_line(load, probe)}")
                found.append((probe.records_per_s, variant))
        return max(found, key=lambda one: one[0])[1]

    async def _ceiling(self, load: Load, number: int, held: Contents, variant: Variant, length_s: float) -> Ceiling:
        return await measure_ceiling(load, number, self._bed, held, variant, length_s)

    async def _write(self, load: Load) -> Contents:
        payloads = self._folder / "payloads.jsonl"
        if not payloads.exists():
            write_payloads(payloads)
        await self._bed.clear(())
        source = self._bed.source
        await source.create(load.topic, load.partitions, 1)
        arguments = load.arguments(source.bootstrap, payloads)
        await asyncio.to_thread(run_tool, _PERFORMANCE, arguments, timeout_s=_LOADING_S)
        held = await source.contents(load.topic, load.partitions)
        if held.records < load.records:
            raise BenchError(f"{load.topic} holds {held.records} records, {load.records} were written")
        size = held.records * held.record_bytes / 1e6
        self._say(
            f"loaded   {load.title:22} {held.records:,} records, {size:,.0f} MB, batches of {held.batch_bytes:,.0f} B"
        )
        return held

    def _say(self, text: str) -> None:
        self._console.print(text)


def _varied(base: Variant, other: Variant) -> Variant:
    """``other`` with what an earlier step has found: its numbers of connections, or how requests are made."""
    if not other.connections:
        return Variant(base.connections, together=other.together, merged=base.merged)
    return Variant(other.connections, together=base.together, merged=base.merged)


def _scale(asked: argparse.Namespace) -> float:
    """Loads are large enough for a window of 30 s behind a ramp of 8 s."""
    return float(asked.ramp + asked.seconds) / _USUAL_S


def _line(load: Load, contender: Contender, result: Result) -> str:
    return (
        f"round {result.round}  {load.title:22} {contender.title:12} "
        f"{result.records_per_s:11,.0f} rec/s {result.wire_mb_per_s:7.1f} MB/s "
        f"{result.cpu_s_per_gb:6.1f} CPU-s/GB, target's {result.target_cpu_s_per_gb:5.1f}, "
        f"{result.memory_peak_mb:5.0f} MB, batches of {result.target_batch_bytes / 1000:6.1f} KB, "
        f"first record {result.first_record_s:4.1f} s"
    )


def _ceiling_line(load: Load, ceiling: Ceiling) -> str:
    return (
        f"{load.title:22} {'ceiling':12} {ceiling.records_per_s:11,.0f} rec/s {ceiling.wire_mb_per_s:7.1f} MB/s "
        f"target's {ceiling.target_cpu_s_per_gb:5.1f} CPU-s/GB, {ceiling.variant}"
    )


def _arguments() -> argparse.Namespace:
    loads, contenders = [load.name for load in LOADS], [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--loads", nargs="+", choices=loads, default=DEFAULT, metavar="LOAD", help=f"{', '.join(loads)}")
    add("--all", action="store_true", help="all loads, which takes hours")
    fast = ["mm2-tuned", "heliograph"]
    add("--only", nargs="*", choices=contenders, default=fast, help=f"which contenders ({', '.join(fast)})")
    add("--older", nargs="+", type=Path, default=[], metavar="CLONE", help="clones of other versions, as contenders")
    add("--rounds", type=int, default=3, help="rounds (3)")
    add("--seconds", type=float, default=30.0, help="how long is measured (30)")
    add("--ramp", type=float, default=8.0, metavar="SECONDS", help="how long is not, behind the first record (8)")
    add("--scale", type=float, help="share of the records (as many as --seconds and --ramp need)")
    add("--no-ceiling", dest="ceiling", action="store_false", help="only contenders")
    add("--json", type=Path, default=_RESULTS, metavar="FILE", help=f"results ({_RESULTS.name})")
    add("--profile", nargs="+", choices=loads, metavar="LOAD", help="flame graphs of these loads, nothing else")
    add("--out", type=Path, default=_PROFILES, metavar="FOLDER", help="where flame graphs go (build/profile)")
    add("--logs", type=Path, metavar="FOLDER", help="keep the contenders' logs here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
