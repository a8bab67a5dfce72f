"""``python -m bench.floor``: the CPU that a loop takes to receive a GB over loopback and send it on."""

from __future__ import annotations

import multiprocessing
import socket
import time
from typing import Final

_BYTES: Final = 1_000_000_000
_PIECE_BYTES: Final = 1024 * 1024


def _send(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sink:
        for _ in range(_BYTES // _PIECE_BYTES):
            sink.sendall(bytes(_PIECE_BYTES))


def _forget(port: int) -> None:
    piece = bytearray(_PIECE_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as source:
        while source.recv_into(piece):
            pass


def measure() -> float:
    """Return CPU seconds for a GB."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = [multiprocessing.Process(target=end, args=(listener.getsockname()[1],)) for end in (_send, _forget)]
        connections = []
        for end in ends:
            end.start()
            connections.append(listener.accept()[0])
    source, sink = connections
    piece, passed = memoryview(bytearray(_PIECE_BYTES)), 0
    began_s = time.process_time()
    while count := source.recv_into(piece):
        sink.sendall(piece[:count])
        passed += count
    took_s = time.process_time() - began_s
    for connection, end in zip(connections, ends, strict=True):
        connection.close()
        end.join()
    return took_s / passed * 1e9


if __name__ == "__main__":
    for _ in range(3):
        print(f"{measure():.2f} CPU-s/GB")
