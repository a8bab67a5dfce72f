"""HTTP connections that cannot be held for ever by clients that send, or read, slowly or not at all."""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: From a request's first byte, or the connection's beginning, to its last byte.
REQUEST_ARRIVES_WITHIN_S: Final = 60.0
#: How long a client may leave an answer unread while more of it waits.
ANSWER_MOVES_WITHIN_S: Final = 30.0
#: How long a closed connection may take to hand over what is left.
_CLOSES_WITHIN_S: Final = 10.0


class _Deadline:
    """Cuts a connection when its time has come, once armed and until disarmed."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for everything that a client does."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arrival = _Deadline(transport, REQUEST_ARRIVES_WITHIN_S)
        self._reading = _Deadline(transport, ANSWER_MOVES_WITHIN_S)
        self._end = _Deadline(transport, _CLOSES_WITHIN_S)
        self._arrival.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._arrival, self._reading, self._end):
            deadline.disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_arrival()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_arrival()
        if self.transport.is_closing():
            self._end.arm()

    def _watch_arrival(self) -> None:
        """A request that has begun must end. Between two, uvicorn's keep-alive is the deadline."""
        unread, _ = self.conn.trailing_data
        if self.conn.their_state is h11.SEND_BODY or (self.conn.their_state is h11.IDLE and unread):
            self._arrival.arm()
        else:
            self._arrival.disarm()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading.arm()

    def resume_writing(self) -> None:
        self._reading.disarm()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end.arm()

    def send_400_response(self, msg: str) -> None:
        # Behind an answer that has begun there is no place for another one.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
