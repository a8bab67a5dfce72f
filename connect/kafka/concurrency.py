"""Starts asyncio tasks in scopes, waits between retries, and reads the wall clock.

* Each task belongs to a scope, which ends it. Only this module starts tasks (``make check`` enforces it).
* Retries wait longer each time, and the reason of each wait is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

from connect.core.errors import RetriableError

log = logging.getLogger(__name__)

T = TypeVar("T")
One = TypeVar("One")

_AT_ONCE: Final = 16
#: How long a loop over many items keeps the event loop at a time.
_TURN_S: Final = 0.002
#: How often a close checks whether tasks have ended or moved on; it gives up after a check without a change.
_STUCK_S: Final = 10.0


class Scope:
    """Tasks that end when the scope is closed, or earlier. ``name`` is the prefix of its log lines. As a context
    manager it is closed at the end of the block, whatever ends the block."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    def spawn(
        self, work: Coroutine[Any, Any, T], name: str, failed: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[T]:
        """Start ``work``; ``failed`` is called with the error that ends it. Raises RuntimeError once the scope is
        closed; then ``work`` does not run."""
        if self.is_closed:
            work.close()
            raise RuntimeError(f"{self.name}: {name} was not started, because its scope is closed")
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if failed is not None:
            task.add_done_callback(partial(_report, failed))
        return task

    def cancel(self) -> None:
        """Cancel the tasks without waiting for them."""
        for task in self.tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel the tasks once and return when they have ended. Harmless when repeated, even by one of the tasks. A
        clean-up may take any time while it moves from one await to another. Slow tasks are logged; a task that stays at
        the same await is left behind."""
        self.is_closed = True
        left = self.tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        unmoved: dict[asyncio.Task[Any], list[object]] = {}
        named: set[str] = set()
        while left:
            done, left = await asyncio.wait(left, timeout=_STUCK_S)
            for task in done:
                if not task.cancelled():
                    task.exception()  # its owner has retrieved it by now, or the cancellation caused it
            if done:
                continue
            names = {task.get_name() for task in left}
            before, unmoved = unmoved, {task: _waits(task) for task in left}
            if unmoved == before:
                log.error("%s: still running after a cancel: %s", self.name, ", ".join(sorted(names)))
                return
            if names - named:
                log.warning("%s: slow to stop: %s", self.name, ", ".join(sorted(names - named)))
                named |= names

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _report(failed: Callable[[BaseException], None], task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        failed(error)


def _waits(task: asyncio.Task[Any]) -> list[object]:
    """Return the task's coroutines, outermost first, and what the innermost awaits: each await has its own object."""
    found: list[object] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        found.append(awaited)
        awaited = getattr(awaited, "cr_await", None)
    return found


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until ``event`` is set, for ``timeout_s`` at most; return whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()


async def unless(
    event: asyncio.Event, work: Coroutine[Any, Any, T], name: str, timeout_s: float | None = None
) -> T | None:
    """Return the result of ``work``; cancel it and return None if ``event`` is set first or ``timeout_s`` passes."""
    async with Scope(name) as scope:
        doing = scope.spawn(work, name)
        waiting = scope.spawn(event.wait(), f"stop of {name}")
        await asyncio.wait({doing, waiting}, timeout=timeout_s, return_when="FIRST_COMPLETED")
        return doing.result() if doing.done() else None


async def gather_limited(look: Callable[[One], Awaitable[T]], these: Iterable[One], at_once: int = _AT_ONCE) -> list[T]:
    """Return the result of ``look`` for each item, in order. Raises the first error, once no call is running."""
    asking = asyncio.Semaphore(at_once)

    async def ask(one: One) -> T:
        async with asking:
            return await look(one)

    return await together("look at many", [ask(one) for one in these])


async def in_turns(these: Iterable[One]) -> AsyncIterator[One]:
    """Yield the items, and let other tasks on the loop run after each turn of 2 ms. Those tasks may do anything that
    iterating over ``these`` allows."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + _TURN_S
    for one in these:
        yield one
        if clock() >= until_s:
            await asyncio.sleep(0)
            until_s = clock() + _TURN_S


async def together(name: str, works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``works`` concurrently and return their results. Raises the first error, once none is running."""
    async with Scope(name) as scope:
        return await asyncio.gather(*[scope.spawn(work, name) for work in works])


async def first_of(name: str, *works: Coroutine[Any, Any, object]) -> None:
    """Run ``works`` until the first has ended, and cancel the others. Raises its error."""
    async with Scope(name) as scope:
        running = [scope.spawn(work, name) for work in works]
        await asyncio.wait(running, return_when="FIRST_COMPLETED")
        for task in running:
            if task.done():
                task.result()


#: A failure that lasts longer deserves a warning; before, it is usually a leader election.
_WARN_AFTER_S: Final = 2.0
_SAY_AGAIN_S: Final = 60.0
#: Java's ``CommonClientConfigs.RETRY_BACKOFF_JITTER`` (KIP-580): clients do not all retry at the same time.
_JITTER: Final = 0.2


#: Pauses of :func:`until`.
_FIRST_PAUSE_S: Final = 0.02
_LAST_PAUSE_S: Final = 0.5


class Pauses:
    """The pauses between attempts: each is twice as long as the one before, up to ``last_s``."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = self._pause_s = first_s
        self._last_s = max(first_s, last_s)

    def over(self) -> None:
        """Record a success: the next failure starts with the first pause."""
        self._pause_s = self._first_s

    def next_s(self) -> float:
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._last_s)
        return pause_s

    async def wait(self) -> None:
        await asyncio.sleep(self.next_s())


class Backoff(Pauses):
    """The pauses between attempts at one operation; ``what`` starts each log line. Attempts of the first two seconds
    are logged at DEBUG, because brokers that are starting refuse dozens of them. After that each reason is logged once
    a minute, and the end of a failure that was logged."""

    def __init__(self, log: logging.Logger, what: str, first_ms: float, last_ms: float) -> None:
        super().__init__(first_ms / 1000, last_ms / 1000)
        self._log = log
        self._what = what
        self._began_s: float | None = None
        self._said: tuple[str, float] | None = None

    def over(self) -> None:
        super().over()
        if self._said is not None:
            self._log.info("%s: no longer fails", self._what)
        self._began_s = self._said = None

    async def after(self, error: Exception) -> None:
        """Log why an attempt failed, and wait before the next one."""
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s if self._began_s is None else self._began_s
        reason, is_due = str(error), self._said is None or now_s - self._said[1] >= _SAY_AGAIN_S
        level = logging.DEBUG
        if now_s - self._began_s >= _WARN_AFTER_S and (is_due or self._said is None or self._said[0] != reason):
            level, self._said = logging.WARNING, (reason, now_s)
        self._log.log(level, "%s: %s; retrying", self._what, error)
        await asyncio.sleep(self.next_s() * random.uniform(1 - _JITTER, 1 + _JITTER))


async def retried(attempt: Callable[[], Awaitable[T]], wait: Callable[[RetriableError], Awaitable[object]]) -> T:
    """Repeat ``attempt`` after retriable errors, each passed to ``wait``, which waits or raises."""
    while True:
        try:
            return await attempt()
        except RetriableError as error:
            failed = error
        await wait(failed)


async def until(timeout_s: float, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``attempt`` after retriable errors, with growing pauses, for ``timeout_s``; then raise RetriableError."""
    pauses, reason = Pauses(_FIRST_PAUSE_S, _LAST_PAUSE_S), "no answer"

    async def wait(error: RetriableError) -> None:
        nonlocal reason
        if str(error) != reason:
            log.debug("%s: %s; retrying", what, error)
        reason = str(error)
        await pauses.wait()

    try:
        async with asyncio.timeout(timeout_s):
            return await retried(attempt, wait)
    except TimeoutError as error:
        raise RetriableError(f"{what}: not done within {timeout_s:g} s; {reason}") from error


class Closes(Protocol):
    async def close(self) -> None: ...


@contextlib.asynccontextmanager
async def closing(*opened: Closes) -> AsyncIterator[None]:
    """Close these at the end of the block, the last first, whatever ends it."""
    async with contextlib.AsyncExitStack() as stack:
        for one in opened:
            stack.push_async_callback(one.close)
        yield


@contextlib.asynccontextmanager
async def within(timeout_s: float, missed: str) -> AsyncIterator[None]:
    """Limit the time of a block. Raises RetriableError, ``missed`` and the time, when it is over."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise RetriableError(f"{missed} within {timeout_s:g} s") from error


def settle(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """Complete a future with an error, or else with a result, unless it is done."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def wall_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
