"""What Spark says when something failed, in one line for people. Pure.

Spark's messages hold the traces of Python and of the JVM, frame by frame; what ended a task stands somewhere inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

_MISSING: Final = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'")
#: The executor's Python itself: not there, or of another version than the driver's.
_NO_PYTHON: Final = re.compile(r"Cannot run program \"([^\"]+)\"")
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*")
_RAISED: Final = re.compile(r"^([\w.]+(?:Error|Exception|Exit|Interrupt|Warning|Code|Defect|Closed)\b: .*|\w+Error)$")
#: What gRPC says in words, among much that it says in none.
_DETAILS: Final = re.compile(r"^\s*details = \"(.+)\"$", re.MULTILINE)
_TRACE: Final = "Traceback (most recent call last):"
_MAX_CHARS: Final = 500
#: What a changed setting mends and nothing else.
_SETTINGS: Final = (
    "IllegalArgumentException",
    "Could not parse Master URL",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "[INVALID_CONNECT_URL]",
    "[MASTER_URL_INVALID]",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job or a start failed.

    Args:
        text: One line.
        unfit: What an executor's Python lacks, as the end of a sentence; empty if it lacks nothing.
        python: Whether Python code of ours raised it.
        settings: Whether only other settings help.
    """

    text: str
    unfit: str = ""
    python: bool = False
    settings: bool = False

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        return cls(**{name: data[name] for name in cls.__slots__})


def failure_of(error: BaseException) -> Failure:
    """The failure behind an exception of pyspark."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = _TRACE in text
    raised = _last_raised(lines[lines.index(_TRACE) + 1 :]) if _TRACE in lines else _grpc_details(text)
    line = raised or f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return Failure(
        text=line[:_MAX_CHARS],
        unfit=_unfitness(text),
        python=python,
        settings=isinstance(error, ImportError) or any(word in text for word in _SETTINGS),
    )


def _grpc_details(text: str) -> str | None:
    found = _DETAILS.search(text)
    return found.group(1) if found else None


def _last_raised(lines: Iterable[str]) -> str | None:
    """The line in which a Python trace says what was raised; of a chain the last, which is what came out."""
    found = None
    for line in lines:
        if line.startswith(("at ", "JVM stacktrace", "Driver stacktrace")):
            break
        if _RAISED.match(line):
            found = line
    return found


def _unfitness(text: str) -> str:
    if missing := _MISSING.search(text):
        return f"cannot import {missing.group(1)}"
    if no_python := _NO_PYTHON.search(text):
        return f"is not there: {no_python.group(1)}"
    if other := _OTHER_PYTHON.search(text):
        return f"is of another version: {other.group(0)}"
    return ""
