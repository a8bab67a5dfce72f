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
``status``     the HTTP status of a request's answer, 0 if a stop cancelled it; of a command its exit code
=============  =========================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from connect.core.jackson import decode_json, json_text
from connect.core.wording import in_utc

VERSION: Final = 1
#: A request may have a path of 32 KB and a config of a megabyte.
_LONGEST_ENTRY: Final = 50_000
#: The longest text and the most keys of an entry; the second if characters of up to 12 bytes make it too long.
_LIMITS: Final = ((300, 50), (100, 10))
_TEXTS: Final = ("by", "action", "subject", "user", "role", "connector", "detail", "worker")
#: The last millisecond of the year 9999.
_LAST_MS: Final = 253_402_300_799_999

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
        value = b""
        for longest, most_keys in _LIMITS:
            cut = partial(_cut, longest=longest)
            fields = {key: cut(field) for key, field in asdict(self).items() if field}
            if self.changed:
                kept = list(self.changed.items())[:most_keys]
                fields["changed"] = {cut(key): [cut(each) for each in values] for key, values in kept}
            # A half of a surrogate pair, which UTF-8 does not have, becomes an escape of JSON.
            value = json_text({"version": VERSION, **fields}).encode(errors="backslashreplace")
            if len(value) <= _LONGEST_ENTRY:
                break
        return value


def _cut(value: Any, longest: int) -> Any:
    return f"{value[:longest]}..." if isinstance(value, str) and len(value) > longest else value


def decode_entry(value: bytes | None) -> dict[str, Any] | None:
    """Return the fields of an entry; None if the record is not one of this version. Anyone with WRITE on the topic may
    have written it."""
    try:
        found = decode_json(value if value is not None and len(value) <= _LONGEST_ENTRY else b"")
        json_text(found).encode()
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("version") == VERSION and _is_whole(found) else None


def _is_whole(found: Mapping[str, Any]) -> bool:
    at_ms, status, changed = found.get("at_ms", 0), found.get("status", 0), found.get("changed", {})
    return (
        all(isinstance(found.get(name, ""), str) for name in _TEXTS)
        and all(isinstance(number, int) for number in (at_ms, status))
        and 0 <= at_ms <= _LAST_MS
        and isinstance(changed, dict)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in changed.values())
        and all(value is None or isinstance(value, str) for pair in changed.values() for value in pair)
    )


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
    if by == "rest":
        return [f"answer {status}" if status else "no answer"]
    return [] if by == "worker" else [f"exit code {status or 0}"]


def _value(value: str | None) -> str:
    return "not set" if value is None else value or "empty"


#: Takes the entries of the worker to which the running code belongs. Tasks inherit it from the worker that starts them.
AUDITED: ContextVar[Callable[[AuditEntry], None] | None] = ContextVar("audited", default=None)

#: Attributes of a log record that says a state change, for logs in JSON.
EVENT: Final = "event"
SUBJECT: Final = "subject"


def state_changed(log: logging.Logger, level: int, event: str, subject: str, template: str, *arguments: object) -> None:
    """Log a change that the worker has made or found, and enter it in the audit, whatever the log's level is.
    ``event``: a word such as ``topic-created``. ``subject``: what has changed: a topic, a partition, a connector or a
    task."""
    log.log(level, template, *arguments, extra={EVENT: event, SUBJECT: subject})
    if (audited := AUDITED.get()) is not None:
        audited(AuditEntry("worker", event, subject, detail=template % arguments))
