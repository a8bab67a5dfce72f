"""``python -m bench``: two brokers, the loads written once, rounds of every contender on the same data."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.contenders import CONTENDERS, Contender, older
from bench.loads import LOADS, PARTITIONS, Load, write_payloads
from bench.measure import Bed, Ceiling, Result, measure, measure_ceiling
from bench.report import Report
from bench.topics import BenchError, Contents, Topics
from connect.core.errors import HeliographError
from connect.embedded.brokers import KafkaCluster
from tests.kit.java_mm2 import JavaToolFailed, run_tool

_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
_RESULTS: Final = Path(__file__).parent / "results" / "last.json"
#: Both brokers alike. Deleted topics leave the disk at once, so that one run's files do not burden the next.
_BROKER: Final = {"log.segment.delete.delay.ms": "1000", "log.retention.ms": "-1"}
_FAILED: Final = 1
_WIDTH: Final = 140
_BUSY_PERCENT: Final = 15.0


def main() -> None:
    asked = _arguments()
    console = _console()
    try:
        with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as folder:
            asyncio.run(_bench(asked, Path(folder), console))
    except (BenchError, HeliographError, JavaToolFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit("bench: stopped")


def _console() -> Console:
    """As wide as the table, also where the output is no terminal."""
    return Console(width=max(_WIDTH, Console().width), highlight=False)


async def _bench(asked: argparse.Namespace, folder: Path, console: Console) -> None:
    loads = [load.scaled(asked.scale) for load in LOADS if load.name in asked.loads]
    contenders = [contender for contender in CONTENDERS if contender.name in asked.only]
    contenders += [older(asked.older)] if asked.older else []
    with (
        KafkaCluster.start("bench-us", base_dir=folder, config=_BROKER, jvm_options=()) as source,
        KafkaCluster.start("bench-eu", base_dir=folder, config=_BROKER, jvm_options=()) as target,
    ):
        contents = {load.topic: await _write(load, source.bootstrap, folder, console) for load in loads}
        bed = Bed(source.bootstrap, target.bootstrap, contents, asked.logs or folder / "logs")
        report = Report(loads, contents, contenders)
        for load in loads:
            # The broker's JVM warms up: a first pass that is not counted spares the first contender.
            await measure_ceiling(load, 0, bed, asked.loops)
        try:
            for number in range(1, asked.rounds + 1):
                for load in loads:
                    await _round(report, load, contenders, number, bed, asked.loops, console)
        finally:
            report.write(asked.json)
            report.print(console)
    console.print(f"written to {asked.json}")


async def _round(
    report: Report,
    load: Load,
    contenders: list[Contender],
    number: int,
    bed: Bed,
    loops: int,
    console: Console,
) -> None:
    """Every contender once, in an order that turns from round to round, then the ceiling."""
    turn = (number - 1) % len(contenders) if contenders else 0
    for contender in contenders[turn:] + contenders[:turn]:
        result = await measure(contender, load, number, bed)
        report.results.append(result)
        console.print(_line(load, contender, result))
        if result.busy_before_percent > _BUSY_PERCENT:
            console.print(
                f"         something else took {result.busy_before_percent:.0f} % of this machine just before"
            )
    ceiling = await measure_ceiling(load, number, bed, loops)
    report.ceilings.append(ceiling)
    console.print(_ceiling_line(load, ceiling))


def _line(load: Load, contender: Contender, result: Result) -> str:
    return (
        f"round {result.round}  {load.title:20} {contender.title:12} "
        f"{result.records_per_s / 1000:8,.0f} k rec/s {result.wire_mb_per_s:7.1f} MB/s "
        f"{result.cpu_s_per_gb:6.1f} CPU-s/GB {result.memory_peak_mb:6.0f} MB "
        f"first record {result.first_record_s:4.1f} s"
    )


def _ceiling_line(load: Load, ceiling: Ceiling) -> str:
    return (
        f"round {ceiling.round}  {load.title:20} {'ceiling':12} {ceiling.records_per_s / 1000:8,.0f} k rec/s "
        f"{ceiling.wire_mb_per_s:7.1f} MB/s"
    )


async def _write(load: Load, bootstrap: str, folder: Path, console: Console) -> Contents:
    payloads = folder / "payloads.jsonl"
    if not payloads.exists():
        write_payloads(payloads)
    async with await Topics.open(bootstrap) as topics:
        await topics.create(load.topic, PARTITIONS)
        await asyncio.to_thread(run_tool, _PERFORMANCE, load.arguments(bootstrap, payloads))
        held = await topics.contents(load.topic, PARTITIONS)
    if held.records != load.records:
        raise BenchError(f"{load.topic} holds {held.records} records, {load.records} were written")
    console.print(
        f"loaded   {load.title:20} {held.records:,} records, {held.bytes / 1e6:,.0f} MB",
        highlight=False,
    )
    return held


def _arguments() -> argparse.Namespace:
    loads, contenders = (
        [load.name for load in LOADS],
        [contender.name for contender in CONTENDERS],
    )
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--loads", nargs="+", choices=loads, default=loads, help="which loads (all)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=contenders,
        default=contenders,
        help="which contenders (all)",
    )
    parser.add_argument(
        "--older", type=Path, metavar="CLONE", help="another version's clone, as a contender of its own"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument(
        "--loops",
        type=int,
        default=2,
        help="producing loops of the ceiling (2, as slices)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the records, e.g. 0.1 for a try (1)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=_RESULTS,
        metavar="FILE",
        help=f"results ({_RESULTS.name})",
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the contenders' logs here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
