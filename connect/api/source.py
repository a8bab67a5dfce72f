"""What the author of a source connector writes: a connector that plans, and tasks that poll.

The contract is Kafka Connect's (``SourceConnector``, ``SourceTask``, KIP-618, KIP-875).

Methods whose result may be awaitable are written as ``async def`` or as plain ``def``. Coroutine functions run in the
worker's loop and must not block. Plain ones may block: they run in a thread, one for each connector and each task, one
call after the other. A call that hangs harms its connector or task alone. The other methods are called in the loop and
return at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

from connect.api.connector import Props
from connect.core.config.config_def import ConfigDef, ConfigValue

#: Source partitions and offsets: objects of JSON with string keys and primitive values. The order of their fields is
#: part of the stored key.
Fields = Mapping[str, str | int | float | bool | None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Schema:
    """A type of Connect: string, bytes, boolean, int8 ... int64, float32, float64, array, map, struct.

    Arrays are lists, maps and structs are dicts. ``name``, ``version`` and ``parameters`` (names and values) mark
    logical types such as ``org.apache.kafka.connect.data.Timestamp``. ``keys`` is of maps, ``values`` of maps and
    arrays, ``fields`` of structs: names and schemas in order.
    """

    type: str
    optional: bool = False
    name: str | None = None
    version: int | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    keys: Schema | None = None
    values: Schema | None = None
    fields: tuple[tuple[str, Schema], ...] = ()


STRING = Schema("string")
OPTIONAL_STRING = Schema("string", optional=True)
BYTES = Schema("bytes")
OPTIONAL_BYTES = Schema("bytes", optional=True)


@dataclass(frozen=True, slots=True)
class Header:
    """A header; ``schema`` None where the value has none."""

    key: str
    value: Any
    schema: Schema | None = None


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record to be written, with where it stood at its source.

    ``partition`` None lets the producer choose by key; ``timestamp_ms`` None is the time of sending.
    """

    source_partition: Fields
    source_offset: Fields
    topic: str
    value: Any
    value_schema: Schema | None = None
    key: Any = None
    key_schema: Schema | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record was written."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ExactlyOnceSupport(Enum):
    """Whether a connector's tasks can be exactly-once with a config."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class TransactionBoundaries(Enum):
    """Whether a connector can define where transactions begin and end."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class OffsetReader(Protocol):
    """A connector's stored offsets."""

    async def offset(self, partition: Fields) -> Fields | None:
        """The last stored offset of a source partition."""
        ...

    async def offsets(self, partitions: Sequence[Fields]) -> Sequence[Fields | None]: ...


class TransactionContext(Protocol):
    """Where a task says that transactions end (``transaction.boundary=connector``)."""

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit after the batch, or after ``record`` of it."""
        ...

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Abort after the batch, or after ``record`` of it; the records are dropped, their offsets stored."""
        ...


class SourceConnectorContext(Protocol):
    """What the worker lends a connector. Any thread may use it."""

    def request_task_reconfiguration(self) -> None:
        """The task configs changed: ask for them again, and let running tasks take theirs, or restart them."""

    @property
    def present_task_configs(self) -> Sequence[Props]:
        """The tasks as they were configured last, perhaps by another worker: references to secrets are not resolved.

        Set when ``task_configs`` is called; empty where there are none yet.
        """
        ...

    def raise_error(self, error: Exception) -> None:
        """The connector cannot go on: it becomes FAILED."""

    @property
    def offset_reader(self) -> OffsetReader: ...

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """As that of :class:`SourceTaskContext`."""
        ...


class SourceTaskContext(Protocol):
    """What the worker lends a task."""

    @property
    def configs(self) -> Props:
        """The task's config, references resolved."""
        ...

    @property
    def offset_reader(self) -> OffsetReader: ...

    @property
    def transaction_context(self) -> TransactionContext | None:
        """None unless ``transaction.boundary=connector`` under exactly-once."""
        ...

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the worker's loop and return what it returns, from a method that is a plain function:
        ``context.wait_for(context.offset_reader.offset(partition))``.

        Raises RuntimeError outside of the task's thread, and once the task is closed.
        """
        ...


class SourceTask(ABC):
    """One task: polled by the worker, which converts, sends and stores offsets."""

    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Props) -> Awaitable[None] | None: ...

    @abstractmethod
    def poll(self) -> Awaitable[Sequence[SourceRecord] | None] | Sequence[SourceRecord] | None:
        """The next records, or None where there are none for the moment; waits a little rather than spin.

        A :class:`~connect.core.errors.RetriableError` is taken as None; any other error makes the task FAILED. The
        worker cancels a poll that is still waiting when the task is to stop. A plain function cannot be cancelled, and
        the other methods wait for it: it returns within a second or so. What it returns after the task was told to stop
        is dropped, and read again from the stored offset.
        """

    def commit(self) -> Awaitable[None] | None:
        """Offsets up to the last record sent were stored."""
        return None

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> Awaitable[None] | None:
        """A record was acknowledged; ``metadata`` None where it was left out."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """End what ``start`` began. Called once, after the last poll, also when ``start`` failed or was cancelled."""
        return None


class EngineTask(ABC):
    """A task that owns its engine: it drives itself and stores its own positions (MirrorSource on Spark)."""

    #: Under exactly-once: await it whenever a transactional id has been claimed, before anything is written. It raises
    #: where the task was configured anew or given to another worker meanwhile.
    check_newest: Callable[[], Awaitable[None]] | None = None
    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        """Called once, before ``run``; the task's config is in the context."""
        self.context = context

    @abstractmethod
    async def run(self) -> None:
        """Work until :meth:`stop`; an error that comes out of here makes the task FAILED."""

    @abstractmethod
    def stop(self) -> None:
        """Ask ``run`` to end cleanly and soon."""

    def reconfigure(self, props: Props) -> bool:
        """Take another config while ``run`` is under way; False: not without being started anew.

        ``props`` is the whole config, references resolved. Called in the worker's loop, and must return at once.
        """
        return False


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task as its group sees it: its state in Kafka's words, and the worker that has it last said so."""

    task: int
    state: str
    worker_id: str
    config: Props


@dataclass(frozen=True, slots=True)
class ConnectorHere:
    """What one worker has of a connector: its ``config`` and the ``tasks`` that are here, running or not. References
    in the configs are resolved. ``is_stopped``: the connector is STOPPED and here, so no worker has tasks of it."""

    config: Props
    tasks: Sequence[TaskReport]
    is_stopped: bool = False


class SourceConnector(ABC):
    """One connector instance. Its class knows its settings, the instance what the outside world has to copy."""

    context: SourceConnectorContext

    @classmethod
    def version(cls) -> str:
        """For REST and statuses."""
        return "unknown"

    @classmethod
    def task_class(cls) -> str:
        """The class of its tasks as ``task.class`` names it in task configs: Java's where Java has the connector."""
        return f"{cls.__module__}.{cls.__qualname__}Task"

    @classmethod
    @abstractmethod
    def config_def(cls) -> ConfigDef:
        """The settings of the connector, without the framework's own."""

    def validate(
        self, props: Props, values: dict[str, ConfigValue]
    ) -> Awaitable[dict[str, ConfigValue]] | dict[str, ConfigValue]:
        """Look at settings together; ``values`` is what each one by itself gave. Returns the amended values.

        Asked of an instance that was not started.
        """
        return values

    def initialize(self, context: SourceConnectorContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Props) -> Awaitable[None] | None: ...

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Awaitable[Sequence[Props]] | Sequence[Props]:
        """The configs of at most ``max_tasks`` tasks."""

    @abstractmethod
    def make_task(self) -> SourceTask | EngineTask:
        """A new task, not begun. Called on a worker that may not run the connector's instance: on one that was only
        constructed, never started."""

    def stop(self) -> Awaitable[None] | None:
        """End what ``start`` began, also when ``start`` was cancelled half-way."""
        return None

    def exactly_once_support(self, props: Props) -> ExactlyOnceSupport | None:
        """Whether tasks with this config can be exactly-once; None where the author did not say."""
        return None

    def can_define_transaction_boundaries(self, props: Props) -> TransactionBoundaries:
        return TransactionBoundaries.UNSUPPORTED

    def report(
        self, kind: str, props: Props, tasks: Sequence[TaskReport], query: Mapping[str, str]
    ) -> Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None:
        """What the connector tells of itself beside Kafka Connect's API (``GET /connectors/{name}/{kind}``), as JSON.

        Asked of an instance that was not started, on any worker of the group. None: it tells nothing of that kind.
        Raise ConfigError where ``query`` is wrong, RetriableError where it cannot be told now.
        """
        return None

    def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> Awaitable[bool] | bool:
        """Asked before offsets are altered over REST; None resets a partition.

        Returns whether the connector vouches that nothing else must be changed. Raise to refuse.
        """
        return False
