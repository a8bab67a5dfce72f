"""``heliograph demo``: two Kafka clusters on this machine, sample orders, a flow that mirrors them, and a view of it.

With a number of records it is also a test that compares the copy with its source record by record.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from connect.cli.console import EXIT_FOUND, EXIT_OK, configure_logging, stop_signals
from connect.cli.daemons.connect_mirror_maker import run as run_mirror
from connect.cli.daemons.mirror_process import MirrorMaker
from connect.cli.daemons.spark import spark_of_flows
from connect.cli.demo_shop import REFRESH_PER_S, TOPICS, LastWarning, LiveView, OrderWriter, PlainView, View
from connect.cli.rates import BATCH_KINDS, FlowRates, RateMeter
from connect.core.errors import HeliographError
from connect.core.model import NewTopic
from connect.embedded.brokers import KafkaCluster
from connect.kafka.concurrency import first_of
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connectors.config.mm2_properties import load, mirrored
from connectors.flow_progress import FlowProgress
from connectors.inspection.topic_verification import VerificationReport, compare_topics
from connectors.policy import DefaultReplicationPolicy

SOURCE: Final = "us"
TARGET: Final = "eu"
LOG_FILE: Final = "heliograph.log"
FLOW: Final = f"{SOURCE}->{TARGET}"
#: Records a second without --rate and --records.
DEFAULT_RATE: Final = 2000
#: The demo fails if nothing is mirrored for this time.
STALL_S: Final = 90.0
#: The flow and two clusters stop this long after Ctrl-C, or end with this process.
EXIT_WITHIN_S: Final = 20.0
_LOOK_S: Final = 0.25


class DemoFailed(HeliographError):
    """The records were not mirrored."""


@dataclass(slots=True)
class _Demo:
    """State of a running demo."""

    view: View
    stop: asyncio.Event
    records: int | None
    rate: int | None
    writer: OrderWriter
    status: str = "sample orders are being written"
    began_s: float = 0.0
    #: When all that was written had been mirrored.
    mirrored_s: float | None = None
    flows: list[FlowRates] = field(default_factory=list)


def demo(*, records: int | None, directory: Path | None, rate: int | None) -> int:
    """Run the demo in the foreground and return the exit code.

    Args:
        records: How many to write, mirror and compare; None: until Ctrl-C.
        directory: For ``mm2.properties`` and the log.
        rate: Records a second to write.

    Raises:
        DemoFailed: The records were not mirrored.
        HeliographError: A cluster or the flow could not be started.
    """
    folder = directory if directory is not None else _default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    configure_logging(handler=logging.FileHandler(folder / LOG_FILE, mode="w", encoding="utf-8"))
    return asyncio.run(_demo(_view(console), folder, records, rate))


def _view(console: Console) -> View:
    if not console.is_terminal:
        return PlainView(console)
    notes = LastWarning()
    logging.getLogger().addHandler(notes)
    return LiveView(console, notes)


def _default_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "heliograph" / "demo"


async def _demo(view: View, folder: Path, records: int | None, rate: int | None) -> int:
    async with stop_signals(exit_within_s=EXIT_WITHIN_S) as stop:
        view.say(f"Starting two Kafka clusters, {SOURCE} and {TARGET}. Kafka is downloaded the first time.")
        async with _clusters(stop) as clusters:
            if stop.is_set():
                return EXIT_OK
            file = folder / "mm2.properties"
            text = properties({alias: each.bootstrap for alias, each in clusters.items()})
            file.write_text(text, encoding="utf-8")
            view.say(f"\n# {file}\n{text}\nStarting the flow {FLOW} on Spark. The log is {folder / LOG_FILE}.")
            source, target = (_settings(alias, clusters[alias].bootstrap) for alias in (SOURCE, TARGET))
            await _create_topics(source)
            running = _Demo(view, stop, records, rate, OrderWriter(source))
            await run_mirror(_mirror_maker(file), stop, watch=partial(_watch, running))
            if records is None:
                view.say(_stopped_text(running))
                return EXIT_OK
            return await _judge(running, source, target)


def _settings(alias: str, bootstrap: str) -> ConnectionSettings:
    return connection_settings({"bootstrap.servers": bootstrap}, client_id="heliograph-demo", where=f"cluster {alias}")


def _mirror_maker(file: Path) -> Callable[[], MirrorMaker]:
    """Return a factory of the MirrorMaker that ``heliograph mirror`` would run for the file."""
    config = load(file)
    flows = config.flows_to_run()
    return lambda: MirrorMaker(config, flows, spark_of_flows(mirrored(flows)))


def properties(bootstrap: dict[str, str]) -> str:
    """Return the demo's ``mm2.properties``; ``bootstrap`` by alias."""
    return "\n".join(
        [
            f"clusters = {SOURCE}, {TARGET}",
            *(f"{alias}.bootstrap.servers = {servers}" for alias, servers in bootstrap.items()),
            "",
            f"{FLOW}.enabled = true",
            f"{FLOW}.topics = {', '.join(topic.name for topic in TOPICS)}",
            "tasks.max = 2",
            "refresh.topics.interval.seconds = 5",
            "",
            "# Each cluster has one broker.",
            "replication.factor = 1",
            "offset.storage.replication.factor = 1",
            "config.storage.replication.factor = 1",
            "status.storage.replication.factor = 1",
            "heartbeats.topic.replication.factor = 1",
            "",
            "# Public REST: each flow's worker is below /{source}/{target}, /health and /metrics are at the top.",
            "dedicated.mode.enable.public.rest = true",
            "listeners = http://127.0.0.1:0",
            "",
        ]
    )


@asynccontextmanager
async def _clusters(stop: asyncio.Event) -> AsyncIterator[dict[str, KafkaCluster]]:
    """Start both clusters at the same time, and wait for each, because only then it can be stopped.

    There may be fewer if ``stop`` was set, because Ctrl-C also reaches a cluster that starts.
    """
    aliases = (SOURCE, TARGET)
    started = await asyncio.gather(
        *(asyncio.to_thread(KafkaCluster.start, alias) for alias in aliases), return_exceptions=True
    )
    clusters = {alias: each for alias, each in zip(aliases, started, strict=True) if isinstance(each, KafkaCluster)}
    failures = [each for each in started if isinstance(each, BaseException)]
    try:
        if failures and not stop.is_set():
            raise failures[0]
        yield clusters
    finally:
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in clusters.values()))


async def _create_topics(settings: ConnectionSettings) -> None:
    admin = Admin(settings, SOURCE)
    try:
        outcomes = await admin.create_topics([NewTopic(topic.name, topic.partitions, 1) for topic in TOPICS])
    finally:
        await admin.close()
    for error in outcomes.values():
        if error is not None:
            raise error


async def _watch(running: _Demo, maker: MirrorMaker) -> None:
    """Write and show records while the flow runs; with a number of records, stop when all are mirrored."""
    running.view.say(
        f"REST: {maker.rest_url}{SOURCE}/{TARGET}/connectors?expand=status, health and metrics: {maker.rest_url}metrics"
    )
    with running.view:
        await first_of("demo", _work(running, maker), _show(running, maker))


async def _work(running: _Demo, maker: MirrorMaker) -> None:
    await _write(running)
    if running.records is not None:
        await _wait_until_mirrored(running, maker)
        running.stop.set()
    await running.stop.wait()


async def _show(running: _Demo, maker: MirrorMaker) -> None:
    meter = RateMeter()
    clock = asyncio.get_running_loop().time
    while True:
        running.flows = await meter.observe(clock(), maker.progress())
        starting = all(flow.state == "starting" and not flow.records for flow in running.flows)
        status = "Spark is starting" if starting else running.status
        running.view.show(clock(), running.flows, f"{running.writer.records:,} written; {status}")
        await asyncio.sleep(1 / REFRESH_PER_S)


async def _write(running: _Demo) -> None:
    rate = running.rate
    if running.records is None:
        rate = rate or DEFAULT_RATE
        running.status = f"writing {rate:,} records a second; Ctrl-C stops"
    running.began_s = asyncio.get_running_loop().time()
    await running.writer.write(running.stop, records=running.records, rate=rate)


async def _wait_until_mirrored(running: _Demo, maker: MirrorMaker) -> None:
    """Wait until every written record is mirrored. Raises DemoFailed if none is for ``STALL_S``."""
    running.status = "waiting until all records are mirrored"
    clock = asyncio.get_running_loop().time
    moved_s, left = clock(), -1
    while not running.stop.is_set():
        before, left = left, records_left(running.writer.written, maker.progress())
        if left == 0:
            running.mirrored_s = clock()
            return
        if left != before:
            moved_s = clock()
        elif clock() - moved_s > STALL_S:
            states = ", ".join(f"{flow.flow} is {flow.state}" for flow in running.flows)
            raise DemoFailed(
                f"{left:,} records are not mirrored, and none was for {STALL_S:.0f} s: {states}. See the log"
            )
        await asyncio.sleep(_LOOK_S)


def records_left(written: Mapping[tuple[str, int], int], flows: Iterable[FlowProgress]) -> int:
    """Return how many of the records ``written`` per source topic and partition are not mirrored yet."""
    positions = {
        (view.source_topic, view.source_partition): view.next_source_offset
        for flow in flows
        for view in flow.partitions
    }
    return sum(max(0, count - positions.get(partition, 0)) for partition, count in written.items())


async def _judge(running: _Demo, source: ConnectionSettings, target: ConnectionSettings) -> int:
    """Compare source and target, print the verdict and return the exit code."""
    if running.mirrored_s is None:
        running.view.say(f"{_stopped_text(running)} Not all records were mirrored, so nothing was compared.")
        return EXIT_FOUND
    policy = DefaultReplicationPolicy()
    topics = {topic.name: policy.format_remote_topic(SOURCE, topic.name) for topic in TOPICS}
    running.view.say("Comparing source and target record by record: key, value, headers, timestamp, order.")
    report = await compare_topics(source, target, topics)
    for line in summary_lines(running.writer.records, running.mirrored_s - running.began_s, running.flows, report):
        running.view.say(line)
    return EXIT_OK if report.difference is None and report.records == running.records else EXIT_FOUND


def summary_lines(written: int, elapsed_s: float, flows: Iterable[FlowRates], report: VerificationReport) -> list[str]:
    """Return the lines of the demo's result."""
    speed = f"{elapsed_s:.1f} s ({written / elapsed_s:,.0f} records/s, writing included)"
    lines = [
        f"Written    {written:>12,} records to {len(TOPICS)} topics of {SOURCE}",
        f"Mirrored   {written:>12,} records to {TARGET} in {speed}",
    ]
    for flow in flows:
        lines.append("Batches    " + ", ".join(f"{flow.batches(kind):,} {kind}" for kind in BATCH_KINDS))
    if report.difference is not None:
        return [*lines, f"DIFFERENT after {report.records:,} equal records: {report.difference}"]
    if report.records != written:
        return [*lines, f"DIFFERENT: {report.records:,} records are equal, {written:,} were written"]
    return [*lines, f"EQUAL      {report.records:>12,} records in {report.partitions} partitions"]


def _stopped_text(running: _Demo) -> str:
    mirrored = sum(flow.records for flow in running.flows)
    return f"Stopped. {running.writer.records:,} records were written, {mirrored:,} mirrored."
