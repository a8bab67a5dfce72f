"""Runs one connector instance on this worker: start, pause, stop, task configs (Kafka's ``WorkerConnector``)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from connect.api.connector import Props
from connect.api.source import OffsetReader, SourceConnector
from connect.core.audit import state_changed
from connect.core.errors import NotRunning
from connect.core.model import Phase, State, Step, TargetState, step_to
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import masked, plugin_call
from connect.runtime.task.connector_offsets import ConnectorOffsets
from connect.runtime.task.task_control import FailureTrace, Known, Runner, Starts, WorkerListener

T = TypeVar("T")

log = logging.getLogger(__name__)

_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Instance:
    """A created connector that is not started; ``props`` are resolved."""

    connector: SourceConnector
    props: Mapping[str, str] = field(repr=False)
    offsets: ConnectorOffsets
    tasks_max: int
    tasks_max_enforced: bool


class _Interrupted(Exception):
    """The start was cancelled because the connector stops."""


#: Creates the instance; fills the argument with what it learns on the way.
Make = Callable[[Known], Awaitable[Instance]]


class ConnectorRunner(Runner):
    """One connector in one task, which alone calls the connector's ``start`` and ``stop``. A newer target state
    replaces one that is still pending."""

    def __init__(self, name: str, make: Make, target: TargetState, listener: WorkerListener, starts: Starts) -> None:
        super().__init__(f"connector {name}", starts)
        self.name = name
        self._make = make
        self._listener = listener
        self._phase = Phase.INIT
        self._instance: Instance | None = None
        #: Whether the connector's start was called and its stop was not.
        self._begun = False
        self._target: TargetState | None = target
        self._failure: Exception | None = None
        self._stopping = False
        self._changed = asyncio.Event()
        self._changed.set()
        #: The running start, if it is a coroutine.
        self._starting: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[Sequence[Props]]] = set()
        self._present: Sequence[Props] = ()
        self._thread = PluginThread(f"connector {name}")
        self._loop = asyncio.get_running_loop()

    def set_target(self, target: TargetState) -> None:
        self._target = target
        self._changed.set()

    def fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._changed.set()

    def stop(self) -> None:
        """Begin to stop; the task of :meth:`begin` ends afterwards. A waiting start is cancelled."""
        self._stopping = True
        self._changed.set()
        self._stop_asking()
        if self._starting is not None:
            self._starting.cancel()

    def abandon(self) -> None:
        """Report a connector that did not stop in time as UNASSIGNED, and report nothing more of it."""
        if self._abandoned:
            return
        self._report(State.UNASSIGNED)
        self._abandoned = True
        self._stop_asking()
        if self._running is not None:
            self._running.cancel()
        self._leaving = self._scope.spawn(self._close(), f"connector {self.name}, abandoned")

    async def task_configs(self, present: Sequence[Props]) -> tuple[Instance, Sequence[Props]]:
        """Ask the connector for its task configs; ``present`` are the current ones. Raises NotRunning if it is not
        started or is stopped meanwhile, and whatever the connector raises, with secrets masked."""
        instance = self._instance
        if instance is None or self._phase is not Phase.STARTED:
            raise NotRunning(f"Connector {self.name} is not running and cannot configure its tasks")
        self._present = present
        asking = self._scope.spawn(self._ask(instance), f"task configs of {self.name}")
        self._asking.add(asking)
        try:
            await asyncio.wait({asking})
        finally:
            self._asking.discard(asking)
            asking.cancel()
        if asking.cancelled():
            raise NotRunning(f"Connector {self.name} is stopped and did not configure its tasks")
        try:
            return instance, asking.result()
        except Exception as error:
            if self.known.secrets.mask(str(error)) == str(error):
                raise
            raise masked(error, self.known.secrets) from None

    # what the connector may call (SourceConnectorContext)

    def request_task_reconfiguration(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(self.request_task_reconfiguration)
        elif not (self._stopping or self._abandoned):
            self._listener.task_configs_wanted(self.name)

    def raise_error(self, error: Exception) -> None:
        if asyncio._get_running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(self.raise_error, error)
            return
        log.error("connector %s reported an error: %s", self.name, self.known.secrets.mask(str(error)))
        self.fail(error)

    @property
    def present_task_configs(self) -> Sequence[Props]:
        return self._present

    @property
    def offset_reader(self) -> OffsetReader:
        assert self._instance is not None
        return self._instance.offsets

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        return self._thread.wait_for(asked)

    # lifecycle

    async def _run(self) -> None:
        try:
            await self._initialize()
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._stopping:
                    break
                if self._failure is not None:
                    self._failed(self._failure)
                target, self._target = self._target, None
                if target is not None:
                    await self._move_to(target)
            await self._shut_down()
        finally:
            # A cancelled start may have started some parts; only the connector's stop knows which.
            try:
                await self._stop_quietly()
            finally:
                await self._thread.close()
                await self._close()

    async def _close(self) -> None:
        if self._instance is None:
            return
        try:
            await self._instance.offsets.close(0 if self._abandoned else _CLOSE_S)
        except Exception as error:
            log.error("connector %s: failed to close its offsets: %s", self.name, error)

    async def _initialize(self) -> None:
        try:
            with plugin_call(f"connector {self.name}"):
                self._instance = await self._make(self.known)
                await self._thread.call(self._instance.connector.initialize, self)
        except Exception as error:
            self._failed(error)

    async def _move_to(self, target: TargetState) -> None:
        step = step_to(self._phase, target)
        if step is not None:
            await self._take(step)
        elif self._phase is Phase.FAILED:
            log.warning("connector %s has failed and cannot become %s. Restart it.", self.name, target)
        if target is TargetState.STARTED and self._phase is Phase.STARTED:
            self.request_task_reconfiguration()

    async def _take(self, step: Step) -> None:
        try:
            if step.call == "start":
                await self._start_connector()
            elif step.call == "stop":
                await self._stop_connector()
        except _Interrupted:
            return
        except Exception as error:
            if step.phase_on_error is Phase.FAILED:
                self._failed(error)
                return
            log.error("connector %s: its stop raised an error: %s", self.name, self.known.secrets.line(error))
        if step.phase is Phase.STOPPED:
            # A stop clears a failure, even one reported meanwhile.
            self._failure = None
        self._phase = step.phase
        self._report(step.state)

    async def _start_connector(self) -> None:
        """Start the connector; raise _Interrupted if it is stopped meanwhile. Its stop ends what was started."""
        assert self._instance is not None
        self._begun = True
        starting = self._scope.spawn(self._call_start(self._instance), f"start of {self.name}")
        if inspect.iscoroutinefunction(self._instance.connector.start):  # a plain one cannot be cancelled
            self._starting = starting
        try:
            await starting
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if ours is None or ours.cancelling():
                raise
            raise _Interrupted from None
        finally:
            self._starting = None

    async def _call_start(self, instance: Instance) -> None:
        with plugin_call("its start"):
            await self._thread.call(instance.connector.start, instance.props)

    async def _stop_connector(self) -> None:
        if self._begun:
            assert self._instance is not None
            self._begun = False
            with plugin_call("its stop"):
                await self._thread.call(self._instance.connector.stop, always=True)

    async def _shut_down(self) -> None:
        try:
            await self._stop_connector()
        except Exception as error:
            self._failed(error)
        else:
            self._report(State.UNASSIGNED)

    async def _stop_quietly(self) -> None:
        try:
            await self._stop_connector()
        except Exception as error:
            log.error("connector %s: its stop raised an error: %s", self.name, self.known.secrets.line(error))

    async def _ask(self, instance: Instance) -> Sequence[Props]:
        with plugin_call("its task configs"):
            configs: Sequence[Props] = await self._thread.call(instance.connector.task_configs, instance.tasks_max)
            return configs

    def _stop_asking(self) -> None:
        for asking in self._asking:
            asking.cancel()

    def _failed(self, error: Exception) -> None:
        # Only the first failure counts.
        if self._phase is Phase.FAILED:
            return
        self._phase = Phase.FAILED
        failure = FailureTrace.of(error, self.known.secrets, is_at_end=self._stopping)
        line = self.known.secrets.line(error)
        state_changed(log, logging.ERROR, "connector-failed", self.name, "connector %s has failed: %s", self.name, line)
        log.debug("connector %s: %s", self.name, failure.trace)
        self._report(State.FAILED, failure)
        if not self._stopping:
            self._listener.connector_failed(self.name)

    def _report(self, state: State, failure: FailureTrace | None = None) -> None:
        if self._abandoned:
            return
        self._reported(state)
        self._listener.reported(self.name, state, failure, self.known.version)
