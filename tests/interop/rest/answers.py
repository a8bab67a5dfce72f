"""Answers as they are kept: status, the headers that mean something, the body with what differs by run taken out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Headers that are part of the contract; the others are the web server's own.
_KEPT_HEADERS: Final = ("allow", "content-type", "location", "vary", "x-test", "cache-control", "x-frame-options")
_KEPT_PREFIX: Final = "access-control-"
_METHODS: Final = "access-control-allow-methods"
#: Values that differ by run or build. Null and absent stay what they are.
_VARYING: Final = ("commit", "kafka_cluster_id", "last_modified", "trace")
_VALIDATION: Final = ("name", "error_count", "groups")


@dataclass(frozen=True, slots=True)
class Answer:
    """``status`` 0: there was none, ``body`` says why. ``body`` is parsed JSON, or text where it is none."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "headers": dict(self.headers), "body": self.body}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Answer:
        return cls(data["status"], data["headers"], data["body"])


def normalise(status: int, headers: Mapping[str, str], text: str, names: Mapping[str, str], view: str) -> Answer:
    """``names``: what stands for which text of this run, the longest texts first."""
    kept = {name: value for name, value in headers.items() if name in _KEPT_HEADERS or name.startswith(_KEPT_PREFIX)}
    kept = {name: _replace(value, names) for name, value in sorted(kept.items())}
    if _METHODS in kept:
        # Java keeps them in a set, whose order differs by run.
        kept[_METHODS] = ",".join(sorted(kept[_METHODS].split(",")))
    body = _parsed(_replace(text, names), kept.get("content-type", ""))
    return Answer(status, kept, VIEWS[view](body) if status < 300 else body)


def _replace(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(value, name)
    return text


def _parsed(text: str, content_type: str) -> Any:
    if not text:
        return None
    if content_type.startswith("text/html"):
        return "a page"
    try:
        return _without_varying(json.loads(text))
    except ValueError:
        return text


def _without_varying(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_varying(element) for element in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: "*" if key in _VARYING and inner is not None else _without_varying(inner) for key, inner in value.items()
    }
    if "worker_id" in kept and "version" in kept:
        # Of a status: null while the work has not been started yet, which may be over when it is asked for.
        kept["version"] = "*"
    return kept


def _whole(body: Any) -> Any:
    return body


def _validation(body: Any) -> Any:
    """Of a validation: everything but the definitions, and of the values those that were given or are wrong."""
    short = {key: body[key] for key in _VALIDATION}
    values = [entry["value"] for entry in body["configs"]]
    short["keys"] = [value["name"] for value in values]
    short["values"] = {
        value["name"]: value["value"] for value in values if value["value"] is not None or value["errors"]
    }
    short["errors"] = {value["name"]: value["errors"] for value in values if value["errors"]}
    short["hidden"] = [value["name"] for value in values if not value["visible"]]
    return short


def _values(body: Any) -> Any:
    return [entry["value"] for entry in body["configs"]]


def _root_only(body: Any) -> Any:
    """Of the loggers: the root, for the others are named after a program's own parts."""
    return {"root": body.get("root"), "is sorted": list(body) == sorted(body)}


def _sorted_list(body: Any) -> Any:
    return {"is a list": isinstance(body, list), "is sorted": body == sorted(body), "is empty": not body}


def _shape(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _shape(value) for key, value in body.items()}
    if isinstance(body, list):
        return [_shape(value) for value in body[:1]]
    return type(body).__name__


VIEWS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "whole": _whole,
    "validation": _validation,
    "values": _values,
    "root logger": _root_only,
    "loggers": _sorted_list,
    "shape": _shape,
}
"""How much of a successful answer is looked at."""
