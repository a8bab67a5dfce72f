"""``heliograph demo``: two Kafka clusters on this machine, sample orders, and a mirror that is killed under load.

The mirror is a process of its own. It is measured, killed with SIGKILL and started again. Then the copy is compared
with its source record by record, and a consumer group is moved to the target.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx
import orjson
import psutil
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from connect.cli.console import EXIT_ERROR, EXIT_FOUND, EXIT_OK, configure_logging, stop_signals
from connect.cli.demo_shop import TOPICS, GroupReader, OrderWriter
from connect.cli.dev import create_topics, properties
from connect.core.errors import HeliographError
from connect.core.model import NewTopic
from connect.core.wording import bytes_text
from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from connect.kafka.concurrency import Scope, first_of
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connectors.policy import DefaultReplicationPolicy
from connectors.verification.direct import TopicsComparison, compare_topics

SOURCE: Final = "us"
TARGET: Final = "eu"
GROUP: Final = "orders-mail"
LOG_FILE: Final = "heliograph.log"
#: Records a second without --rate.
DEFAULT_RATE: Final = 5000
#: The demo fails if the mirror copies nothing for this time.
STALL_S: Final = 240.0
#: The mirror and two clusters stop this long after Ctrl-C, or end with this process.
EXIT_WITHIN_S: Final = 20.0
_LINE_S: Final = 2.0
_LINES: Final = 4
_LOOK_S: Final = 0.25
_NOT_COPIED: Final = {"records": -1, "partitions": 0}
_PARTITIONS: Final = sum(topic.partitions for topic in TOPICS)
#: A killed demo leaves neither its mirror nor a failover.
_END_WITH_DEMO: Final = f"import connect.embedded.processes as p; p.end_with({os.getpid()})"
_HELIOGRAPH: Final = (sys.executable, "-c", f"{_END_WITH_DEMO}; from connect.cli.main import main; main()")
#: Rich's picture without the fonts that a viewer would load from the network.
_SVG: Final = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
_POLICY: Final = DefaultReplicationPolicy()
T = TypeVar("T")
_METRIC: Final = re.compile(r"^\w+_MirrorSourceConnector_(\w+?)(?:_total)?\{.*\} (\S+)", re.MULTILINE)


class DemoFailed(HeliographError):
    """The records were not mirrored."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of a mirror at ``at_s`` of a monotonic clock: records and bytes that it copied since its start, CPU
    seconds of all its processes, and the mean time from a record's timestamp to its copy."""

    at_s: float
    records: float
    bytes: float
    cpu_s: float
    latency_ms: float

    def line(self, before: Sample) -> str:
        """Format what happened since the sample ``before``, in less than 80 characters."""
        elapsed_s = max(self.at_s - before.at_s, 1e-9)
        records_per_s = (self.records - before.records) / elapsed_s
        size = bytes_text((self.bytes - before.bytes) / elapsed_s)
        cpu, latency = (self.cpu_s - before.cpu_s) / elapsed_s, f"{self.latency_ms:>5,.0f} ms"
        return f"  {records_per_s:>8,.0f} records/s  {size:>8}/s  CPU {cpu:>4.0%} of a core  latency {latency}"


def counters(metrics: str) -> tuple[float, float, float]:
    """Return records, bytes and the mean latency in ms from the text of ``/metrics``."""
    found: dict[str, list[float]] = {}
    for name, value in _METRIC.findall(metrics):
        found.setdefault(name, []).append(float(value))
    latencies = [one for one in found.get("replication_latency_ms_avg", ()) if one > 0]
    mean = sum(latencies) / len(latencies) if latencies else 0.0
    return sum(found.get("record_count", ())), sum(found.get("byte_count", ())), mean


class MirrorProcess:
    """``heliograph mirror`` of a file, as a process of its own; its log is appended to ``log``."""

    def __init__(self, file: Path, url: str, log: Path) -> None:
        self._file, self._url, self._log = file, url, log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_HELIOGRAPH, "mirror", str(self._file), stdout=log, stderr=log, start_new_session=True
            )

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def sample(self) -> Sample | None:
        """Return its counters; None while it does not serve them. Raises DemoFailed if it has ended."""
        if (text := await self._get("metrics")) is None:
            return None
        records, size, latency_ms = counters(text)
        return Sample(asyncio.get_running_loop().time(), records, size, self._cpu_s(), latency_ms)

    async def is_caught_up(self) -> bool:
        """Return whether every partition of the sample topics is copied to its end. Heartbeats arrive all the time."""
        text = await self._get(f"{SOURCE}/{TARGET}/connectors/MirrorSourceConnector/lag?top=0")
        if text is None:
            return False
        lag = orjson.loads(text)
        topics = [lag["topics"].get(topic.name, _NOT_COPIED) for topic in TOPICS]
        return all(one["records"] == 0 for one in topics) and sum(one["partitions"] for one in topics) == _PARTITIONS

    async def _get(self, path: str) -> str | None:
        assert self._process is not None
        if self._process.returncode is not None:
            raise DemoFailed(f"the mirror ended with exit code {self._process.returncode}. See {self._log}")
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.get(f"{self._url}/{path}")
                return answer.text if answer.is_success else None
        return None

    def _cpu_s(self) -> float:
        assert self._process is not None
        spent = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(self._process.pid)
            for each in (worker, *worker.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    spent += times.user + times.system
        return spent


def demo(*, directory: Path | None, rate: int | None, svg: Path | None) -> int:
    """Run the demo and return the exit code: 0, or 2 if the copy differs or the group did not continue exactly.
    ``directory`` is for ``mm2.properties`` and the log, ``rate`` in records a second, ``svg`` for a picture of the
    output. Raises DemoFailed if the records were not mirrored, HeliographError if something could not be started."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = directory or state / "heliograph" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"heliograph demo: mm2.properties and the log of the mirror are in {folder}", file=sys.stderr)
    console = Console(record=svg is not None, highlight=False)
    configure_logging("CRITICAL")
    code = asyncio.run(_demo(console, folder, rate or DEFAULT_RATE))
    if svg is not None:
        console.save_svg(str(svg), title="heliograph demo", code_format=_SVG)
    return code


async def _demo(console: Console, folder: Path, rate: int) -> int:
    async with stop_signals(exit_within_s=EXIT_WITHIN_S) as stop:
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
            # A closed terminal must not leave the mirror, which has a session of its own.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)
        console.print(
            f"Two Kafka clusters start: {SOURCE} and {TARGET}. The first time, Kafka is downloaded.", markup=False
        )
        async with _clusters(stop) as clusters:
            if stop.is_set():
                return EXIT_OK
            url = f"http://{cluster_config.HOST}:{cluster_config.choose(1)[0]}"
            file, log = folder / "mm2.properties", folder / LOG_FILE
            file.write_text(properties({alias: each.bootstrap for alias, each in clusters.items()}, url), "utf-8")
            log.write_bytes(b"")
            source, target = (_settings(alias, clusters[alias].bootstrap) for alias in (SOURCE, TARGET))
            story = _Story(console, file, MirrorProcess(file, url, log), url, source, target, OrderWriter(source))
            try:
                await first_of("demo", stop.wait(), story.play(rate))
            finally:
                await story.mirror.stop()
            return EXIT_ERROR if stop.is_set() else story.code


@dataclass(slots=True)
class _Story:
    console: Console
    file: Path
    mirror: MirrorProcess
    url: str
    source: ConnectionSettings
    target: ConnectionSettings
    writer: OrderWriter
    code: int = EXIT_OK

    async def play(self, rate: int) -> None:
        await create_topics(self.source, SOURCE, [NewTopic(topic.name, topic.partitions, 1) for topic in TOPICS])
        self._title(f"1. Mirror {len(TOPICS)} topics from {SOURCE} to {TARGET}: {rate:,} records a second are written")
        self._say(f"  $ heliograph mirror {self.file.name}")
        enough = asyncio.Event()
        async with Scope("demo") as scope:
            writing = scope.spawn(self.writer.write(enough, rate), "sample orders")
            await self.mirror.start()
            last = await self._copying()
            for _ in range(_LINES):
                last = await self._measured(last)
            self._title("2. Kill the mirror with SIGKILL while it copies, and start it again")
            await self.mirror.kill()
            killed_s = asyncio.get_running_loop().time()
            before = self.writer.records
            await self.mirror.start()
            last = await self._copying()
            waited_s, arrived = last.at_s - killed_s, self.writer.records - before
            self._say(f"  copies again {waited_s:.1f} s after SIGKILL; {arrived:,} records were written meanwhile")
            await self._measured(last)
            enough.set()
            await writing
        self._title(f"3. Stop writing, and compare {SOURCE} and {TARGET} record by record")
        await self._until(self.mirror.is_caught_up)
        topics = {topic.name: _POLICY.format_remote_topic(SOURCE, topic.name) for topic in TOPICS}
        report, written = await compare_topics(self.source, self.target, topics), self.writer.records
        self._result(verdict(written, report), is_good=is_exact(written, report))
        self._title(f"4. Move consumer group {GROUP} from {SOURCE} to {TARGET}")
        await self._move()

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(text, markup=False, style=style)

    def _title(self, text: str) -> None:
        self._say(f"\n{text}", "bold")

    async def _copying(self) -> Sample:
        """Wait until the mirror copies, and return its counters."""

        async def copied() -> Sample | None:
            sample = await self.mirror.sample()
            return sample if sample is not None and sample.records else None

        return await self._until(copied)

    async def _measured(self, before: Sample) -> Sample:
        await asyncio.sleep(_LINE_S)
        sample = await self.mirror.sample() or before
        self._say(sample.line(before))
        return sample

    async def _until(self, look: Callable[[], Awaitable[T | None]]) -> T:
        """Return what ``look`` gives once that is true."""
        deadline_s = asyncio.get_running_loop().time() + STALL_S
        while not (found := await look()):
            if asyncio.get_running_loop().time() > deadline_s:
                raise DemoFailed(f"the mirror did not copy within {STALL_S:.0f} s. See its log next to {self.file}")
            await asyncio.sleep(_LOOK_S)
        return found

    def _result(self, text: str, *, is_good: bool) -> None:
        self._say(f"  {text}", "bold green" if is_good else "bold red")
        self.code = self.code if is_good else EXIT_FOUND

    async def _move(self) -> None:
        reader = GroupReader(GROUP, "orders")
        due = await reader.read_and_commit(self.source)
        partition, number = min(due.items())
        self._say(f"  on {SOURCE}, its next record of orders-{partition} is order {number}")
        words = ["failover", str(self.file), "--to", TARGET, "--group", GROUP, "--rest", self.url, "--execute", "--yes"]
        self._say(f"  $ heliograph failover mm2.properties --to {TARGET} --group {GROUP} --execute ...")
        moving = await asyncio.create_subprocess_exec(
            *_HELIOGRAPH, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        printed = (await moving.communicate())[0].decode()
        if moving.returncode:
            raise DemoFailed(f"the group was not moved:\n{printed}")
        done = next(line for line in reversed(printed.splitlines()) if line.startswith("done: "))
        self._say(f"  {done.partition('. ')[0]}")
        remote = GroupReader(GROUP, _POLICY.format_remote_topic(SOURCE, "orders"))
        found = await remote.first_of_each(self.target, set(due))
        self._say(f"  on {TARGET}, its first record of {remote.topic}-{partition} is order {found.get(partition)}")
        same = sum(found.get(one) == order for one, order in due.items())
        self._result(f"{same} of {len(due)} partitions continue at the exact record", is_good=found == due)


def is_exact(written: int, report: TopicsComparison) -> bool:
    return report.difference is None and report.records == written


def verdict(written: int, report: TopicsComparison) -> str:
    """Return the result of the comparison in a line."""
    if report.difference is not None:
        return f"DIFFERENT after {report.records:,} equal records: {report.difference}"
    if report.records != written:
        return f"DIFFERENT: {report.records:,} records are equal, {written:,} were written"
    return f"{written:,} records in {report.partitions} partitions: 0 lost, 0 duplicated"


def _settings(alias: str, bootstrap: str) -> ConnectionSettings:
    return connection_settings({"bootstrap.servers": bootstrap}, client_id="heliograph-demo", where=f"cluster {alias}")


@asynccontextmanager
async def _clusters(stop: asyncio.Event) -> AsyncIterator[Mapping[str, KafkaCluster]]:
    """Start both clusters at the same time, and wait for each, because only then it can be stopped. There may be fewer
    if ``stop`` was set, because Ctrl-C also reaches a cluster that starts."""
    aliases = (SOURCE, TARGET)
    starting = [asyncio.to_thread(KafkaCluster.start, alias) for alias in aliases]
    started = await asyncio.gather(*starting, return_exceptions=True)
    clusters = {alias: each for alias, each in zip(aliases, started, strict=True) if isinstance(each, KafkaCluster)}
    failures = [each for each in started if isinstance(each, BaseException)]
    try:
        if failures and not stop.is_set():
            raise failures[0]
        yield clusters
    finally:
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in clusters.values()))
