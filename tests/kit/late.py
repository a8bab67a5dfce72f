"""The late run (``python -m tests.kit.late``): how late a worker is, seen from outside, by a table of goals."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import page
from bench.latency import busy_loops
from bench.machine import this_run
from bench.rows import BUSY, Partitions
from connect.embedded.brokers import QUICK_JVM
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.producer import OutRecord
from connectors.formats.position import KeyKind, decode_kind
from tests.kit import rest_load
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.internal_rounds import write_rounds
from tests.kit.large_bodies import ENDPOINTS, MIB, OBJECTS, send
from tests.kit.lateness import GOAL_BEAT_S, GOAL_STALL_S, Lateness
from tests.kit.long_run import begin, leave, parser_of
from tests.kit.mirror import Mirror, one_flow, with_rest
from tests.kit.processes import DeadlinePassed, wait_until
from tests.kit.scale import ALIAS, HEAP, Scene, costs_during, make_some_at_once, megabytes_text, shares_text
from tests.kit.seen import Seen

_PARTS: Final = ("start", "cost", "bodies", "frozen", "rest")
_MAP: Final = f"mm2-offset-map.{ALIAS}.internal"
#: How often 86ae19d wrote a position and a chunk of each busy partition.
_COMMIT_MS: Final = 1000
_BUSY_EVERY_S: Final = 1.0
_PARTITIONS_OF_TOPIC: Final = 50
_PAUSE_S: Final = (1.0, 4.0)
_STOP_S: Final = 120.0
_COST_S: Final = 20.0
#: What the run waits for, whatever the goal says.
_NOTICED_DEADLINE_S: Final = 60.0
_BESIDE_AT_MOST_S: Final = 6 * 3600.0

_GOAL_START_S: Final = 60.0
_GOAL_START_ALONE_S: Final = 30.0
_GOAL_CORES: Final = 0.5
_GOAL_PSS_BYTES: Final = 1e9
_GOAL_REFUSED_MS: Final = 100.0
_GOAL_REFUSED_BYTES: Final = 100 * MIB
_GOAL_NOTICED_S: Final = 10.0
_WORKER: Final = "worker"
#: What the log says of a lost membership, and of a lease as the worker and as the slice saw its end.
_LOST: Final = ("No longer a member of the group", "nothing heard from the slice", "the lease ran out")


@dataclass(frozen=True)
class Row:
    """One of the table; ``is_late``: the goal was missed."""

    what: str
    goal: str
    result: str
    is_late: bool


@dataclass(slots=True)
class Measured:
    """The table, and what was wrong besides."""

    seed: int
    records: int
    partitions: int
    repetitions: int
    beside: str
    load_average: tuple[float, float, float]
    rows: list[Row] = field(default_factory=list)
    #: Share of a core while every partition is busy; None if that was not played.
    worker_cores: float | None = None
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, goal: str, result: str, is_late: bool) -> None:
        self.rows.append(Row(what, goal, result, is_late))
        print(f"{what}: {result}{' (late)' if is_late else ''}", flush=True)

    def markdown(self) -> str:
        size = f"{self.records} records in the map's topic, {self.partitions} busy partitions"
        return "\n".join(
            [
                f"# {size}, {self.repetitions} times, {self.beside}, seed {self.seed}",
                "",
                f"Load of the machine before, on {os.cpu_count()} cores: {self.load_average}.",
                "",
                "| measured | goal | result | |",
                "| --- | --- | --- | --- |",
                *(f"| {row.what} | {row.goal} | {row.result} | {'late' * row.is_late} |" for row in self.rows),
                "",
                *(f"- {fault}" for fault in self.faults),
                "",
            ]
        )


def rows_of(found: Measured) -> list[Partitions]:
    """What the busy partitions cost the worker, for the model of scale."""
    if found.worker_cores is None:
        return []
    return [Partitions(load=BUSY, partitions=found.partitions, cores=found.worker_cores)]


async def fill_map(bootstrap: str, records: int) -> int:
    """Repeat a cleanly stopped mirror's positions and open chunks, as 86ae19d did; return how many records."""
    last: dict[tuple[int, bytes], OutRecord] = {}

    def keep(record: LogRecord) -> None:
        if record.key is not None and decode_kind(record.key) in {KeyKind.POSITION, KeyKind.CHUNK}:
            last.pop((record.partition, record.key), None)
            if record.value is not None:
                last[record.partition, record.key] = OutRecord(_MAP, record.key, record.value)

    async with cluster_at(bootstrap) as cluster:
        await read_to_end(cluster, _MAP, keep, read_committed=True)
        moment: dict[tuple[str, int], list[OutRecord]] = {}
        for (partition, _), record in last.items():
            moment.setdefault((_MAP, partition), []).append(record)
        return await write_rounds(cluster, [moment], max(1, records // len(last)), _COMMIT_MS)


@dataclass(frozen=True, slots=True)
class Stage:
    """Two clusters of a broker each, and what is written to the source and asked of the mirror."""

    us: KafkaCluster
    eu: KafkaCluster
    scene: Scene
    seen: Seen
    port: int


class Lives:
    """The mirror's starts: how long each took, and what the worker told of itself before it ended."""

    def __init__(self, on: Stage, found: Measured, chance: random.Random) -> None:
        self._scene, self._seen, self._found, self._chance = on.scene, on.seen, found, chance
        self.took_s: dict[str, list[float]] = {}
        self.lateness = Lateness()

    async def start(self, what: str) -> None:
        began_s, log_start = time.monotonic(), self._scene.mirror.log_end()
        self._scene.mirror.start()
        took_s = await self._scene.next_copied(began_s)
        self.took_s.setdefault(what, []).append(took_s)
        print(f"{what}: copying after {took_s:.1f} s", flush=True)
        await asyncio.sleep(self._chance.uniform(*_PAUSE_S))
        await asyncio.to_thread(self._look, what, log_start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._scene.mirror.kill)

    async def stop(self) -> None:
        if code := await asyncio.to_thread(self._scene.mirror.stop, _STOP_S):
            self._found.faults.append(f"the mirror ended with exit code {code} after SIGTERM")

    def _look(self, what: str, log_start: int) -> None:
        of_life = Lateness()
        of_life.look(self._seen.url, self._scene.mirror.log_file)
        print(f"{what}: {of_life}", flush=True)
        self.lateness.add(of_life)
        if of_life.unanswered:
            self._found.faults.append(f"{what}: the mirror did not tell its metrics")
        lines = self._scene.mirror.log_lines(log_start)
        self._found.faults += [f"{what}: {line}" for line in lines if any(lost in line for lost in _LOST)]


async def play_starts(on: Stage, found: Measured, goal_s: float) -> None:
    """Fill the map's topic, then start the mirror, kill it, and start it again; it runs at the end."""
    lives = Lives(on, found, random.Random(found.seed))
    await on.scene.made()
    async with _busy(on.scene):
        await lives.start("first start, remote topics made")
        await lives.stop()
        began_s = time.monotonic()
        written = await fill_map(on.eu.bootstrap, found.records)
        # A log that is days old is on the disk, whereas gigabytes that are still to be written there halve the machine.
        await asyncio.to_thread(os.sync)
        print(f"{written} records of the map's topic written in {time.monotonic() - began_s:.0f} s", flush=True)
        for number in range(found.repetitions):
            await lives.start("start")
            await lives.kill()
            await lives.start("start after SIGKILL")
            if number + 1 < found.repetitions:
                await lives.stop()
    for what in ("start", "start after SIGKILL"):
        took_s = sorted(lives.took_s[what])
        text = f"{took_s[-1]:.1f} s at most, {statistics.median(took_s):.1f} s median, {len(took_s)} times"
        found.add(f"{what}, until copying", f"{goal_s:.0f} s", text, took_s[-1] > goal_s)
    beat_s, stall_s = max(lives.lateness.beats_s), max(lives.lateness.stalls_s)
    found.add("longest time between two turns of the lease thread", "1 s", f"{beat_s:.2f} s", beat_s > GOAL_BEAT_S)
    stalls = ", ".join(f"{each_s * 1000:.0f}" for each_s in lives.lateness.stalls_s)
    found.add("longest stall of the main loop, of each start", "250 ms", f"{stalls} ms", stall_s > GOAL_STALL_S)


async def play_cost(scene: Scene, found: Measured) -> None:
    async with _busy(scene):
        _, cpu, pss = await costs_during(scene.mirror, _COST_S)
    found.worker_cores = cpu[_WORKER]
    is_late = cpu[_WORKER] > _GOAL_CORES or sum(pss.values()) > _GOAL_PSS_BYTES
    text = f"{shares_text(cpu)}; {megabytes_text(pss)}"
    found.add("CPU and memory, a record a second in each partition", "worker 50 %, 1 GB", text, is_late)


def play_bodies(on: Stage, found: Measured) -> None:
    """Send ten MiB of objects to every endpoint, and look at what that costs the worker."""
    worst_ms, wrong, answers_ms = 0.0, list[str](), list[float]()
    pid = on.scene.mirror.pid
    _, memory_before = _memory_bytes(pid)
    _forget_peak(pid)
    for method, path in ENDPOINTS:
        for chunked in (False, True):
            cpu_s, began_s = _loop_s(pid), time.monotonic()
            status = send(on.port, method, f"/{ALIAS}/eu{path}", OBJECTS, chunked=chunked)
            answers_ms.append((time.monotonic() - began_s) * 1000)
            worst_ms = max(worst_ms, (_loop_s(pid) - cpu_s) * 1000)
            if not 400 <= status < 500:
                wrong.append(f"{method} {path}: answered {status} to ten MiB of objects")
    peak, _ = _memory_bytes(pid)
    grown = peak - memory_before
    text = (
        f"{worst_ms:.0f} ms of the loop's thread at most, answered in {max(answers_ms):.0f} ms at most, memory grew by "
        f"{grown / MIB:.0f} MiB, {2 * len(ENDPOINTS)} requests"
    )
    is_late = worst_ms > _GOAL_REFUSED_MS or grown > _GOAL_REFUSED_BYTES or bool(wrong)
    found.add("10 MiB of `[{},{},...]` refused", "100 ms of loop time, 100 MiB", text, is_late)
    found.faults += wrong


def _loop_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _memory_bytes(pid: int) -> tuple[int, int]:
    text = Path(f"/proc/{pid}/status").read_text()
    sizes = dict(re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB", text, re.MULTILINE))
    return int(sizes["VmHWM"]) * 1024, int(sizes["VmRSS"]) * 1024


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def play_frozen(on: Stage, found: Measured, seconds: float) -> None:
    """Freeze the source's broker, and ask everything that users look at until it says so."""
    seen, mirror, flow = on.seen, on.scene.mirror, f"{ALIAS}->eu"
    wait_until(lambda: seen.metric("source_answers") == 1 and seen.metric("lag_records") == 0, 60, "all is copied")
    log_start = mirror.log_end()
    says: dict[str, Callable[[], object]] = {
        "metrics": lambda: seen.metric("source_answers") == 0 and seen.metric("lag_records") == -1,
        "REST": lambda: seen.ask(f"/{ALIAS}/eu/connectors/MirrorSourceConnector/lag?top=1")["source_answers"] is False,
        "`lag`": lambda: "lag unknown since" in seen.lag("--rest", f"{seen.url}/{ALIAS}/eu")[1],
        "log": lambda: _has(mirror.log_lines(log_start), "WARNING", f"{flow}: source cluster", "does not answer"),
        "flow status": lambda: _has(mirror.log_lines(log_start), f"{flow} unreachable", "lag unknown since"),
    }
    on.us.freeze(0)
    began_s, noticed_s = time.monotonic(), dict[str, float]()

    def notice(what: str) -> None:
        with contextlib.suppress(DeadlinePassed):
            wait_until(says[what], _NOTICED_DEADLINE_S, f"{what} says it")
            noticed_s[what] = time.monotonic() - began_s

    try:
        with ThreadPoolExecutor(len(says)) as each:  # because the command takes seconds on a busy machine
            list(each.map(notice, says))
        age_ms = seen.metric("lag_unknown_ms")
        time.sleep(max(0.0, began_s + seconds - time.monotonic()))
        grows = seen.metric("lag_unknown_ms") > age_ms >= 0 and seen.metric("lag_records") == -1
    finally:
        on.us.thaw(0)
    text = ", ".join(f"{what} {noticed_s[what]:.1f} s" if what in noticed_s else f"{what} never" for what in says)
    is_late = any(noticed_s.get(what, seconds) > _GOAL_NOTICED_S for what in says)
    found.add(f"source broker frozen for {seconds:.0f} s, noticed by", "10 s each", text, is_late)
    found.add("its lag is unknown, the age of that grows", "yes", "yes" if grows else "no", not grows)
    causes = Counter(_cause(line) for line in mirror.log_lines(log_start) if " WARNING " in line)
    most = max(causes.values(), default=0)
    text = f"{most} of one text at most, {sum(causes.values())} in all"
    found.add("warnings meanwhile", "one in a minute", text, sum(causes.values()) > 1 + seconds // 60)


def _has(lines: Sequence[str], *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in lines)


def _cause(line: str) -> str:
    """A line of the log without what differs from one time to the next."""
    return re.sub(r"\d+", "N", line.partition(" WARNING ")[2])


def play_rest(directory: Path, found: Measured, records: int, seconds: float) -> None:
    answers = rest_load.measure(directory, records=records, seconds=seconds)
    print(answers, flush=True)
    is_late = answers.median_ms > rest_load.PROMISED_MEDIAN_MS or answers.p99_ms > rest_load.PROMISED_MS
    text = f"{answers.median_ms:.1f} ms, {answers.p99_ms:.0f} ms beside {answers.records_per_s:,.0f} records/s"
    found.add("REST at 20 requests/s during a copy: median, p99", "10 ms, 100 ms", text, is_late)
    if answers.refused:
        found.faults.append(f"REST: {answers.refused} of {answers.requests} requests were refused")


@asynccontextmanager
async def _busy(scene: Scene) -> AsyncIterator[None]:
    writing = asyncio.create_task(scene.keep_busy(_BUSY_EVERY_S), name="busy partitions")
    try:
        yield
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing


@contextmanager
def stage(directory: Path, partitions: int, tasks: int) -> Iterator[Stage]:
    """The clusters with the topics of the source, and the mirror's file."""
    jvm = (*QUICK_JVM, HEAP)
    counts = {
        f"late-{first // _PARTITIONS_OF_TOPIC:03}": min(_PARTITIONS_OF_TOPIC, partitions - first)
        for first in range(0, partitions, _PARTITIONS_OF_TOPIC)
    }
    uncleaned = {"log.cleaner.enable": "false"}
    with (
        KafkaCluster.start("us", jvm_options=jvm) as us,
        KafkaCluster.start("eu", jvm_options=jvm, config=uncleaned) as eu,
    ):
        make_some_at_once(us.bootstrap, counts)
        properties = {**one_flow(us.bootstrap, eu.bootstrap, "late-.*", tasks=tasks), **with_rest()}
        with Mirror(properties, directory) as mirror:
            url = properties["listeners"]
            seen, port = Seen(mirror, url, ALIAS), int(url.rpartition(":")[2])
            yield Stage(us, eu, Scene(us, eu, mirror, properties, counts), seen, port)


def _play(options: argparse.Namespace, found: Measured, directory: Path) -> None:
    if set(options.parts) - {"rest"}:
        with stage(directory, options.partitions, options.tasks) as on:
            asyncio.run(play_starts(on, found, _GOAL_START_ALONE_S if options.alone else _GOAL_START_S))
            if "cost" in options.parts:
                asyncio.run(play_cost(on.scene, found))
            if "bodies" in options.parts:
                play_bodies(on, found)
            if "frozen" in options.parts:
                play_frozen(on, found, options.frozen_seconds)
    if "rest" in options.parts:
        (directory / "rest").mkdir()
        play_rest(directory / "rest", found, options.rest_records, options.rest_seconds)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("python -m tests.kit.late", __doc__, "of the pauses")
    parser.add_argument("--records", type=int, default=5_000_000, help="in the map's topic (default 5000000)")
    parser.add_argument("--partitions", type=int, default=2000, help="busy ones, a record a second each (default 2000)")
    parser.add_argument("--repetitions", type=int, default=20, help="starts of either kind (default 20)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks.max (default 2)")
    parser.add_argument("--alone", action="store_true", help="without two busy loops beside it")
    parser.add_argument("--frozen-seconds", type=float, default=75.0, help="of the source's broker (default 75)")
    rest = "records that the copy beside the REST requests has (default 30000000)"
    parser.add_argument("--rest-records", type=int, default=30_000_000, help=rest)
    parser.add_argument("--rest-seconds", type=float, default=20.0, help="of REST requests (default 20)")
    parts = "what to play, besides the starts that all but rest need (default all)"
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help=parts)
    parser.add_argument("--report", type=Path, default=Path("build/late"), help="directory of the reports")
    kept = "keep the cost of a busy partition here, and make no page"
    parser.add_argument("--json", type=Path, default=page.RESULTS, metavar="FILE", help=kept)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _arguments(arguments)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    directory = begin("late", options.seed)
    beside = "nothing beside it" if options.alone else "two busy loops beside it"
    found = Measured(options.seed, options.records, options.partitions, options.repetitions, beside, os.getloadavg())
    with contextlib.nullcontext() if options.alone else busy_loops(_BESIDE_AT_MOST_S):
        try:
            _play(options, found, directory)
        except AssertionError as error:
            found.faults.append(str(error))
    page.keep(options.json, this_run(" ".join(["python -m tests.kit.late", *sys.argv[1:]])), rows_of(found))
    faults = [*found.faults, *(row.what for row in found.rows if row.is_late)]
    return leave(found, options.report, f"{found.records}-{found.partitions}", faults, directory)


if __name__ == "__main__":
    sys.exit(main())
