"""What is asked of a worker's REST API, as data: one list for Java's worker and for ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


class _Nothing:
    """No body at all, which is not the body ``null``."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
JSON_TYPE: Final = "application/json"
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
#: Of a mirror on a worker with other converters: Java would write other bytes, ours refuses it.
COPIED: Final[Mapping[str, str]] = {f"{part}.converter": _BYTES for part in ("key", "value", "header")}


@dataclass(frozen=True, slots=True)
class Until:
    """A condition: a GET of ``path`` is answered so; of ``body`` objects may have more fields."""

    path: str
    status: int = 200
    body: Any = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as it goes out, with names of ``stage``; ``signed`` by KIP-507; ``view``: how much is compared."""

    name: str
    method: str
    path: str
    body: Any = NOTHING
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = JSON_TYPE
    before: Until | None = None
    signed: bool = False
    view: str = "whole"


@dataclass(frozen=True, slots=True)
class Session:
    """Requests in order to a new worker with these changes, or to a ``dedicated`` one, ``$SOURCE`` to ``$TARGET``."""

    name: str
    asks: Sequence[Ask]
    changes: Mapping[str, str] = field(default_factory=dict)
    dedicated: bool = False

    def __post_init__(self) -> None:
        names = [ask.name for ask in self.asks]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"session {self.name}: the same name twice: {twice}"


def get(name: str, path: str, **more: Any) -> Ask:
    return Ask(name, "GET", path, **more)


def post(name: str, path: str, body: Any = NOTHING, **more: Any) -> Ask:
    return Ask(name, "POST", path, body, **more)


def put(name: str, path: str, body: Any = NOTHING, **more: Any) -> Ask:
    return Ask(name, "PUT", path, body, **more)


def patch(name: str, path: str, body: Any = NOTHING, **more: Any) -> Ask:
    return Ask(name, "PATCH", path, body, **more)


def delete(name: str, path: str, **more: Any) -> Ask:
    return Ask(name, "DELETE", path, **more)


def states(connector: str, state: str, *tasks: str) -> Until:
    """Until a connector and its tasks have these states; ``connector`` as it stands in a path."""
    body = {"connector": {"state": state}, "tasks": [{"state": task} for task in tasks]}
    return Until(f"/connectors/{connector}/status", body=body)


def gone(connector: str) -> Until:
    return Until(f"/connectors/{connector}/status", status=404)


def file_source(name: str | None, /, **changes: Any) -> dict[str, Any]:
    """A config of FileStreamSource that is right; ``changes`` with dots written as ``__``, None takes a key away."""
    config: dict[str, Any] = {
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": "$FOLDER/lines.txt",
        "topic": "$TOPIC",
    }
    if name is not None:
        config["name"] = name
    for key, value in changes.items():
        config[key.replace("__", ".")] = value
    return {key: value for key, value in config.items() if value is not None}
