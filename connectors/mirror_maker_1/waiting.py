"""Waiting for one thing, unless something else happens first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
