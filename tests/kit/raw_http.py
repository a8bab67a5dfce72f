"""HTTP over a plain socket, for requests that no client library would send."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Raw:
    """An answer as it came; ``headers`` by lower-case name, each with all its values."""

    status: int
    headers: Mapping[str, tuple[str, ...]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = self.headers.get(name)
        return None if values is None else ", ".join(values)

    @property
    def json(self) -> Any:
        assert self.header("content-type") == "application/json", self
        return json.loads(self.body)


@asynccontextmanager
async def connected(
    port: int, *, limit: int = 1 << 16, first: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of limited read-ahead; ``first`` is sent before the server's loop hears of it."""
    dialled = socket.create_connection(("127.0.0.1", port))
    dialled.sendall(first)
    reader, writer = await asyncio.open_connection(sock=dialled, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def exchange(port: int, data: bytes) -> Raw:
    async with connected(port) as (reader, writer), asyncio.timeout(_PATIENCE_S):
        writer.write(data)
        await writer.drain()
        return await read_answer(reader, head_only=data.startswith(b"HEAD "))


async def ask(
    port: int, method: str, path: str, body: bytes | Any = None, headers: Mapping[str, str] | None = None
) -> Raw:
    """One request, its path as it stands; a body that is not bytes is sent as JSON."""
    lines = {"Host": f"127.0.0.1:{port}"}
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    else:
        data = b""
    lines |= headers or {}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return await exchange(port, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool = False) -> Raw:
    """The next answer on a connection; interim ones (100) are passed over."""
    while True:
        status_line = await reader.readline()
        assert status_line, "the connection was closed without an answer"
        status = int(status_line.split()[1])
        headers: dict[str, tuple[str, ...]] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = (*headers.get(name.lower(), ()), value.strip())
        if status >= 200:
            break
    return Raw(status, headers, b"" if head_only else await _body(reader, status, headers))


async def _body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, tuple[str, ...]]) -> bytes:
    if status in (204, 304):
        return b""
    if "transfer-encoding" in headers:
        body = b""
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"][0]))
    return await reader.read()
