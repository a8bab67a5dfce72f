"""Starts, signals and watches JVMs through a keeper process, so that none outlives the program, however that ends.

The keeper runs this file as a script (standard library only, single-threaded), with the folder to remove at the end as
its argument. Orders arrive as JSON lines on standard input; one JSON line answers each. When the input ends, because
the program closed it, ended or was killed, the keeper kills its JVMs and removes the folder.

Orders: ``{"spawn": name, "argv": [..], "env": {..}, "log": path}`` -> ``{"pid": n}``;
``{"signal": name, "number": n}`` -> ``{}``; ``{"poll": name}`` -> ``{"returncode": n or null}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_END_TIMEOUT_S = 60.0
_POLL_S = 0.02


class Keeper:
    """The child processes of one cluster and the folder they write to. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Start the keeper process, which removes ``folder`` when it ends. It has its own session, so that a terminal's
        Ctrl-C reaches the program and not the JVMs."""
        self._folder = folder
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> int:
        """Start a process that appends its output to ``log``; return its process id."""
        return int(self._ask({"spawn": name, "argv": list(argv), "env": dict(env), "log": str(log)})["pid"])

    def signal(self, name: str, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._ask({"signal": name, "number": number})

    def poll(self, name: str) -> int | None:
        """Return the return code as ``subprocess`` defines it, or None while the process runs."""
        returncode = self._ask({"poll": name})["returncode"]
        return None if returncode is None else int(returncode)

    def wait(self, name: str, timeout_s: float) -> bool:
        """Wait for the end of the process; return False if it still runs after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.poll(name) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def close(self) -> None:
        """Kill the processes that still run, wait for them, and have the folder removed. May be called again."""
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            if self._process.stdin.closed:
                return
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # A killed keeper did not remove it.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        # Imported here, because the keeper, which runs this file too, has the standard library alone.
        from connect.core.errors import PermanentError

        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except (BrokenPipeError, ValueError):
                line = b""
        if not line:
            raise PermanentError("the process that keeps the embedded Kafka has ended. Start the cluster again.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PermanentError(f"cannot start or signal a process of the embedded Kafka: {answer['error']}")
        return answer


_ORPHAN_CHECK_S = 1.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    folder, children = sys.argv[1], dict[str, subprocess.Popen[bytes]]()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for line in _lines():
            os.write(1, json.dumps(_handle(json.loads(line), children)).encode() + b"\n")
    except BrokenPipeError:
        pass  # The program ended: the same as the end of the input.
    finally:
        for child in children.values():
            child.kill()
        for child in children.values():
            child.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _lines() -> Iterator[bytes]:
    """Yield the lines of standard input until it ends, or the parent process ends: a process that the program forked
    may keep the pipe open."""
    parent, buffer = os.getppid(), b""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _ORPHAN_CHECK_S)
        if not readable:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from lines


def _handle(order: dict[str, Any], children: dict[str, subprocess.Popen[bytes]]) -> dict[str, Any]:
    try:
        if "spawn" in order:
            children[order["spawn"]] = child = _spawn(order)
            return {"pid": child.pid}
        if "signal" in order:
            # Popen sends nothing to a child that has ended, so the signal cannot hit another process with its old id.
            children[order["signal"]].send_signal(order["number"])
            return {}
        return {"returncode": children[order["poll"]].poll()}
    except OSError as error:
        return {"error": str(error)}


def _spawn(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(order["log"], "ab") as log:
        return subprocess.Popen(
            order["argv"],
            env=order["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 (one thread only)
        )


def _die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with(parent: int) -> None:
    """End this process when the main thread of its parent, which started it, ends; Linux only."""
    if sys.platform == "linux":
        _die_with_parent()
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    main()
