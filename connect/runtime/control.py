"""What a running task is told from outside: to pause, to go on, to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from connect.core.model import TargetState


class TaskControl:
    """The wishes for one task. A target of STOPPED, which tasks should never get, is taken as a wish to stop."""

    def __init__(self, target: TargetState) -> None:
        self.stopping = asyncio.Event()
        self._target = target
        self._changed = asyncio.Event()
        self._scope: asyncio.Timeout | None = None
        self.set_target(target)

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    @property
    def is_paused(self) -> bool:
        return self._target is TargetState.PAUSED and not self.is_stopping

    def set_target(self, target: TargetState) -> None:
        """What the task is to do; without effect once it is to stop."""
        if self.is_stopping:
            return
        self._target = target
        self._changed.set()
        if target is TargetState.STOPPED:
            self.stop()

    def stop(self) -> None:
        """The task is to end soon and cleanly."""
        self.stopping.set()
        self._changed.set()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def changed(self) -> None:
        """Wait for the next wish after the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def unpaused(self) -> bool:
        """Wait while the task is to pause; False: it is to stop."""
        while self.is_paused:
            await self.changed()
        return not self.is_stopping

    async def unless_stopped(self, doing: Callable[[], Awaitable[None]]) -> bool:
        """Await ``doing``, which is given up when the task is to stop; False then."""
        with self.ended_by_stop() as scope:
            try:
                async with scope:
                    await doing()
            except TimeoutError:
                if not scope.expired():
                    raise
                return False
        return True

    @contextmanager
    def ended_by_stop(self) -> Iterator[asyncio.Timeout]:
        """Lends a time-out scope for one wait that is given up when the task is to stop."""
        self._scope = asyncio.timeout(0 if self.is_stopping else None)
        try:
            yield self._scope
        finally:
            self._scope = None
