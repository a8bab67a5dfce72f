"""The control link over real sockets: who may come in, TLS off loopback, a token that opens one link and no other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from connect.core.errors import ConfigError
from connect.kafka.threads import LeaseThread
from connectors.control_link import server as links
from connectors.control_link.code_version import running_code
from connectors.control_link.protocol import Link, LinkAddress, LinkClosed, LinkUnreachable, Message
from connectors.control_link.server import (
    LinkServer,
    LinkSettings,
    ServedLink,
    SliceRefused,
    SliceSilent,
    Ticket,
    server_tls,
)
from tests.kit.one_loop import OneLoop

pytestmark = pytest.mark.integration

PLAIN = LinkSettings()
#: On every address of the machine, and so over TLS, but reached on loopback.
OVER_TLS = LinkSettings("0.0.0.0", 0, "127.0.0.1")
DEADLINE_S = 60.0


@asynccontextmanager
async def listening(settings: LinkSettings = PLAIN) -> AsyncIterator[LinkServer]:
    leases = LeaseThread(60.0)
    leases.start()
    server = LinkServer(settings, leases)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
        await leases.stop()


@pytest.fixture
async def server() -> AsyncIterator[LinkServer]:
    async with listening() as started:
        yield started


def hello(ticket: Ticket, **other: Any) -> Message:
    named = {"token": ticket.token, "slice": ticket.slice, "epoch": ticket.epoch, "attempt": "0 (7)"}
    return {**named, "code": running_code(), "pid": 1, "host": "here", "from": "there", **other}


async def heard(link: Link | ServedLink) -> Message:
    return await asyncio.wait_for(link.receive(), DEADLINE_S)


async def refusal(server: LinkServer, message: Message) -> str:
    """What a slice is told that says this hello; the link is closed then."""
    link = await Link.connect(server.address, message)
    answer = await heard(link)
    assert answer["type"] == "refused"
    with pytest.raises(LinkClosed):
        await heard(link)
    await link.close()
    return str(answer["reason"])


@pytest.mark.parametrize("settings", [PLAIN, OVER_TLS], ids=["plain", "TLS"])
async def test_a_good_token_opens_a_link_both_ways(settings: LinkSettings) -> None:
    async with listening(settings) as server:
        assert bool(server.address.certificate) is settings.leaves_the_machine
        ticket = server.expect("us->eu task 0", 3)
        slice_ = await Link.connect(server.address, hello(ticket))
        worker, said = await asyncio.wait_for(ticket.linked, DEADLINE_S)
        assert said["pid"] == 1
        worker.send({"type": "config"})
        slice_.send({"type": "ready"})
        assert (await heard(slice_), await heard(worker)) == ({"type": "config"}, {"type": "ready"})
        await slice_.close()
        worker.abort()


async def test_a_token_that_comes_a_second_time_is_refused_and_ends_the_epoch(server: LinkServer) -> None:
    ticket = server.expect("us->eu task 0", 3)
    slice_ = await Link.connect(server.address, hello(ticket))
    worker, _ = await asyncio.wait_for(ticket.linked, DEADLINE_S)
    assert not ticket.misused.done()
    reason = await refusal(server, hello(ticket, attempt="1 (8)"))
    for word in ("us->eu task 0", "second time", "1 (8)", "0 (7)"):
        assert word in reason
    assert await asyncio.wait_for(ticket.misused, DEADLINE_S) == reason
    await slice_.close()
    worker.abort()


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"epoch": 4}, "epoch 4"),
        ({"slice": "us->eu task 1"}, "us->eu task 1"),
        ({"attempt": None}, "attempt"),
        ({"code": "heliograph-0.0.9"}, "runs heliograph-0.0.9"),
        ({"version": 1}, "version 1"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
async def test_what_does_not_fit_its_token_is_refused_and_whoever_waits_hears_why(
    server: LinkServer, other: Message, word: str
) -> None:
    ticket = server.expect("us->eu task 0", 3)
    assert word in await refusal(server, hello(ticket, **other))
    with pytest.raises(SliceRefused, match=word.replace("->", "-.")):
        await asyncio.wait_for(ticket.linked, DEADLINE_S)


async def test_only_other_code_is_called_stale(server: LinkServer) -> None:
    for other, stale in (({"code": "heliograph-0.0.9"}, True), ({"epoch": 4}, False)):
        link = await Link.connect(server.address, hello(server.expect("us->eu task 0", 3), **other))
        assert (await heard(link))["stale"] is stale
        await link.close()


async def test_a_token_that_was_forgotten_or_never_given_is_unknown(server: LinkServer) -> None:
    ticket = server.expect("us->eu task 0", 3)
    server.forget(ticket)
    assert "unknown" in await refusal(server, hello(ticket))
    assert "unknown" in await refusal(server, {"token": "guess"})
    assert "unknown" in await refusal(server, {})


async def test_who_says_too_much_or_nothing_of_sense_is_hung_up_on(server: LinkServer) -> None:
    for first in (b"\x7f\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x03GET"):
        reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
        writer.write(first)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), DEADLINE_S)
        writer.close()


async def test_a_slice_sends_its_token_to_nobody_but_the_worker_with_the_certificate_of_its_plan() -> None:
    received: list[bytes] = []
    over = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            received.append(await reader.read(1))
        finally:
            over.set()
            writer.close()

    other, _ = server_tls()
    async with listening(OVER_TLS) as server:
        ticket = server.expect("us->eu task 0", 3)
        certificate = server.address.certificate
        fake = await asyncio.start_server(impostor, "127.0.0.1", 0, ssl=other)
        try:
            address = LinkAddress("127.0.0.1", fake.sockets[0].getsockname()[1], certificate)
            with pytest.raises(LinkUnreachable, match="certificate"):
                await Link.connect(address, hello(ticket))
        finally:
            fake.close()
            await asyncio.wait_for(fake.wait_closed(), DEADLINE_S)
        assert received in ([], [b""])
        assert not ticket.linked.done()


async def test_off_loopback_nothing_but_tls_is_spoken() -> None:
    async with listening(OVER_TLS) as server:
        ticket = server.expect("us->eu task 0", 3)
        plain = LinkAddress(server.address.host, server.address.port)
        link = await Link.connect(plain, hello(ticket))
        with pytest.raises(LinkClosed):
            await heard(link)
        await link.close()
        assert not ticket.linked.done()


async def test_a_worker_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens not
        port = taken.getsockname()[1]
        with pytest.raises(LinkUnreachable, match=f"127.0.0.1:{port}"):
            await Link.connect(LinkAddress("127.0.0.1", port), {})


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no-such-host.invalid"])
async def test_a_place_where_nobody_can_listen_ends_in_a_line_with_the_key(host: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"link.listener = {host}:{port}: cannot listen there") as caught:
            await LinkServer(LinkSettings(host, port, "127.0.0.1"), OneLoop()).start()
    assert "\n" not in str(caught.value)


@dataclass
class LivingSlice:
    """In a thread of its own: what it heard, all of which it answered."""

    address: LinkAddress
    ticket: Ticket
    heard: list[str] = field(default_factory=list)

    async def _live(self) -> None:
        link = await Link.connect(self.address, hello(self.ticket))
        with contextlib.suppress(LinkClosed):
            while True:
                self.heard.append(str((await link.receive())["type"]))
                link.send({"type": "alive"})
        await link.close()

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[ServedLink]:
        thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="slice", daemon=True)
        thread.start()
        worker, _ = await asyncio.wait_for(self.ticket.linked, DEADLINE_S)
        try:
            yield worker
        finally:
            worker.hang_up()
            await asyncio.to_thread(thread.join, DEADLINE_S)


def block_until(seen: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not seen():
        assert time.monotonic() < until_s, what
        time.sleep(0.01)


async def test_a_slice_keeps_its_lease_while_the_main_loop_of_its_worker_stands_still(server: LinkServer) -> None:
    """Longer than the lease, in which the slice answers too."""
    slice_ = LivingSlice(server.address, server.expect("us->eu task 0", 3))
    async with slice_.linked() as worker:
        worker.renew(2.0, lambda: True)
        assert (await heard(worker))["type"] == "alive"
        before, until_s = len(slice_.heard), time.monotonic() + 3.0
        block_until(lambda: time.monotonic() > until_s and len(slice_.heard) > before + 3, "it hears of its lease")
        for _ in range(4):
            assert (await heard(worker))["type"] == "alive"
    assert set(slice_.heard) == {"lease"}


async def test_a_lease_is_not_renewed_once_the_work_is_not_ours_whatever_the_main_loop_does(
    server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has given it away, and the main loop, which stands still, has not heard of it."""
    monkeypatch.setattr(links, "_RENEW_S", 0.01)
    said: list[bool] = []
    is_ours = True

    def holds() -> bool:
        said.append(is_ours)
        return is_ours

    slice_ = LivingSlice(server.address, server.expect("us->eu task 0", 3))
    async with slice_.linked() as worker:
        worker.renew(DEADLINE_S, holds)
        block_until(lambda: len(slice_.heard) > 3, "it hears of its lease")
        is_ours = False
        block_until(lambda: said.count(False) > 3, "it was asked whether the work is ours")
    assert len(slice_.heard) == said.count(True)


async def test_a_slice_that_says_nothing_for_its_lease_is_silent(server: LinkServer) -> None:
    ticket = server.expect("us->eu task 0", 3)
    slice_ = await Link.connect(server.address, hello(ticket))
    worker, _ = await asyncio.wait_for(ticket.linked, DEADLINE_S)
    worker.renew(0.2, lambda: True)
    with pytest.raises(SliceSilent, match=r"nothing heard from the slice for 0\.2 s"):
        await heard(worker)
    worker.abort()
    await slice_.close()


async def test_a_lease_that_may_lapse_is_renewed_no_more_and_the_slice_is_still_heard(
    server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_RENEW_S", 0.01)
    ticket = server.expect("us->eu task 0", 3)
    slice_ = await Link.connect(server.address, hello(ticket))
    worker, _ = await asyncio.wait_for(ticket.linked, DEADLINE_S)
    worker.renew(DEADLINE_S, lambda: True)
    assert await heard(slice_) == {"type": "lease"}
    worker.let_lapse()
    worker.send({"type": "hold"})
    while (await heard(slice_))["type"] == "lease":
        pass
    slice_.send({"type": "failed"})
    assert await heard(worker) == {"type": "failed"}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slice_.receive(), 0.1)
    worker.abort()
    await slice_.close()
