"""``python -m bench.floor``: the CPU that a bare loop takes, which no copier can be below.

To receive a GB over loopback and send it on, by each way that Python has: without TLS, TLS on a blocking socket, TLS in
memory beside a socket, and asyncio's. And to open zstd batches of the bench's JSON lines and compress them together.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

import cramjam
import zstandard

from bench.ciphers import measure_ciphers
from bench.loads import write_payloads
from tests.kit.certificates import make_party

_BYTES: Final = 1_000_000_000
_PIECE_BYTES: Final = 1024 * 1024
_RECEIVED_BYTES: Final = 256 * 1024
_ROUNDS: Final = 3
#: Records of a batch: one, and about as many as fill 16 KB once compressed, or before.
_ZSTD_BATCHES: Final = (1, 64, 128)
_ZSTD_REPEATS: Final = 10
_JOINED_BYTES: Final = 4 * 1024 * 1024

#: Receives from the first connection and sends to the second until the first ends; the bytes passed on.
Relay = Callable[[socket.socket, socket.socket], int]


def _client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _serve(listener: socket.socket, pem: Path | None, *, sends: bool) -> None:
    end = listener.accept()[0]
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        end = context.wrap_socket(end, server_side=True)
    piece = bytearray(_PIECE_BYTES)
    with end:
        if sends:
            for _ in range(_BYTES // _PIECE_BYTES):
                end.sendall(piece)
        else:
            while end.recv_into(piece):
                pass


def _on_sockets(source: socket.socket, sink: socket.socket) -> int:
    piece, filled, passed = memoryview(bytearray(_PIECE_BYTES)), 0, 0
    while count := source.recv_into(piece[filled:]):
        filled += count
        if filled == len(piece):
            sink.sendall(piece)
            passed, filled = passed + filled, 0
    return passed


def _with_tls(source: socket.socket, sink: socket.socket) -> int:
    context = _client()
    return _on_sockets(context.wrap_socket(source), context.wrap_socket(sink))


def _shaken(end: socket.socket) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = _client().wrap_bio(incoming, outgoing)
    while True:
        try:
            tls.do_handshake()
            return tls, incoming, outgoing
        except ssl.SSLWantReadError:
            end.sendall(outgoing.read())
            incoming.write(end.recv(_RECEIVED_BYTES))
        finally:
            end.sendall(outgoing.read())


def _in_memory(source: socket.socket, sink: socket.socket) -> int:
    reading, incoming, _ = _shaken(source)
    writing, _, outgoing = _shaken(sink)
    received, piece = memoryview(bytearray(_RECEIVED_BYTES)), memoryview(bytearray(_PIECE_BYTES))
    filled = passed = 0
    while count := source.recv_into(received):
        incoming.write(received[:count])
        try:
            # With a buffer it returns a count, which its type leaves out.
            while read := cast(int, reading.read(len(piece) - filled, cast(bytearray, piece[filled:]))):
                filled += read
                if filled == len(piece):
                    writing.write(piece)
                    sink.sendall(outgoing.read())
                    passed, filled = passed + filled, 0
        except ssl.SSLWantReadError:
            continue
    return passed


class _Passing(asyncio.BufferedProtocol):
    def __init__(self, sink: asyncio.WriteTransport, ended: asyncio.Future[int]) -> None:
        self._sink, self._ended = sink, ended
        self._piece, self._filled, self._passed = memoryview(bytearray(_PIECE_BYTES)), 0, 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._piece):
            self._sink.write(self._piece)
            self._passed += self._filled
            self._piece, self._filled = memoryview(bytearray(_PIECE_BYTES)), 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(self._passed)


class _Sink(asyncio.Protocol):
    """Makes the source wait while it has enough to send."""

    source: asyncio.ReadTransport

    def pause_writing(self) -> None:
        self.source.pause_reading()

    def resume_writing(self) -> None:
        self.source.resume_reading()


def _of_asyncio(source: socket.socket, sink: socket.socket) -> int:
    async def run() -> int:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        client, name = _client(), "localhost"
        to, paced = await loop.create_connection(_Sink, sock=sink, ssl=client, server_hostname=name)
        to.set_write_buffer_limits(high=_PIECE_BYTES)
        paced.source, _ = await loop.create_connection(
            lambda: _Passing(to, ended), sock=source, ssl=client, server_hostname=name
        )
        return await ended

    return asyncio.run(run())


def measure(relay: Relay, pem: Path | None) -> float:
    """Return CPU seconds for a GB."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ends = [
            multiprocessing.Process(target=partial(_serve, listener, pem, sends=listener is first))
            for listener in (first, second)
        ]
        for end in ends:
            end.start()
        source, sink = (socket.create_connection(listener.getsockname()) for listener in (first, second))
        began_s = time.process_time()
        passed = relay(source, sink)
        took_s = time.process_time() - began_s
    source.close()
    sink.close()
    for end in ends:
        end.join()
    return took_s / passed * 1e9


def _recompressed(lines: Sequence[bytes], records: int) -> tuple[float, float]:
    """Return CPU seconds for a GB of compressed batches of so many ``records``, and records a second of one core."""
    again = zstandard.ZstdCompressor(1)
    batches = [_as_java_writes(b"".join(lines[at : at + records])) for at in range(0, len(lines), records)]
    at_once = _JOINED_BYTES * len(batches) // sum(map(len, lines))
    opened = bytearray(2 * _JOINED_BYTES)
    began_s = time.process_time()
    for at in range(0, len(batches), at_once):
        size = cramjam.zstd.decompress_into(b"".join(batches[at : at + at_once]), opened)
        again.compress(memoryview(opened)[:size])
    took_s = time.process_time() - began_s
    return took_s / sum(map(len, batches)) * 1e9, len(lines) / took_s


def _as_java_writes(payload: bytes) -> bytes:
    """Return a frame that does not say how large its content is."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(payload) + stream.flush()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        payloads = Path(folder) / "payloads.jsonl"
        write_payloads(payloads)
        lines = payloads.read_bytes().splitlines() * _ZSTD_REPEATS
        for _ in range(_ROUNDS):
            for records in _ZSTD_BATCHES:
                cpu_s, per_s = _recompressed(lines, records)
                print(f"zstd, {records} records a batch: {cpu_s:.1f} CPU-s/GB, {per_s:,.0f} records/s of one core")
    party = make_party("localhost", None)
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder) / "party.pem"
        pem.write_text(party.key_pem() + party.pem)
        for _ in range(_ROUNDS):
            ciphers = measure_ciphers("", 0, _BYTES)
            print(f"ciphers alone {ciphers.cpu_s_per_gb:.2f} CPU-s/GB, TLS in memory {ciphers.tls_cpu_s_per_gb:.2f}")
            for name, relay, of in (
                ("no TLS", _on_sockets, None),
                ("TLS on a blocking socket", _with_tls, pem),
                ("TLS in memory and a socket", _in_memory, pem),
                ("asyncio's TLS", _of_asyncio, pem),
            ):
                print(f"{name}: {measure(relay, of):.2f} CPU-s/GB", flush=True)


if __name__ == "__main__":
    main()
