"""A keeper process between a program and the JVMs it started: none outlives the program, however that ends.

``connect.embedded.processes`` runs it as a script (standard library only, single-threaded), with the folder to remove
at the end as its argument. Orders arrive as JSON lines on standard input; one JSON line answers each. When the input
ends, because the program closed it, ended or was killed, the keeper kills its JVMs and removes the folder.

Orders: ``{"spawn": name, "argv": [..], "env": {..}, "log": path}`` -> ``{"pid": n}``;
``{"signal": name, "number": n}`` -> ``{}``; ``{"poll": name}`` -> ``{"returncode": n or null}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

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
