"""Parses a source connector's config, ends transactions of exactly-once tasks, and creates topics.

* Transaction boundaries of an exactly-once task (KIP-618, ``transaction.boundary``). An abort drops the records of the
  transaction, but their offsets are stored in a separate transaction.
* Topics that a worker creates before a source connector's first record to them (KIP-158).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from connect.api.source import SourceRecord
from connect.core.config.config_def import Values, split_list
from connect.core.config.connector_settings import SOURCE_CONNECTOR, topic_creation, uses_topic_creation
from connect.core.config.java_regex import compile_java
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import NewTopic
from connect.kafka.log.topic_admin import Admin, TopicExists
from connect.runtime.task.record_conversion import ErrorSettings


class Ending(Enum):
    """What to do with the open transaction."""

    NONE = auto()
    COMMIT = auto()
    ABORT = auto()


class Boundaries:
    """Decides after each record and batch, and before a pause or stop. Times are monotonic, in ms. By itself it is
    ``poll``: a transaction per batch."""

    def begin(self, now_ms: float) -> None:
        """Note that the task enters its loop, at first or after a pause."""

    def after_record(self, record: SourceRecord) -> Ending:
        return Ending.NONE

    def after_batch(self, now_ms: float) -> Ending:
        return Ending.COMMIT

    def at_end(self) -> Ending:
        return Ending.COMMIT


class IntervalBoundaries(Boundaries):
    """``interval``: a commit after the first batch that ends after the interval."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms = 0.0

    def begin(self, now_ms: float) -> None:
        self._last_ms = now_ms

    def after_batch(self, now_ms: float) -> Ending:
        if now_ms < self._last_ms + self._interval_ms:
            return Ending.NONE
        self._last_ms = now_ms
        return Ending.COMMIT


class ConnectorBoundaries(Boundaries):
    """``connector``: as the task requests through this :class:`connect.api.source.TransactionContext`."""

    def __init__(self) -> None:
        self._batch: set[Ending] = set()
        # By identity, because records may be equal. The record is kept so that its id is not reused.
        self._records: dict[int, tuple[SourceRecord, set[Ending]]] = {}

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        self._request(record, Ending.COMMIT)

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        self._request(record, Ending.ABORT)

    def after_record(self, record: SourceRecord) -> Ending:
        _, endings = self._records.pop(id(record), (record, set()))
        return _single(endings, "record")

    def after_batch(self, now_ms: float) -> Ending:
        endings, self._batch = self._batch, set()
        return _single(endings, "batch")

    def at_end(self) -> Ending:
        return self.after_batch(0)

    def _request(self, record: SourceRecord | None, ending: Ending) -> None:
        if record is None:
            self._batch.add(ending)
        else:
            self._records.setdefault(id(record), (record, set()))[1].add(ending)


def _single(endings: set[Ending], what: str) -> Ending:
    if len(endings) > 1:
        # Raised here and not in the task's call, because the task might swallow it.
        raise PermanentError(f"the task asked to commit and to abort the transaction after the same {what}")
    return next(iter(endings), Ending.NONE)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """``boundary`` is poll, interval or connector; ``offsets_topic`` None is the worker's topic."""

    tasks_max: int
    tasks_max_enforced: bool
    errors: ErrorSettings
    boundary: str
    boundary_interval_ms: int | None
    offsets_topic: str | None

    def boundaries(self, flush_interval_ms: int) -> Boundaries:
        """Return the transaction boundaries of a task; ``flush_interval_ms`` is the worker's."""
        match self.boundary:
            case "poll":
                return Boundaries()
            case "interval":
                interval_ms = self.boundary_interval_ms
                return IntervalBoundaries(flush_interval_ms if interval_ms is None else interval_ms)
            case _:
                return ConnectorBoundaries()


def source_settings(props: Mapping[str, str]) -> SourceSettings:
    """Parse the settings in a connector's resolved config. Raises ConfigError for one that is missing or wrong."""
    values = SOURCE_CONNECTOR.parse(props)
    return SourceSettings(
        tasks_max=values.integer("tasks.max"),
        tasks_max_enforced=values.boolean("tasks.max.enforce"),
        errors=ErrorSettings(
            retry_timeout_ms=values.integer("errors.retry.timeout"),
            retry_delay_max_ms=values.integer("errors.retry.delay.max.ms"),
            tolerates_all=values.string("errors.tolerance") == "all",
            log_enabled=values.boolean("errors.log.enable"),
            log_includes_messages=values.boolean("errors.log.include.messages"),
        ),
        boundary=values.string("transaction.boundary").lower(),
        boundary_interval_ms=values.integer_or_null("transaction.boundary.interval.ms"),
        offsets_topic=values.string_or_null("offsets.storage.topic"),
    )


log = logging.getLogger(__name__)

_DEFAULT: Final = "default"
_PREFIX: Final = "topic.creation."
_NO_CONFIGS: Final = frozenset({"include", "exclude", "partitions", "replication.factor"})


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics that are created with the same settings; -1 is the cluster's default."""

    name: str
    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]]
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Return whether a topic is in this group; exclusion takes precedence."""
        return not _any(self.exclude, topic) and _any(self.include, topic)

    def new_topic(self, topic: str) -> NewTopic:
        return NewTopic(topic, self.partitions, self.replication_factor, self.configs)


def topic_groups(props: Mapping[str, str]) -> list[TopicGroup]:
    """Return a connector's groups in order of precedence, ``default`` last; none if no key is set. Raises ConfigError
    if a key of ``default`` is missing, or a value is wrong."""
    if not uses_topic_creation(props):
        return []
    values = topic_creation(props).parse(props)
    listed = split_list(props.get(f"{_PREFIX}groups", ""))
    return [_group(name, props, values) for name in (*(name for name in listed if name != _DEFAULT), _DEFAULT)]


@dataclass(eq=False)
class TopicCreation:
    """Creates the topics of one task; without ``groups`` or ``admin`` it creates none."""

    groups: Sequence[TopicGroup]
    admin: Admin | None
    _there: set[str] = field(default_factory=set, init=False)

    async def ensure(self, topic: str) -> None:
        """Create ``topic`` if it is missing. Raises RetriableError without an answer, PermanentError if refused."""
        if self.admin is None or not self.groups or topic in self._there:
            return
        if topic not in await self.admin.describe_topics([topic]):
            await self._create(topic, self.admin)
        self._there.add(topic)

    async def close(self) -> None:
        if self.admin is not None:
            await self.admin.close()

    async def _create(self, topic: str, admin: Admin) -> None:
        group = next(group for group in self.groups if group.name == _DEFAULT or group.matches(topic))
        outcome = (await admin.create_topics([group.new_topic(topic)]))[topic]
        if outcome is None:
            log.info("created topic %s with the settings of topic creation group %s", topic, group.name)
        elif isinstance(outcome, TopicExists):
            log.info("topic %s was created by another client", topic)
        elif isinstance(outcome, RetriableError):
            raise outcome
        else:
            raise PermanentError(
                f"Task failed to create new topic {topic}. Ensure that the task is authorized to create topics or that "
                f"the topic exists and restart the task: {outcome}"
            ) from outcome


def _group(name: str, props: Mapping[str, str], values: Values) -> TopicGroup:
    prefix = f"{_PREFIX}{name}."
    own = {key[len(prefix) :]: value for key, value in props.items() if key.startswith(prefix)}
    return TopicGroup(
        name,
        [compile_java(each) for each in values.strings(f"{prefix}include")],
        [compile_java(each) for each in values.strings(f"{prefix}exclude")],
        values.integer(f"{prefix}partitions"),
        values.integer(f"{prefix}replication.factor"),
        {key: value for key, value in own.items() if key not in _NO_CONFIGS},
    )


def _any(patterns: Sequence[re.Pattern[str]], topic: str) -> bool:
    return any(pattern.fullmatch(topic) for pattern in patterns)
