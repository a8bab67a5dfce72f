"""The fault proxy before a plain TCP server: every fault, and no byte lost or reordered that was not cut."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.kit.pipe import Direction
from tests.kit.processes import wait_until
from tests.kit.proxy import FaultProxy
from tests.kit.requests import RequestSpotter

DEADLINE_S = 120.0


class Sink:
    """A server that keeps what each of its connections received, answers the first byte of each with ``!``."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.received: list[bytearray] = []
        self.ended: list[threading.Event] = []
        threading.Thread(target=self._run, name="sink", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._server.accept()
                self.received.append(bytearray())
                self.ended.append(threading.Event())
                args = (accepted, self.received[-1], self.ended[-1])
                threading.Thread(target=self._serve, args=args, name="sink-connection", daemon=True).start()

    def _serve(self, accepted: socket.socket, received: bytearray, ended: threading.Event) -> None:
        with accepted, contextlib.suppress(OSError):
            while data := accepted.recv(65536):
                if not received:
                    accepted.sendall(b"!")
                received += data
        ended.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept, which else keeps the port
        self._server.close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    server = Sink()
    yield server
    server.close()


@pytest.fixture
def proxy(sink: Sink) -> Iterator[FaultProxy]:
    with FaultProxy.start("127.0.0.1", sink.port, seed=7) as running:
        yield running


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=DEADLINE_S)


def send_until_full(client: socket.socket) -> int:
    """Send until nothing more is taken; how many bytes were."""
    client.settimeout(0.2)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 200_000_000:
            sent += client.send(b"a" * 65536)
        raise AssertionError("nothing pushes back")
    return sent


def until_received(sink: Sink, expected: bytes, connection: int = 0) -> None:
    wait_until(
        lambda: len(sink.received) > connection and len(sink.received[connection]) >= len(expected),
        DEADLINE_S,
        "the server has the bytes",
    )
    assert bytes(sink.received[connection]) == expected


def test_passes_bytes_both_ways_and_the_end(sink: Sink, proxy: FaultProxy) -> None:
    payload = random.Random(1).randbytes(3_000_000)
    with dial(proxy) as client:
        client.sendall(payload)
        assert client.recv(10) == b"!"
        until_received(sink, payload)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b""
    assert proxy.passed_bytes(Direction.REQUESTS) == len(payload)
    wait_until(lambda: not proxy.connections(), DEADLINE_S, "the proxy has forgotten the connection")
    assert proxy.passed_bytes(Direction.REQUESTS) == len(payload)


def test_held_bytes_wait_and_come_in_order(sink: Sink, proxy: FaultProxy) -> None:
    with dial(proxy) as client:
        client.sendall(b"first")
        until_received(sink, b"first")
        assert proxy.hold() == 1
        client.sendall(b"second")
        client.sendall(b"third")
        wait_until(lambda: proxy.kept_bytes() == 11, DEADLINE_S, "the proxy holds the bytes")
        with dial(proxy) as successor:
            successor.sendall(b"looks")
            until_received(sink, b"looks", connection=1)
        assert bytes(sink.received[0]) == b"first"
        proxy.release()
        until_received(sink, b"firstsecondthird")


def test_held_bytes_of_a_killed_client_arrive_at_release(sink: Sink, proxy: FaultProxy) -> None:
    script = f"import socket; s = socket.create_connection({proxy.address!r}); s.sendall(b'x' * 1000000); input()"
    with subprocess.Popen([sys.executable, "-c", "input()\n" + script], stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        proxy.hold(new_too=True)
        client.stdin.write(b"go\n")
        client.stdin.flush()
        wait_until(lambda: proxy.kept_bytes() == 1_000_000, DEADLINE_S, "the proxy holds the bytes")
        client.send_signal(signal.SIGKILL)
        client.wait(DEADLINE_S)
    wait_until(lambda: not proxy.connections()[0].client_open, DEADLINE_S, "the proxy saw the client die")
    assert not sink.received or not sink.received[0]
    assert not sink.ended or not sink.ended[0].is_set()
    proxy.release()
    until_received(sink, b"x" * 1_000_000)
    assert sink.ended[0].wait(DEADLINE_S), "the end follows the last byte"


def test_held_answers_for_a_client_that_was_reset_meanwhile_are_dropped(sink: Sink, proxy: FaultProxy) -> None:
    proxy.hold(Direction.ANSWERS, new_too=True)
    with dial(proxy) as client:
        client.sendall(b"question")
        wait_until(lambda: proxy.kept_bytes(Direction.ANSWERS) == 1, DEADLINE_S, "the answer is held")
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: not proxy.connections()[0].client_open, DEADLINE_S, "the proxy saw the end")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    proxy.release()
    wait_until(lambda: not proxy.connections(), DEADLINE_S, "the proxy has forgotten the connection")


def test_cut_after_passes_exactly_so_many_bytes(sink: Sink, proxy: FaultProxy) -> None:
    payload = random.Random(2).randbytes(400_000)
    cut = proxy.cut_after(123_457)
    with dial(proxy) as client, contextlib.suppress(OSError):
        client.sendall(payload)
        while client.recv(10):
            pass
    assert cut.wait(DEADLINE_S)
    wait_until(lambda: bool(sink.ended), DEADLINE_S, "the server saw the connection")
    assert sink.ended[0].wait(DEADLINE_S)
    assert bytes(sink.received[0]) == payload[:123_457]


def test_hold_after_passes_exactly_so_many_bytes_and_keeps_the_rest(sink: Sink, proxy: FaultProxy) -> None:
    payload = random.Random(3).randbytes(100_000)
    held = proxy.hold_after(12_345)
    with dial(proxy) as client:
        client.sendall(payload)
        assert held.wait(DEADLINE_S)
        wait_until(lambda: proxy.kept_bytes() == len(payload) - 12_345, DEADLINE_S, "the rest is kept")
        until_received(sink, payload[:12_345])
        proxy.release()
        until_received(sink, payload)


def test_cut_resets_the_client_and_counts(proxy: FaultProxy) -> None:
    with dial(proxy) as first, dial(proxy) as second:
        first.sendall(b"a")
        assert first.recv(1) == b"!"
        second.sendall(b"b")
        assert second.recv(1) == b"!"
        port = second.getsockname()[1]
        assert proxy.cut(lambda state: state.client_port == port) == 1
        with pytest.raises(ConnectionResetError):
            second.recv(1)
        assert [state.client_port for state in proxy.connections()] == [first.getsockname()[1]]


def test_a_stall_fills_the_senders_socket(sink: Sink, proxy: FaultProxy) -> None:
    with dial(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"!"
        proxy.stall()
        sent = 1 + send_until_full(client)
        assert proxy.kept_bytes() == 0
        proxy.resume()
        until_received(sink, b"a" * sent)


def test_stall_after_passes_exactly_so_many_bytes_and_reads_no_more(sink: Sink, proxy: FaultProxy) -> None:
    stalled = proxy.stall_after(3)
    with dial(proxy) as client:
        client.sendall(b"one")
        assert stalled.wait(DEADLINE_S)
        client.sendall(b"two")
        wait_until(lambda: proxy.unread_bytes(Direction.REQUESTS) == 3, DEADLINE_S, "the bytes wait in the kernel")
        until_received(sink, b"one")
        proxy.resume()
        until_received(sink, b"onetwo")


def test_half_close_after_passes_exactly_so_many_bytes_and_the_end(sink: Sink, proxy: FaultProxy) -> None:
    proxy.hold(Direction.ANSWERS, new_too=True)
    ended = proxy.half_close_after(5)
    with dial(proxy) as client:
        client.sendall(b"question")
        assert ended.wait(DEADLINE_S)
        wait_until(lambda: bool(sink.ended), DEADLINE_S, "the server saw the connection")
        assert sink.ended[0].wait(DEADLINE_S)
        assert bytes(sink.received[0]) == b"quest"
        client.sendall(b"nobody hears this")
        proxy.release()
        assert client.recv(10) == b"!"
        assert client.recv(10) == b""
    wait_until(lambda: not proxy.connections(), DEADLINE_S, "the proxy has forgotten the connection")
    assert proxy.accepted() == 1


def test_delay_and_jitter_keep_the_order(sink: Sink, proxy: FaultProxy) -> None:
    proxy.delay(Direction.REQUESTS, 30, jitter_ms=30)
    payload = random.Random(4).randbytes(200_000)
    with dial(proxy) as client:
        for start in range(0, len(payload), 1000):
            client.sendall(payload[start : start + 1000])
        until_received(sink, payload)


def test_a_limit_slows_and_pushes_back(sink: Sink, proxy: FaultProxy) -> None:
    proxy.limit(Direction.REQUESTS, 1_000_000)
    with dial(proxy) as client:
        sent = send_until_full(client)
        assert proxy.kept_bytes() < 1_000_000
        proxy.limit(Direction.REQUESTS, None)
        until_received(sink, b"a" * sent)


def test_refused_and_accepted_again(proxy: FaultProxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    proxy.accept()
    with dial(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"!"


def test_a_broker_that_is_gone_looks_gone(sink: Sink) -> None:
    port = sink.port
    sink.close()
    with FaultProxy.start("127.0.0.1", port) as proxy:
        with pytest.raises(ConnectionResetError), dial(proxy) as client:
            client.recv(1)
        wait_until(lambda: not proxy.connections(), DEADLINE_S, "the proxy has forgotten the connection")


def frame(api_key: int, client_id: bytes | None, body: bytes) -> bytes:
    head = struct.pack(">hhi", api_key, 9, 1) + struct.pack(">h", -1 if client_id is None else len(client_id))
    inner = head + (client_id or b"") + body
    return struct.pack(">i", len(inner)) + inner


@pytest.mark.parametrize("step", [1, 2, 3, 7, 16, 10_000])
def test_requests_are_told_apart_in_chunks_of_any_size(step: int) -> None:
    stream = frame(18, b"me", b"") + frame(0, b"me", b"z" * 5000) + frame(0, b"me", b"") + frame(1, None, b"12")
    spotter = RequestSpotter()
    for start in range(0, len(stream), step):
        spotter.feed(stream[start : start + step])
    assert spotter.client_id == "me"
    assert dict(spotter.requests) == {18: 1, 0: 2, 1: 1}
