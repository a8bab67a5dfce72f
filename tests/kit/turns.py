"""How often others of the loop have their turn while something runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar
from unittest.mock import patch

from connect.kafka import concurrency

T = TypeVar("T")


async def turns_during(work: Awaitable[T]) -> tuple[int, T]:
    """The turns that another task had, and what ``work`` returned; ``in_turns`` ends a turn with each item here."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns(), name="another task")
    try:
        with patch.object(concurrency, "_TURN_S", 0.0):
            found = await work
    finally:
        other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other
    return turns, found
