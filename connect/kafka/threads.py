"""Runs threads with event loops: the lease thread of a worker, and a thread for each blocking plugin.

* The lease thread sends heartbeats and renews the leases of slices on time, even if the worker's loop is busy. If the
  main loop does not run for ``worker.progress.timeout.ms``, the thread stops renewing, so that other workers take over,
  as consumers do after ``max.poll.interval.ms``.
* Plain functions of a connector or task may block, so each connector or task that has them gets a thread.
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
from typing import Any, Final, Protocol, Self, TypeVar

from connect.api.source import SourceTask
from connect.kafka.concurrency import Scope, is_set_within, settle

T = TypeVar("T")

#: How often both loops record that they run.
BEAT_S: Final = 0.25
#: Neither loop waits longer than this for the CPU, unless the whole process or machine is frozen.
STILL_S: Final = 1.0
#: A running process uses at least this share of the time, even in C code that holds the GIL; a frozen one does not.
_LEAST_USED: Final = 0.1
_STOP_S: Final = 2.0
_NOT_STARTED: Final = "the lease thread was not started"


class LeaseLoop(Protocol):
    """The loop that renews leases, as users of the thread see it."""

    @property
    def may_renew(self) -> bool:
        """Whether the main loop has run within its limit."""

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the lease thread; return its result or raise its error."""

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` in the lease thread, soon and in order."""

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` in the main loop, soon and in order; for use in the lease thread."""


class LeaseThread:
    """The lease thread, described in the module docstring. Costs eight timers per second. ``longest_beat_s`` is the
    longest time between two iterations of the thread, ``longest_stall_s`` the longest delay of the main loop. Freezes
    of the whole process count for neither. ``progress_timeout_s``: how long the main loop may be blocked before
    renewals stop."""

    def __init__(self, progress_timeout_s: float) -> None:
        self.longest_beat_s = 0.0
        self.longest_stall_s = 0.0
        #: When the main loop last ran, and when the process last resumed after a freeze.
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
        """How long the main loop has been blocked, not counting a freeze of the process."""
        return time.monotonic() - max(self.moved_s, self.thawed_s)

    @property
    def may_renew(self) -> bool:
        return self.still_s < self._progress_timeout_s

    def start(self) -> None:
        """Start the thread, with the running loop as the main loop."""
        self._main = asyncio.get_running_loop()
        self.moved_s = self.thawed_s = self._looked_s = time.monotonic()
        self._used_s = time.process_time()
        self._loop = asyncio.new_event_loop()
        self._tick()
        self._thread = threading.Thread(target=self._work, args=(self._loop,), name="leases", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread, if it was started, and everything that runs in it. Harmless when repeated."""
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

    def post(self, function: Callable[..., object], *args: object) -> None:
        assert self._main is not None, _NOT_STARTED
        self._main.call_soon_threadsafe(function, *args)

    # -- in the main loop ------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s, used_s = time.monotonic(), time.process_time()
        unmoved_s = now_s - self.moved_s
        # If the thread did not run either, its next iteration will find out whether the process was frozen.
        both_unmoved = now_s - self._looked_s > STILL_S
        is_frozen = self.thawed_s > self.moved_s or (both_unmoved and _was_frozen(unmoved_s, used_s - self._used_s))
        if not is_frozen:
            self.longest_stall_s = max(self.longest_stall_s, unmoved_s - BEAT_S)
        self.moved_s, self._used_s = now_s, used_s
        assert self._main is not None, _NOT_STARTED
        self._timer = self._main.call_later(BEAT_S, self._tick)

    # -- in the thread ---------------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._turn())

    async def _turn(self) -> None:
        used_s = time.process_time()
        while not await is_set_within(self._over, BEAT_S):
            now_s, used_before_s, used_s = time.monotonic(), used_s, time.process_time()
            unmoved_s, self._looked_s = now_s - self._looked_s, now_s
            if _was_frozen(unmoved_s, used_s - used_before_s):
                self.thawed_s = now_s
            else:
                self.longest_beat_s = max(self.longest_beat_s, unmoved_s)


def _was_frozen(unmoved_s: float, used_s: float) -> bool:
    return unmoved_s > STILL_S and used_s < unmoved_s * _LEAST_USED


#: Default methods of the API do not block.
_DEFAULTS: Final = SourceTask.__module__


@dataclass(frozen=True, slots=True)
class _Call:
    run: Callable[[], Any]
    outcome: asyncio.Future[Any]
    always: bool


class PluginThread:
    """Calls functions of one connector or task: coroutine functions in the loop, plain ones in a daemon thread. Plain
    functions run one after another. The first call starts the thread, and a call that hangs delays neither the loop nor
    the end of the process. ``name`` is the thread's name. As a context manager it is closed at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ident: int | None = None
        self._scope = Scope(name)

    async def call(self, function: Callable[..., Any], *args: Any, always: bool = False) -> Any:
        """Return the result of ``function`` or raise its error. If this is cancelled, a running plain function
        continues and its result is dropped; a waiting one is not called, unless ``always`` is set. Raises RuntimeError
        for a plain function once this is closed."""
        if inspect.iscoroutinefunction(function) or getattr(function, "__module__", None) == _DEFAULTS:
            found = function(*args)
        else:
            found = await self._in_thread(contextvars.copy_context(), function, args, always)
        return await found if inspect.isawaitable(found) else found

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run ``asked`` in the loop and return its result; for functions that run in the thread. Raises RuntimeError in
        the loop itself: await ``asked`` there."""
        loop = self._loop
        if loop is None or threading.get_ident() != self._ident:
            asked.close()
            raise RuntimeError(f"{self._name}: wait_for was called outside its thread; await the coroutine instead")
        answer: Future[T] = Future()
        loop.call_soon_threadsafe(self._answer, asked, answer)
        return answer.result()

    async def close(self) -> None:
        """Let the thread end after the calls made so far and cancel what it waits for, without waiting for its end."""
        self._calls.put(None)
        await self._scope.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _in_thread(
        self, context: contextvars.Context, function: Callable[..., Any], args: tuple[Any, ...], always: bool
    ) -> Any:
        if self._scope.is_closed:
            raise RuntimeError(f"{self._name} is closed and accepts no more calls")
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
            except (StopIteration, KeyboardInterrupt) as ended:  # futures reject the first, the second ends the loop
                error = RuntimeError(f"it raised {ended!r}")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(settle, call.outcome, found, error)

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
