"""Findings about a configuration file with their JSON, and detection of a file's kind from its content.

A finding about a missing key has the line of the key that requires it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from connect.cli.console import FORMAT
from connect.core.errors import ConfigError


class Level(StrEnum):
    """``ERROR``: it would not start or work. ``WARNING``: it may do something that is not intended.
    ``UNKNOWN``: it could not be checked. ``NOTE``: worth knowing."""

    ERROR = "error"
    UNKNOWN = "unknown"
    WARNING = "warning"
    NOTE = "note"


_RANKS: Final = {level: rank for rank, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One sentence, with the ``key`` as in the file and its ``line``, counted from 1, if it is about one."""

    level: Level
    text: str
    key: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a flow or connector, ``what``, would do: a sentence each."""

    what: str
    does: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """A cluster that was contacted; ``error`` is empty if it answered, ``release`` if brokers do not show it."""

    name: str
    addresses: str
    brokers: int = 0
    release: str = ""
    cluster_id: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result for a file; ``kind`` as of ``--kind``, ``runs_with`` is the command that takes such a file."""

    file: str
    kind: str
    runs_with: str
    outcomes: tuple[CheckOutcome, ...] = ()
    clusters: tuple[SeenCluster, ...] = ()
    findings: tuple[CheckFinding, ...] = field(default=())

    def count(self, level: Level) -> int:
        return sum(one.level is level for one in self.findings)

    def with_findings(self, findings: Iterable[CheckFinding]) -> CheckReport:
        """Return the report with more findings, in order of lines; each appears once, at its worst level."""
        ranked = sorted((*self.findings, *findings), key=lambda one: _RANKS[one.level])
        every = {(one.text, one.key, one.line): one for one in reversed(ranked)}
        order = sorted(every.values(), key=lambda one: (one.line is None, one.line or 0, _RANKS[one.level], one.text))
        return replace(self, findings=tuple(order))


def of_error(error: Exception, level: Level = Level.ERROR) -> CheckFinding:
    """Turn an error into a finding; a ConfigError's place is not in the text."""
    if isinstance(error, ConfigError):
        named = error.key is None or error.key in error.message
        text = error.message if named else f"{error.key}: {error.message}"
        return CheckFinding(level, text, error.key, error.line)
    return CheckFinding(level, str(error))


def report_as_json(report: CheckReport) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
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


_OF_NAMED: Final = re.compile(r"((?:.*\.)?(?:config\.providers|transforms|predicates))\.[^.]+\.(?:class|type)")
_OF_LOGIN: Final = re.compile(r"(.*\.)?sasl\.(?:jaas\.config|kerberos\.service\.name)")
_ADDRESS: Final = ".bootstrap.servers"


def list_with(key: str) -> str | None:
    """Return the list key that requires the missing ``key``: ``transforms`` for ``transforms.mask.type``."""
    found = _OF_NAMED.fullmatch(key)
    return found.group(1) if found else None


def placed(finding: CheckFinding, line_of: Callable[[str], int | None]) -> CheckFinding:
    """Return the finding with a line: its own, else that of its key or of the key that requires it."""
    if finding.line is not None or finding.key is None:
        return finding
    lines = map(line_of, (finding.key, *_origins(finding.key)))
    return replace(finding, line=next((line for line in lines if line is not None), None))


def _origins(key: str) -> Iterator[str]:
    """Yield the keys that may require ``key``, the nearest first."""
    names = list_with(key)
    if names is not None:
        yield names
    elif key.endswith(_ADDRESS):
        yield "clusters"
    elif login := _OF_LOGIN.fullmatch(key):
        prefixes = dict.fromkeys((login.group(1) or "", ""))
        yield from (f"{prefix}{name}" for name in ("sasl.mechanism", "security.protocol") for prefix in prefixes)


class FileKind(StrEnum):
    """Kinds of files that ``heliograph check`` knows; the values of ``--kind``."""

    MIRROR = "mirror"
    WORKER = "worker"
    CONNECTOR = "connector"
    CONSUMER = "consumer"
    PRODUCER = "producer"
    STRIMZI = "strimzi"


_FLOW_KEY: Final = re.compile(r"[^.=\s]+->[^\s]+\.")
_RESOURCE: Final = frozenset({"apiVersion", "kind"})
_OF_RESOURCE: Final = re.compile(r"^(apiVersion|kind)\s*:", re.MULTILINE)
#: Keys that nearly every consumer's and producer's file has, today and before Kafka 0.9.
_OF_CONSUMER: Final = frozenset({"group.id", "groupid", "auto.offset.reset", "autooffset.reset", "zookeeper.connect"})
_OF_PRODUCER: Final = frozenset(
    {"acks", "request.required.acks", "metadata.broker.list", "broker.list", "compression.type", "producer.type"}
)
_OF_WORKER: Final = frozenset(
    {"config.storage.topic", "offset.storage.topic", "status.storage.topic", "offset.storage.file.filename"}
)


def kind_of_text(text: str) -> FileKind | None:
    """Return the kind of a JSON or YAML file; None if it may be a properties file."""
    if text.lstrip().startswith(("{", "[")):
        return FileKind.STRIMZI if _is_resource(text) else FileKind.CONNECTOR
    found = {match.group(1) for match in _OF_RESOURCE.finditer(text)}
    return FileKind.STRIMZI if found == _RESOURCE else None


def _is_resource(text: str) -> bool:
    """Whether the text is a resource as ``kubectl get -o json`` prints it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.keys() >= _RESOURCE


def kind_of_properties(props: Mapping[str, str], file: str) -> FileKind:
    """Return the kind of a properties file. Raises ConfigError if no key shows it."""
    if "clusters" in props or any(_FLOW_KEY.match(key) for key in props):
        return FileKind.MIRROR
    if props.keys() & _OF_WORKER:
        return FileKind.WORKER
    if "connector.class" in props:
        return FileKind.CONNECTOR
    if "key.converter" in props:
        return FileKind.WORKER
    consumer, producer = len(props.keys() & _OF_CONSUMER), len(props.keys() & _OF_PRODUCER)
    if consumer != producer:
        return FileKind.CONSUMER if consumer > producer else FileKind.PRODUCER
    raise ConfigError(
        f"the kind of file is not known: it has none of clusters, connector.class and config.storage.topic. "
        f"Set --kind to one of {', '.join(FileKind)}",
        file=file,
    )
