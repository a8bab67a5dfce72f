"""Waiting between attempts at something that is tried until it works: longer each time, and said."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

#: What has not worked for so long is worth a warning; before, it is a leader that is just being elected.
_WARN_AFTER_S: Final = 2.0
#: Java's ``CommonClientConfigs.RETRY_BACKOFF_JITTER`` (KIP-580): many clients do not come again at the same time.
_JITTER: Final = 0.2


class Patience:
    """The pauses of one attempt that is repeated. ``what`` begins each line of the log, ``last_ms`` ends the growth."""

    def __init__(self, log: logging.Logger, what: str, first_ms: float, last_ms: float) -> None:
        self._log = log
        self._what = what
        self._first_ms = first_ms
        self._last_ms = max(first_ms, last_ms)
        self._pause_ms = first_ms
        self._began_s: float | None = None

    def over(self) -> None:
        """It has worked: the next failure begins with the first pause."""
        self._pause_ms = self._first_ms
        self._began_s = None

    async def after(self, error: Exception) -> None:
        """Say why it did not work, and wait for the next attempt."""
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s if self._began_s is None else self._began_s
        if now_s - self._began_s < _WARN_AFTER_S:
            self._log.info("%s: %s; trying again", self._what, error)
        else:
            self._log.warning("%s: %s; trying again", self._what, error)
        pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, self._last_ms)
        await asyncio.sleep(pause_ms / 1000 * random.uniform(1 - _JITTER, 1 + _JITTER))
