"""The scale run (``python -m tests.kit.scale``): one flow of thousands of partitions, most of them idle, measured."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from bench import page
from bench.machine import this_run
from bench.processes import pss_bytes
from bench.rows import IDLE, Partitions
from connect.core.errors import RetriableError
from connect.embedded.brokers import QUICK_JVM
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit import marked
from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, TopicPair
from tests.kit.clients import cluster_at
from tests.kit.java_program import run_tool
from tests.kit.lateness import Lateness
from tests.kit.long_run import begin, leave, say
from tests.kit.mirror import Mirror, one_flow, with_rest
from tests.kit.pipe import Direction
from tests.kit.processes import Member, slices
from tests.kit.proxy import FaultProxy, put_before
from tests.kit.requests import FETCH
from tests.kit.topics import make_topics

HEAP: Final = "-Xmx768m"
ALIAS: Final = "us"
_DEADLINE_S: Final = 300.0
_LOOK_S: Final = 0.2
_SETTLE_S: Final = 5.0
#: One within an epoch, one that holds a change of epochs.
_IDLE_S: Final = (15.0, 60.0)
_LATENCY_RECORDS: Final = 100
#: Brokers take timestamps up to an hour ahead (``message.timestamp.after.max.ms``).
_FUTURE_MS: Final = 30 * 60 * 1000
_BUSY: Final = "scale-busy"
_BUSY_SHARE: Final = 100
_BUSY_BYTES: Final = 1024
#: Of a backlog: the copy is steady between them.
_FROM_TO: Final = (0.1, 0.9)
_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
#: Topics made by one request: a broker makes all their logs before it answers.
_MADE_AT_ONCE: Final = 5
_VALUE_BYTES: Final = 100
_RECORD_EVERY_S: Final = 0.05


@dataclass(frozen=True)
class Idle:
    """What the mirror costs while nothing is written; ``cpu`` is the share of one core by kind of process."""

    seconds: float
    cpu: dict[str, float]
    pss_bytes: dict[str, int]
    fetches_per_s: float
    request_bytes_per_s: float
    answer_bytes_per_s: float


@dataclass(slots=True)
class Measured:
    """Everything that a run found; seconds unless named otherwise, from the start of a command or a kill."""

    seed: int
    topics: int
    partitions: int
    tasks: int
    load_average: tuple[float, float, float]
    started_s: dict[str, float] = field(default_factory=dict)
    start_cpu_s: dict[str, float] = field(default_factory=dict)
    idle: list[Idle] = field(default_factory=list)
    latency_ms: dict[str, float] = field(default_factory=dict)
    #: Of the busy partitions together.
    records_per_s: dict[str, float] = field(default_factory=dict)
    resumed: dict[str, int] = field(default_factory=dict)
    lateness: Lateness = field(default_factory=Lateness)
    comparison: str = ""
    faults: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [
            f"# {self.partitions} partitions in {self.topics} topics, {self.tasks} tasks, seed {self.seed}",
            "",
            f"Load of the machine before, on {os.cpu_count()} cores: {self.load_average}.",
            "",
            "| what | |",
            "| --- | --- |",
            *(f"| {what} | {seconds:.1f} s |" for what, seconds in self.started_s.items()),
            *(f"| CPU until then, {what} | {seconds:.1f} s |" for what, seconds in self.start_cpu_s.items()),
            *(f"| partitions resumed after {what} | {count} |" for what, count in self.resumed.items()),
            *(
                f"| records/s of 1 KB in the busy partitions, {what} | {rate:,.0f} |"
                for what, rate in self.records_per_s.items()
            ),
            *(f"| latency in one active partition, {what} | {ms:.1f} ms |" for what, ms in self.latency_ms.items()),
            f"| how late the worker was, at most | {self.lateness} |",
        ]
        for idle in self.idle:
            lines += [
                f"| idle for {idle.seconds:.0f} s: CPU | {shares_text(idle.cpu)} |",
                f"| memory (PSS) | {megabytes_text(idle.pss_bytes)} |",
                f"| fetches a second | {idle.fetches_per_s:.1f} |",
                f"| bytes a second to the source | {idle.request_bytes_per_s:.0f} |",
                f"| bytes a second from the source | {idle.answer_bytes_per_s:.0f} |",
            ]
        lines += ["", f"At the end: {self.comparison}.", *(f"- {fault}" for fault in self.faults), ""]
        return "\n".join(lines)


def rows_of(found: Measured) -> list[Partitions]:
    """What the idle partitions cost, for the model of scale: a round for each time they were watched."""
    return [
        Partitions(load=IDLE, round=number, partitions=found.partitions, cores=sum(idle.cpu.values()))
        for number, idle in enumerate(found.idle, 1)
    ]


def shares_text(cpu: Mapping[str, float]) -> str:
    return f"{sum(cpu.values()):.1%} of a core ({', '.join(f'{name} {share:.1%}' for name, share in cpu.items())})"


def megabytes_text(sizes: Mapping[str, int]) -> str:
    named = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in sizes.items())
    return f"{sum(sizes.values()) / 1e6:.0f} MB ({named})"


class Scene:
    """Clusters, mirror, and rounds of a record in every partition, with timestamps that no broker gives a marker."""

    def __init__(
        self,
        us: KafkaCluster,
        eu: KafkaCluster,
        mirror: Mirror,
        properties: Mapping[str, str],
        topics: Mapping[str, int],
    ) -> None:
        self._us, self._eu = us.bootstrap, eu.bootstrap
        self.mirror = mirror
        self.properties = properties
        self.topics = topics
        self.partitions = [(topic, index) for topic, count in topics.items() for index in range(count)]
        self._next = dict.fromkeys(self.partitions, 0)
        self._clock_ms = int(time.time() * 1000) + _FUTURE_MS

    async def made(self) -> None:
        """Wait until the source's broker leads every partition: it makes their logs one after another."""
        await self._until_reported(self._us, self.partitions, LATEST, time.monotonic())

    async def write_everywhere(self) -> None:
        async with self._producer() as producer:
            await self._write_round(producer)

    async def keep_busy(self, every_s: float) -> None:
        """Rounds without end, the next one ``every_s`` after the one before began or as soon as that is written."""
        async with self._producer() as producer:
            while True:
                # A broker that is too busy for a round may take the next one.
                with contextlib.suppress(KafkaError):
                    await asyncio.gather(asyncio.sleep(every_s), self._write_round(producer))

    async def _write_round(self, producer: AIOKafkaProducer) -> None:
        self._clock_ms += 1
        await asyncio.gather(*[await self._send(producer, partition) for partition in self.partitions])

    async def everywhere_copied(self, began_s: float) -> float:
        """Wait until the last round's records have arrived; how long after ``began_s``."""
        return await self._everywhere(self._clock_ms, began_s)

    async def next_copied(self, began_s: float) -> float:
        """The same with the next round's records, or later ones: for a start while the source is kept busy."""
        return await self._everywhere(self._clock_ms + 1, began_s)

    async def _everywhere(self, clock_ms: int, began_s: float) -> float:
        targets = [(f"{ALIAS}.{topic}", index) for topic, index in self.partitions]
        await self._until_reported(self._eu, targets, clock_ms, began_s)
        return time.monotonic() - began_s

    async def _until_reported(
        self, bootstrap: str, partitions: list[tuple[str, int]], timestamp_ms: int, began_s: float
    ) -> None:
        """Wait until every partition's leader tells an offset for a time."""
        async with cluster_at(bootstrap) as cluster:
            while True:
                with contextlib.suppress(RetriableError):  # not made yet
                    offsets = await list_offsets(cluster, partitions, timestamp_ms)
                    if all(offset >= 0 for offset in offsets.values()):
                        return
                if time.monotonic() > began_s + _DEADLINE_S or (self.mirror.pid and not self.mirror.is_running):
                    raise AssertionError(f"not all partitions in {_DEADLINE_S:g} s: {self.mirror.log_lines()[-3:]}")
                await asyncio.sleep(_LOOK_S)

    async def latencies_ms(self, count: int) -> list[float]:
        """From before a record is sent to after it is consumed, one at a time, in one partition."""
        topic, index = self.partitions[0]
        consumer = AIOKafkaConsumer(bootstrap_servers=self._eu, enable_auto_commit=False, fetch_max_wait_ms=100)
        found = []
        async with self._producer() as producer, consumer:
            partition = TopicPartition(f"{ALIAS}.{topic}", index)
            consumer.assign([partition])
            await consumer.seek_to_end(partition)
            for _ in range(count):
                began_s = time.monotonic()
                await self._send(producer, (topic, index))
                await asyncio.wait_for(consumer.getone(partition), _DEADLINE_S)
                found.append((time.monotonic() - began_s) * 1000)
                await asyncio.sleep(_RECORD_EVERY_S)
        return found

    def write_backlog(self, records: int) -> None:
        named = ["--bootstrap-server", self._us, "--topic", _BUSY, "--num-records", str(records)]
        run_tool(_PERFORMANCE, [*named, "--record-size", str(_BUSY_BYTES), "--throughput", "-1"])

    async def backlog_copied(self, records: int, before: int) -> float:
        """Records a second while the middle of a backlog was copied; ``before`` it there were so many at the target."""
        until_s, began = time.monotonic() + _DEADLINE_S, (0.0, 0)
        first, last = (before + int(records * share) for share in _FROM_TO)
        async with cluster_at(self._eu) as cluster:
            while time.monotonic() < until_s:
                with contextlib.suppress(RetriableError):
                    now, copied = time.monotonic(), await self._busy_records(cluster)
                    if copied >= first and not began[0]:
                        began = now, copied
                    if copied >= last and copied > began[1]:
                        return (copied - began[1]) / (now - began[0])
                await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"the backlog was not copied in {_DEADLINE_S:g} s: {self.mirror.log_lines()[-3:]}")

    async def busy_records(self) -> int:
        async with cluster_at(self._eu) as cluster:
            return await self._busy_records(cluster)

    async def _busy_records(self, cluster: Cluster) -> int:
        partitions = [(f"{ALIAS}.{_BUSY}", index) for index in range(self.topics[_BUSY])]
        return sum((await list_offsets(cluster, partitions, LATEST)).values())

    def slices(self) -> list[Member]:
        port = int(self._eu.rpartition(":")[2])
        return slices(self.mirror.pid, [port])

    async def compare(self) -> str:
        """The comparison in one line; raises AssertionError where it is not exact."""
        pairs = [TopicPair(topic, f"{ALIAS}.{topic}", count) for topic, count in self.topics.items() if topic != _BUSY]
        async with Checker(self._us, self._eu, pairs) as checker:
            report = await checker.caught_up(_DEADLINE_S)
        assert report.is_exact, report.summary()
        return report.summary()

    def _producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(bootstrap_servers=self._us)

    async def _send(self, producer: AIOKafkaProducer, partition: tuple[str, int]) -> Any:
        topic, index = partition
        key, value, headers = marked.make(index, self._next[partition], _VALUE_BYTES, self._clock_ms)
        self._next[partition] += 1
        return await producer.send(topic, value, key, index, self._clock_ms, headers)


def costs(mirror: Mirror) -> dict[str, tuple[float, int]]:
    """(CPU seconds, PSS) by kind of process."""
    found: dict[str, tuple[float, int]] = {}
    for member in mirror.members():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.process.cpu_times()
            cpu_s, pss = found.get(member.role.value, (0.0, 0))
            found[member.role.value] = cpu_s + times.user + times.system, pss + pss_bytes(member.pid)
    return found


async def costs_during(mirror: Mirror, seconds: float) -> tuple[float, dict[str, float], dict[str, int]]:
    """Watch the mirror; return seconds, and the share of one core and the PSS in bytes by kind of process."""
    before, began_s = costs(mirror), time.monotonic()
    await asyncio.sleep(seconds)
    after, lasted_s = costs(mirror), time.monotonic() - began_s
    # A slice of a new epoch was not there before; one that has ended is counted no more.
    cpu = {role: max(cpu_s - before.get(role, (0.0, 0))[0], 0.0) / lasted_s for role, (cpu_s, _) in after.items()}
    return lasted_s, cpu, {role: pss for role, (_, pss) in after.items()}


async def idle(scene: Scene, proxy: FaultProxy, seconds: float) -> Idle:
    counted = _counted(proxy)
    lasted_s, cpu, pss = await costs_during(scene.mirror, seconds)
    fetches, requests, answers = (now - then for now, then in zip(_counted(proxy), counted, strict=True))
    return Idle(lasted_s, cpu, pss, fetches / lasted_s, requests / lasted_s, answers / lasted_s)


def _counted(proxy: FaultProxy) -> tuple[int, int, int]:
    fetches = sum(counts[FETCH] for counts in proxy.requests().values())
    return fetches, proxy.passed_bytes(Direction.REQUESTS), proxy.passed_bytes(Direction.ANSWERS)


async def measure(
    scene: Scene, proxy: FaultProxy, found: Measured, busy_records: int, say: Callable[[str], None]
) -> None:
    """Start, idle, one active partition, a clean restart, lost slice and worker, and a backlog, in this order."""
    mirror = scene.mirror
    await scene.made()

    def look() -> None:
        found.lateness.look(scene.properties["listeners"], mirror.log_file)

    async def started(what: str, begin: Callable[[], None]) -> None:
        log_start, began_s, pid = mirror.log_end(), time.monotonic(), mirror.pid
        begin()
        await scene.write_everywhere()
        found.started_s[what] = await scene.everywhere_copied(began_s)
        if mirror.pid != pid:
            found.start_cpu_s[what] = sum(cpu_s for cpu_s, _ in costs(mirror).values())
        resumed = mirror.resumed(log_start)
        found.resumed[what] = len(resumed)
        found.faults += [one.line for one in resumed if one.at_least_once]
        say(f"{what}: all partitions run after {found.started_s[what]:.1f} s")

    await started("first start, remote topics made", mirror.start)
    await asyncio.sleep(_SETTLE_S)
    for seconds in _IDLE_S:
        found.idle.append(await idle(scene, proxy, seconds))
        say(f"idle for {seconds:.0f} s: {shares_text(found.idle[-1].cpu)}")
    latencies = sorted(await scene.latencies_ms(_LATENCY_RECORDS))
    found.latency_ms = {"median": statistics.median(latencies), "p99": latencies[int(0.99 * len(latencies))]}
    look()
    began_s = time.monotonic()
    if code := mirror.stop(within_s=_DEADLINE_S):
        found.faults.append(f"the mirror ended with exit code {code} after SIGTERM")
    found.started_s["clean stop"] = time.monotonic() - began_s
    await started("start after a clean stop", mirror.start)
    await started("SIGKILL of a slice", scene.slices()[0].process.kill)

    look()

    def kill_worker() -> None:
        psutil.Process(mirror.pid).kill()
        mirror.reap()
        mirror.start()

    await started("SIGKILL of the worker, and a new start", kill_worker)
    look()
    mirror.stop(within_s=_DEADLINE_S)
    found.comparison = await scene.compare()
    for what, topics in (("to warm the brokers", _BUSY), ("beside the idle ones", "scale-.*"), ("alone", _BUSY)):
        mirror.configure({**scene.properties, f"{ALIAS}->eu.topics": topics})
        scene.write_backlog(busy_records)
        before = await scene.busy_records()
        mirror.start()
        rate = await scene.backlog_copied(busy_records, before)
        say(f"busy partitions {what}: {rate:,.0f} records/s")
        found.records_per_s[what] = rate
        look()
        mirror.stop(within_s=_DEADLINE_S)
    del found.records_per_s["to warm the brokers"]


def make_some_at_once(bootstrap: str, counts: Mapping[str, int]) -> None:
    """Make topics by requests of a few each."""
    names = list(counts)
    for first in range(0, len(names), _MADE_AT_ONCE):
        some = names[first : first + _MADE_AT_ONCE]
        asyncio.run(make_topics(bootstrap, {name: counts[name] for name in some}))


@contextmanager
def stage(directory: Path, seed: int, topics: int, partitions: int, tasks: int) -> Iterator[tuple[Scene, FaultProxy]]:
    """The clusters with their topics, and the mirror's file."""
    jvm = (*QUICK_JVM, HEAP)
    proxies: list[FaultProxy] = []
    counts = {f"scale-{number:03}": partitions for number in range(topics)}
    counts[_BUSY] = max(1, topics * partitions // _BUSY_SHARE)
    with contextlib.ExitStack() as exits:
        before_source = put_before(exits, proxies, seed)
        us = exits.enter_context(KafkaCluster.start("us", advertised=before_source, jvm_options=jvm))
        eu = exits.enter_context(KafkaCluster.start("eu", jvm_options=jvm))
        make_some_at_once(us.bootstrap, counts)
        properties = {
            **one_flow(us.proxied_bootstrap, eu.bootstrap, "scale-.*"),
            "tasks.max": str(tasks),
            **with_rest(),
        }
        mirror = exits.enter_context(Mirror(properties, directory))
        yield Scene(us, eu, mirror, properties, counts), proxies[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.scale", description=__doc__)
    parser.add_argument("--topics", type=int, default=40, help="default 40")
    parser.add_argument("--partitions", type=int, default=50, help="of each topic (default 50)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks.max (default 2)")
    busy = "records of 1 KB of the busy partitions' backlogs (default 2000000)"
    parser.add_argument("--busy-records", type=int, default=2_000_000, help=busy)
    parser.add_argument("--seed", type=int, default=0, help="of the proxy (default 0)")
    parser.add_argument("--report", type=Path, default=Path("build/scale"), help="directory of the reports")
    kept = "keep the cost of an idle partition here, and make no page"
    parser.add_argument("--json", type=Path, default=page.RESULTS, metavar="FILE", help=kept)
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    directory = begin("scale", options.seed)
    found = Measured(options.seed, options.topics, options.topics * options.partitions, options.tasks, os.getloadavg())
    with stage(directory, options.seed, options.topics, options.partitions, options.tasks) as (scene, proxy):
        try:
            asyncio.run(measure(scene, proxy, found, options.busy_records, say))
        except AssertionError as error:
            found.faults.append(str(error))
    page.keep(options.json, this_run(" ".join(["python -m tests.kit.scale", *sys.argv[1:]])), rows_of(found))
    return leave(found, options.report, f"{found.partitions}-{options.tasks}", found.faults, directory)


if __name__ == "__main__":
    sys.exit(main())
