"""Find reports that take long in threads of their own, and give each again for a few seconds.

A plan of thousands of groups or topics takes longer than the worker's loop may stand still, so each is made in a thread
with a loop and connections of its own. The thread does not delay the end of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from connect.core.errors import ConfigError, RetriableError
from connect.kafka.threads import PluginThread

T = TypeVar("T")

#: Less than the time limit of a report, so that the message is ours.
_WITHIN_S: Final = 50.0
#: Threads at a time.
_AT_ONCE: Final = 4
#: The highest ``top``.
_MOST_ROWS: Final = 1000


@dataclass(slots=True)
class _Kept:
    finding: asyncio.Lock = field(default_factory=asyncio.Lock)
    found: Any = None
    until_s: float = 0.0


class KeptReports:
    """The reports of a worker, by a key that says what was asked."""

    def __init__(self) -> None:
        self._kept: dict[object, _Kept] = {}
        self._threads = asyncio.Semaphore(_AT_ONCE)

    async def get(self, key: object, fresh_s: float, find: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what ``find`` returned at most ``fresh_s`` ago; concurrent callers with the same ``key`` share it.

        Errors of ``find`` are raised and not kept. Raises RetriableError if it takes too long.
        """
        now_s = time.monotonic()
        self._kept = {of: one for of, one in self._kept.items() if one.until_s > now_s or one.finding.locked()}
        kept = self._kept.setdefault(key, _Kept())
        async with kept.finding:
            if time.monotonic() >= kept.until_s:
                async with self._threads, PluginThread("a report") as thread:
                    kept.found = await thread.call(lambda: asyncio.run(_within(find)))
                kept.until_s = time.monotonic() + fresh_s
            found: T = kept.found
            return found


async def _within(find: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        async with asyncio.timeout(_WITHIN_S) as timeout:
            return await find()
    except TimeoutError:
        if not timeout.expired():
            raise
        raise RetriableError(f"the clusters gave no answer within {_WITHIN_S:.0f} s. Try again") from None


def rows_asked(top: str, most: int = _MOST_ROWS) -> int:
    """Return how many rows the query ``top`` of a report asks for, at most ``most``. Raises ConfigError."""
    if not (top.isascii() and top.isdigit()):
        raise ConfigError(f"top is '{top[:20]}'; it has to be the number of rows to show, such as 20", "top")
    return min(int(top[:10]), most)
