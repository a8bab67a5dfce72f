"""Starts, signals and watches JVMs through ``connect.embedded.watchdog``, so that none outlives the program."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from connect.core.errors import PermanentError
from connect.embedded import watchdog

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
            [sys.executable, "-I", "-S", watchdog.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> int:
        """Start a process that appends its output to ``log``; return its process id."""
        answer = self._ask({"spawn": name, "argv": list(argv), "env": dict(env), "log": str(log)})
        return int(answer["pid"])

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
