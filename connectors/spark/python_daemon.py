"""What Spark starts as the parent of its Python workers on this machine.

It passes its stdio and environment over a Unix socket to the process that the driver has started beforehand, which has
loaded what takes a second or more. If there is none, it is the parent itself. It imports little, because Spark waits
for it.
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

#: The environment variable with the path of the socket.
PLACE_VARIABLE: Final = "HELIOGRAPH_DAEMON_SOCKET"
_STANDARD: Final = (0, 1, 2)
_LENGTH_BYTES: Final = 8
_TAKEN: Final = b"."


def give_place(path: str) -> bool:
    """Pass stdio, environment and arguments to the process that listens at ``path``; return True once it has ended.

    Return False if no process takes them: then this process is the daemon itself.
    """
    with socket.socket(socket.AF_UNIX) as taker:
        try:
            taker.connect(path)
            place = {
                "environment": dict(os.environ),
                "arguments": sys.argv[1:],
                # Because a JVM raises its own limit, and its child processes inherit it.
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
    """The receiving end, which listens at ``path`` as soon as it exists. Raises OSError if it cannot."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # left behind by a process that was killed
            os.unlink(path)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)

    def take(self) -> bool:
        """Wait for a sender and take its place. Return False if standard input of this process ends first."""
        poll = select.poll()
        for file in (self._listener.fileno(), _STANDARD[0]):
            poll.register(file, select.POLLIN)
        is_offered = self._listener.fileno() in dict(poll.poll())
        # Accept one sender only, so that a later process does not wait for an answer.
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
        # Forked children close the socket, so that the sender ends when this process ends.
        os.register_at_fork(after_in_child=giver.close)
        giver.sendall(_TAKEN)


if __name__ == "__main__" and not give_place(os.environ.get(PLACE_VARIABLE, "")):
    from connectors.spark import early_daemon

    early_daemon.load()
    early_daemon.serve()
