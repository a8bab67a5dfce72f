"""Transforms and converts the records of a task, and handles records that fail.

* Conversion follows Kafka's ``AbstractWorkerSourceTask.convertTransformedRecord``: transforms first, then converters.
* The transforms of a connector run in order, each with its predicate (Kafka's ``TransformationChain``, KIP-585).
* A record that cannot be transformed, converted or sent is retried, skipped, or fatal (KIP-298).

Kafka's ``RetryWithToleranceOperator`` differs in two ways, and both lose records. Here an error after all retries fails
the task unless errors are tolerated, and a task that stops during retries leaves the record to its successor instead of
skipping it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from connect.api.convert import Converter, DataError, HeaderConverter, Predicate, Transformation
from connect.api.plugins import PluginKind
from connect.api.source import SourceRecord
from connect.api.transformations import NamedStep, TransformationStep, named_steps
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import HeliographError, RetriableError
from connect.core.model import TaskId
from connect.kafka.concurrency import is_set_within, wall_ms
from connect.runtime.plugins.plugin_errors import SecretMask
from connect.runtime.plugins.plugin_registry import CONVERTERS, Plugins, Role
from connect.runtime.task.record_delivery import OutgoingRecord
from connect.runtime.task.task_control import Interrupted, TaskCounters

log = logging.getLogger(__name__)

T = TypeVar("T")

_DELAY_FIRST_MS: Final = 300


class Stage(StrEnum):
    """The operation on a record, in Kafka's words."""

    TRANSFORMATION = "TRANSFORMATION"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    KAFKA_PRODUCE = "KAFKA_PRODUCE"


class ToleranceExceeded(HeliographError):
    """A record failed, and errors are not tolerated; the cause is the reason."""


class LeftOut(Exception):
    """The record is skipped; never leaves the task's loop."""


@dataclass(frozen=True, slots=True)
class ErrorSettings:
    """The ``errors.*`` keys of a connector; ``retry_timeout_ms`` -1 has no limit."""

    retry_timeout_ms: int = 0
    retry_delay_max_ms: int = 60_000
    tolerates_all: bool = False
    log_enabled: bool = False
    log_includes_messages: bool = False


def retry_delay_ms(attempt: int, max_ms: int, left_ms: float, chance: float) -> float:
    """Return the wait after the ``attempt``-th failure (from 1): doubling, at random beyond ``max_ms``, and never above
    ``left_ms``. ``chance`` is a random number below 1."""
    # Attempts are not bounded, and a shift beyond 2^40 changes nothing.
    delay_ms: float = _DELAY_FIRST_MS << min(attempt - 1, 40)
    if delay_ms > max_ms:
        delay_ms = chance * max_ms
    return max(0.0, min(delay_ms, left_ms))


@dataclass(eq=False)
class ErrorHandler:
    """The error handling of one task. ``stopping`` is set when the task stops."""

    task: TaskId
    settings: ErrorSettings
    counters: TaskCounters
    secrets: SecretMask
    stopping: asyncio.Event

    @property
    def tolerates_all(self) -> bool:
        return self.settings.tolerates_all

    async def attempt(self, stage: Stage, doing: object, record: SourceRecord, operation: Callable[[], T]) -> T:
        """Run ``operation`` of the plugin ``doing`` for ``record``, with retries; return its result. Raises LeftOut if
        it failed and errors are tolerated, ToleranceExceeded if they are not, and Interrupted if the task stops before
        a retry."""
        clock = asyncio.get_running_loop().time
        timeout_ms = self.settings.retry_timeout_ms
        give_up_s = clock() + timeout_ms / 1000 if timeout_ms >= 0 else float("inf")
        attempt = 0
        while True:
            attempt += 1
            try:
                return operation()
            except MemoryError:
                raise  # not an error of the record; Java tolerates no ``Error`` either
            except Exception as error:
                self.counters.failures += 1
                left_ms = (give_up_s - clock()) * 1000
                if not isinstance(error, RetriableError) or left_ms <= 0:
                    raise self._given_up(stage, doing, record, error) from error
            delay_ms = retry_delay_ms(attempt, self.settings.retry_delay_max_ms, left_ms, random.random())
            if await is_set_within(self.stopping, delay_ms / 1000):
                raise Interrupted
            self.counters.retries += 1

    def failed(self, stage: Stage, doing: object, record: SourceRecord, error: Exception) -> None:
        """Handle a final failure outside of :meth:`attempt`; raise ToleranceExceeded unless it is tolerated."""
        self.counters.failures += 1
        outcome = self._given_up(stage, doing, record, error)
        if isinstance(outcome, ToleranceExceeded):
            raise outcome from error

    def _given_up(self, stage: Stage, doing: object, record: SourceRecord, error: Exception) -> Exception:
        self.counters.errors += 1
        self.counters.last_error_ms = wall_ms()
        if self.settings.log_enabled:
            self._report(stage, doing, record, error)
        if not self.settings.tolerates_all:
            return ToleranceExceeded("Tolerance exceeded in error handler")
        self.counters.skipped += 1
        return LeftOut()

    def _report(self, stage: Stage, doing: object, record: SourceRecord, error: Exception) -> None:
        shown = f", where source record is = {record}" if self.settings.log_includes_messages else ""
        log.error(
            "Error encountered in task %s. Executing stage '%s' with class '%s'%s.\n%s",
            self.task,
            stage,
            class_name(doing),
            self.secrets.mask(shown),
            self.secrets.trace(error).rstrip(),
        )
        self.counters.logged += 1


def class_name(plugin: object) -> str:
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def make_steps(props: Mapping[str, str], plugins: Plugins) -> list[TransformationStep]:
    """Create the transforms of a connector with ``props``. Errors as :func:`make_converters`."""
    return [_made(step, plugins) for step in named_steps(props)]


def _made(step: NamedStep, plugins: Plugins) -> TransformationStep:
    by_class = step.transformation
    transformation: Transformation = plugins.new(PluginKind.TRANSFORMATION, by_class.name, by_class.version)
    transformation.configure(by_class.props)
    if step.predicate is None:
        return TransformationStep(transformation)
    predicate: Predicate = plugins.new(PluginKind.PREDICATE, step.predicate.name, step.predicate.version)
    predicate.configure(step.predicate.props)
    return TransformationStep(transformation, predicate, step.negate)


_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class Converters:
    """The converters of a task's records into bytes."""

    key: Converter
    value: Converter
    header: HeaderConverter

    def close(self) -> None:
        for each in (self.key, self.value, self.header):
            each.close()


@dataclass(eq=False)
class Conversion:
    """Transforms and converts one task's records into bytes."""

    steps: Sequence[TransformationStep]
    converters: Converters
    errors: ErrorHandler

    async def outgoing(self, record: SourceRecord) -> OutgoingRecord | None:
        """Return the record to send; None if a transform drops it. Raises LeftOut, ToleranceExceeded or Interrupted as
        :meth:`ErrorHandler.attempt`, and DataError if its timestamp is invalid."""
        attempt, converters, to_send = self.errors.attempt, self.converters, record
        for step in self.steps:
            after = await attempt(Stage.TRANSFORMATION, step.transformation, record, partial(step.apply, to_send))
            if after is None:
                return None
            to_send = after
        topic = to_send.topic
        headers = await attempt(Stage.HEADER_CONVERTER, converters.header, record, partial(self._headers, to_send))
        key = await attempt(
            Stage.KEY_CONVERTER,
            converters.key,
            record,
            partial(converters.key.from_connect, topic, to_send.key_schema, to_send.key),
        )
        value = await attempt(
            Stage.VALUE_CONVERTER,
            converters.value,
            record,
            partial(converters.value.from_connect, topic, to_send.value_schema, to_send.value),
        )
        return OutgoingRecord(topic, key, value, to_send.partition, _timestamp_ms(to_send), headers)

    def close(self) -> None:
        for step in self.steps:
            step.close()
        self.converters.close()

    def _headers(self, record: SourceRecord) -> tuple[tuple[str, bytes | None], ...]:
        convert = self.converters.header.from_connect_header
        return tuple((each.key, convert(record.topic, each.key, each.schema, each.value)) for each in record.headers)


def make_converters(props: Mapping[str, str], config: WorkerConfig, plugins: Plugins) -> Converters:
    """Create the connector's converters, or the worker's if the connector names none. Raises ConfigError if a setting
    is missing or wrong, and PluginNotFound if there is no such class, or version."""
    made = []
    for _, kind, role in CONVERTERS:
        settings, name, version = converter_settings(role, props, config)
        converter = plugins.new(kind, name, version)
        converter.configure(settings)
        made.append(converter)
    return Converters(*made)


def converter_settings(
    role: Role, connector: Mapping[str, str], config: WorkerConfig
) -> tuple[dict[str, str], str, str | None]:
    """Return settings, class and version of a converter, all from the config that names its class."""
    name = f"{role}.converter"
    props = connector if name in connector else config.props
    own = {key[len(name) + 1 :]: value for key, value in props.items() if key.startswith(f"{name}.")}
    version = own.pop("plugin.version", None)
    return {**own, "converter.type": role}, connector.get(name) or config.values.string(name), version


def _timestamp_ms(record: SourceRecord) -> int | None:
    """Check a timestamp as Kafka's ``ConnectUtils.checkAndConvertTimestamp``."""
    timestamp_ms = record.timestamp_ms
    if timestamp_ms is None or timestamp_ms == _NO_TIMESTAMP:
        return None
    if timestamp_ms < 0:
        raise DataError(f"Invalid record timestamp {timestamp_ms}")
    return timestamp_ms
