"""From a broker's byte stream to answers: the part of a connection that is hot.

An answer's body is a writable view of a buffer that is never used again, so who asked may keep it and change it in
place.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Final, NamedTuple

from connect.core.errors import NoAnswer

_SCRATCH_BYTES: Final = 64 * 1024
_SIZE: Final = struct.Struct(">i")


class ConnectionLost(NoAnswer):
    """The connection went away before the answer came; whether the request was carried out is not known."""


class _Pending(NamedTuple):
    correlation_id: int
    tagged_header: bool
    answer: asyncio.Future[memoryview]


class BrokerProtocol(asyncio.BufferedProtocol):
    """Cuts the byte stream into frames and hands each answer to whoever waits for it.

    Small frames share reads through one scratch buffer; a frame that is not complete there gets a buffer of its
    own size and is received straight into it.
    """

    def __init__(self, address: str, transport: asyncio.WriteTransport, max_frame_bytes: int) -> None:
        self.address = address
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        self.last_answer_s = self.last_byte_s = self.head_since_s = asyncio.get_running_loop().time()
        self.has_answered = False
        #: How long it took until the last answer began to arrive, once its request was the next in turn.
        self.waited_s = 0.0
        self._began_s = 0.0
        self.is_write_paused = False
        self._transport = transport
        self._max_frame_bytes = max_frame_bytes
        self._pending: deque[_Pending] = deque()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._reason = ""

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def is_receiving(self) -> bool:
        """Whether a part of an answer has arrived."""
        return self._frame is not None

    def expect(self, correlation_id: int, tagged_header: bool, answer: asyncio.Future[memoryview]) -> None:
        """Register ``answer`` as the next to come; requests are answered in the order they were written."""
        if self.is_lost:
            self._fail(answer)
        else:
            if not self._pending:
                self.head_since_s = asyncio.get_running_loop().time()
            self._pending.append(_Pending(correlation_id, tagged_header, answer))

    def drop(self, reason: str) -> None:
        """Cut the connection, unsent bytes included, and fail what is pending with ``reason``."""
        if not self.is_lost:
            self._lose(reason)
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._scratch[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_lost:
            return
        self.last_byte_s = asyncio.get_running_loop().time()
        if self._frame is None:
            self._filled += nbytes
            self._cut_scratch()
            return
        self._frame_filled += nbytes
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            self._answered(frame)

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes that came before the transport was ours."""
        remaining = memoryview(data)
        while remaining:
            buffer = self.get_buffer(len(remaining))
            step = min(len(buffer), len(remaining))
            buffer[:step] = remaining[:step]
            self.buffer_updated(step)
            remaining = remaining[step:]

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False

    def eof_received(self) -> None:
        self._lose("the broker closed it")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc else "it was closed")
        if not self.lost.done():
            self.lost.set_result(None)

    def _cut_scratch(self) -> None:
        at, end = 0, self._filled
        while end - at >= 4 and not self.is_lost:
            size = _SIZE.unpack_from(self._scratch, at)[0]
            if not 4 <= size <= self._max_frame_bytes:
                self.drop(f"it sent an answer of {size} bytes, which no Kafka listener does (is the port right?)")
                return
            at += 4
            self._began_s = self.last_byte_s
            frame = memoryview(bytearray(size))
            have = min(size, end - at)
            frame[:have] = self._scratch[at : at + have]
            at += have
            if have < size:
                self._frame, self._frame_filled = frame, have
            else:
                self._answered(frame)
        self._scratch[: end - at] = self._scratch[at:end]
        self._filled = end - at

    def _answered(self, frame: memoryview) -> None:
        correlation_id = _SIZE.unpack_from(frame, 0)[0]
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self.drop(f"it answered request {correlation_id}, which is not the next in turn")
            return
        _, tagged_header, answer = self._pending.popleft()
        self.waited_s = max(0.0, self._began_s - self.head_since_s)
        self.last_answer_s = self.head_since_s = asyncio.get_running_loop().time()
        self.has_answered = True
        if not answer.done():  # who asked may have stopped waiting
            answer.set_result(frame[skip_tags(frame, 4) if tagged_header else 4 :])

    def _lose(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._reason = reason
        self.is_write_paused = False
        pending, self._pending = self._pending, deque()
        for _, _, answer in pending:
            self._fail(answer)

    def error(self) -> ConnectionLost:
        return ConnectionLost(f"connection to {self.address} lost: {self._reason}", (self.address,))

    def _fail(self, answer: asyncio.Future[memoryview]) -> None:
        if not answer.done():
            answer.set_exception(self.error())
            answer.exception()  # marks it as seen: a pipelining caller may look at the first failure only


def skip_tags(buffer: memoryview, at: int) -> int:
    """The position behind the tagged fields (KIP-482) at ``at``."""
    count, at = _uvarint(buffer, at)
    for _ in range(count):
        _, at = _uvarint(buffer, at)
        size, at = _uvarint(buffer, at)
        at += size
    return at


def _uvarint(buffer: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
