"""Hold what the connectors share: the schedule of their jobs, checks of altered offsets in Java's words (Kafka's
``MirrorUtils.validateSource...``), latencies of checkpoints and heartbeats, from a record's timestamp to the target's
acknowledgement, as metrics for Prometheus (``MirrorCheckpointMetrics``), and reports that take long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client.metrics_core import Metric

from connect.api.connector import Props
from connect.api.plugins import KAFKA_VERSION
from connect.api.source import BYTES, SourceConnector, SourceRecord
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.metrics import Families, Rows, Windowed
from connect.kafka.concurrency import Scope
from connect.kafka.threads import PluginThread
from connectors.config.ignored_keys import connector_notices
from connectors.formats.mirror_records import Checkpoint, Heartbeat

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Less than the time limit of a report, so that the message is ours.
_WITHIN_S: Final = 50.0
#: Threads at a time.
_AT_ONCE: Final = 4
#: The highest ``top``.
_MOST_ROWS: Final = 1000


@dataclass(eq=False, slots=True)
class _Job:
    name: str
    run: Callable[[], Awaitable[None]]
    interval_s: float | None
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


class MirrorConnector(SourceConnector):
    """What the three connectors have in common."""

    @classmethod
    def version(cls) -> str:
        return KAFKA_VERSION

    def ignored(self, props: Props) -> Sequence[str]:
        return [one.text for one in connector_notices(props)]


def mirror_record(
    place: Mapping[str, Any], topic: str, record: Checkpoint | Heartbeat, timestamp_ms: int
) -> SourceRecord:
    """Return a record of a connector that copies nothing. The order of ``place``, the source partition, is that of
    Java's map, and part of the stored key. Raises MalformedRecord."""
    return SourceRecord(place, {"offset": 0}, topic, record.value(), BYTES, record.key(), BYTES, 0, timestamp_ms)


class Schedule:
    """Jobs of one connector (Kafka ``connect.mirror.Scheduler``). One runs at a time, so that two never work on the
    same topics. A job that fails, or takes longer than ``timeout_s``, is logged and runs again at its interval; None if
    each part of a job has its own timeout. ``label`` is the prefix of all log lines."""

    def __init__(self, label: str, timeout_s: float | None) -> None:
        self._label, self._timeout_s = label, timeout_s
        self._jobs: list[_Job] = []
        self._scope = Scope(f"jobs of {label}")
        self._one_at_a_time = asyncio.Lock()

    def add(
        self, name: str, run: Callable[[], Awaitable[None]], interval_s: float | None, *, at_once: bool = False
    ) -> None:
        """Add a job after those added before; with ``interval_s`` None it runs only on request, with ``at_once`` also
        when the schedule begins."""
        self._jobs.append(job := _Job(name, run, interval_s))
        if at_once:
            job.wanted.set()

    def begin(self) -> None:
        """Start the jobs, each for the first time one interval from now, or when :meth:`hurry` is called."""
        for job in self._jobs:
            self._scope.spawn(self._repeat(job), f"{job.name} of {self._label}")

    def hurry(self, name: str) -> None:
        """Run a job soon, because something has changed; several calls before it runs count once."""
        next(job for job in self._jobs if job.name == name).wanted.set()

    async def stop(self) -> None:
        await self._scope.close()

    async def _repeat(self, job: _Job) -> None:
        clock = asyncio.get_running_loop().time
        due_s = None if job.interval_s is None else clock() + job.interval_s
        while True:
            try:
                async with asyncio.timeout_at(due_s):
                    await job.wanted.wait()
            except TimeoutError:
                assert job.interval_s is not None and due_s is not None
                # At a fixed rate, as Java; missed runs are not repeated.
                due_s = max(due_s + job.interval_s, clock())
            job.wanted.clear()
            await self._run(job)

    async def _run(self, job: _Job) -> None:
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await job.run()
            except TimeoutError:
                log.warning("%s: %s took longer than %g s (admin.timeout.ms)", self._label, job.name, self._timeout_s)
            except HeliographError as error:
                log.warning("%s: %s failed: %s", self._label, job.name, error)
            except Exception as error:
                log.error("%s: %s failed", self._label, job.name, exc_info=error)


_MOST: Final = (1 << 31) - 1
#: Because the offset after it, where a copy continues, is stored as an int64.
_MOST_OFFSET: Final = (1 << 63) - 2


def check_offsets(
    offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]], *keys: str, only_zero: bool
) -> bool:
    """Return True if all source partitions have these ``keys`` and valid offsets, which are 0 if ``only_zero``; a reset
    (None) is always valid. Raises PermanentError."""
    for partition, offset in offsets:
        if offset is not None:
            for key in keys:
                _check_key(partition, key)
            _check_offset(partition, offset, only_zero=only_zero)
    return True


def _check_key(partition: Mapping[str, Any], key: str) -> None:
    shown = f"Source partition {_shown(partition)}"
    if key not in partition:
        raise PermanentError(f"{shown} is missing the '{key}' key, which is required")
    value, why = partition[key], ""
    if key != "partition":
        why = "" if isinstance(value, str) else "must be a string"
    elif not isinstance(value, int) or isinstance(value, bool) or value > _MOST:
        why = "must be an integer"
    elif value < 0:
        why = "cannot be negative"
    if why:
        raise PermanentError(f"{shown} has an invalid value {_shown(value)} for the '{key}' key, which {why}")


def _check_offset(partition: Mapping[str, Any], offset: Mapping[str, Any], *, only_zero: bool) -> None:
    where = f"Source offset {_shown(offset)} for source partition {_shown(partition)}"
    if "offset" not in offset:
        raise PermanentError(f"{where} is missing the 'offset' key, which is required")
    value = offset["offset"]
    wrong = f"{where} has an invalid value {_shown(value)} for the 'offset' key"
    if not isinstance(value, int) or isinstance(value, bool):
        raise PermanentError(f"{wrong}, which must be an integer")
    if value > _MOST_OFFSET:
        raise PermanentError(f"{wrong}, which is larger than {_MOST_OFFSET}")
    if only_zero and value:
        raise PermanentError(f"{wrong}; the only accepted value is 0")
    if value < 0:
        raise PermanentError(f"{wrong}, which cannot be negative")


def _shown(value: object) -> str:
    """Format a value as Java prints it."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name}={_shown(each)}" for name, each in value.items()) + "}"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


#: How many series a task has, for those written last, because a scraper reads each of them.
MOST: Final = 2_000
#: Java's attributes of ``MirrorCheckpointMetrics``; heartbeats have none there.
LATENCY: Final[Rows[Windowed]] = (
    ("latency_ms", "From a record's timestamp to its acknowledgement, last.", lambda one, _: one.last),
    ("latency_ms_min", "Minimum of that latency.", lambda one, now_ms: one.least(now_ms)),
    ("latency_ms_max", "Maximum of that latency.", lambda one, now_ms: one.most(now_ms)),
    ("latency_ms_avg", "Mean of that latency.", lambda one, now_ms: one.mean(now_ms)),
)
Labels = tuple[str, ...]


class Latencies:
    """Latencies of one task, by labels; ``whole`` covers all that it wrote, with any labels. ``done_ms``, since 1970:
    when the task last did its work completely, and until then when it started."""

    def __init__(self, most: int = MOST) -> None:
        self.done_ms = 0
        self._most = most
        self._by_labels: OrderedDict[Labels, Windowed] = OrderedDict()
        self.whole = Windowed()

    def written(self, labels: Labels, sent_ms: int, now_ms: int) -> None:
        taken_ms = max(now_ms - sent_ms, 0)
        self.whole.record(taken_ms, now_ms)
        self._by_labels.setdefault(labels, Windowed()).record(taken_ms, now_ms)
        self._by_labels.move_to_end(labels)
        while len(self._by_labels) > self._most:
            self._by_labels.popitem(last=False)

    def __iter__(self) -> Iterator[tuple[Labels, Windowed]]:
        return iter(self._by_labels.items())


class Task(NamedTuple):
    source: str
    target: str
    number: str


@dataclass(slots=True)
class WrittenLatencies:
    """Latencies of the tasks that run on a worker now."""

    checkpoints: dict[Task, Latencies] = field(default_factory=dict)
    heartbeats: dict[Task, Latencies] = field(default_factory=dict)


_DOMAIN: Final = "kafka_connect_mirror_"
_CHECKPOINT: Final = f"{_DOMAIN}MirrorCheckpointConnector_"
_HEARTBEAT: Final = f"{_DOMAIN}MirrorHeartbeatConnector_"
_FLOW: Final = ("source", "target")
_WHOLE: Final[Rows[Windowed]] = (("count", "Written since the task began.", lambda one, _: one.recorded), *LATENCY)


def _age(said: str) -> Rows[Latencies]:
    return (("age_ms", said, lambda one, now_ms: max(now_ms - one.done_ms, 0)),)


_CHECKPOINT_AGE: Final = _age(
    "Time in ms since the task last read the offsets of all of its groups, or since its start until then."
)
_HEARTBEAT_AGE: Final = _age(
    "Time in ms since the target last acknowledged a heartbeat, or since the start of the task until then."
)


def written_metrics(workers: Sequence[WrittenLatencies], now_ms: int) -> Iterator[Metric]:
    """Yield the metrics of checkpoints by group and partition, and by task, and of heartbeats by flow."""
    single = Families(f"{_CHECKPOINT}checkpoint_", (*_FLOW, "group", "topic", "partition"), LATENCY)
    tasks = Families(f"{_CHECKPOINT}task_checkpoint_", (*_FLOW, "task"), _WHOLE)
    beats = Families(f"{_HEARTBEAT}heartbeat_", _FLOW, _WHOLE)
    task_ages = Families(f"{_CHECKPOINT}task_checkpoint_", (*_FLOW, "task"), _CHECKPOINT_AGE)
    beat_ages = Families(f"{_HEARTBEAT}heartbeat_", _FLOW, _HEARTBEAT_AGE)
    for worker in workers:
        for task, latencies in worker.checkpoints.items():
            tasks.add(task, latencies.whole, now_ms)
            task_ages.add(task, latencies, now_ms)
            for labels, latency in latencies:
                single.add((task.source, task.target, *labels), latency, now_ms)
        for task, latencies in worker.heartbeats.items():
            beats.add((task.source, task.target), latencies.whole, now_ms)
            beat_ages.add((task.source, task.target), latencies, now_ms)
    yield from (*single, *tasks, *task_ages, *beats, *beat_ages)


@dataclass(slots=True)
class _Kept:
    finding: asyncio.Task[None] | None = None
    found: Any = None
    until_s: float = 0.0


class KeptReports:
    """The reports of a worker, by a key that says what was asked. A plan of thousands of groups or topics takes longer
    than the worker's loop may stand still, so each is made in a thread with a loop and connections of its own. The
    thread does not delay the end of the process."""

    def __init__(self) -> None:
        self._kept: dict[object, _Kept] = {}
        self._threads = asyncio.Semaphore(_AT_ONCE)
        self._scope = Scope("reports")

    async def close(self) -> None:
        """Give up the reports that are being made."""
        await self._scope.close()

    async def get(self, key: object, fresh_s: float, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what ``find`` returned at most ``fresh_s`` ago; concurrent callers with the same ``key`` share it.
        Errors of ``find`` are raised and not kept. Raises RetriableError if it takes too long."""
        now_s = time.monotonic()
        self._kept = {of: one for of, one in self._kept.items() if one.until_s > now_s or one.finding is not None}
        kept = self._kept.setdefault(key, _Kept())
        if kept.finding is None and now_s >= kept.until_s:
            finding = self._find(kept, fresh_s, find)
            # Its errors are those of its callers, who may have left.
            kept.finding = self._scope.spawn(finding, "a report", failed=lambda _: None)
        if kept.finding is not None:
            # A thread cannot be cancelled: a caller that leaves must not make room for another one.
            await asyncio.shield(kept.finding)
        found: T = kept.found
        return found

    async def _find(self, kept: _Kept, fresh_s: float, find: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            async with self._threads, PluginThread("a report") as thread:
                kept.found = await thread.call(lambda: asyncio.run(_within(find)))
            kept.until_s = time.monotonic() + fresh_s
        finally:
            kept.finding = None


async def _within(find: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        async with asyncio.timeout(_WITHIN_S) as timeout:
            return await find()
    except TimeoutError:
        if not timeout.expired():
            raise
        raise RetriableError(f"the clusters gave no answer within {_WITHIN_S:.0f} s. Try again") from None


def rows_asked(top: str, most: int = _MOST_ROWS) -> int:
    """Return how many rows the query ``top`` of a report asks for, at most ``most``. Raises ConfigError."""
    if not (top.isascii() and top.isdigit()):
        raise ConfigError(f"top is '{top[:20]}'; it has to be the number of rows to show, such as 20", "top")
    return min(int(top[:10]), most)
