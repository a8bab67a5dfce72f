"""A task that owns its engine: run until told to stop; a pause is an engine that was stopped, going on a new one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from connect.api.source import EngineTask, SourceConnector
from connect.core.model import State, TaskId
from connect.kafka.concurrency import Scope
from connect.runtime.control import TaskControl
from connect.runtime.error_handling import Interrupted
from connect.runtime.offsets import ConnectorOffsets
from connect.runtime.plugin_calls import plugin_call
from connect.runtime.source_task import TaskContext
from connect.runtime.work import Tell

log = logging.getLogger(__name__)

Check = Callable[[], Awaitable[None]]


class EngineWork:
    """Implements :class:`connect.runtime.work.Work`; each engine is a new task of ``connector``.

    ``before`` and ``after`` are those of :class:`connect.runtime.exactly_once.ExactlyOnce`; what stands between them
    there, claiming the transactional id, is the engine's own affair here, and so it is the engine that asks ``after``.
    """

    def __init__(
        self,
        task_id: TaskId,
        connector: SourceConnector,
        context: TaskContext,
        offsets: ConnectorOffsets,
        *,
        before: Check | None,
        after: Check | None,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._id = task_id
        self._connector = connector
        self._context = context
        self._offsets = offsets
        self._before = before
        self._after = after
        self._is_stopping = is_stopping
        self._engine: EngineTask | None = None
        self._is_ended = True

    async def start(self) -> None:
        if self._before is not None:
            await self._before()
        if self._is_stopping():
            raise Interrupted
        self._engine = self._new()

    async def execute(self, control: TaskControl, tell: Tell) -> None:
        while not control.is_stopping:
            if control.is_paused:
                tell(State.PAUSED)
                if not await control.unpaused():
                    return
                self._engine = self._new()
                tell(State.RUNNING)
            elif self._engine is None:
                self._engine = self._new()
            told = await self._run(self._engine, control)
            self._engine = None
            # Who was told to may have been told for a pause that is over by now.
            if not (told or control.is_paused):
                return

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        if self._engine is None or self._is_ended or not self._engine.reconfigure(props):
            return False
        # For the engine after a pause.
        self._context = replace(self._context, configs=props)
        return True

    async def close(self, timeout_s: float) -> None:
        # An engine has ended when its run has.
        await self._offsets.close(timeout_s)

    async def abandon(self) -> None:
        await self._offsets.close(0)

    def _new(self) -> EngineTask:
        engine = self._connector.make_task()
        assert isinstance(engine, EngineTask)
        engine.initialize(self._context)
        engine.check_newest = self._after
        return engine

    async def _run(self, engine: EngineTask, control: TaskControl) -> bool:
        """One engine, until it ends by itself or is told to; whether it was told."""
        self._is_ended = False
        told = False
        try:
            async with Scope(f"task {self._id}") as scope:
                running = scope.spawn(_run(engine), f"engine of {self._id}")
                while not running.done():
                    if (control.is_stopping or control.is_paused) and not told:
                        told = True
                        engine.stop()
                    async with Scope(f"task {self._id}") as waiting:
                        wish = waiting.spawn(control.changed(), f"wishes for {self._id}")
                        await asyncio.wait({running, wish}, return_when=asyncio.FIRST_COMPLETED)
                await running
            return told
        finally:
            self._is_ended = True


async def _run(engine: EngineTask) -> None:
    with plugin_call("its engine"):
        await engine.run()
