"""Entries of the audit topic: who changed what, when, and with which outcome; and changes that a worker makes itself.

A record's value is a JSON object; fields without a value are omitted. A reader passes over an entry of a later version.

=============  =========================================================================================
``version``    1
``at_ms``      when, in milliseconds since 1970
``by``         ``rest``: a request; ``command``: a command with the clusters' files; ``worker``: the worker itself
``user``       the user of a request, or ``user@host`` of a command; ``role``: view, operate or admin
``worker``     the worker that got the request or made the change
``action``     the method of a request, the name of a command, or the event, such as ``topic-created``
``subject``    the path of a request without its query; otherwise what was changed
``connector``  the connector of a request
``changed``    ``{key: [before, after]}``: config keys; null: not set, ``[hidden]``: a secret
``detail``     a sentence
``status``     the HTTP status of a request's answer, or 0; of a command its exit code
=============  =========================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from connect.core.jackson import decode_json, json_text
from connect.core.wording import in_utc

VERSION: Final = 1
#: A request may have a path of 32 KB and a config of a megabyte.
_LONGEST_TEXT: Final = 300
_MOST_KEYS: Final = 50

Changed = Mapping[str, tuple[str | None, str | None]]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry; the fields are those of the format."""

    by: str
    action: str
    subject: str = ""
    user: str = ""
    role: str = ""
    connector: str = ""
    changed: Changed = field(default_factory=dict)
    detail: str = ""
    status: int = 0
    at_ms: int = 0
    worker: str = ""

    def to_bytes(self) -> bytes:
        """Return the value of its record; long texts are cut, and of many keys the first are kept."""
        fields = {key: _cut(value) for key, value in asdict(self).items() if value}
        if self.changed:
            kept = list(self.changed.items())[:_MOST_KEYS]
            fields["changed"] = {_cut(key): [_cut(value) for value in values] for key, values in kept}
        return json_text({"version": VERSION, **fields}).encode()


def _cut(value: Any) -> Any:
    return f"{value[:_LONGEST_TEXT]}..." if isinstance(value, str) and len(value) > _LONGEST_TEXT else value


def decode_entry(value: bytes | None) -> dict[str, Any] | None:
    """Return the fields of an entry; None if the record is not one of this version."""
    try:
        found = decode_json(value or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("version") == VERSION else None


def in_words(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return ``when``, ``who``, ``what`` and ``how`` of a decoded entry, for tables."""
    changed = entry.get("changed") or {}
    keys = (f"{key}: {_value(before)} -> {_value(after)}" for key, (before, after) in changed.items())
    detail = entry.get("detail")
    role, by, status = entry.get("role"), entry.get("by"), entry.get("status")
    user = f"{entry.get('user', '')}{f' ({role})' if role else ''}"
    return {
        "when": in_utc(entry.get("at_ms", 0)),
        "who": user if by != "worker" else f"worker {entry.get('worker', '')}",
        "what": f"{entry.get('action', '')} {entry.get('subject', '')}",
        "how": "; ".join([*keys, *([detail] if detail else []), *_outcome(by, status)]),
    }


def _outcome(by: Any, status: Any) -> list[str]:
    return [] if by == "worker" else [f"answer {status}" if by == "rest" else f"exit code {status or 0}"]


def _value(value: str | None) -> str:
    return "not set" if value is None else value or "empty"


#: Takes the entries of the worker to which the running code belongs. Tasks inherit it from the worker that starts them.
AUDITED: ContextVar[Callable[[AuditEntry], None] | None] = ContextVar("audited", default=None)

#: Attributes of a log record that says a state change, for logs in JSON.
EVENT: Final = "event"
SUBJECT: Final = "subject"


def state_changed(log: logging.Logger, level: int, event: str, subject: str, template: str, *arguments: object) -> None:
    """Log a change that the worker has made or found, and enter it in the audit, whatever the log's level is.

    Args:
        event: A word such as ``topic-created``.
        subject: What has changed: a topic, a partition, a connector or a task.
    """
    log.log(level, template, *arguments, extra={EVENT: event, SUBJECT: subject})
    if (audited := AUDITED.get()) is not None:
        audited(AuditEntry("worker", event, subject, detail=template % arguments))
