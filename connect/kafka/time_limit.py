"""How long requests to a cluster are tried, so that a connection which went silent is given up by then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from connect.core.errors import RetriableError
from connect.kafka.connection import Connection
from connect.kafka.transactions import until

_T = TypeVar("_T")

_OF_WHAT_IS_LEFT: Final = 0.95


class TimeLimit:
    """``timeout_s`` from now on."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until_s = asyncio.get_running_loop().time() + timeout_s

    def of_call_ms(self, connection: Connection) -> int:
        """A little less than what is left: a call that is cut off from outside leaves its connection open, and whoever
        comes next meets it again. With little left it is not the connection's fault that no answer comes in time."""
        left_s = self._until_s - asyncio.get_running_loop().time()
        if left_s < self._timeout_s / 2:
            return connection.request_timeout_ms
        return min(connection.request_timeout_ms, int(left_s * _OF_WHAT_IS_LEFT * 1000))

    async def run(self, what: str, attempt: Callable[[], Awaitable[_T]], *, once: bool) -> _T:
        """As :func:`connect.kafka.transactions.until`; ``once``: a single time. Raises RetriableError."""
        if not once:
            return await until(self._timeout_s, what, attempt)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await attempt()
        except TimeoutError as error:
            raise RetriableError(f"{what}: no answer within {self._timeout_s:g} s") from error
