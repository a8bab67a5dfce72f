"""What is found of a file: plain values, and the JSON of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from connect.core.errors import ConfigError

#: Of the JSON; it changes where a reader of an older one would misunderstand.
FORMAT: Final = 1


class Level(StrEnum):
    """``ERROR``: it would not start, or not do what it says. ``WARNING``: it does something else than may be meant.
    ``UNKNOWN``: it could not be looked at. ``NOTE``: worth knowing."""

    ERROR = "error"
    UNKNOWN = "unknown"
    WARNING = "warning"
    NOTE = "note"


_RANKS: Final = {level: rank for rank, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence; ``key`` as the file has it, ``line`` from 1, where it is about a line."""

    level: Level
    text: str
    key: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What ``what``, such as a flow, would do: a sentence each."""

    what: str
    does: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """A cluster that was asked; ``error`` where it did not answer, ``release`` empty where brokers do not show it."""

    name: str
    addresses: str
    brokers: int = 0
    release: str = ""
    cluster_id: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """``kind``: what the file is taken for, as ``--kind`` has it; ``runs_with`` is the command for it."""

    file: str
    kind: str
    runs_with: str
    outcomes: tuple[Outcome, ...] = ()
    clusters: tuple[SeenCluster, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    def count(self, level: Level) -> int:
        return sum(one.level is level for one in self.findings)

    def with_findings(self, findings: Iterable[Finding]) -> Report:
        """These as well, in the order of the file's lines; each once, at its worst level."""
        ranked = sorted((*self.findings, *findings), key=lambda one: _RANKS[one.level])
        every = {(one.text, one.key, one.line): one for one in reversed(ranked)}
        order = sorted(every.values(), key=lambda one: (one.line is None, one.line or 0, _RANKS[one.level], one.text))
        return replace(self, findings=tuple(order))


def of_error(error: Exception, level: Level = Level.ERROR) -> Finding:
    """An error as a finding; of a ConfigError the place is kept apart from the sentence."""
    if isinstance(error, ConfigError):
        named = error.key is None or error.key in error.message
        text = error.message if named else f"{error.key}: {error.message}"
        return Finding(level, text, error.key, error.line)
    return Finding(level, str(error))


def report_as_json(report: Report) -> dict[str, Any]:
    """See docs/operations.md."""
    return {
        "format": FORMAT,
        "file": report.file,
        "kind": report.kind,
        "runs_with": report.runs_with,
        **{f"{level}s" if level is not Level.UNKNOWN else "unknown": report.count(level) for level in Level},
        "outcomes": [{"what": one.what, "does": list(one.does)} for one in report.outcomes],
        "clusters": [
            {key: value if value not in ("", 0) else None for key, value in asdict(one).items()}
            for one in report.clusters
        ],
        "findings": [asdict(one) for one in report.findings],
    }


def one_line(parts: Sequence[str]) -> str:
    """``a, b and 3 more``: what stands in a sentence of names."""
    shown = 3
    more = f" and {len(parts) - shown} more" if len(parts) > shown else ""
    return ", ".join(parts[:shown]) + more
