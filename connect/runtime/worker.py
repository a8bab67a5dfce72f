"""Starts, reconfigures and stops the connectors and tasks of this worker, in bounded time.

Like Kafka's ``Worker``. It decides nothing: the herder says what runs here, and the listener is notified of states.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from connect.core.config.properties import ConfigTransformer
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import NotRunning
from connect.core.herder.task_configs import InvalidTaskConfigs, checked
from connect.core.model import TargetState, TaskId
from connect.runtime.connector_runner import ConnectorRunner
from connect.runtime.plugins.plugin_errors import has_reference, plugin_call
from connect.runtime.plugins.plugin_registry import Plugins
from connect.runtime.task.connector_offsets import OffsetTopic
from connect.runtime.task.offset_stores import OffsetStores
from connect.runtime.task.source_task import TaskRunner
from connect.runtime.task.task_control import Starts, WorkerListener
from connect.runtime.task_builder import TaskBuilder, TaskSpec, check_task_count

log = logging.getLogger(__name__)

#: Kafka's ``Worker.CONNECTOR_GRACEFUL_SHUTDOWN_TIMEOUT_MS``.
_CONNECTORS_GRACE_S: Final = 5.0
#: Time for cancelled work to close its connections; work that takes longer is abandoned.
_CANCELLED_GRACE_S: Final = 1.0
_TASK_CLASS: Final = "task.class"


async def _not_known(_: str) -> None:
    """Explain nothing, for a worker without a group."""


class Worker:
    """The connectors and tasks of one worker.

    Args:
        config: The worker's settings.
        plugins: Finds classes by name.
        listener: Notified of states, requested task configs and topics in use.
        transformer: Resolves references in configs.
        offsets: The worker's own offset topic; its owner starts and stops it.
        explain: Returns why a class that this worker does not have was assigned to it, None if that is not known.
    """

    def __init__(
        self,
        config: WorkerConfig,
        plugins: Plugins,
        listener: WorkerListener,
        *,
        transformer: ConfigTransformer,
        offsets: OffsetTopic,
        explain: Callable[[str], Awaitable[str | None]] = _not_known,
    ) -> None:
        #: The connectors' offset stores, also for the REST API.
        self.stores = OffsetStores(config, offsets)
        #: Until stopped, FAILED ones included.
        self.connectors: dict[str, ConnectorRunner] = {}
        self.tasks: dict[TaskId, TaskRunner] = {}
        self.connector_starts = Starts()
        self.task_starts = Starts()
        self._listener = listener
        self._task_builder = TaskBuilder(config, plugins, listener, transformer, self.stores, explain)
        self._tasks_grace_s = config.task_shutdown_timeout_ms / 1000
        self._raw: dict[str, Mapping[str, str]] = {}
        self._running: dict[str | TaskId, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()

    def start_connector(self, name: str, props: Mapping[str, str], target: TargetState) -> None:
        """Start a connector that is not here; ``props`` are raw. Never blocks: a failure is reported as FAILED."""
        assert name not in self.connectors, name
        runner = ConnectorRunner(
            name, partial(self._task_builder.connector, name, props), target, self._listener, self.connector_starts
        )
        self._raw[name] = props
        self.connectors[name] = runner
        self._running[name] = runner.begin()

    def start_task(self, spec: TaskSpec, target: TargetState) -> None:
        """Start a task that is not here. Never blocks: a failure is reported as FAILED."""
        assert spec.task not in self.tasks, spec.task
        make = partial(self._task_builder.task, spec)
        runner = TaskRunner(spec.task, make, target, self._listener, self.task_starts)
        self.tasks[spec.task] = runner
        self._running[spec.task] = runner.begin()

    def reconfigure_task(self, spec: TaskSpec) -> bool:
        """Offer a running task its new config. Return False if it has to be restarted."""
        runner = self.tasks.get(spec.task)
        return runner is not None and runner.reconfigure(partial(self._task_builder.task_props, spec))

    def set_target(self, name: str, target: TargetState) -> None:
        """Set the target state of a connector and its tasks, as far as they are here; does not wait."""
        if name in self.connectors:
            self.connectors[name].set_target(target)
        for task, runner in self.tasks.items():
            if task.connector == name:
                runner.control.set_target(target)

    async def task_configs(self, name: str, present: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
        """Ask a connector that runs here for its raw task configs, with ``task.class``; ``present``: the current ones.
        A key whose raw value in the connector's config contains a reference gets that value back, so that no secret
        reaches the config topic. Raises TooManyTasks if that is enforced, InvalidTaskConfigs if the answer is not a
        list of dicts with text values, NotRunning if the connector is not here, or not started, and whatever the
        connector raises, with secrets masked."""
        if name not in self.connectors:
            raise NotRunning(f"Connector {name} does not run here")
        raw = self._raw[name]
        instance, reported = await self.connectors[name].task_configs(present)
        configs = checked(name, reported)
        if isinstance(configs, InvalidTaskConfigs):
            raise configs
        check_task_count(name, len(configs), instance.tasks_max, enforced=instance.tasks_max_enforced)
        references = {key: value for key, value in raw.items() if has_reference(value)}
        with plugin_call(f"connector {name}"):
            task_class = {_TASK_CLASS: instance.connector.task_class()}
        return [
            {**config, **{key: value for key, value in references.items() if key in config}, **task_class}
            for config in configs
        ]

    def shut_down(self, within_s: float) -> None:
        """Begin to stop everything here, without waiting; :meth:`stop_work` must follow for all of it. Work that has
        not stopped after ``within_s`` is cancelled and abandoned."""
        here = [(running, self._runner(work)) for work, running in self._running.items()]
        for _, runner in here:
            runner.stop()
        asyncio.get_running_loop().call_later(within_s, self._abandon, here)

    @staticmethod
    def _abandon(here: Iterable[tuple[asyncio.Task[None], ConnectorRunner | TaskRunner]]) -> None:
        for each, runner in here:
            if not each.done():
                log.warning("%s did not stop in time and is cancelled", each.get_name())
                runner.abandon()

    async def stop_work(self, connectors: Collection[str], tasks: Collection[TaskId]) -> None:
        """Stop the given connectors and tasks, if they are here; return when all are stopped or abandoned. Connectors
        get 5 s, tasks ``task.shutdown.graceful.timeout.ms``, each kind in total. Work that takes longer is cancelled
        and logged, and reports nothing more."""
        here: list[list[str | TaskId]] = [
            [name for name in connectors if name in self.connectors],
            [task for task in tasks if task in self.tasks],
        ]
        for work in (*here[0], *here[1]):
            self._runner(work).stop()
        await asyncio.gather(self._down(here[0], _CONNECTORS_GRACE_S), self._down(here[1], self._tasks_grace_s))

    def fail_connector(self, name: str, error: Exception) -> None:
        """Fail a connector that is here for this reason; it does nothing more until it is restarted."""
        if name in self.connectors:
            self.connectors[name].fail(error)

    async def stop(self) -> None:
        """Stop everything, like :meth:`stop_work`."""
        await self.stop_work(list(self.connectors), list(self.tasks))
        for task in self._abandoned:
            task.cancel()
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=_CANCELLED_GRACE_S)

    def _runner(self, work: str | TaskId) -> ConnectorRunner | TaskRunner:
        return self.connectors[work] if isinstance(work, str) else self.tasks[work]

    async def _down(self, stopping: Collection[str | TaskId], grace_s: float) -> None:
        running = {self._running[work]: work for work in stopping}
        if not running:
            return
        await asyncio.wait(running, timeout=grace_s)
        late = [each for each in running if not each.done()]
        for each in late:
            log.error("graceful stop of %s failed: cancelled, because it took over %g s", each.get_name(), grace_s)
            self._runner(running[each]).abandon()
        unfinished = [each for work in stopping for each in self._runner(work).unfinished()]
        if unfinished:
            await asyncio.wait(unfinished, timeout=_CANCELLED_GRACE_S)
        for each in unfinished:
            if not each.done():
                log.error("%s did not end after it was cancelled; it is abandoned", each.get_name())
                self._abandoned.add(each)
                each.add_done_callback(self._abandoned.discard)
        for work in stopping:
            self._forget(work)

    def _forget(self, work: str | TaskId) -> None:
        del self._running[work]
        if isinstance(work, str):
            del self.connectors[work], self._raw[work]
        else:
            del self.tasks[work]
