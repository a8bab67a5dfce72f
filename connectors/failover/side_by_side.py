"""Partitions looked at side by side: one after the other thousands of them take hours, for each has its own reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

One = TypeVar("One")
Found = TypeVar("Found")

#: Each with connections of its own to the brokers.
_AT_ONCE: Final = 16


async def side_by_side(look: Callable[[One], Awaitable[Found]], these: Iterable[One]) -> list[Found]:
    """What ``look`` finds of each, in their order. Raises what it first raises, once nothing of it runs any more."""
    asking = asyncio.Semaphore(_AT_ONCE)

    async def ask(one: One) -> Found:
        async with asking:
            return await look(one)

    tasks = [asyncio.create_task(ask(one), name="look at one of many") for one in these]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
