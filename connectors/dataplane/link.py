"""The control link: frames of JSON over TCP between the worker, which listens, and its slices, which connect.

A slice proves itself with the epoch's token and gets its configuration here, secrets included, so that nothing
secret stands in a plan, a closure or a Spark event log. A token opens one link and no second.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from typing import Any, Final, Self

import orjson

from connect.core.errors import RetriableError
from connectors.dataplane.plan import LINK_VERSION

_LENGTH: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
HELLO_TIMEOUT_S: Final = 10.0
_CLOSE_TIMEOUT_S: Final = 1.0

Message = dict[str, Any]


class LinkClosed(RetriableError):
    """The other side of a control link is gone."""


class Link:
    """One side of an open link; messages are dicts with a ``type``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, host: str, port: int, hello: Message) -> Self:
        """Open the slice's side and say hello; :class:`LinkClosed` if nobody listens any more."""
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise LinkClosed(f"no worker answers on the control link {host}:{port}: {error}") from error
        link = cls(reader, writer)
        link.send({"type": "hello", "version": LINK_VERSION, **hello})
        return link

    def send(self, message: Message) -> None:
        """Queue a message; a closed link drops it, since its reader learns of the end on its own."""
        if not self._writer.is_closing():
            data = orjson.dumps(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Message:
        """The next message; :class:`LinkClosed` at the end."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise LinkClosed(f"a frame of {length} bytes on the control link is over the bound")
            message = orjson.loads(await self._reader.readexactly(length))
            if not isinstance(message, dict):
                raise LinkClosed("a frame on the control link is no message")
            return message
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            raise LinkClosed("the control link was closed by its other side") from error
        except orjson.JSONDecodeError as error:
            raise LinkClosed(f"a frame on the control link is not JSON: {error}") from error

    async def close(self) -> None:
        """Flush and close."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close at once, dropping what is not sent."""
        self._writer.transport.abort()


class LinkServer:
    """The worker's end: hands every link whose token is expected to whoever waits for that token."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._expected: dict[str, asyncio.Future[tuple[Link, Message]]] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accepted, host, port)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None, "the link server has not been started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def expect(self) -> tuple[str, asyncio.Future[tuple[Link, Message]]]:
        """A fresh token and the future of the one link that may use it: (link, its hello)."""
        token = secrets.token_urlsafe(24)
        future: asyncio.Future[tuple[Link, Message]] = asyncio.get_running_loop().create_future()
        self._expected[token] = future
        return token, future

    def forget(self, token: str) -> None:
        """Refuse a token from now on."""
        future = self._expected.pop(token, None)
        if future is not None and not future.done():
            future.cancel()

    async def stop(self) -> None:
        for token in list(self._expected):
            self.forget(token)
        if self._server is not None:
            self._server.close()
            # From Python 3.12 on this waits for every connection, also for one that never says hello.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), _CLOSE_TIMEOUT_S)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        try:
            hello = await asyncio.wait_for(link.receive(), HELLO_TIMEOUT_S)
        except (TimeoutError, LinkClosed):
            link.abort()
            return
        future = self._expected.pop(str(hello.get("token", "")), None)
        refusal = _refusal(hello, future)
        if refusal:
            link.send({"type": "refused", "reason": refusal})
            await link.close()
        elif future is not None:
            future.set_result((link, hello))


def _refusal(hello: Message, future: asyncio.Future[tuple[Link, Message]] | None) -> str:
    if future is None or future.done():
        return "the token is unknown or was used before"
    if hello.get("version") != LINK_VERSION:
        return f"the slice speaks version {hello.get('version')} of the control link, the worker {LINK_VERSION}"
    return ""
