"""Creates connectors and tasks from their configs, and names the classes and versions of their plugins.

Like Kafka's ``Worker.TaskBuilder``. Classes and versions have the names of Java's attributes (KIP-891).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from connect.api.plugins import PluginKind
from connect.api.source import EngineTask, SourceConnector, SourceTask
from connect.api.transformations import named_steps
from connect.core.config.connector_settings import uses_topic_creation
from connect.core.config.properties import ConfigTransformer
from connect.core.config.worker_config import ClientKind, WorkerConfig
from connect.core.errors import ConfigError, TooManyTasks
from connect.core.model import TaskId
from connect.kafka.log.topic_admin import Admin
from connect.kafka.threads import PluginThread
from connect.runtime.connector_runner import Instance
from connect.runtime.plugins.plugin_errors import passwords, secrets_of
from connect.runtime.plugins.plugin_registry import CONVERTERS, PluginNotFound, Plugins
from connect.runtime.task import client_configs, record_conversion, source_config, task_control
from connect.runtime.task.connector_offsets import ConnectorOffsets
from connect.runtime.task.delivery_guarantees import AtLeastOnceDelivery, ExactlyOnceDelivery
from connect.runtime.task.offset_stores import OffsetStores
from connect.runtime.task.record_delivery import Delivery, RecordProducer, TaskCallbacks
from connect.runtime.task.source_task import EngineWork, SourceWork, TaskContext, TaskRunner


def converter_parts(connector: Mapping[str, str], config: WorkerConfig, plugins: Plugins) -> Iterator[tuple[str, str]]:
    """Yield attribute and value. Raises PluginNotFound for an unknown converter."""
    for _, kind, role in CONVERTERS:
        _, name, version = record_conversion.converter_settings(role, connector, config)
        found = plugins.find((kind,), name, version)
        yield f"{role}-converter-class", found.name
        yield f"{role}-converter-version", found.version


def steps(connector: Mapping[str, str], plugins: Plugins) -> Iterator[tuple[str, str, str, str]]:
    """Yield kind, alias, class and version of transforms and predicates. Raises PluginNotFound for an unknown class."""
    named = (each for step in named_steps(connector) for each in (step.transformation, step.predicate))
    for prefix, each in {one.prefix: one for one in named if one is not None}.items():
        kind, alias = prefix.removesuffix(".").split(".", 1)
        found = plugins.find((_KINDS[kind],), each.name, each.version)
        yield kind.removesuffix("s"), alias, found.name, found.version


log = logging.getLogger(__name__)

_KINDS: Final = {"transforms": PluginKind.TRANSFORMATION, "predicates": PluginKind.PREDICATE}

#: Connectors and tasks created in one turn of the loop.
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task to create, with raw configs.

    Args:
        task_count: The connector's number of tasks, which is checked against ``tasks.max``.
        before, after: See :class:`ClaimChecks`; only under exactly-once.
    """

    task: TaskId
    connector: Mapping[str, str]
    config: Mapping[str, str]
    task_count: int
    before: task_control.Check | None = None
    after: task_control.Check | None = None


def _interrupted_by_stop(
    control: task_control.TaskControl, check: task_control.Check | None
) -> task_control.Check | None:
    """Let a stop interrupt the check, because the group may wait for the stop, and the check for the group."""
    if check is None:
        return None

    async def interrupted() -> None:
        if not await control.unless_stopped(check):
            raise task_control.Interrupted

    return interrupted


def _checks(order: TaskSpec, control: task_control.TaskControl) -> task_control.ClaimChecks:
    before, after = (_interrupted_by_stop(control, check) for check in (order.before, order.after))
    return task_control.ClaimChecks(before, after, lambda: control.is_stopping)


def check_task_count(connector: str, tasks: int, tasks_max: int, *, enforced: bool) -> None:
    """Raise TooManyTasks if there are too many tasks, or warn if ``tasks.max`` is not enforced."""
    if tasks <= tasks_max:
        return
    if enforced:
        raise TooManyTasks(connector, tasks, tasks_max)
    log.warning(
        "connector %s has %d tasks, more than its tasks.max (%d); its authors should fix that",
        connector,
        tasks,
        tasks_max,
    )


@dataclass(eq=False)
class TaskBuilder:
    """Creates the connectors and tasks of one worker. ``explain``: returns why a class that this worker does not have
    was assigned to it, None if that is not known."""

    config: WorkerConfig
    plugins: Plugins
    listener: task_control.WorkerListener
    transformer: ConfigTransformer
    stores: OffsetStores
    explain: Callable[[str], Awaitable[str | None]]
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE), init=False)

    async def connector(self, name: str, raw: Mapping[str, str], known: task_control.Known) -> Instance:
        """Create a connector without starting it. Raises whatever prevents that, also the connector's errors."""
        await self._turn()
        known.secrets = secrets_of(self.transformer, raw)
        props = self.transformer.connector_props(raw)
        connector = await self._new(props, known)
        settings = source_config.source_settings(props)
        offsets = await self.stores.open(name, props)
        return Instance(connector, props, offsets, settings.tasks_max, settings.tasks_max_enforced)

    def task_props(self, order: TaskSpec) -> Mapping[str, str]:
        """Return the resolved config of a new or running task. Raises ConfigError or TooManyTasks."""
        settings = source_config.source_settings(self.transformer.connector_props(order.connector))
        name = order.task.connector
        check_task_count(name, order.task_count, settings.tasks_max, enforced=settings.tasks_max_enforced)
        return self.transformer.connector_props(order.config)

    async def task(self, order: TaskSpec, runner: TaskRunner) -> task_control.TaskRun:
        """Create a task without starting it. Raises whatever prevents that, also the connector's errors."""
        await self._turn()
        runner.known.secrets = secrets_of(self.transformer, order.connector, order.config)
        connector_props = self.transformer.connector_props(order.connector)
        connector = await self._new(connector_props, runner.known)
        settings = source_config.source_settings(connector_props)
        name = order.task.connector
        props = self.task_props(order)
        async with AsyncExitStack() as undo:
            offsets = await self.stores.open(name, connector_props)
            undo.push_async_callback(offsets.close)
            task = connector.make_task()
            runner.known.parts |= {"task-class": connector.task_class(), "task-version": connector.version()}
            if isinstance(task, EngineTask):
                work: task_control.TaskRun = EngineWork(
                    order.task,
                    connector,
                    TaskContext(props, offsets, PluginThread(f"task {order.task}")),
                    offsets,
                    _checks(order, runner.control),
                    runner.counters,
                    partial(self.listener.topic_used, task=order.task),
                )
            else:
                work = self._source(order, runner, task, connector_props, props, settings, offsets)
            undo.pop_all()
            return work

    async def _turn(self) -> None:
        """Return a few times per turn of the loop, so that many starts do not block other work."""
        async with self._turns:
            await asyncio.sleep(0)

    def _source(
        self,
        order: TaskSpec,
        runner: TaskRunner,
        task: SourceTask,
        connector: Mapping[str, str],
        props: Mapping[str, str],
        settings: source_config.SourceSettings,
        offsets: ConnectorOffsets,
    ) -> SourceWork:
        secrets = runner.known.secrets
        errors = record_conversion.ErrorHandler(
            order.task, settings.errors, runner.counters, secrets, runner.control.stopping
        )
        conversion = record_conversion.Conversion(
            record_conversion.make_steps(connector, self.plugins),
            record_conversion.make_converters(connector, self.config, self.plugins),
            errors,
        )
        runner.known.parts.update(converter_parts(connector, self.config, self.plugins))
        runner.known.steps.extend(steps(connector, self.plugins))
        boundaries = settings.boundaries(self.config.offset_flush_interval_ms)
        transactions = boundaries if isinstance(boundaries, source_config.ConnectorBoundaries) else None
        thread = PluginThread(f"task {order.task}")
        callbacks = TaskCallbacks(order.task, task, secrets, thread)
        topic_used = partial(self.listener.topic_used, task=order.task)
        delivery: Delivery
        if self.config.exactly_once_enabled:
            delivery = ExactlyOnceDelivery(
                order.task,
                self._transactional_producer(order.task, connector),
                offsets,
                callbacks,
                topic_used,
                boundaries,
                runner.counters,
                _checks(order, runner.control),
            )
        else:
            transactions = None
            delivery = AtLeastOnceDelivery(
                order.task,
                RecordProducer(client_configs.producer_settings(self.config, connector, str(order.task), None)),
                offsets,
                callbacks,
                topic_used,
                errors,
                runner.counters,
                flush_interval_ms=self.config.offset_flush_interval_ms,
                flush_timeout_ms=self.config.offset_flush_timeout_ms,
            )
        return SourceWork(
            order.task,
            task,
            TaskContext(props, offsets, thread, transactions),
            delivery,
            conversion,
            self._topic_creation(order.task, connector),
            runner.counters,
            secrets,
        )

    def _transactional_producer(self, task: TaskId, connector: Mapping[str, str]) -> RecordProducer:
        for sentence in client_configs.ignored_under_exactly_once(self.config, connector):
            log.warning("task %s: %s", task, sentence)
        transactional_id = client_configs.task_transactional_id(self.config.group_id, task.connector, task.task)
        return RecordProducer(client_configs.producer_settings(self.config, connector, str(task), transactional_id))

    def _topic_creation(self, task: TaskId, connector: Mapping[str, str]) -> source_config.TopicCreation:
        groups = source_config.topic_groups(connector) if self.config.topic_creation_enable else []
        if not groups:
            return source_config.TopicCreation([], None)
        return source_config.TopicCreation(
            groups, Admin(client_configs.client_connection(self.config, connector, "admin", str(task)))
        )

    async def _new(self, props: Mapping[str, str], known: task_control.Known) -> SourceConnector:
        if "connector.class" not in props:
            raise ConfigError("connector.class is missing; name the connector's class", "connector.class")
        try:
            connector = self.plugins.new_connector(props["connector.class"], props.get("connector.plugin.version"))
        except PluginNotFound:
            if (reason := await self.explain(props["connector.class"].strip())) is None:
                raise
            raise PluginNotFound(reason) from None
        known.version = connector.version()
        known.parts |= {
            "connector-class": self.plugins.full_name(props["connector.class"].strip()) or props["connector.class"],
            "connector-type": "source",
            "connector-version": known.version,
        }
        known.secrets = known.secrets.with_more(passwords(connector.config_def(), props))
        client_configs.check_overrides(self.plugins.override_policy(self.config), props, self._kinds(props))
        return connector

    def _kinds(self, props: Mapping[str, str]) -> list[ClientKind]:
        own_offsets = self.config.exactly_once_enabled or "offsets.storage.topic" in props
        kinds: list[ClientKind] = ["producer"]
        if own_offsets or (self.config.topic_creation_enable and uses_topic_creation(props)):
            kinds.append("admin")
        return [*kinds, "consumer"] if own_offsets else kinds
