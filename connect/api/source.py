"""Interfaces of a source connector: a connector that configures tasks, and tasks that the worker polls.

The contract is Kafka Connect's (``SourceConnector``, ``SourceTask``, KIP-618, KIP-875).

Methods that may return an awaitable can be written as ``async def`` or as plain ``def``. Coroutine functions run in the
worker's event loop and must not block. Plain functions may block: each connector and each task has a thread, which runs
its calls one after another. A call that hangs affects only its own connector or task. The worker calls all other
methods in its event loop; they must return at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

from connect.api.connector import Props
from connect.core.config.config_def import ConfigDef, ConfigValue

#: A source partition or source offset: a JSON object with string keys and primitive values. The order of the fields is
#: part of the stored key.
Fields = Mapping[str, str | int | float | bool | None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Schema:
    """A Connect type: string, bytes, boolean, int8 ... int64, float32, float64, array, map or struct. Values of arrays
    are lists, values of maps and structs are dicts. ``name``, ``version`` and ``parameters`` (pairs of name and value)
    mark logical types such as ``org.apache.kafka.connect.data.Timestamp``. ``keys`` applies to maps, ``values`` to maps
    and arrays. ``fields`` applies to structs: pairs of name and schema, in order."""

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
    """A record header; ``schema`` is None if the value has no schema."""

    key: str
    value: Any
    schema: Schema | None = None


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record to write to ``topic``, with its partition and offset in the source system. If ``partition`` is None, the
    producer chooses it by key. If ``timestamp_ms`` is None, it is the time of sending."""

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
    """The partition, offset and timestamp of a record in Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ExactlyOnceSupport(Enum):
    """Whether a connector's tasks support exactly-once with a given config."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class TransactionBoundaries(Enum):
    """Whether a connector can define its own transaction boundaries with a given config."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class OffsetReader(Protocol):
    """Reads the stored offsets of a connector."""

    async def offset(self, partition: Fields) -> Fields | None:
        """Return the last stored offset of a source partition, or None if there is none."""

    async def offsets(self, partitions: Sequence[Fields]) -> Sequence[Fields | None]:
        """Return the last stored offset of each source partition, in the order of ``partitions``."""


class TransactionContext(Protocol):
    """Ends transactions at the task's request (``transaction.boundary=connector``)."""

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit the transaction after ``record``, or after the current batch if ``record`` is None."""

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Abort the transaction after ``record``, or after the current batch if ``record`` is None. The records are
        dropped and their offsets are stored, so that the task does not read them again."""


class SourceConnectorContext(Protocol):
    """The worker's services for a connector; every method may be called from any thread."""

    def request_task_reconfiguration(self) -> None:
        """Make the worker call ``task_configs`` again, then reconfigure or restart tasks whose config has changed."""

    @property
    def present_task_configs(self) -> Sequence[Props]:
        """The current task configs, possibly written by another worker, with unresolved references to secrets. Valid
        during ``task_configs``; empty if the connector has no tasks yet."""

    def raise_error(self, error: Exception) -> None:
        """Set the connector to FAILED because of ``error``."""

    @property
    def offset_reader(self) -> OffsetReader: ...

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from a plain function, as :meth:`SourceTaskContext.wait_for` does."""


class SourceTaskContext(Protocol):
    """The worker's services for a task."""

    @property
    def configs(self) -> Props:
        """The task's config, with references resolved."""

    @property
    def offset_reader(self) -> OffsetReader: ...

    @property
    def transaction_context(self) -> TransactionContext | None:
        """Ends transactions; None unless exactly-once and ``transaction.boundary=connector`` are both set."""

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the worker's event loop and return its result, from a method that is a plain function:
        ``context.wait_for(context.offset_reader.offset(partition))``. Raises RuntimeError outside the task's thread and
        after the task was closed."""


class SourceTask(ABC):
    """A task that the worker polls; the worker converts the records, sends them and stores their offsets."""

    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Props) -> Awaitable[None] | None:
        """Prepare for polling. ``props`` is the task's config, with references resolved."""

    @abstractmethod
    def poll(self) -> Awaitable[Sequence[SourceRecord] | None] | Sequence[SourceRecord] | None:
        """Return the next records, or None if there are none at the moment; wait briefly rather than return at once.
        After a :class:`~connect.core.errors.RetriableError` the worker polls again; any other error makes the task
        FAILED. When the task is to stop, the worker cancels a waiting poll. A plain function cannot be cancelled and
        delays the other methods, so it should return within about a second. Records returned after the request to stop
        are dropped, and read again from the stored offset."""

    def commit(self) -> Awaitable[None] | None:
        """React to stored offsets: those of all records sent so far."""
        return None

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> Awaitable[None] | None:
        """React to an acknowledged record; ``metadata`` is None if the record was skipped instead."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """Release what ``start`` acquired. Called once, after the last poll, even if ``start`` did not succeed."""
        return None


class EngineMeter(Protocol):
    """Takes what an engine has done since its last call, for the task's metrics. Calls return at once."""

    def copied(self, records: int, batches: int) -> None:
        """Count records that the target acknowledged, and their batches."""

    def left_out(self, records: int) -> None:
        """Count records that were left out because of an error."""

    def committed(self, took_ms: float) -> None:
        """Count a write of positions."""

    def commit_failed(self) -> None:
        """Count a write of positions that failed."""


class EngineTask(ABC):
    """A task that runs its own engine and stores its own positions (MirrorSource on Spark)."""

    #: Both are set before ``run``. The second takes each topic that was written to (KIP-558), as often as one likes.
    meter: EngineMeter
    topic_used: Callable[[str], None]
    #: Set under exactly-once: await it after claiming a transactional id and before writing. It raises if the task was
    #: reconfigured or assigned to another worker in the meantime.
    check_newest: Callable[[], Awaitable[None]] | None = None
    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        """Store the context, which holds the task's config. Called once, before ``run``."""
        self.context = context

    @abstractmethod
    async def run(self) -> None:
        """Work until :meth:`stop` is called; any error raised makes the task FAILED."""

    @abstractmethod
    def stop(self) -> None:
        """Ask ``run`` to end cleanly and soon."""

    def reconfigure(self, props: Props) -> bool:
        """Apply a new config while ``run`` is in progress; return False if the task must be restarted instead.
        ``props`` is the whole config, with references resolved. Called in the worker's event loop; must return at
        once."""
        return False


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task as last reported in its group: its state (Kafka's name for it), its worker, its config, and the full text
    of its error if it failed."""

    task: int
    state: str
    worker_id: str
    config: Props
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorReport:
    """A connector as last reported in its group: its state (Kafka's name for it), and the full text of its error."""

    state: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorHere:
    """One worker's part of a connector: its ``config`` and this worker's ``tasks``, running or not. References in the
    configs are resolved. ``is_stopped``: the connector is STOPPED and on this worker, so no worker runs its tasks."""

    config: Props
    tasks: Sequence[TaskReport]
    is_stopped: bool = False


class SourceConnector(ABC):
    """A connector: the class declares the settings, an instance decides what its tasks copy."""

    context: SourceConnectorContext

    @classmethod
    def version(cls) -> str:
        """Return the version that REST answers and statuses show."""
        return "unknown"

    @classmethod
    def task_class(cls) -> str:
        """Return the tasks' ``task.class`` in task configs: Java's name if the connector exists in Java."""
        return f"{cls.__module__}.{cls.__qualname__}Task"

    @classmethod
    @abstractmethod
    def config_def(cls) -> ConfigDef:
        """Return the connector's own settings, without those of the framework."""

    def validate(
        self, props: Props, values: dict[str, ConfigValue]
    ) -> Awaitable[dict[str, ConfigValue]] | dict[str, ConfigValue]:
        """Validate settings in combination and return the amended values. ``values`` holds the result for each setting
        on its own. Called on an instance that was not started."""
        return values

    def initialize(self, context: SourceConnectorContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Props) -> Awaitable[None] | None:
        """Prepare for :meth:`task_configs`. ``props`` is the connector's config, with references resolved."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Awaitable[Sequence[Props]] | Sequence[Props]:
        """Return the configs of at most ``max_tasks`` tasks."""

    @abstractmethod
    def make_task(self) -> SourceTask | EngineTask:
        """Return a new task that is not started. The worker may call this on an instance that was only constructed,
        because it may run the task but not the connector."""

    def stop(self) -> Awaitable[None] | None:
        """Release what ``start`` acquired, even if ``start`` was cancelled before it ended."""
        return None

    def ignored(self, props: Props) -> Sequence[str]:
        """Return a sentence for each key of a config that has no effect; it begins with the key. A validation over REST
        answers them, and the worker that creates or changes the connector logs them."""
        return ()

    def exactly_once_support(self, props: Props) -> ExactlyOnceSupport | None:
        """Return whether tasks with this config support exactly-once; None if the author does not say."""
        return None

    def can_define_transaction_boundaries(self, props: Props) -> TransactionBoundaries:
        return TransactionBoundaries.UNSUPPORTED

    def report(
        self, kind: str, props: Props, tasks: Sequence[TaskReport], query: Mapping[str, str], connector: ConnectorReport
    ) -> Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None:
        """Return a JSON report for ``GET /connectors/{name}/{kind}``, an addition to Kafka Connect's API. Called on an
        instance that was not started, on any worker of the group. Return None if there is no report of that kind. Raise
        ConfigError for an invalid ``query``, RetriableError if the report is not available now."""
        return None

    def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> Awaitable[bool] | bool:
        """Approve offsets before they are altered over REST; an offset of None resets its partition. Return True if the
        user has nothing else to change, such as offsets outside Kafka. Raise an error to refuse."""
        return False
