"""Java's answers and ours, field by field, and the differences that are meant."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.interop.rest.answers import Answer

#: Objects of these fields alone are Java's own records, whose order is part of the answer; others are maps of a hash.
_RECORD_FIELDS: Final = frozenset(
    (
        *("name", "config", "tasks", "type", "id", "state", "worker_id", "version", "trace", "connector", "task"),
        *("error_code", "message", "class", "status", "info", "offsets", "partition", "offset", "topics"),
        *("definition", "value", "groups", "configs", "error_count", "recommended_values", "errors", "visible"),
        *("required", "default_value", "importance", "documentation", "group", "width", "display_name", "dependents"),
        *("order", "order_in_group", "level", "last_modified", "commit", "kafka_cluster_id"),
    )
)
_MISSING: Final = "(missing)"


@dataclass(frozen=True, slots=True)
class Difference:
    """``where``: the name of the request, then the field: ``status``, ``headers.location``, ``body.tasks.0.id``."""

    ask: str
    field: str
    java: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.ask}: {self.field}: Java {self.java!r:.300}, ours {self.ours!r:.300}"


@dataclass(frozen=True, slots=True)
class Intended:
    """A difference on purpose. ``asks`` and ``fields`` are patterns of the shell."""

    asks: str
    fields: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        return fnmatch.fnmatchcase(difference.ask, self.asks) and fnmatch.fnmatchcase(difference.field, self.fields)


def compare(
    java: Mapping[str, Answer], ours: Mapping[str, Answer], intended: Sequence[Intended] = ()
) -> list[Difference]:
    """What differs beyond what is meant to, request after request as Java was asked."""
    found = [
        difference
        for name, answer in java.items()
        for difference in _answers(name, answer, ours.get(name, Answer(0, {}, "was not asked")))
    ]
    return [difference for difference in found if not any(meant.covers(difference) for meant in intended)]


def unused(java: Mapping[str, Answer], ours: Mapping[str, Answer], intended: Sequence[Intended]) -> list[Intended]:
    found = compare(java, ours)
    return [meant for meant in intended if not any(map(meant.covers, found))]


def _answers(name: str, java: Answer, ours: Answer) -> Iterator[Difference]:
    if java.status != ours.status:
        # Another status says it all, but for the words, which tell why.
        yield Difference(name, "status", (java.status, _words(java)), (ours.status, _words(ours)))
        return
    yield from _values(name, "headers", dict(java.headers), dict(ours.headers))
    # The words of an error inside are those of each program's own parts.
    if java.status == 500:
        yield from _values(name, "body", _without_words(java.body), _without_words(ours.body))
    else:
        yield from _values(name, "body", java.body, ours.body)


def _words(answer: Answer) -> Any:
    return answer.body.get("message", answer.body) if isinstance(answer.body, dict) else answer.body


def _without_words(body: Any) -> Any:
    return {**body, "message": bool(body.get("message"))} if isinstance(body, dict) else body


def _values(ask: str, field: str, java: Any, ours: Any) -> Iterator[Difference]:
    if isinstance(java, dict) and isinstance(ours, dict):
        yield from _objects(ask, field, java, ours)
    elif isinstance(java, list) and isinstance(ours, list):
        yield from _lists(ask, field, java, ours)
    elif type(java) is not type(ours) or java != ours:
        yield Difference(ask, field, java, ours)


def _objects(ask: str, field: str, java: dict[str, Any], ours: dict[str, Any]) -> Iterator[Difference]:
    for key in [*java, *(key for key in ours if key not in java)]:
        yield from _values(ask, f"{field}.{key}", java.get(key, _MISSING), ours.get(key, _MISSING))
    if java.keys() == ours.keys() and java.keys() <= _RECORD_FIELDS and list(java) != list(ours):
        yield Difference(ask, f"{field}#order", list(java), list(ours))


def _lists(ask: str, field: str, java: list[Any], ours: list[Any]) -> Iterator[Difference]:
    """Lists of what has a name are matched by it, so that one that is missing does not shift the rest."""
    names, our_names = [_name(element) for element in java], [_name(element) for element in ours]
    if None in names or None in our_names or len(set(names)) < len(names) or len(set(our_names)) < len(our_names):
        for index in range(max(len(java), len(ours))):
            yield from _values(ask, f"{field}.{index}", _at(java, index), _at(ours, index))
        return
    by_name, ours_by_name = dict(zip(names, java, strict=True)), dict(zip(our_names, ours, strict=True))
    for name in [*by_name, *(name for name in ours_by_name if name not in by_name)]:
        yield from _values(ask, f"{field}.{name}", by_name.get(name, _MISSING), ours_by_name.get(name, _MISSING))
    shared = [name for name in names if name in ours_by_name]
    our_shared = [name for name in our_names if name in by_name]
    if shared != our_shared:
        yield Difference(ask, f"{field}#order", shared, our_shared)


def _at(elements: list[Any], index: int) -> Any:
    return elements[index] if index < len(elements) else _MISSING


def _name(element: Any) -> str | None:
    """What identifies an element of a list of definitions, values, plugins or names."""
    if isinstance(element, str):
        # Sentences are compared one by one, in their order.
        return None if " " in element else element
    if not isinstance(element, dict):
        return None
    for inner in (element, element.get("value"), element.get("definition")):
        if isinstance(inner, dict):
            name = inner.get("class", inner.get("name"))
            if isinstance(name, str):
                return f"{name}/{inner['type']}" if "class" in inner else name
    return None
