"""``python tests/kit/confined.py UNIT WRITABLE ... -- COMMAND ...``: run it under a systemd unit's restrictions."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

_INSIDE: Final = "HELIOGRAPH_CONFINED"
NUMBERS: Final = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SECCOMP, _DROP_CAPABILITY, _NO_NEW_PRIVILEGES, _FILTER = 22, 24, 38, 2
_X86_64: Final = 0xC000003E
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06


def is_possible() -> bool:
    try:
        made = subprocess.run(_unshare("true"), capture_output=True, timeout=60, check=False)
        subprocess.run(["systemd-analyze", "--version"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return made.returncode == 0 and NUMBERS.exists()


def main() -> None:
    middle = sys.argv.index("--")
    unit, writable, command = Path(sys.argv[1]).read_text(), sys.argv[2:middle], sys.argv[middle + 1 :]
    if os.environ.pop(_INSIDE, None) is None:
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", _unshare(sys.executable, *sys.argv))
    calls = _calls(unit)
    _make_read_only(writable)
    os.umask(int(_words(unit, "UMask")[0], 8))
    assert _words(unit, "CapabilityBoundingSet") == []
    for capability in range(64):
        _LIBC.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
    _filter(calls, [getattr(socket, family) for family in _words(unit, "RestrictAddressFamilies")])
    os.execvp(command[0], command)


def _unshare(*command: str) -> list[str]:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", "--mount", *as_root, *command]


def _words(unit: str, key: str) -> list[str]:
    found = re.search(rf"^{key}=(.*)$", unit, re.MULTILINE)
    assert found is not None, key
    return found[1].split()


def _calls(unit: str) -> set[int]:
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        found = {call for group in line.removeprefix("~").split() for call in _group(group)}
        allowed = allowed - found if line.startswith("~") else allowed | found
    return {numbers[name] for name in allowed if name in numbers}


def _group(name: str) -> set[str]:
    reported = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    words = {line.strip() for line in reported.stdout.splitlines()[1:] if line.strip() and "#" not in line}
    return {call for word in words for call in (_group(word) if word.startswith("@") else {word})}


def _make_read_only(writable: list[str]) -> None:
    for path in writable:
        subprocess.run(["mount", "--bind", path, path], check=True)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if not any(Path(place).is_relative_to(path) for path in (*writable, "/proc", "/dev", "/sys")):
            subprocess.run(["mount", "-o", "remount,bind,ro", place], check=False, capture_output=True)
    with contextlib.suppress(OSError):
        Path(__file__).with_suffix(".probe").touch()
        sys.exit("confined: the file system is still writable")


def _filter(calls: set[int], families: list[int]) -> None:
    """Let only these system calls pass, and sockets of these families only; others fail with EPERM."""
    refuse = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    program = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, _X86_64), refuse, (_LOAD, 0, 0, 0)]
    of_sockets = [(_LOAD, 0, 0, 16)]
    for family in families:
        of_sockets += [(_IF_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    of_sockets.append(refuse)
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}
    program += [(_IF_EQUAL, 0, len(of_sockets), numbers["socket"]), *of_sockets]
    for call in sorted(calls):
        program += [(_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    program.append(refuse)
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)))
    if _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or _LIBC.prctl(_SECCOMP, _FILTER, whole, 0, 0):
        sys.exit(f"confined: no filter: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
