"""Folds the config topic, returns the changes by each record, and encodes records.

Keys and values are those of Kafka's ``KafkaConfigBackingStore``:

==============================  ========================================================================================
``connector-<name>``            ``{"properties":{...}}``, references to secrets unresolved; a tombstone deletes
``task-<name>-<n>``             ``{"properties":{...}}``, effective from the next commit; never deleted
``commit-<name>``               ``{"tasks":N}``: tasks 0 to N-1 are those written since the last commit
``target-state-<name>``         ``{"state":"PAUSED","state.v2":"STOPPED"}``; ``state`` is for old workers
``tasks-fencing-<name>``        ``{"task-count":N}``: all earlier tasks are fenced, N may be running (KIP-618)
``session-key``                 ``{"key":"<base64>","algorithm":"HmacSHA256","creation-timestamp":ms}`` (KIP-507)
``restart-connector-<name>``    ``{"include-tasks":true,"only-failed":false}`` (KIP-745)
``logger-cluster-<namespace>``  ``{"level":"DEBUG"}`` (KIP-976)
==============================  ========================================================================================

Because the topic is compacted, records may be missing: a commit without all its task configs makes the connector
*inconsistent*: it has no tasks until the leader writes them again.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connect.core.herder_api import SessionKey
from connect.core.jackson import decode_json, json_text
from connect.core.model import RestartRequest, TargetState, TaskId


class ConfigChange:
    """What a record of the topic has changed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ConnectorChanged(ConfigChange):
    """A connector was created, or its config was written again, possibly unchanged."""

    name: str


@dataclass(frozen=True, slots=True)
class ConnectorRemoved(ConfigChange):
    name: str


@dataclass(frozen=True, slots=True)
class TasksChanged(ConfigChange):
    """A connector's tasks were committed, or are inconsistent."""

    name: str


@dataclass(frozen=True, slots=True)
class TargetChanged(ConfigChange):
    """The target state of an existing connector changed. Not reported for a new or removed connector."""

    name: str


@dataclass(frozen=True, slots=True)
class SessionKeyChanged(ConfigChange):
    pass


@dataclass(frozen=True, slots=True)
class RestartAsked(ConfigChange):
    """A restart was requested. Ignored during the first read of the log, because it was for earlier workers."""

    request: RestartRequest


@dataclass(frozen=True, slots=True)
class LoggerChanged(ConfigChange):
    """The level of a logger changed on all workers. Ignored during the first read of the log."""

    namespace: str
    level: str


@dataclass(frozen=True, slots=True)
class SkippedConfigRecord(ConfigChange):
    """A record was skipped; ``why`` is for the log and contains no value."""

    why: str


TARGET_STATE_PREFIX: Final = "target-state-"
CONNECTOR_PREFIX: Final = "connector-"
TASK_PREFIX: Final = "task-"
COMMIT_PREFIX: Final = "commit-"
RESTART_PREFIX: Final = "restart-connector-"
FENCING_PREFIX: Final = "tasks-fencing-"
SESSION_KEY: Final = "session-key"
LOGGER_PREFIX: Final = "logger-cluster-"

#: The offset of a log before its first record.
NO_OFFSET: Final = -1
_MAX_INT32: Final = 2**31 - 1
_INT64: Final = range(-(2**63), 2**63)

#: Key and value to append; value None is a tombstone.
Record = tuple[str, bytes | None]
Config = Mapping[str, str]

#: Characters of a key in log messages.
_SHOWN_CHARS: Final = 80

# -- the fold ----------------------------------------------------------------------------------------------------------


def _shown(key: str | None) -> str:
    return "without a key" if key is None else key[:_SHOWN_CHARS]


class _WrongValue(ValueError):
    """A record's value does not match its key."""


@dataclass(slots=True)
class _Connector:
    """The state of an existing connector. Configs are shared and must not be modified."""

    config: Config
    applied: Config | None = None
    task_count: int = 0
    tasks: Sequence[Config] = ()


_ABSENT: Final = _Connector({})


@dataclass(slots=True)
class ConfigLog:
    """The folded config topic. Configs are raw: references to secrets are not resolved. Generations and fencing outlive
    a connector, so that tasks of a deleted connector are not confused with those of a new one with the same name."""

    #: The offset after the last record, which workers exchange; -1 before the first record.
    offset: int = NO_OFFSET
    session_key: SessionKey | None = None
    _connectors: dict[str, _Connector] = field(default_factory=dict)
    _targets: dict[str, TargetState] = field(default_factory=dict)
    _uncommitted: dict[str, dict[int, Config]] = field(default_factory=dict)
    _generations: dict[str, int] = field(default_factory=dict)
    _fenced_counts: dict[str, int] = field(default_factory=dict)
    _pending_fencing: set[str] = field(default_factory=set)

    # reading

    def __contains__(self, name: object) -> bool:
        return name in self._connectors

    def connectors(self) -> tuple[str, ...]:
        return tuple(sorted(self._connectors))

    def connector_config(self, name: str) -> Config | None:
        """Return the raw config; None if there is no such connector."""
        connector = self._connectors.get(name)
        return None if connector is None else connector.config

    def applied_config(self, name: str) -> Config | None:
        """Return the raw config from which the current tasks were generated; None if there are no tasks yet."""
        return self._connectors.get(name, _ABSENT).applied

    def target_state(self, name: str) -> TargetState:
        """Return the target state of a connector; STARTED if none was set."""
        return self._targets.get(name, TargetState.STARTED)

    def task_count(self, name: str) -> int:
        """Return the number of tasks in the last commit, complete or not."""
        return self._connectors.get(name, _ABSENT).task_count

    def task_ids(self, name: str) -> tuple[TaskId, ...]:
        """Return the tasks to run; empty while the connector is inconsistent."""
        return tuple(TaskId(name, task) for task in range(len(self.all_task_configs(name))))

    def task_config(self, task: TaskId) -> Config | None:
        """Return the raw config of a task of :meth:`task_ids`; None for any other task."""
        configs = self.all_task_configs(task.connector)
        return configs[task.task] if 0 <= task.task < len(configs) else None

    def all_task_configs(self, name: str) -> Sequence[Config]:
        """Return the raw configs of :meth:`task_ids`, in the same order."""
        return self._connectors.get(name, _ABSENT).tasks

    def task_generation(self, name: str) -> int | None:
        """Return the index of the last complete set of task configs, from 0; None before the first."""
        return self._generations.get(name)

    def pending_fencing(self, name: str) -> bool:
        """Return whether tasks were committed since the last fencing record."""
        return name in self._pending_fencing

    def task_count_record(self, name: str) -> int | None:
        """Return how many unfenced tasks may be running; None if there was no fencing record."""
        return self._fenced_counts.get(name)

    # folding

    def apply(self, offset: int, key: str | None, value: bytes | None) -> tuple[ConfigChange, ...]:
        """Fold the record at ``offset`` and return the changes. Raises nothing: an invalid record is skipped, with a
        :class:`SkippedConfigRecord`."""
        try:
            content = None if value is None else decode_json(value)
        except ValueError as error:
            # The offset stays the same, as in Java, because members of a group compare their offsets.
            return (SkippedConfigRecord(f"record {offset} ({_shown(key)}) cannot be read: {error}"),)
        self.offset = offset + 1
        try:
            return tuple(self._fold(key, content))
        except _WrongValue as error:
            return (SkippedConfigRecord(f"record {offset} ({_shown(key)}): {error}"),)

    def _fold(self, key: str | None, content: object) -> Iterator[ConfigChange]:
        for prefix, fold in _FOLDS.items():
            if key is not None and key.startswith(prefix):
                return fold(self, key.removeprefix(prefix), content)
        if key == SESSION_KEY:
            self.session_key = _session_key(content)
            return iter((SessionKeyChanged(),))
        raise _WrongValue("the key is unknown")

    def _fold_target(self, name: str, content: object) -> Iterator[ConfigChange]:
        before = self._targets.get(name)
        if content is None:
            self._targets.pop(name, None)
            return
        self._targets[name] = state = _target_state(_object(content))
        if name in self._connectors and state is not (before or TargetState.STARTED):
            yield TargetChanged(name)

    def _fold_connector(self, name: str, content: object) -> Iterator[ConfigChange]:
        if content is None:
            self._remove(name)
            yield ConnectorRemoved(name)
            return
        config = _properties(content)
        self._connectors.setdefault(name, _Connector(config)).config = config
        yield ConnectorChanged(name)

    def _fold_task(self, rest: str, content: object) -> Iterator[ConfigChange]:
        name, dash, number = rest.rpartition("-")
        if not dash or not _is_task_number(number):
            raise _WrongValue("the key does not name a task")
        self._uncommitted.setdefault(name, {})[int(number)] = _properties(content)
        return iter(())

    def _fold_commit(self, name: str, content: object) -> Iterator[ConfigChange]:
        connector = self._connectors.get(name)
        if connector is None:
            # The connector was deleted, and compaction has removed its other records.
            self._remove(name)
            return
        count = _count(_object(content), "tasks")
        # These may include tasks of a larger set, if compaction removed the commit of that set.
        written = self._uncommitted.pop(name, {})
        if all(task in written for task in range(count)):
            connector.tasks = tuple(written[task] for task in range(count))
            connector.applied = connector.config
            self._generations[name] = self._generations.get(name, -1) + 1
        else:
            connector.tasks = ()
        connector.task_count = count
        self._pending_fencing.add(name)
        yield TasksChanged(name)

    def _fold_restart(self, name: str, content: object) -> Iterator[ConfigChange]:
        fields = _object(content)
        only_failed, include_tasks = fields.get("only-failed") is True, fields.get("include-tasks") is True
        yield RestartAsked(RestartRequest(name, only_failed, include_tasks))

    def _fold_fencing(self, name: str, content: object) -> Iterator[ConfigChange]:
        self._fenced_counts[name] = _count(_object(content), "task-count")
        self._pending_fencing.discard(name)
        return iter(())

    def _fold_logger(self, namespace: str, content: object) -> Iterator[ConfigChange]:
        yield LoggerChanged(namespace, _string(_object(content), "level"))

    def _remove(self, name: str) -> None:
        self._connectors.pop(name, None)
        self._uncommitted.pop(name, None)


#: The first matching prefix counts; the order is Java's.
_FOLDS: Final[Mapping[str, Callable[[ConfigLog, str, object], Iterator[ConfigChange]]]] = {
    TARGET_STATE_PREFIX: ConfigLog._fold_target,
    CONNECTOR_PREFIX: ConfigLog._fold_connector,
    TASK_PREFIX: ConfigLog._fold_task,
    COMMIT_PREFIX: ConfigLog._fold_commit,
    RESTART_PREFIX: ConfigLog._fold_restart,
    FENCING_PREFIX: ConfigLog._fold_fencing,
    LOGGER_PREFIX: ConfigLog._fold_logger,
}


def _object(content: object) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise _WrongValue("the value is not an object")
    return content


def _properties(content: object) -> Config:
    """Return a config with interned texts, because thousands of configs share most of them. A null value is dropped."""
    properties = _object(content).get("properties")
    if not isinstance(properties, dict):
        raise _WrongValue("the value has no object 'properties'")
    config: dict[str, str] = {}
    for key, value in properties.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise _WrongValue(f"the value of {key!r} is not a string")
        config[sys.intern(key)] = sys.intern(value)
    return config


def _target_state(fields: Mapping[str, Any]) -> TargetState:
    newer = fields.get("state.v2")
    try:
        # Older workers write only ``state``.
        return TargetState(newer if isinstance(newer, str) else _string(fields, "state"))
    except ValueError as error:
        raise _WrongValue("the state is unknown") from error


def _session_key(content: object) -> SessionKey:
    fields = _object(content)
    encoded, algorithm = _string(fields, "key"), _string(fields, "algorithm")
    created_ms = fields.get("creation-timestamp")
    if not isinstance(created_ms, int) or isinstance(created_ms, bool) or created_ms not in _INT64:
        raise _WrongValue("'creation-timestamp' is not a 64-bit integer")
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise _WrongValue("'key' is not base64") from None  # because the cause quotes the key
    if not key:
        raise _WrongValue("'key' is empty")
    return SessionKey(key, algorithm, created_ms)


def _string(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _WrongValue(f"'{name}' is not a string")
    return value


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INT32:
        raise _WrongValue(f"'{name}' is not a number of tasks")
    return value


def _is_task_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MAX_INT32


# -- records to write --------------------------------------------------------------------------------------------------


def connector_record(name: str, config: Config) -> Record:
    return CONNECTOR_PREFIX + name, _encoded({"properties": config})


def removal_records(name: str) -> tuple[Record, Record]:
    """Delete a connector; the records of its tasks stay, as in Java."""
    return config_removal_record(name), (TARGET_STATE_PREFIX + name, None)


def config_removal_record(name: str) -> Record:
    """Delete a connector's config and so its tasks; the target state stays for the next config."""
    return CONNECTOR_PREFIX + name, None


def task_records(name: str, configs: Sequence[Config]) -> tuple[Record, ...]:
    """Set the configs of tasks 0 to N-1. Read them back before writing :func:`commit_record`."""
    return tuple(
        (f"{TASK_PREFIX}{name}-{task}", _encoded({"properties": config})) for task, config in enumerate(configs)
    )


def commit_record(name: str, task_count: int) -> Record:
    return COMMIT_PREFIX + name, _encoded({"tasks": task_count})


def target_state_record(name: str, state: TargetState) -> Record:
    """Set a target state. Written before the config of a new connector, so that it is effective from the start."""
    # Workers before Kafka 3.5 do not know STOPPED.
    old = TargetState.PAUSED if state is TargetState.STOPPED else state
    return TARGET_STATE_PREFIX + name, _encoded({"state": old.value, "state.v2": state.value})


def fencing_record(name: str, task_count: int) -> Record:
    return FENCING_PREFIX + name, _encoded({"task-count": task_count})


def session_key_record(key: SessionKey) -> Record:
    encoded = base64.b64encode(key.key).decode()
    value = {"key": encoded, "algorithm": key.algorithm, "creation-timestamp": key.created_ms}
    return SESSION_KEY, _encoded(value)


def restart_record(request: RestartRequest) -> Record:
    value = {"include-tasks": request.include_tasks, "only-failed": request.only_failed}
    return RESTART_PREFIX + request.connector, _encoded(value)


def logger_record(namespace: str, level: str) -> Record:
    return LOGGER_PREFIX + namespace, _encoded({"level": level})


def is_text(value: object) -> bool:
    """Return whether UTF-8 can encode a key or value of a config: JSON may escape lone surrogates, UTF-8 has none."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json_text(value).encode()
