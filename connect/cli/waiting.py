"""Work that a signal interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def unless_stopped(work: Awaitable[None], stop: asyncio.Event, name: str) -> bool:
    """Awaits ``work``, or cancels it as soon as ``stop`` is set; True if it was finished."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait(), name=f"stop during {name}")
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
