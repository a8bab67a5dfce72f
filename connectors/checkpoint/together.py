"""What is done for many groups side by side, with one end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


async def together(these: Iterable[Awaitable[_T]]) -> list[_T]:
    """What each of them finds, in their order. Raises the first error of any, once all have ended: who comes next finds
    none of them at work."""
    found: list[_T] = []
    for one in await asyncio.gather(*these, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found
