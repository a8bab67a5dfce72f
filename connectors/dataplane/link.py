"""The control link: messages of JSON over TCP between the worker, which listens, and its slices, which connect.

A message is sent as one frame or more of bounded size, so that no message is too long for the link. Senders split lists
of partitions into messages with :func:`pieces`, so that neither side's loop is busy with one message for long.

A slice proves itself with a token and gets its configuration here, secrets included, so that nothing secret stands in
a plan, a closure or a Spark event log. Off loopback the link is TLS, and the slice knows the worker's certificate from
its plan before it sends the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import orjson

from connect.core.errors import RetriableError
from connectors.dataplane.plan import LINK_VERSION

_LENGTH: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 1024 * 1024
#: In a frame's length: the message goes on in the next frame.
_CONTINUES: Final = 1 << 31
_OPEN_TIMEOUT_S: Final = 10.0
#: How many list entries one message carries.
MAX_ENTRIES: Final = 500

Message = dict[str, Any]
T = TypeVar("T")


class LinkClosed(RetriableError):
    """The other side of a control link is gone."""


class LinkUnreachable(LinkClosed):
    """Nobody answers where a worker should listen, or somebody else does."""


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where a worker listens. ``certificate``: the PEM of the only one to be trusted there; empty for plain TCP."""

    host: str
    port: int
    certificate: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Link:
    """One side of an open link; messages are dicts with a ``type``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: LinkAddress, hello: Message) -> Self:
        """Open the slice's side and say hello; :class:`LinkUnreachable` if the worker is not there."""
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                reader, writer = await _open(address)
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {_OPEN_TIMEOUT_S:.0f} s"
            raise LinkUnreachable(f"no worker answers on the control link {address}: {reason}") from error
        link = cls(reader, writer)
        link.send({"type": "hello", "version": LINK_VERSION, **hello})
        return link

    @property
    def peer(self) -> str:
        """Host and port of the other side."""
        name = self._writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "an address unknown"

    def send(self, message: Message) -> None:
        """Queue a message; a closed link drops it, since its reader learns of the end on its own."""
        if not self._writer.is_closing():
            data = memoryview(orjson.dumps(message))
            while len(data) > MAX_FRAME_BYTES:
                self._writer.writelines((_LENGTH.pack(_CONTINUES | MAX_FRAME_BYTES), data[:MAX_FRAME_BYTES]))
                data = data[MAX_FRAME_BYTES:]
            self._writer.writelines((_LENGTH.pack(len(data)), data))

    async def receive(self, max_bytes: int | None = None) -> Message:
        """Return the next message.

        ``max_bytes`` bounds a peer that has not proven itself yet. Raises :class:`LinkClosed` at the end of the link,
        and if a frame or a message is too long.
        """
        data = bytearray()
        try:
            continues = True
            while continues:
                (head,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                continues, length = bool(head & _CONTINUES), head & ~_CONTINUES
                if length > MAX_FRAME_BYTES or (max_bytes is not None and len(data) + length > max_bytes):
                    raise LinkClosed(f"a frame of {length} bytes on the control link is over the bound")
                data += await self._reader.readexactly(length)
            message = orjson.loads(data)
            if not isinstance(message, dict):
                raise LinkClosed("a frame on the control link is no message")
            return message
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            raise LinkClosed("the control link was closed by its other side") from error
        except orjson.JSONDecodeError as error:
            raise LinkClosed(f"a frame on the control link is not JSON: {error}") from error

    async def close(self) -> None:
        """Flush and close."""
        self.end()
        with contextlib.suppress(ConnectionError, OSError):
            await self._writer.wait_closed()

    def end(self) -> None:
        """Close once what was sent has left, without waiting for that."""
        self._writer.close()

    def abort(self) -> None:
        """Close at once, dropping what is not sent."""
        self._writer.transport.abort()


def pieces(entries: Iterable[T], size: Callable[[T], int] = lambda _: 1) -> Iterator[list[T]]:
    """Split ``entries`` into lists for one message each: of :data:`MAX_ENTRIES` at most, by what ``size`` counts.

    An entry that is larger has a list of its own. Without entries there is no list.
    """
    piece: list[T] = []
    total = 0
    for entry in entries:
        if piece and total + size(entry) > MAX_ENTRIES:
            yield piece
            piece, total = [], 0
        piece.append(entry)
        total += size(entry)
    if piece:
        yield piece


async def _open(address: LinkAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not address.certificate:
        return await asyncio.open_connection(address.host, address.port)
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=_trusting(address.certificate), server_hostname=address.host
    )
    # The trust store alone would take whatever this certificate might have signed.
    presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if presented != ssl.PEM_cert_to_DER_cert(address.certificate):
        writer.transport.abort()
        raise ssl.SSLCertVerificationError("who answers there shows another certificate than the worker's")
    return reader, writer


def _trusting(certificate: str) -> ssl.SSLContext:
    """Of one certificate, by whatever name or address the worker was reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
