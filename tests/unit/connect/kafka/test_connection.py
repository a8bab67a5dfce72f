"""Time-outs of requests: counted while no byte moves, from when a request is the oldest without an answer."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.kafka.connection import Connection, RequestTimedOut, _unsent_bytes
from connect.kafka.framing_and_sasl import BrokerProtocol
from connect.kafka.security.connection_settings import ConnectionSettings
from tests.kit.certificates import make_party
from tests.kit.members import until
from tests.kit.virtual_time import in_virtual_time

SENT_BYTES = 4_000_000


class Wire(asyncio.WriteTransport):
    """A socket that takes what it is given at a rate."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0

    def abort(self) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        self.unsent += sum(map(len, list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent


def connection() -> tuple[Connection, BrokerProtocol, Wire]:
    wire = Wire()
    protocol = BrokerProtocol("broker:9092", wire, 1_000_000)
    opened = SimpleNamespace(session_lifetime_ms=0)
    settings = ConnectionSettings((("broker", 9092),), "test")
    return Connection(settings, protocol, wire, {}, (cast(Any, opened), None, None)), protocol, wire


@in_virtual_time
async def test_a_connection_that_a_quota_delays_does_not_count_as_stalled() -> None:
    one, _, _ = connection()
    sent = one.send(1, 12, [b"x"])
    one.mute(60_000)
    one.mute(40_000)
    await asyncio.sleep(45)
    assert (one.is_muted, one.stalled_s) == (True, 0)
    assert one.take_throttled_ms() == 45_000
    await asyncio.sleep(20)
    assert (one.is_muted, round(one.stalled_s, 6)) == (False, 5)
    assert one.take_throttled_ms() == 15_000, "the rest of the minute, once"
    sent.cancel()


@in_virtual_time
async def test_a_slow_answer_is_waited_for_while_its_bytes_arrive() -> None:
    one, protocol, _ = connection()
    waiting = asyncio.create_task(one.answer(one.send(1, 12, [b"x"]), "a fetch", 30.0))
    body = b"\0" + bytes(100)
    data = struct.pack(">ii", len(body) + 4, 1) + body
    for at in range(0, len(data), 5):
        await asyncio.sleep(20)
        protocol.feed(data[at : at + 5])
    assert bytes(await waiting) == bytes(100)
    assert asyncio.get_running_loop().time() > 400


@in_virtual_time
async def test_a_slow_request_is_waited_for_while_its_bytes_leave() -> None:
    one, protocol, wire = connection()
    waiting = asyncio.create_task(one.answer(one.send(0, 12, [bytes(1000)]), "a produce", 30.0))
    while wire.unsent > 0:
        await asyncio.sleep(20)
        wire.unsent -= 100
    await asyncio.sleep(20)
    protocol.feed(struct.pack(">ii", 5, 1) + b"\0")
    assert bytes(await waiting) == b""


@in_virtual_time
async def test_without_progress_the_connection_is_given_up() -> None:
    one, _, wire = connection()
    waiting = asyncio.create_task(one.answer(one.send(0, 12, [bytes(1000)]), "a produce", 30.0))
    await asyncio.sleep(10)
    wire.unsent -= 100
    with pytest.raises(RequestTimedOut, match="did not answer a produce within 30 s"):
        await waiting
    assert 40 <= asyncio.get_running_loop().time() <= 42
    assert one.closed


@in_virtual_time
async def test_a_request_waits_its_turn_behind_others() -> None:
    one, protocol, wire = connection()
    first, second = one.send(0, 12, [b"x"]), one.send(0, 12, [b"y"])
    wire.unsent = 0
    assert one.stalled_s == 0
    await asyncio.sleep(25)
    assert one.stalled_s == 25
    protocol.feed(struct.pack(">ii", 5, 1) + b"\0")
    assert first.done()
    await asyncio.sleep(20)
    assert one.stalled_s == 20, "of these 45 s the second waited 20 for its own answer"
    protocol.feed(struct.pack(">ii", 5, 2) + b"\0")
    assert second.done()
    assert one.stalled_s == 0


@in_virtual_time
async def test_a_later_request_is_not_charged_with_the_wait_of_an_earlier_one() -> None:
    one, protocol, wire = connection()
    one.send(1, 12, [b"long poll"])
    wire.unsent = 0
    assert one.stalled_s == 0
    await asyncio.sleep(29)
    waiting = asyncio.create_task(one.answer(one.send(3, 12, [b"x"]), "a look-up", 10.0))
    wire.unsent = 0
    await asyncio.sleep(5)
    for number in (1, 2):
        protocol.feed(struct.pack(">ii", 5, number) + b"\0")
    assert bytes(await waiting) == b""


@pytest.mark.parametrize("over_tls", [False, True])
async def test_what_a_socket_has_not_sent_is_seen(over_tls: bool, tmp_path: Path) -> None:
    """With TLS, CPython's transport says 0 at once."""
    reads, ended, received = asyncio.Event(), asyncio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reads.wait()
        while data := await reader.read(2**16):
            received += len(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    server_tls = client_tls = None
    if over_tls:
        party, file = make_party("broker", None, "broker"), tmp_path / "broker.pem"
        file.write_text(party.key_pem() + party.pem)
        server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_tls.load_cert_chain(file)
        client_tls = ssl.create_default_context(cadata=party.pem)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, closing(socket.socket()) as sending:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        sending.connect(listening.getsockname())
        server = await asyncio.start_server(serve, sock=listening, ssl=server_tls)
        _, writer = await asyncio.open_connection(
            sock=sending, ssl=client_tls, server_hostname="broker" if over_tls else None
        )
        writer.write(bytes(SENT_BYTES))
        assert _unsent_bytes(writer.transport) > SENT_BYTES / 2
        reads.set()
        await until(lambda: received == SENT_BYTES, "all is received", 60)
        await until(lambda: _unsent_bytes(writer.transport) == 0, "all is acknowledged", 60)
        writer.close()
        await writer.wait_closed()
        await asyncio.wait_for(ended.wait(), 60)
        server.close()
