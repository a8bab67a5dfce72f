"""The thread of a connector or a task whose author wrote plain functions, which may block."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from connect.api.source import SourceTask
from connect.kafka.concurrency import Scope

T = TypeVar("T")

#: What an author did not write does not block.
_DEFAULTS: Final = SourceTask.__module__


@dataclass(frozen=True, slots=True)
class _Call:
    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    always: bool


class PluginThread:
    """Calls functions of one connector or task: coroutine functions in the loop, plain ones in a daemon thread.

    Plain ones run one after the other. The thread starts with the first of them, and a call that hangs delays neither
    the loop nor the end of the process. ``name`` is that of the thread. As a context manager it is closed at the end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ident: int | None = None
        self._scope = Scope(name)

    async def call(self, function: Callable[..., Any], *args: Any, always: bool = False) -> Any:
        """Return what ``function`` returns, or raise what it raises.

        Cancelled, a plain function that has begun goes on, and what it returns is dropped. One that waits its turn is
        not called then, unless ``always`` is set. Raises RuntimeError for a plain one once this is closed.
        """
        if inspect.iscoroutinefunction(function) or getattr(function, "__module__", None) == _DEFAULTS:
            found = function(*args)
        else:
            found = await self._in_thread(contextvars.copy_context(), function, args, always)
        return await found if inspect.isawaitable(found) else found

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run ``asked`` in the loop and return what it returns; for functions that run in the thread.

        Raises RuntimeError in the loop itself: await ``asked`` there.
        """
        loop = self._loop
        if loop is None or threading.get_ident() != self._ident:
            asked.close()
            raise RuntimeError(f"{self._name}: wait_for was called outside of its thread; await the coroutine instead")
        answer: Future[T] = Future()
        loop.call_soon_threadsafe(self._answer, asked, answer)
        return answer.result()

    async def close(self) -> None:
        """Let the thread end after the calls that were made before, and end what it waits for. Not waited for."""
        self._calls.put(None)
        await self._scope.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _in_thread(
        self, context: contextvars.Context, function: Callable[..., Any], args: tuple[Any, ...], always: bool
    ) -> Any:
        if self._scope.is_closed:
            raise RuntimeError(f"{self._name} has ended, and calls nothing any more")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True).start()
        outcome: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put(_Call(lambda: context.run(function, *args), outcome, always))
        return await outcome

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ident = threading.get_ident()
        while (call := self._calls.get()) is not None:
            if call.outcome.cancelled() and not call.always:
                continue
            found: Any = None
            error: BaseException | None = None
            try:
                found = call.run()
            except (StopIteration, KeyboardInterrupt) as ended:  # no future takes the one, the other ends the loop
                error = RuntimeError(f"it raised {ended!r}")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no one waits any more
                loop.call_soon_threadsafe(_settle, call.outcome, found, error)

    def _answer(self, asked: Coroutine[Any, Any, T], answer: Future[T]) -> None:
        def done(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                answer.set_exception(RuntimeError(f"{self._name} is closed"))
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        try:
            self._scope.spawn(asked, f"asked by {self._name}").add_done_callback(done)
        except RuntimeError as error:
            answer.set_exception(error)


def _settle(outcome: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(found)
