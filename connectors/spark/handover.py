"""How a process takes the place of another: its standard input, output and error, its environment and arguments.

Both ends import little, because Spark waits for the end that gives its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import sys
from typing import Final

#: The environment variable with the path of the socket between the two ends.
PLACE_VARIABLE: Final = "HELIOGRAPH_DAEMON_SOCKET"
_STANDARD: Final = (0, 1, 2)
_LENGTH_BYTES: Final = 8
_TAKEN: Final = b"."


def give_place(path: str) -> bool:
    """Give the place of this process to the one that listens at ``path``; return True once that process has ended.

    Return False when no process takes the place: this process keeps it.
    """
    with socket.socket(socket.AF_UNIX) as taker:
        try:
            taker.connect(path)
            place = {
                "environment": dict(os.environ),
                "arguments": sys.argv[1:],
                # A JVM raises it for itself and for the processes that it starts.
                "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            }
            text = json.dumps(place).encode()
            socket.send_fds(taker, [len(text).to_bytes(_LENGTH_BYTES, "big")], _STANDARD)
            taker.sendall(text)
            if taker.recv(1) != _TAKEN:
                return False
        except OSError:
            return False
        with contextlib.suppress(OSError):
            taker.recv(1)
        return True


class Taker:
    """The other end. It listens at ``path`` from the beginning. Raises OSError when it cannot."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # of a process that was killed
            os.unlink(path)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)

    def take(self) -> bool:
        """Wait for a place and take it. Return False when the standard input of this process ends before."""
        poll = select.poll()
        for file in (self._listener.fileno(), _STANDARD[0]):
            poll.register(file, select.POLLIN)
        is_offered = self._listener.fileno() in dict(poll.poll())
        # Only once, so that a process that comes later does not wait for an answer.
        os.unlink(self._path)
        with self._listener:
            if is_offered:
                giver, _ = self._listener.accept()
                self._take_from(giver)
        return is_offered

    def _take_from(self, giver: socket.socket) -> None:
        head, files, _, _ = socket.recv_fds(giver, _LENGTH_BYTES, len(_STANDARD))
        with giver.makefile("rb") as stream:
            place = json.loads(stream.read(int.from_bytes(head, "big")))
        os.environ.clear()
        os.environ.update(place["environment"])
        sys.argv[1:] = place["arguments"]
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(place["open_files"]))
        for file, standard in zip(files, _STANDARD, strict=True):
            os.dup2(file, standard)
            os.close(file)
        # Held by this process alone, so that its end is the end of the other, whatever it has forked.
        os.register_at_fork(after_in_child=giver.close)
        giver.sendall(_TAKEN)
