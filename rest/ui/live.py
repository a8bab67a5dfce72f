"""Sends snapshots of all flows to the dashboard's pages as server-sent events.

One snapshot is taken in an interval, whatever the number of pages, and none while no page is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from starlette.types import Receive, Send

from connect.kafka.concurrency import Scope, first_of, wall_ms
from rest.errors import RestError

log = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
#: A snapshot takes at most this share of the time: after a slow one the next is delayed.
_SHARE: Final = 1 / 3
#: The browser connects again after that, so that a user who may no longer read is refused.
_LONGEST_S: Final = 900.0
#: The last one makes nginx pass on each event at once.
_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
)

#: Takes a snapshot.
Look = Callable[[], Awaitable[dict[str, Any]]]


class LiveFeed:
    """The events of a process. ``most_clients`` bounds the open streams, which also count as connections of the server.

    Args:
        look: Takes a snapshot.
    """

    def __init__(self, look: Look, interval_s: float = INTERVAL_S, most_clients: int = 64) -> None:
        self._look = look
        self._interval_s = interval_s
        self._most_clients = most_clients
        self._clients = 0
        self._scope = Scope("dashboard")
        self._event = b""
        #: Set once there is a newer event; then replaced.
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def close(self) -> None:
        """End all streams."""
        self._closed.set()
        await self._scope.close()

    async def stream(self, receive: Receive, send: Send) -> None:
        """Answer a request with events until its client leaves. Raises RestError (503) if there are too many."""
        if self._clients >= self._most_clients or self._closed.is_set():
            raise RestError(503, f"{self._clients} pages are open, which is the most that this worker serves.")
        self._clients += 1
        try:
            if self._looking is None or self._looking.done():
                self._event = b""
                self._looking = self._scope.spawn(self._look_while_seen(), "snapshots of flows")
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await first_of(
                "a page", self._send_events(send), _left(receive), self._closed.wait(), asyncio.sleep(_LONGEST_S)
            )
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._clients -= 1

    async def _send_events(self, send: Send) -> None:
        # The first bytes tell the browser that the stream is open.
        event = self._event or b": waiting for the first snapshot\n\n"
        while True:
            news = self._news
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await news.wait()
            event = self._event

    async def _look_while_seen(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._clients:
            began_s = clock()
            try:
                event = orjson.dumps({"at_ms": wall_ms(), **await self._look()})
            except Exception as error:  # a bug must not end the stream of all pages
                log.error("the flows could not be read for the dashboard", exc_info=error)
                problem = "The flows cannot be read because of a bug; the worker's log says more."
                event = orjson.dumps({"at_ms": wall_ms(), "flows": {}, "starting": [], "error": problem})
            self._event = b"data: " + event + b"\n\n"
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(max(self._interval_s, (clock() - began_s) / _SHARE) - (clock() - began_s))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
