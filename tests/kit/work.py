"""Work of a Connect worker without a cluster: a listener that remembers, a log in memory, a producer that obeys."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from connect.api.connector import ConfigDef, Props
from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import RecordMetadata, SourceConnector, SourceRecord, SourceTask
from connect.core.config.worker_config import WorkerConfig
from connect.core.model import State, TaskId
from connect.kafka.log.compacted_topic import LogRecord
from connect.kafka.log.producer import OutRecord
from connect.plugins import builtin
from connect.runtime.plugins.plugin_registry import Plugins
from connect.runtime.task.connector_offsets import OffsetTopic
from connect.runtime.task.record_delivery import Done, OutgoingRecord, RecordProducer
from connect.runtime.task.task_control import FailureTrace

WORKER = {
    "bootstrap.servers": "127.0.0.1:1",
    "group.id": "g",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "statuses",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}


def worker_config(**changes: str) -> WorkerConfig:
    return WorkerConfig.parse({**WORKER, **{key.replace("_", "."): value for key, value in changes.items()}})


def with_secret(folder: Path) -> tuple[WorkerConfig, str]:
    """A worker that resolves references to files, and such a reference, which stands for ``hunter2``."""
    file = folder / "secrets.properties"
    file.write_text("password=hunter2\n")
    kind = "org.apache.kafka.common.config.provider.FileConfigProvider"
    return worker_config(config_providers="file", config_providers_file_class=kind), f"${{file:{file}:password}}"


_BUILTIN = [
    *builtin.CONNECTORS,
    *builtin.CONVERTERS,
    *builtin.HEADER_CONVERTERS,
    *builtin.TRANSFORMATIONS,
    *builtin.PREDICATES,
]


class Heard:
    """A :class:`connect.runtime.task.task_control.WorkerListener` that remembers."""

    def __init__(self) -> None:
        self.states: list[tuple[str | TaskId, State]] = []
        self.traces: dict[str | TaskId, str | None] = {}
        self.versions: dict[str | TaskId, str | None] = {}
        self.wanted: list[str] = []
        self.topics: list[tuple[str, TaskId]] = []
        self.failed: list[str] = []
        self.failed_at_end: set[str | TaskId] = set()

    def connector_failed(self, name: str) -> None:
        self.failed.append(name)

    def task_configs_wanted(self, name: str) -> None:
        self.wanted.append(name)

    def topic_used(self, topic: str, task: TaskId) -> None:
        self.topics.append((topic, task))

    def of(self, work: str | TaskId) -> list[State]:
        return [state for its_work, state in self.states if its_work == work]

    def last(self, work: str | TaskId) -> State | None:
        return next(iter(reversed(self.of(work))), None)

    def reported(self, work: str | TaskId, state: State, failure: FailureTrace | None, version: str | None) -> None:
        self.states.append((work, state))
        self.traces[work] = failure.trace if failure is not None else None
        self.versions[work] = version
        if failure is not None and failure.is_at_end:
            self.failed_at_end.add(work)


class MemoryLog:
    """A :class:`connect.kafka.log.compacted_log.CompactedLog` in memory; writes raise ``refusing`` after ``slow_s``."""

    def __init__(self, on_record: Callable[[LogRecord], None], on_reset: Callable[[], None]) -> None:
        self._on_record = on_record
        self.reset_log = on_reset
        self.writes: list[list[OutRecord]] = []
        self.refusing: Exception | None = None
        self.slow_s = 0.0
        self.reads = 0
        self.committed_only = False

    async def start(self, timeout_s: float, *, committed_only: bool = False) -> None: ...

    async def read_to_end(self, timeout_s: float, *, committed_only: bool = False) -> None:
        self.reads += 1
        self.committed_only = committed_only

    async def write(self, records: Iterable[OutRecord]) -> None:
        batch = list(records)
        await asyncio.sleep(self.slow_s)
        if self.refusing is not None:
            raise self.refusing
        self.writes.append(batch)
        for record in batch:
            self.put(record.key, record.value)

    async def stop(self) -> None: ...

    async def ended(self) -> Exception | None:
        return None

    def put(self, key: bytes, value: bytes | None) -> None:
        self._on_record(LogRecord(key, value, 0, 0, 0))


def memory_topic(name: str = "offsets") -> tuple[OffsetTopic, MemoryLog]:
    """An offset topic, and the log behind it."""
    logs: list[MemoryLog] = []

    def opened(on_record: Callable[[LogRecord], None], on_reset: Callable[[], None]) -> MemoryLog:
        logs.append(MemoryLog(on_record, on_reset))
        return logs[0]

    return OffsetTopic(name, cast(Any, opened)), logs[0]


class ObedientProducer(RecordProducer):
    """Keeps what is sent until the test acknowledges or fails it; ``refusing``: errors of the next sends."""

    def __init__(self, *, acks_at_once: bool = False) -> None:
        self.acks_at_once = acks_at_once
        self.under_way: deque[tuple[OutgoingRecord, Done]] = deque()
        self.refusing: deque[Exception] = deque()
        self.sent: list[OutgoingRecord] = []
        self.log: list[str] = []
        self.closed_with_s: float | None = None

    async def start(self) -> None:
        self.log.append("start")

    async def send(self, record: OutgoingRecord, done: Done) -> None:
        if self.refusing:
            raise self.refusing.popleft()
        self.sent.append(record)
        self.log.append(f"send {record.topic} {(record.value or b'').decode()}")
        self.under_way.append((record, done))
        if self.acks_at_once:
            self.ack()

    async def begin(self) -> None:
        self.log.append("begin")

    async def end(self, *, commit: bool) -> None:
        self.log.append("commit" if commit else "abort")

    async def close(self, timeout_s: float) -> None:
        self.closed_with_s = timeout_s

    def ack(self, which: int = 0) -> None:
        record, done = self.under_way[which]
        del self.under_way[which]
        done(RecordMetadata(record.topic, record.partition or 0, len(self.sent), 0), None)

    def fail(self, error: Exception, which: int = 0) -> None:
        _, done = self.under_way[which]
        del self.under_way[which]
        done(None, error)


def record(number: int, partition: int = 0, topic: str = "t") -> SourceRecord:
    """The ``number``-th record of a source partition."""
    return SourceRecord({"p": partition}, {"n": number}, topic, f"v{number}")


def plugins(connector: type[SourceConnector], name: str = "Test") -> Plugins:
    described = PluginDescription(PluginKind.SOURCE, name, connector, connector.config_def(), connector.version())
    return Plugins([*_BUILTIN, described])


class QuietTask(SourceTask):
    """Does nothing; say what else it shall do on a subclass."""

    async def start(self, props: Props) -> None: ...

    async def poll(self) -> Sequence[SourceRecord] | None: ...


class TestConnector(SourceConnector):
    """Has one task of ``task``; set what it shall do on a subclass."""

    __test__ = False
    task: Any = None

    @classmethod
    def version(cls) -> str:
        return "1.2"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef()

    async def start(self, props: Props) -> None: ...

    async def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        return [{"number": "0"}]

    def make_task(self) -> SourceTask:
        made: SourceTask = self.task()
        return made
