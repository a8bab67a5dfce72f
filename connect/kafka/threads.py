"""Runs threads with event loops: the lease thread of a worker, and a thread for each blocking plugin.

* The lease thread sends heartbeats and renews the leases of slices on time, even if the worker's loop is busy. When the
  main loop has not turned for ``worker.progress.timeout.ms``, the thread stops renewing, so that other workers take the
  work over, as Kafka's consumers do after ``max.poll.interval.ms``.
* A connector or a task whose author wrote plain functions, which may block, has a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from connect.api.source import SourceTask
from connect.kafka.concurrency import Scope

T = TypeVar("T")

#: Of both loops: how often each shows that it turns.
BEAT_S: Final = 0.25
#: Longer than this neither loop waits for the processor, unless all of the process or the machine is frozen.
STILL_S: Final = 1.0
#: A process that ran used so much of the time or more, also in C code that keeps Python's lock; a frozen one did not.
_LEAST_USED: Final = 0.1
_STOP_S: Final = 2.0
_NOT_STARTED: Final = "the lease thread was not started"


class LeaseLoop(Protocol):
    """Where leases are renewed, as users of the thread see it."""

    @property
    def may_renew(self) -> bool:
        """Whether the main loop has turned within its limit."""
        ...

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the lease thread; return what it returns, raise what it raises."""
        ...

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` in the lease thread, soon and in order."""
        ...

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """From the lease thread: call ``function`` in the main loop, soon and in order."""
        ...


class LeaseThread:
    """See the module. Costs eight timers a second.

    ``longest_beat_s`` and ``longest_stall_s``: the longest time between two turns of the thread, and for how long the
    main loop came late at most. What freezes the whole process counts for neither.

    Args:
        progress_timeout_s: How long the main loop may stand still before nothing is renewed.
    """

    def __init__(self, progress_timeout_s: float) -> None:
        self.longest_beat_s = 0.0
        self.longest_stall_s = 0.0
        #: When the main loop turned last; and when the process ran again after a freeze.
        self.moved_s = self.thawed_s = self._looked_s = time.monotonic()
        self._progress_timeout_s = progress_timeout_s
        self._used_s = time.process_time()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._main: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    @property
    def still_s(self) -> float:
        """For how long the main loop has stood still, from when the process ran."""
        return time.monotonic() - max(self.moved_s, self.thawed_s)

    @property
    def may_renew(self) -> bool:
        return self.still_s < self._progress_timeout_s

    def start(self) -> None:
        """Begin, for the running loop as the main one."""
        self._main = asyncio.get_running_loop()
        self.moved_s = self.thawed_s = self._looked_s = time.monotonic()
        self._used_s = time.process_time()
        self._loop = asyncio.new_event_loop()
        self._tick()
        self._thread = threading.Thread(target=self._work, args=(self._loop,), name="leases", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread, if it was started, and whatever still runs in it. Harmless when repeated."""
        thread, self._thread = self._thread, None
        if thread is not None and self._timer is not None:
            self._timer.cancel()
            self.call(self._over.set)
            await asyncio.to_thread(thread.join, _STOP_S)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, _NOT_STARTED
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, function: Callable[..., object], *args: object) -> None:
        assert self._loop is not None, _NOT_STARTED
        self._loop.call_soon_threadsafe(function, *args)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        assert self._main is not None, _NOT_STARTED
        self._main.call_soon_threadsafe(function, *args)

    # -- in the main loop ------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s, used_s = time.monotonic(), time.process_time()
        stood_s = now_s - self.moved_s
        # If the thread did not run either, its next turn is about to find out whether the process was frozen.
        both_stood = now_s - self._looked_s > STILL_S
        is_frozen = self.thawed_s > self.moved_s or (both_stood and _was_frozen(stood_s, used_s - self._used_s))
        if not is_frozen:
            self.longest_stall_s = max(self.longest_stall_s, stood_s - BEAT_S)
        self.moved_s, self._used_s = now_s, used_s
        assert self._main is not None, _NOT_STARTED
        self._timer = self._main.call_later(BEAT_S, self._tick)

    # -- in the thread ---------------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._turn())

    async def _turn(self) -> None:
        used_s = time.process_time()
        while not self._over.is_set():
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._over.wait()
            except TimeoutError:
                now_s, used_before_s, used_s = time.monotonic(), used_s, time.process_time()
                stood_s, self._looked_s = now_s - self._looked_s, now_s
                if _was_frozen(stood_s, used_s - used_before_s):
                    self.thawed_s = now_s
                else:
                    self.longest_beat_s = max(self.longest_beat_s, stood_s)


def _was_frozen(stood_s: float, used_s: float) -> bool:
    return stood_s > STILL_S and used_s < stood_s * _LEAST_USED


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
