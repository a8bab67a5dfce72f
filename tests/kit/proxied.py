"""One connection through the fault proxy: the client's socket, the broker's, and a pipe in each direction."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass

from tests.kit.pipe import Direction, Pipe
from tests.kit.requests import RequestSpotter

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class ConnectionState:
    """A connection as it stood when asked; a side is open while it may still send."""

    index: int
    client_port: int
    client_id: str | None
    requests: dict[int, int]
    held: bool
    client_open: bool
    broker_open: bool
    passed_bytes: dict[Direction, int]
    kept_bytes: dict[Direction, int]


class ProxiedConnection:
    """Two sockets and two pipes; it lives until both sockets are gone."""

    def __init__(
        self,
        index: int,
        upstream: tuple[str, int],
        new_pipe: Callable[[Direction, ProxiedConnection], Pipe],
        forget: Callable[[ProxiedConnection], None],
    ) -> None:
        self.index = index
        self._upstream = upstream
        self._forget = forget
        self.spotter = RequestSpotter()
        self.pipes = {direction: new_pipe(direction, self) for direction in Direction}
        self.client_side = Side(self, sends=Direction.REQUESTS)
        self.broker_side = Side(self, sends=Direction.ANSWERS)
        self._dialling: asyncio.Task[None] | None = None
        self._client_port = 0
        self._finished = asyncio.get_running_loop().create_future()

    def opened(self, side: Side, transport: asyncio.Transport) -> None:
        """A side's socket is there: the client's first, and for it the broker's is dialled."""
        self.pipes[side.sends].source = transport
        self.pipes[_other(side.sends)].target = transport
        if side is self.client_side:
            self._client_port = transport.get_extra_info("peername")[1]
            self._dialling = asyncio.get_running_loop().create_task(self._dial(), name=f"dial-{self.index}")
        elif self.pipes[Direction.REQUESTS].ended:
            transport.abort()  # cut while it was being made
        else:
            self.pipes[Direction.REQUESTS].pump()

    async def _dial(self) -> None:
        host, port = self._upstream
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.broker_side, host, port)
        except OSError:
            self.broker_side.closed = True
            self.cut()  # a broker that is not there looks so to the client as well
            self._forget_when_gone()

    async def finished(self) -> None:
        """Wait until both sockets are gone; only after a cut is that certain to happen."""
        await self._finished

    def cut(self, deliver: Direction | None = None) -> None:
        """Reset both sides, but in ``deliver`` all passed arrives first: a socket closed unread takes it back."""
        for direction, pipe in self.pipes.items():
            pipe.drop()
            target = pipe.target
            if target is None or target.is_closing():
                continue
            if direction is deliver:
                pipe.end_target()
            else:
                _reset(target)

    def lost(self, side: Side) -> None:
        """A socket is gone. What a dead client had sent still goes to the broker, in order, then the end."""
        self.pipes[_other(side.sends)].drop()
        self.pipes[side.sends].finish()
        self.settle()
        self._forget_when_gone()

    def settle(self) -> None:
        """Close idle sockets; the broker's once it ends itself: it may still work on a dead client's requests."""
        requests, answers = (self.pipes[Direction.REQUESTS], self.pipes[Direction.ANSWERS])
        if answers.ended and (self.client_side.saw_end or self.broker_side.closed):
            self.client_side.close()
        if requests.ended and self.broker_side.saw_end:
            self.broker_side.close()

    def unread_bytes(self, direction: Direction) -> int:
        source = self.pipes[direction].source
        if source is None or source.is_closing():
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(source.get_extra_info("socket").fileno(), termios.FIONREAD, count)
        return count[0]

    def state(self) -> ConnectionState:
        return ConnectionState(
            index=self.index,
            client_port=self._client_port,
            client_id=self.spotter.client_id,
            requests=dict(self.spotter.requests),
            held=any(pipe.held for pipe in self.pipes.values()),
            client_open=self.client_side.is_open,
            broker_open=self.broker_side.is_open,
            passed_bytes={direction: pipe.passed_bytes for direction, pipe in self.pipes.items()},
            kept_bytes={direction: pipe.kept_bytes for direction, pipe in self.pipes.items()},
        )

    def _forget_when_gone(self) -> None:
        if self.client_side.closed and self.broker_side.closed and not self._finished.done():
            self._finished.set_result(None)
            self._forget(self)


class Side(asyncio.Protocol):
    def __init__(self, connection: ProxiedConnection, sends: Direction) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self.sends = sends
        self.saw_end = False
        self.closed = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self.closed and not self.saw_end

    def close(self) -> None:
        """Close once what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream socket has a stream transport"
        self._transport = transport
        self._connection.opened(self, transport)

    def data_received(self, data: bytes) -> None:
        if self.sends is Direction.REQUESTS:
            self._connection.spotter.feed(data)
        self._connection.pipes[self.sends].feed(data)

    def eof_received(self) -> bool:
        self.saw_end = True
        self._connection.pipes[self.sends].finish()
        self._connection.settle()
        return True  # the other half stays open

    def pause_writing(self) -> None:
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._connection.lost(self)

    def _set_writable(self, writable: bool) -> None:
        pipe = self._connection.pipes[_other(self.sends)]
        pipe.target_writable = writable
        pipe.pump()


def _other(direction: Direction) -> Direction:
    return Direction.ANSWERS if direction is Direction.REQUESTS else Direction.REQUESTS


def _reset(transport: asyncio.Transport) -> None:
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
