"""Where others on a machine could see a running mirror's secrets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.kit.mirror import Mirror


def seen_of_processes(mirror: Mirror) -> Iterator[tuple[str, bytes]]:
    """Each place with what is in it: the log, and of each process arguments, environment and the files it writes."""
    yield "the log", mirror.log_file.read_bytes()
    for member in mirror.members():
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            place = Path(f"/proc/{member.pid}")
            yield f"arguments of {member.role.value}", (place / "cmdline").read_bytes()
            if member.pid != mirror.pid:  # its own are the user's
                yield f"environment of {member.role.value}", (place / "environ").read_bytes()
            for file in (place / "fd").iterdir():
                with contextlib.suppress(OSError):
                    flags = int((place / "fdinfo" / file.name).read_text().split("flags:")[1].split()[0], 8)
                    if flags & os.O_ACCMODE != os.O_RDONLY and file.is_file():
                        yield f"an open file of {member.role.value}: {file.readlink()}", file.read_bytes()
