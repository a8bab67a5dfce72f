"""What a slice has to say to people: its warnings go over the control link into the worker's log.

A Spark task's own output ends on some executor where nobody looks, and a broker that is gone is news.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from connect.kafka.causes import cause_of

#: The same complaint comes from every partition several times a second; people get one of each kind this often.
EVERY_S: Final = 5.0
_LOGGERS: Final = ("connect", "connectors")


class Teller(logging.Handler):
    """Hands warnings and errors to ``tell`` as messages of the link; only for the thread of the slice's loop.

    Of each kind (one log statement, whatever it speaks of) one every ``every_s``, and how many others there were.
    """

    def __init__(
        self,
        tell: Callable[[dict[str, Any]], None],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._every_s = every_s
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind, now_s = str(record.msg), self._clock()
        if kind in self._told_s and now_s - self._told_s[kind] < self._every_s:
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return
        self._told_s[kind] = now_s
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {type(error).__name__}: {error}"
        untold = self._untold.pop(kind, 0)
        if untold:
            text += f" (and {untold} more like it)"
        cause = cause_of(record)
        told = None if cause is None else [cause.text, sorted(cause.addresses)]
        self._tell({"type": "log", "level": record.levelno, "text": text, "cause": told})


@contextmanager
def telling(tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """While this lasts, what our modules warn of is told instead of printed."""
    teller = Teller(tell)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(teller)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(teller)
