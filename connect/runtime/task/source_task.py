"""Runs one source task on this worker from its start to its end (Kafka's ``WorkerTask``).

* A polled task: its records pass transforms and converters to the producer (Kafka's ``AbstractWorkerSourceTask``).
* A task with its own engine: it runs until the worker stops it. A pause stops the engine; a resume starts a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from connect.api.connector import Props
from connect.api.source import EngineTask, OffsetReader, SourceConnector, SourceRecord, SourceTask, TransactionContext
from connect.core.audit import state_changed
from connect.core.errors import RetriableError
from connect.core.model import State, TargetState, TaskId
from connect.kafka.concurrency import Backoff, Scope
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import SecretMask, masked, plugin_call
from connect.runtime.task import task_control
from connect.runtime.task.connector_offsets import ConnectorOffsets
from connect.runtime.task.record_conversion import Conversion, LeftOut
from connect.runtime.task.record_delivery import CLOSE_S, Delivery
from connect.runtime.task.source_config import TopicCreation

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Kafka's ``SEND_FAILED_BACKOFF_MS``.
_RETRY_FIRST_MS: Final = 100
#: Java repeats a failed poll at once.
_POLL_RETRY_LAST_MS: Final = 500
#: Minimum time of an empty poll, so that a task that returns at once does not take over the loop.
_EMPTY_POLL_S: Final = 0.005
#: Records handled in one turn of the loop.
_RECORDS_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Implements :class:`connect.api.source.SourceTaskContext`."""

    configs: Props = field(repr=False)
    offset_reader: OffsetReader
    thread: PluginThread
    transaction_context: TransactionContext | None = None

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        return self.thread.wait_for(asked)


@dataclass(eq=False)
class SourceWork:
    """Implements :class:`connect.runtime.task.task_control.TaskRun` for one :class:`SourceTask`."""

    task_id: TaskId
    task: SourceTask
    context: TaskContext
    delivery: Delivery
    conversion: Conversion
    topics: TopicCreation
    counters: task_control.TaskCounters
    secrets: SecretMask
    _started: bool = field(default=False, init=False)
    _to_send: Sequence[SourceRecord] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._polling = Backoff(log, f"task {self.task_id}: its poll failed", _RETRY_FIRST_MS, _POLL_RETRY_LAST_MS)
        self._sending = Backoff(
            log, f"task {self.task_id}: a record could not be sent", _RETRY_FIRST_MS, _RETRY_FIRST_MS
        )

    async def start(self) -> None:
        await self.delivery.start()
        # From here on the task may hold resources that only its stop releases.
        self._started = True
        await self.context.thread.call(self.task.initialize, self.context)
        await self.context.thread.call(self.task.start, self.context.configs)

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        # As in Java: a polled task gets its config only at its start.
        return False

    async def execute(self, control: task_control.TaskControl, report: task_control.Report) -> None:
        try:
            await self._loop(control, report)
        except task_control.Interrupted:
            pass
        except Exception:
            try:
                await self.delivery.finish(failed=True)
            except Exception as error:
                log.error("task %s: its final commit failed: %s", self.task_id, self.secrets.mask(str(error)))
            raise
        await self.delivery.finish(failed=False)

    async def close(self, timeout_s: float) -> None:
        if self._started:
            self._started = False
            try:
                with plugin_call("its stop"):
                    await self.context.thread.call(self.task.stop, always=True)
            except Exception as error:
                log.error("task %s: its stop raised an error: %s", self.task_id, self.secrets.line(error))
        await self.context.thread.close()
        await self.delivery.close(timeout_s)
        await self.topics.close()
        self.conversion.close()

    async def abandon(self) -> None:
        await self.delivery.close(0)
        await self.topics.close()

    async def _loop(self, control: task_control.TaskControl, report: task_control.Report) -> None:
        self.delivery.enter()
        while not control.is_stopping:
            if control.is_paused:
                report(State.PAUSED)
                await self.delivery.pause()
                if await control.unpaused():
                    report(State.RUNNING)
                    self.delivery.enter()
                continue
            if self._to_send is None:
                self.delivery.before_poll()
                self._to_send = await self._poll(control)
            await self._send_batch()

    async def _poll(self, control: task_control.TaskControl) -> Sequence[SourceRecord] | None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        records: Sequence[SourceRecord] | None = None

        async def poll() -> None:
            nonlocal records
            with plugin_call("its poll"):
                records = await self.context.thread.call(self.task.poll)

        try:
            await control.unless_stopped(poll)
        except RetriableError as error:
            await self._polling.after(masked(error, self.secrets))
            return None
        self._polling.over()
        took_s = clock() - began_s
        if records:
            self.counters.batch_polled(len(records), took_s * 1000)
        else:
            await asyncio.sleep(_EMPTY_POLL_S if took_s < _EMPTY_POLL_S else 0)
        return records

    async def _send_batch(self) -> None:
        """Send what was polled. After a retriable error, wait and keep the remaining records for the next call."""
        batch = self._to_send or ()
        if batch:
            self.counters.batch_taken(len(batch))
        for number, record in enumerate(batch):
            try:
                await self._send(record)
            except RetriableError as error:
                self._to_send = batch[number:]
                await self._sending.after(masked(error, self.secrets))
                return
            if number % _RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._sending.over()
        self._to_send = None
        await self.delivery.batch_done()

    async def _send(self, record: SourceRecord) -> None:
        try:
            with plugin_call("a transformation or a converter"):
                outgoing = await self.conversion.outgoing(record)
        except LeftOut:
            outgoing = None
        if outgoing is None:
            await self.delivery.dropped(record)
            return
        await self.topics.ensure(outgoing.topic)
        await self.delivery.send(record, outgoing)


@dataclass(eq=False)
class EngineWork:
    """Implements :class:`connect.runtime.task.task_control.TaskRun`; each engine is a new task of ``connector``. The
    engine claims the transactional id itself, so it also calls the check after that."""

    task_id: TaskId
    connector: SourceConnector
    context: TaskContext
    offsets: ConnectorOffsets
    checks: task_control.ClaimChecks
    counters: task_control.TaskCounters
    topic_used: Callable[[str], None]
    _engine: EngineTask | None = field(default=None, init=False)
    _is_ended: bool = field(default=True, init=False)

    async def start(self) -> None:
        await self.checks.may_claim()
        self._engine = self._new()

    async def execute(self, control: task_control.TaskControl, report: task_control.Report) -> None:
        while not control.is_stopping:
            if control.is_paused:
                report(State.PAUSED)
                if not await control.unpaused():
                    return
                self._engine = self._new()
                report(State.RUNNING)
            elif self._engine is None:
                self._engine = self._new()
            is_asked = await self._run(self._engine, control)
            self._engine = None
            # An engine may have been stopped for a pause that is over by now.
            if not (is_asked or control.is_paused):
                return

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        if self._engine is None or self._is_ended or not self._engine.reconfigure(props):
            return False
        # For the engine that a resume starts.
        self.context = replace(self.context, configs=props)
        return True

    async def close(self, timeout_s: float) -> None:
        # An engine ends with its run.
        await self.offsets.close(timeout_s)

    async def abandon(self) -> None:
        await self.offsets.close(0)

    def _new(self) -> EngineTask:
        engine = self.connector.make_task()
        assert isinstance(engine, EngineTask)
        engine.initialize(self.context)
        engine.check_newest = self.checks.after
        engine.meter, engine.topic_used = self.counters, self.topic_used
        return engine

    async def _run(self, engine: EngineTask, control: task_control.TaskControl) -> bool:
        """Run one engine until it ends by itself or is stopped; return whether it was stopped."""
        self._is_ended = False
        is_asked = False
        try:
            async with Scope(f"task {self.task_id}") as scope:
                running = scope.spawn(_run(engine), f"engine of {self.task_id}")
                while not running.done():
                    if (control.is_stopping or control.is_paused) and not is_asked:
                        is_asked = True
                        engine.stop()
                    async with Scope(f"task {self.task_id}") as waiting:
                        control_change = waiting.spawn(control.changed(), f"requests to {self.task_id}")
                        await asyncio.wait({running, control_change}, return_when=asyncio.FIRST_COMPLETED)
                await running
            return is_asked
        finally:
            self._is_ended = True


async def _run(engine: EngineTask) -> None:
    with plugin_call("its engine"):
        await engine.run()


#: Creates the work to run.
Make = Callable[["TaskRunner"], Awaitable[task_control.TaskRun]]


class TaskRunner(task_control.Runner):
    """Runs one task. ``counters`` are for metrics."""

    def __init__(
        self,
        task: TaskId,
        make: Make,
        target: TargetState,
        listener: task_control.WorkerListener,
        starts: task_control.Starts,
    ) -> None:
        super().__init__(f"task {task}", starts)
        self.id = task
        self.counters = task_control.TaskCounters()
        self.control = task_control.TaskControl(target)
        self._make = make
        self._listener = listener
        self._work: task_control.TaskRun | None = None

    def reconfigure(self, make_props: Callable[[], Mapping[str, str]]) -> bool:
        """Offer the running task a new config. Return False if it has to be restarted."""
        if self._work is None or self.state is not State.RUNNING or self.control.is_stopping or self.control.is_paused:
            return False
        try:
            with plugin_call(f"task {self.id}"):
                return self._work.reconfigure(make_props())
        except Exception as error:
            log.warning("task %s will be restarted for its new config: %s", self.id, self.known.secrets.line(error))
            return False

    def stop(self) -> None:
        """Begin to stop; the task of :meth:`begin` ends afterwards."""
        self.control.stop()

    def abandon(self) -> None:
        """Give up a task that did not stop in time: it reports, sends and stores nothing more, even while it runs."""
        if self._abandoned:
            return
        self._abandoned = True
        if self._running is not None:
            self._running.cancel()
        if self._work is not None:
            self._leaving = self._scope.spawn(self._leave(self._work), f"task {self.id}, abandoned")

    async def _run(self) -> None:
        try:
            with plugin_call(f"task {self.id}"):
                await self._live()
        except task_control.Interrupted:
            pass
        except Exception as error:
            if not self.control.is_stopping:
                failure = task_control.FailureTrace.of(error, self.known.secrets)
                line = self.known.secrets.line(error)
                said = "task %s has failed and will not recover until it is restarted: %s"
                state_changed(log, logging.ERROR, "task-failed", str(self.id), said, self.id, line)
                log.debug("task %s: %s", self.id, failure.trace)
                self._report(State.FAILED, failure)
                return
            log.warning("task %s failed while it stopped: %s", self.id, self.known.secrets.mask(str(error)))
        self._report(State.UNASSIGNED)

    async def _live(self) -> None:
        if self.control.is_paused:
            self._report(State.PAUSED)
        if not await self.control.unpaused():
            return
        work = self._work = await self._make(self)
        try:
            await work.start()
            self._report(State.RUNNING)
            await work.execute(self.control, self._report)
        finally:
            await self._close(work)

    async def _leave(self, work: task_control.TaskRun) -> None:
        try:
            await work.abandon()
        except Exception as error:
            log.error("task %s: could not be closed once abandoned: %s", self.id, self.known.secrets.line(error))

    async def _close(self, work: task_control.TaskRun) -> None:
        if not self._abandoned:
            try:
                await work.close(CLOSE_S)
                return
            except asyncio.CancelledError:
                # Abandoned while it closed; its resources are closed all the same.
                await work.close(0)
                raise
        await work.close(0)

    def _report(self, state: State, failure: task_control.FailureTrace | None = None) -> None:
        if self._abandoned:
            return
        self._reported(state)
        self.counters.changed(state)
        self._listener.reported(self.id, state, failure, self.known.version)
