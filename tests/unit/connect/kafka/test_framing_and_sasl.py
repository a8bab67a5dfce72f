"""Frames out of a byte stream, however it is cut."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connect.core.errors import ClusterUnreachable
from connect.kafka.framing_and_sasl import BrokerProtocol, ConnectionLost, due_after_ms, open_with_aiokafka
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.kafka.security.tls import TlsSettings

MAX_FRAME_BYTES = 1_000_000
#: (sizes of bodies, lengths of reads): many small frames byte by byte, and frames beyond the scratch buffer's 64 KiB.
STREAMS = st.one_of(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.lists(st.integers(1, 60), min_size=1)),
    st.tuples(
        st.lists(st.integers(0, 40) | st.integers(65_500, 65_600) | st.just(300_000), min_size=1, max_size=6),
        st.lists(st.integers(9_000, 100_000), min_size=1, max_size=8),
    ),
)


class Wire(asyncio.WriteTransport):
    """Takes the place of a socket's transport; only what the protocol uses."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def protocol() -> tuple[BrokerProtocol, Wire]:
    wire = Wire()
    return BrokerProtocol("broker:9092", wire, MAX_FRAME_BYTES), wire


def expect(reader: BrokerProtocol, correlation_id: int, tagged_header: bool) -> asyncio.Future[memoryview]:
    answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
    reader.expect(correlation_id, tagged_header, answer)
    return answer


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def receive(reader: BrokerProtocol, stream: bytes, cuts: Sequence[int]) -> None:
    """As a selector's transport does: no more than the buffer offered, no more than has come."""
    at = turn = 0
    while at < len(stream):
        buffer = reader.get_buffer(-1)
        step = min(len(buffer), cuts[turn % len(cuts)], len(stream) - at)
        buffer[:step] = stream[at : at + step]
        reader.buffer_updated(step)
        at += step
        turn += 1


@settings(deadline=None)
@given(stream=STREAMS)
def test_answers_come_whole_whatever_the_cuts(stream: tuple[list[int], list[int]]) -> None:
    sizes, cuts = stream

    async def run() -> None:
        reader, _ = protocol()
        bodies = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
        answers = [expect(reader, index, False) for index in range(len(bodies))]
        receive(reader, b"".join(frame(index, body) for index, body in enumerate(bodies)), cuts)
        assert [bytes(answer.result()) for answer in answers] == bodies
        assert reader.pending == 0

    asyncio.run(run())


async def test_an_answer_may_be_changed_in_place_and_is_nobody_elses() -> None:
    reader, _ = protocol()
    answers = [expect(reader, index, False) for index in range(2)]
    receive(reader, frame(0, b"first") + frame(1, b"second"), [10_000])
    first = answers[0].result()
    first[:5] = b"FIRST"
    assert bytes(first) == b"FIRST"
    assert bytes(answers[1].result()) == b"second"


async def test_tags_of_a_flexible_header_are_skipped() -> None:
    reader, _ = protocol()
    answer = expect(reader, 7, True)
    receive(reader, frame(7, b"\x01\x05\x02ab" + b"body"), [3])
    assert bytes(answer.result()) == b"body"


async def test_bytes_read_before_the_handover_count() -> None:
    reader, _ = protocol()
    answer = expect(reader, 1, False)
    stream = frame(1, b"x" * 200_000)
    reader.feed(stream[:150_000])
    receive(reader, stream[150_000:], [70_000])
    assert bytes(answer.result()) == b"x" * 200_000


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (frame(2, b""), "lost: it answered request 2, which is not the next"),
        *((struct.pack(">i", size) + b"rest", "is the port right") for size in (-1, 3, MAX_FRAME_BYTES + 1)),
        (b"HTTP/1.1", "is the port right"),
    ],
)
async def test_what_cannot_be_the_next_answer_ends_the_connection(stream: bytes, why: str) -> None:
    reader, wire = protocol()
    answers = [expect(reader, index, False) for index in (1, 2)]
    receive(reader, stream, [100])
    assert wire.aborted
    for answer in answers:
        with pytest.raises(ConnectionLost, match=f"broker:9092 .*{why}"):
            await answer


async def test_what_is_pending_fails_when_the_connection_goes() -> None:
    reader, _ = protocol()
    answer = expect(reader, 1, False)
    reader.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(ConnectionLost, match="reset by peer"):
        await answer
    with pytest.raises(ConnectionLost, match="reset by peer"):
        await expect(reader, 2, False)
    assert reader.lost.done()


async def test_who_stopped_waiting_does_not_disturb_the_others() -> None:
    reader, _ = protocol()
    first, second = expect(reader, 1, False), expect(reader, 2, False)
    first.cancel()
    receive(reader, frame(1, b"a") + frame(2, b"b"), [100])
    assert bytes(second.result()) == b"b"


async def test_a_lost_connection_pauses_no_writer() -> None:
    reader, _ = protocol()
    reader.pause_writing()
    assert reader.is_write_paused
    reader.eof_received()
    assert not reader.is_write_paused


async def test_the_certificates_of_the_machine_are_loaded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_in: list[threading.Thread] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: loaded_in.append(threading.current_thread()))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    server.close()
    tls = TlsSettings(check_hostname=False, versions=("TLSv1.3",))
    us = ConnectionSettings((("127.0.0.1", port),), "test", "SSL", tls=tls)
    with pytest.raises(ClusterUnreachable):
        await open_with_aiokafka(us, "127.0.0.1", port)
    assert len(loaded_in) == 1 and loaded_in[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("lifetime_ms", "share", "due_ms"),
    [
        (3_600_000, 0.85, 3_060_000),
        (3_600_000, 0.95, 3_420_000),
        (60_000, 0.95, 50_000),  # a long poll before it must be over
        (3_000, 0.85, 1_500),
        (1_500, 0.85, 1_100),  # no broker takes two within a second
    ],
)
def test_it_leaves_time_for_what_is_under_way(lifetime_ms: int, share: float, due_ms: float) -> None:
    assert due_after_ms(lifetime_ms, share) == due_ms


@given(st.integers(1_300, 10**9), st.floats(0.85, 0.95))
def test_it_is_before_the_end(lifetime_ms: int, share: float) -> None:
    assert due_after_ms(lifetime_ms, share) < lifetime_ms
