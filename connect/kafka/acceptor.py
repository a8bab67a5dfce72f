"""Accepts connections within limits, so that idle and half-open ones cannot lock others out.

A further connection than allowed replaces the one that has waited longest for its client. It is refused only if the
server works for all others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from connect.kafka.concurrency import Scope

log = logging.getLogger(__name__)

#: Connections that the system completes before they are accepted.
_BACKLOG: Final = 1024
#: Pause when the process has no file descriptor left.
_PAUSE_S: Final = 0.05
#: As long as a client has for its part of the TLS handshake.
HANDSHAKE_S: Final = 10.0


@dataclass(eq=False, slots=True)
class Held:
    """An accepted connection. ``address``: the client's, as :func:`network_of` returns it. ``waits_since_s``: since
    when the server waits for the client, in monotonic time; None while it works itself. ``abort``: closes the
    connection at once."""

    address: str
    waits_since_s: float | None
    abort: Callable[[], object]


def network_of(address: str) -> str:
    """Return what limits of an address apply to: an IPv4 address, or the 64 bits of an IPv6 address that say where it
    is, because its owner chooses the others. Other text is returned unchanged."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((int(found), 64), strict=False))


class ConnectionLimits:
    """The connections of one or several listeners: at most ``most``, of them ``most_per_address`` from one address."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._held: set[Held] = set()
        self._counts: Counter[str] = Counter()

    def enter(self, held: Held) -> bool:
        """Add a connection; if there are too many, abort another. Returns False if all others are worked for."""
        if self._counts[held.address] >= self._most_per_address:
            if not self._shed(held.address):
                return False
        elif len(self._held) >= self._most and not self._shed(None):
            return False
        self._held.add(held)
        self._counts[held.address] += 1
        return True

    def leave(self, held: Held) -> None:
        """Remove a connection, if it is still counted."""
        if held in self._held:
            self._held.discard(held)
            self._counts[held.address] -= 1
            if not self._counts[held.address]:
                del self._counts[held.address]

    def _shed(self, address: str | None) -> bool:
        """Abort the connection that waits longest, of ``address``, or of the address with the most connections."""
        waiting = [
            (-self._counts[each.address], each.waits_since_s, each)
            for each in self._held
            if each.waits_since_s is not None and address in (None, each.address)
        ]
        if not waiting:
            return False
        _, _, victim = min(waiting, key=lambda one: one[:2])
        self.leave(victim)
        victim.abort()
        return True


class Acceptor:
    """Accepts the connections of ``bound``, a listening socket that :meth:`close` closes, in the running loop.
    ``serve`` handles a connection until it no longer needs this class's task, and has to leave ``limits``."""

    def __init__(
        self,
        bound: socket.socket,
        limits: ConnectionLimits,
        serve: Callable[[socket.socket, Held], Awaitable[None]],
        name: str,
    ) -> None:
        self.bound = bound
        self._limits = limits
        self._serve = serve
        self._scope = Scope(name)
        self._scope.spawn(self._accept(), name)

    @property
    def port(self) -> int:
        return int(self.bound.getsockname()[1])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self.bound)
            except OSError as error:
                log.warning("%s: cannot accept a connection: %s", self._scope.name, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            held = Held(network_of(str(address[0])), loop.time(), connection.close)
            if not self._limits.enter(held):
                connection.close()
                continue
            task = self._scope.spawn(self._serve_one(connection, held), self._scope.name)
            held.abort = task.cancel

    async def _serve_one(self, connection: socket.socket, held: Held) -> None:
        try:
            await self._serve(connection, held)
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            self._limits.leave(held)
            connection.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            # A client that left, or whose TLS handshake failed.
            log.debug("%s: connection from %s failed: %s", self._scope.name, held.address, error)

    async def close(self) -> None:
        """Stop accepting. Connections that are served go on."""
        await self._scope.close()
        self.bound.close()


async def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; an empty host means all interfaces. Raises OSError."""
    if not host:
        return _bind_everywhere(port)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return _bound(_tcp(family), address)


def _bind_everywhere(port: int) -> socket.socket:
    try:
        both = _tcp(socket.AF_INET6)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        return _bound(_tcp(socket.AF_INET), ("", port))
    return _bound(both, ("::", port))


def _tcp(family: int) -> socket.socket:
    """Create a socket with the protocol named: asyncio sets TCP_NODELAY only on such a socket. Without it, an answer's
    body waits up to 40 ms for the client's acknowledgement of the headers."""
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)


def _bound(fresh: socket.socket, address: tuple[object, ...]) -> socket.socket:
    try:
        fresh.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        fresh.setblocking(False)
        fresh.bind(address)
        fresh.listen(_BACKLOG)
    except OSError:
        fresh.close()
        raise
    return fresh
