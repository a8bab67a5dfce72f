"""A preloaded Python daemon: the parent of Spark's Python workers on this machine, which imports all that they need.

Forked workers start at once and share its memory. The driver starts an early one together with the JVM, so that the
imports are done when Spark needs its first worker. Then it takes the place of the daemon that Spark starts, which
passes it stdio and environment over a Unix socket. If there is no early one, Spark's is the parent itself. This works
with a local master only: executors of a cluster start their daemon before this package is shipped to them.

The module imports little, because Spark waits for it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import socket
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

#: The environment variable with the path of the socket.
PLACE_VARIABLE: Final = "HELIOGRAPH_DAEMON_SOCKET"
_STANDARD: Final = (0, 1, 2)
_LENGTH_BYTES: Final = 8
_TAKEN: Final = b"."


def exec_early_daemon(path: str) -> bool:
    """Pass stdio, environment and arguments to the process that listens at ``path``; return True once it has ended.
    Return False if no process takes them: then this process is the daemon itself."""
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


class _WithoutPandas(MetaPathFinder):
    """An import hook that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def load() -> None:
    sys.path[:] = without_archives(sys.path)
    import pyarrow
    import pyspark.worker  # noqa: F401

    from connectors.control_link.code_version import running_code
    from connectors.dataplane import slice as _executor  # noqa: F401

    # Else the first array that a worker makes of a list imports pandas, which nothing here needs and which takes longer
    # than a lease on a slow machine.
    sys.meta_path.insert(0, _WithoutPandas())
    pyarrow.array([0])
    del sys.meta_path[0]
    running_code()  # cached for all workers, before an upgrade replaces the files of this code
    gc.collect()
    # Because a collection in a worker does not touch frozen objects, their memory stays shared.
    gc.freeze()


def without_archives(path: list[str]) -> list[str]:
    """Return ``path`` without pyspark's zip archives, if pyspark is also installed on it as a folder. Because Spark
    puts the archives first, Python would search them for each module and compile what it imports from them at each
    start."""
    found = PathFinder.find_spec("pyspark", [entry for entry in path if Path(entry).is_dir()])
    if found is None or found.origin is None:
        return path
    home = Path(found.origin).parent
    return [entry for entry in path if not Path(entry).is_relative_to(home)]


def serve() -> None:
    """Fork workers for the JVM at standard input and output, until it closes them."""
    from pyspark.daemon import manager

    manager()


def main() -> None:
    """Run the daemon that Spark starts, with the module of its workers as an argument, or without one the early one."""
    if sys.argv[1:]:
        if not exec_early_daemon(os.environ.get(PLACE_VARIABLE, "")):
            load()
            serve()
        return
    taker = Taker(os.environ[PLACE_VARIABLE])
    load()
    if taker.take():
        serve()


if __name__ == "__main__":
    main()
