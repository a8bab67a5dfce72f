"""One task on this worker, from its start to its end (Kafka's ``WorkerTask``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from connect.core.model import State, TargetState, TaskId
from connect.kafka.concurrency import Scope
from connect.runtime.control import TaskControl
from connect.runtime.counters import Starts, TaskCounters
from connect.runtime.delivery import CLOSE_S
from connect.runtime.error_handling import Interrupted
from connect.runtime.known import Known
from connect.runtime.listener import Failure, WorkerListener
from connect.runtime.plugin_calls import plugin_call
from connect.runtime.work import Work

log = logging.getLogger(__name__)

#: Makes what is run.
Make = Callable[["TaskRunner"], Awaitable[Work]]


class TaskRunner:
    """Runs one task in an asyncio task of its own. ``counters`` and ``state`` are for whoever looks on."""

    def __init__(self, task: TaskId, make: Make, target: TargetState, listener: WorkerListener, starts: Starts) -> None:
        self.id = task
        self.counters = TaskCounters()
        self.control = TaskControl(target)
        self.known = Known()
        #: As last told.
        self.state = State.UNASSIGNED
        self._make = make
        self._listener = listener
        self._starts: Starts | None = starts
        self._abandoned = False
        self._work: Work | None = None
        self._scope = Scope(f"task {task}")
        self._running: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start to run; the task ends when all is down, and never raises."""
        self._running = self._scope.spawn(self._run(), f"task {self.id}")
        return self._running

    def reconfigure(self, make_props: Callable[[], Mapping[str, str]]) -> bool:
        """Let it take a new config as it runs; False: it cannot, and is to be started anew."""
        if self._work is None or self.state is not State.RUNNING or self.control.is_stopping or self.control.is_paused:
            return False
        try:
            with plugin_call(f"task {self.id}"):
                return self._work.reconfigure(make_props())
        except Exception as error:
            log.warning("task %s is restarted for its new config: %s", self.id, self.known.secrets.line(error))
            return False

    def stop(self) -> None:
        """Wind up; the task of :meth:`begin` ends with it."""
        self.control.stop()

    def abandon(self) -> None:
        """It was given time enough: nothing more is told of it, and nothing more sent or stored, even if the task does
        not heed being cancelled."""
        if self._abandoned:
            return
        self._abandoned = True
        if self._running is not None:
            self._running.cancel()
        if self._work is not None:
            self._leaving = self._scope.spawn(self._leave(self._work), f"task {self.id}, abandoned")

    def unfinished(self) -> list[asyncio.Task[None]]:
        """What of it still runs."""
        return [each for each in (self._running, self._leaving) if each is not None and not each.done()]

    async def _run(self) -> None:
        try:
            with plugin_call(f"task {self.id}"):
                await self._live()
        except Interrupted:
            pass
        except Exception as error:
            if not self.control.is_stopping:
                failure = Failure.of(error, self.known.secrets)
                line = self.known.secrets.line(error)
                log.error("task %s has failed and will not recover until it is restarted: %s", self.id, line)
                log.debug("task %s: %s", self.id, failure.trace)
                self._tell(State.FAILED, failure)
                return
            log.warning("task %s was to stop and failed over it: %s", self.id, self.known.secrets.mask(str(error)))
        self._tell(State.UNASSIGNED)

    async def _live(self) -> None:
        if self.control.is_paused:
            self._tell(State.PAUSED)
        if not await self.control.unpaused():
            return
        work = self._work = await self._make(self)
        try:
            await work.start()
            self._tell(State.RUNNING)
            await work.execute(self.control, self._tell)
        finally:
            await self._close(work)

    async def _leave(self, work: Work) -> None:
        try:
            await work.abandon()
        except Exception as error:
            log.error("task %s, abandoned: it could not be let go of: %s", self.id, self.known.secrets.line(error))

    async def _close(self, work: Work) -> None:
        if not self._abandoned:
            try:
                await work.close(CLOSE_S)
                return
            except asyncio.CancelledError:
                # Given up while it closed; what it holds is closed all the same.
                await work.close(0)
                raise
        await work.close(0)

    def _tell(self, state: State, failure: Failure | None = None) -> None:
        if self._abandoned:
            return
        if self._starts is not None:
            # The first that is told says how the start went.
            self._starts.ended(well=state is not State.FAILED)
            self._starts = None
        self.state = state
        self.counters.changed(state)
        self._listener.task_changed(self.id, state, failure, self.known.version)
