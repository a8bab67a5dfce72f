"""2,000 sockets that are idle or stop half way: others are still answered, on REST and on the control link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from connect.kafka.acceptor import ConnectionLimits, Held, network_of
from connect.kafka.threads import LeaseThread
from connectors.control_link.protocol import LINK_VERSION, Link, LinkClosed
from connectors.control_link.server import LinkServer, LinkSettings
from tests.kit.raw_http import ask
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import running_server

SOCKETS = 2000
_AT_ONCE = 100


@asynccontextmanager
async def flooded(port: int, first: bytes) -> AsyncIterator[None]:
    """2,000 connections that send ``first`` and then nothing."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as closing:
        for _ in range(SOCKETS // _AT_ONCE):
            some = [closing.enter_context(socket.socket()) for _ in range(_AT_ONCE)]
            for each in some:
                each.setblocking(False)
            await asyncio.gather(*(loop.sock_connect(each, ("127.0.0.1", port)) for each in some))
            for each in some:
                with contextlib.suppress(ConnectionError):
                    await loop.sock_sendall(each, first)
        yield


@pytest.mark.parametrize(
    "first", [b"", b"PUT /connectors/a/config HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_health_is_answered_within_a_second(first: bytes) -> None:
    async with running_server(herder=DictHerder()) as server:
        took_s = []
        async with flooded(server.ports[0], first):
            for _ in range(5):
                began_s = time.monotonic()
                assert (await ask(server.ports[0], "GET", "/health")).status == 200
                took_s.append(time.monotonic() - began_s)
        assert min(took_s) < 1.0  # the others say how busy the machine is


async def test_a_slice_is_linked_before_silent_connections_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.control_link.server._HELLO_TIMEOUT_S", 3600.0)
    leases = LeaseThread(30.0)
    leases.start()
    server = LinkServer(LinkSettings(), leases, "code")
    await server.start()
    try:
        async with flooded(server.address.port, b"\x00"):
            ticket = server.expect("a-0", 1)
            hello = {"token": ticket.token, "slice": "a-0", "epoch": 1, "attempt": "1", "code": "code"}
            link = await Link.connect(server.address, hello)
            async with asyncio.timeout(60):
                served, said = await ticket.linked
            assert said["version"] == LINK_VERSION
            link.abort()
            with pytest.raises(LinkClosed):
                await served.receive()
            served.abort()
    finally:
        await server.stop()
        await leases.stop()


def held(address: str, since_s: float | None, aborted: list[str], name: str = "") -> Held:
    return Held(address, since_s, lambda: aborted.append(name or address))


def test_the_greediest_address_gives_way() -> None:
    aborted: list[str] = []
    limits = ConnectionLimits(4, 3)
    assert limits.enter(held("b", 1.0, aborted))
    assert all(limits.enter(held("a", float(at), aborted, f"a{at}")) for at in (3, 2, 4))
    assert limits.enter(held("c", 9.0, aborted)) and aborted == ["a2"]
    assert limits.enter(held("a", 5.0, aborted, "a5")) and aborted == ["a2", "a3"]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_owner_of_many_ipv6_addresses_is_one(address: str, network: str) -> None:
    assert network_of(address) == network


def test_a_busy_server_refuses() -> None:
    aborted: list[str] = []
    limits = ConnectionLimits(2, 2)
    busy = held("a", None, aborted)
    assert limits.enter(busy) and limits.enter(held("a", None, aborted))
    assert not limits.enter(held("b", 1.0, aborted))
    limits.leave(busy)
    limits.leave(busy)
    assert limits.enter(held("b", 1.0, aborted)) and not aborted
