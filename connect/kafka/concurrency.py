"""Waiting for work that an event ends, and doing one thing for many, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")
One = TypeVar("One")

_AT_ONCE: Final = 16


async def unless(
    event: asyncio.Event, work: Coroutine[Any, Any, T], name: str, timeout_s: float | None = None
) -> T | None:
    """Return what ``work`` returns; None, with the work cancelled, if ``event`` is set first or it takes too long."""
    doing = asyncio.create_task(work, name=name)
    waiting = asyncio.create_task(event.wait(), name=f"stop of {name}")
    try:
        await asyncio.wait({doing, waiting}, timeout=timeout_s, return_when="FIRST_COMPLETED")
        return doing.result() if doing.done() else None
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)


async def gather_limited(look: Callable[[One], Awaitable[T]], these: Iterable[One], at_once: int = _AT_ONCE) -> list[T]:
    """Return what ``look`` finds of each, in their order. Raises what it first raises, once nothing of it runs."""
    asking = asyncio.Semaphore(at_once)

    async def ask(one: One) -> T:
        async with asking:
            return await look(one)

    tasks = [asyncio.create_task(ask(one), name="look at one of many") for one in these]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_turns(these: Iterable[One], at_once: int) -> AsyncIterator[One]:
    """Give them one by one, as they are now, and let others of the loop have their turn after every ``at_once``."""
    for number, one in enumerate(list(these), 1):
        yield one
        if not number % at_once:
            await asyncio.sleep(0)
