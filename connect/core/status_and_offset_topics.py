"""Folds the status topic and the source offset topic, and encodes their records.

The records of the status topic are those of Kafka's ``KafkaStatusBackingStore``:

=========================================  =============================================================================
``status-connector-<name>``                ``{"state":S,"trace":T,"worker_id":"host:port","generation":N,"version":V}``
``status-task-<name>-<n>``                 the same
``"auto_restart"`` in both                 ``{"count":N,"at_ms":ms,"given_up":T}`` after automatic restarts; not in Java
``status-topic-<topic>:connector-<name>``  ``{"topic":{"name":T,"connector":C,"task":N,"discoverTimestamp":ms}}``
=========================================  =============================================================================

A tombstone deletes a status. The tombstone of a connector keeps the statuses of its tasks: the leader also writes a
tombstone for each task (Kafka's ``AbstractHerder.onDeletion``), in other partitions. If the connector's tombstone
deleted them too, as in Java's reader, a recreated connector would lose the statuses of its new tasks when a worker
starts.

The records of the source offset topic are those of Kafka's ``KafkaOffsetBackingStore`` and ``OffsetUtils``. A key is
the JSON array ``["<connector>",{<source partition>}]``, a value the JSON object of the source offset. Java looks up
offsets by the bytes of the key, so the order of the partition's fields and Jackson's escaping are part of the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from connect.core.jackson import decode_json, json_text, string_text
from connect.core.model import Restarts, State, Status, TaskId

CONNECTOR_PREFIX: Final = "status-connector-"
TASK_PREFIX: Final = "status-task-"
TOPIC_PREFIX: Final = "status-topic-"
_TOPIC_SEPARATOR: Final = ":connector-"
#: Characters of a key in log messages.
_SHOWN_CHARS: Final = 80

_Inner = TypeVar("_Inner", int, str)

#: Key and value to append; value None is a tombstone.
Record = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A topic that a connector has written to or read from (KIP-558); ``task`` is the first task that did."""

    topic: str
    connector: str
    task: int
    discovered_ms: int


@dataclass(slots=True)
class StatusLog:
    """The folded status topic. Only the order of records with the same key matters."""

    _connectors: dict[str, Status] = field(default_factory=dict)
    _tasks: dict[str, dict[int, Status]] = field(default_factory=dict)
    _topics: dict[str, dict[str, TopicUse]] = field(default_factory=dict)

    def connectors(self) -> tuple[str, ...]:
        """Return the sorted names of all connectors with a status of their own or of a task."""
        return tuple(sorted(self._connectors.keys() | self._tasks.keys()))

    def status(self, work: str | TaskId) -> Status | None:
        if isinstance(work, TaskId):
            return self._tasks.get(work.connector, {}).get(work.task)
        return self._connectors.get(work)

    def tasks(self, connector: str) -> Mapping[int, Status]:
        """Return the statuses of a connector's tasks, sorted by number, including tasks that no longer exist."""
        return dict(sorted(self._tasks.get(connector, {}).items()))

    def topics(self, connector: str) -> tuple[TopicUse, ...]:
        return tuple(sorted(self._topics.get(connector, {}).values(), key=lambda use: use.topic))

    def has_topic(self, connector: str, topic: str) -> bool:
        return topic in self._topics.get(connector, {})

    def said_by(self, worker_id: str) -> tuple[tuple[str | TaskId, Status], ...]:
        """Return the statuses of connectors (by name) and tasks that ``worker_id`` wrote last."""
        connectors = [(name, status) for name, status in self._connectors.items() if status.worker_id == worker_id]
        tasks = [
            (TaskId(name, number), status)
            for name, statuses in self._tasks.items()
            for number, status in statuses.items()
            if status.worker_id == worker_id
        ]
        return (*connectors, *tasks)

    def clear(self) -> None:
        self._connectors.clear()
        self._tasks.clear()
        self._topics.clear()

    def apply(self, key: str | None, value: bytes | None) -> str | None:
        """Fold a record. If it is skipped, return the reason for the log, else None."""
        try:
            content = None if value is None else decode_json(value)
        except ValueError as error:
            return f"the value of {_shown(key)} cannot be read: {error}"
        try:
            if key is not None and key.startswith(CONNECTOR_PREFIX):
                self._fold_connector(key.removeprefix(CONNECTOR_PREFIX), content)
            elif key is not None and key.startswith(TASK_PREFIX):
                self._fold_task(key.removeprefix(TASK_PREFIX), content)
            elif key is not None and key.startswith(TOPIC_PREFIX):
                self._fold_topic(key.removeprefix(TOPIC_PREFIX), content)
            else:
                return f"the key {_shown(key)} is unknown"
        except (KeyError, TypeError, ValueError):
            return f"the value of {_shown(key)} does not match its key"
        return None

    def _fold_connector(self, name: str, content: object) -> None:
        if not name:
            raise ValueError("no name")
        if content is None:
            self._connectors.pop(name, None)
            return
        status = _status(content)
        before = self._connectors.get(name)
        # A worker that was frozen may release a connector that has a new owner. (Java checks this only for tasks.)
        if (
            status.state is State.UNASSIGNED
            and before is not None
            and before.worker_id != status.worker_id
            and before.generation > status.generation
        ):
            return
        self._connectors[name] = status

    def _fold_task(self, rest: str, content: object) -> None:
        name, dash, number = rest.rpartition("-")
        if not dash or not (number.isascii() and number.isdigit()):
            raise ValueError("no task")
        task = TaskId(name, int(number))
        if content is None:
            _discard(self._tasks, name, task.task)
            return
        status = _status(content)
        before = self.status(task)
        # The previous owner of a task may release it before it has read that the new owner runs it.
        if (
            status.state is State.UNASSIGNED
            and before is not None
            and before.state is State.RUNNING
            and before.generation >= status.generation
        ):
            return
        self._tasks.setdefault(name, {})[task.task] = status

    def _fold_topic(self, rest: str, content: object) -> None:
        # The first separator ends the topic name, because topic names have no colon.
        topic, _, connector = rest.partition(_TOPIC_SEPARATOR)
        if not topic or not connector:
            raise ValueError("no topic or no connector")
        if content is None:
            _discard(self._topics, connector, topic)
        else:
            self._topics.setdefault(connector, {})[topic] = _topic_use(content)


def _discard(nested: dict[str, dict[_Inner, Any]], connector: str, inner: _Inner) -> None:
    of_connector = nested.get(connector, {})
    of_connector.pop(inner, None)
    if not of_connector:
        nested.pop(connector, None)


def _shown(key: str | None) -> str:
    return "none" if key is None else key[:_SHOWN_CHARS]


def may_write_safely(known: Status | None, new: Status) -> bool:
    """Return whether writing ``new`` over ``known`` does not overwrite the status of a later owner."""
    return known is None or known.worker_id == new.worker_id or known.generation <= new.generation


def status_key(work: str | TaskId) -> str:
    if isinstance(work, TaskId):
        return f"{TASK_PREFIX}{work.connector}-{work.task}"
    return CONNECTOR_PREFIX + work


def status_record(work: str | TaskId, status: Status) -> Record:
    """Encode the status of a connector or a task; DESTROYED is a tombstone."""
    if status.state is State.DESTROYED:
        return status_key(work), None
    value: dict[str, Any] = {
        "state": status.state.value,
        "trace": status.trace,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "version": status.version,
    }
    if status.restarts is not None:
        value["auto_restart"] = asdict(status.restarts)
    return status_key(work), json_text(value).encode()


def topic_record(use: TopicUse) -> Record:
    inner = {"name": use.topic, "connector": use.connector, "task": use.task, "discoverTimestamp": use.discovered_ms}
    return _topic_key(use.topic, use.connector), json_text({"topic": inner}).encode()


def topic_removal(topic: str, connector: str) -> Record:
    return _topic_key(topic, connector), None


def _topic_key(topic: str, connector: str) -> str:
    return f"{TOPIC_PREFIX}{topic}{_TOPIC_SEPARATOR}{connector}"


def _status(content: object) -> Status:
    """Decode a status. Kafka before 4.3 writes no ``version``; the trace may be absent or null."""
    fields = _fields(content)
    state = State(fields["state"])
    if state is State.DESTROYED:
        raise ValueError("DESTROYED is written as a tombstone")
    trace, version, restarts = fields.get("trace"), fields.get("version"), fields.get("auto_restart")
    return Status(
        state,
        _text(fields["worker_id"]),
        _integer(fields["generation"]),
        None if trace is None else _text(trace),
        None if version is None else _text(version),
        None if restarts is None else _restarts(_fields(restarts)),
    )


def _restarts(fields: Mapping[str, Any]) -> Restarts:
    given_up = fields.get("given_up")
    return Restarts(_integer(fields["count"]), _integer(fields["at_ms"]), None if given_up is None else _text(given_up))


def _topic_use(content: object) -> TopicUse:
    fields = _fields(_fields(content)["topic"])
    return TopicUse(
        _text(fields["name"]),
        _text(fields["connector"]),
        _integer(fields["task"]),
        _integer(fields["discoverTimestamp"]),
    )


def _fields(content: object) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise TypeError("no object")
    return content


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no string")
    # JSON may escape a lone surrogate, which a REST response cannot encode.
    return value.encode("utf-8", "replace").decode()


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("no integer")
    return value


#: The field types that Java allows.
Scalar = str | int | float | bool | None

#: The initial capacity and the load factor of a ``java.util.HashMap``.
_FIRST_BUCKETS: Final = 16
_LOAD: Final = 0.75
#: Bytes of an unreadable key or value in log messages.
_SHOWN_BYTES: Final = 80


@dataclass(slots=True)
class SourceOffsets:
    """The folded source offset topic: offsets by key bytes. ``partitions`` holds, per connector, the source partitions
    with an offset, by key bytes."""

    offsets: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[str, dict[bytes, dict[str, Any]]] = field(default_factory=dict)

    def mirrored_offset(self, connector: str, source_alias: str, topic: str, partition: int) -> int | None:
        """Return the source offset of the last record that MirrorMaker copied; None if it copied none."""
        offset = self.offsets.get(mirror_key(connector, source_alias, topic, partition), {}).get("offset")
        return offset if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 else None


def apply(state: SourceOffsets, key: bytes | None, value: bytes | None) -> str | None:
    """Fold a record into ``state``. If it is skipped, return the reason for the log, else None."""
    try:
        parsed = decode_json(key) if key is not None else None
    except ValueError as error:
        return f"the key cannot be read, {error}: {_offsetlog_shown(key)}"
    named = _named(parsed)
    if key is None or named is None:
        return f"the key is not an array of a connector's name and a source partition: {_offsetlog_shown(key)}"
    connector, partition = named
    if value is None:
        state.offsets.pop(key, None)
        state.partitions.get(connector, {}).pop(key, None)
        return None
    try:
        offset = decode_json(value)
    except ValueError as error:
        return f"the value cannot be read, {error}: {_offsetlog_shown(value)} (key {_offsetlog_shown(key)})"
    if not isinstance(offset, dict):
        return f"the value is not an object: {_offsetlog_shown(value)} (key {_offsetlog_shown(key)})"
    state.offsets[key] = offset
    state.partitions.setdefault(connector, {})[key] = partition
    return None


def _offsetlog_shown(data: bytes | None) -> str:
    return repr(data if data is None else data[:_SHOWN_BYTES])


def encode_key(connector: str, partition: Mapping[str, Scalar]) -> bytes:
    """Encode a record's key; the order of the partition's fields is kept."""
    return f"[{string_text(connector)},{json_text(partition)}]".encode()


def encode_value(offset: Mapping[str, Scalar]) -> bytes:
    return json_text(offset).encode()


def mirror_key(connector: str, source_alias: str, topic: str, partition: int) -> bytes:
    """Encode MirrorSourceConnector's key for a partition, with the field order of ``MirrorUtils.wrapPartition``."""
    return encode_key(connector, {"cluster": source_alias, "partition": partition, "topic": topic})


def mirror_value(offset: int) -> bytes:
    """Encode MirrorSourceConnector's value: the offset of the last copied record, not of the next."""
    return encode_value({"offset": offset})


def in_java_order(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in the iteration order of a ``java.util.HashMap`` to which they were added in their order.
    Java's connectors hold source partitions in such maps, and so does the worker for REST requests
    (``Worker.normalizeSourceConnectorOffsets``). With another order a task would not find its offset."""
    buckets = _FIRST_BUCKETS
    while len(partition) > buckets * _LOAD:
        buckets *= 2
    return dict(sorted(partition.items(), key=lambda field: _spread_hash(field[0]) % buckets))


def _spread_hash(text: str) -> int:
    """Return ``String.hashCode`` with its upper half mixed into the lower, as in ``HashMap``."""
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def _named(parsed: object) -> tuple[str, dict[str, Any]] | None:
    """Return the connector and the source partition of a key; None if it is not such a key."""
    if not isinstance(parsed, list) or len(parsed) != 2:
        return None
    connector, partition = parsed
    return (connector, partition) if isinstance(connector, str) and isinstance(partition, dict) else None
