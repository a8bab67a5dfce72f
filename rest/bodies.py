"""Reads the bodies of requests as Jackson does, and defines the bodies of answers.

Scalars become text; unknown fields are refused. A malformed body is a 500, as in Java: :class:`RestError`. Its message
names the position but quotes nothing of the body, which may contain a secret. Only answers that differ from the
herder's classes are defined here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NoReturn, NotRequired, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from starlette.responses import Response
from typing_extensions import TypedDict

from connect.core.herder_api import ConfigInfos, PluginInfo, SourceOffset
from connect.core.jackson import MAX_ELEMENTS, TooManyElements, decode_json
from connect.core.model import ConnectorStateInfo, Status, TargetState, TaskId
from rest.errors import JSON, TOO_LARGE, RestError

T = TypeVar("T")


class _Number(str):
    """A number as written, because Java keeps its text in some fields."""


def _text(value: Any) -> Any:
    """Coerce a scalar to text as Jackson does: ``1.50`` stays ``1.50``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Return a JSON value with its numbers as int or float."""
    match value:
        case _Number():
            return int(value) if value.lstrip("-").isdigit() else float(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


def _any_case(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


#: A string, number or boolean, as text.
Text = Annotated[str, BeforeValidator(_text)]
ConfigMap = dict[str, Text | None]
JsonMap = Annotated[dict[str, Any], BeforeValidator(_plain)]


class InitialState(StrEnum):
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"

    def target_state(self) -> TargetState:
        return TargetState.STARTED if self is InitialState.RUNNING else TargetState(self.value)


class CreateConnector(BaseModel):
    """The body of ``POST /connectors``."""

    model_config = ConfigDict(extra="forbid")

    name: Text | None = None
    config: ConfigMap | None = None
    initial_state: Annotated[InitialState | None, BeforeValidator(_any_case)] = None


class ConnectorOffset(TypedDict, total=False):
    """One partition and its offset; a null offset removes it. A dict, because fifty thousand models would hold the GIL
    for a tenth of a second."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    partition: JsonMap | None
    offset: JsonMap | None


class ConnectorOffsets(BaseModel):
    """The body of ``PATCH /connectors/{connector}/offsets``."""

    model_config = ConfigDict(extra="forbid")

    offsets: list[ConnectorOffset] | None = None

    def source_offsets(self) -> list[SourceOffset]:
        return [SourceOffset(each.get("partition"), each.get("offset")) for each in self.offsets or ()]


CONFIG: Final[TypeAdapter[dict[str, str | None]]] = TypeAdapter(ConfigMap)
CREATE: Final = TypeAdapter(CreateConnector)
OFFSETS: Final = TypeAdapter(ConnectorOffsets)
CONFIG_INFOS: Final = TypeAdapter(ConfigInfos)
TASK_CONFIGS: Final[TypeAdapter[list[dict[str, str]]]] = TypeAdapter(list[dict[str, Text]])


def read(body: bytes, shape: TypeAdapter[T], max_elements: int = MAX_ELEMENTS) -> T:
    """Parse a body; refuse an empty body, ``null``, and a value of another shape. Raises RestError: 500, with the
    position of the first error; 413 for more than ``max_elements``."""
    try:
        return shape.validate_python(_parse(body, max_elements))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = _place(first["loc"])
        if first["type"] == "extra_forbidden":
            raise RestError(500, f"Unrecognized field {place}") from None
        raise RestError(500, f"Cannot deserialize the value{f' of {place}' if place else ''}: {first['msg']}") from None


def schema(shape: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the OpenAPI description of an endpoint's body."""
    content = {"application/json": {"schema": _inlined(shape.json_schema())}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(node: Any, definitions: dict[str, Any] | None = None) -> Any:
    """Return a JSON schema without references, whose definitions would have to be at the top of the document."""
    if isinstance(node, list):
        return [_inlined(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    definitions = node.get("$defs", {}) if definitions is None else definitions
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(each, definitions) for name, each in node.items() if name != "$defs"}


_LONGEST_PLACE: Final = 200


def _place(location: Sequence[str | int]) -> str:
    # Users choose the keys of a config, but they are as public as the names of settings.
    place = ".".join(str(each) for each in location if each != "[key]")
    return place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}..."


def _parse(body: bytes, max_elements: int) -> Any:
    try:
        text = body.decode(json.detect_encoding(body))
        if not text.strip(" \t\r\n"):
            return None
        value = decode_json(text, max_elements=max_elements, decoder=_DECODER)
        if "\\u" in text:  # only an escape can produce a lone surrogate, which has no form in UTF-8
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise RestError(500, f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except TooManyElements as error:
        raise RestError(TOO_LARGE, f"The body is too large: {error}.") from None
    except (UnicodeError, ValueError) as error:
        raise RestError(500, f"The body is not JSON: {type(error).__name__}") from None
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


class WorkerStatus(TypedDict):
    status: str
    message: str


class AutoRestart(TypedDict):
    count: int
    at_ms: int
    given_up: NotRequired[str]


class State(TypedDict):
    state: str
    worker_id: str
    version: str | None
    trace: NotRequired[str]
    auto_restart: NotRequired[AutoRestart]


class TaskState(TypedDict):
    id: int
    state: str
    worker_id: str
    version: str | None
    trace: NotRequired[str]
    auto_restart: NotRequired[AutoRestart]


class ConnectorState(TypedDict):
    name: str
    connector: State
    tasks: list[TaskState]
    type: str


class Task(TypedDict):
    connector: str
    task: int


class ConnectorInfo(TypedDict):
    name: str
    config: dict[str, str]
    tasks: list[Task]
    type: str


class TaskInfo(TypedDict):
    id: Task
    config: dict[str, str]


class Expanded(TypedDict):
    status: NotRequired[ConnectorState]
    info: NotRequired[ConnectorInfo]


class ActiveTopics(TypedDict):
    topics: list[str]


class Offsets(TypedDict):
    offsets: list[SourceOffset]


class Message(TypedDict):
    message: str


#: ``class`` cannot be a name in a class body.
Plugin = TypedDict("Plugin", {"class": str, "type": str, "version": NotRequired[str]})


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with ``body`` as JSON; dataclasses and task ids become objects with their fields in order."""
    return Response(orjson.dumps(body, TaskId._asdict), status, headers, media_type=JSON)


def state(status: Status) -> State:
    """Return the state of a connector or task with only what REST shows."""
    shown: State = {"state": str(status.state), "worker_id": status.worker_id, "version": status.version}
    if status.trace:
        shown["trace"] = status.trace
    if (restarts := status.restarts) is not None:
        shown["auto_restart"] = {"count": restarts.count, "at_ms": restarts.at_ms}
        if restarts.given_up is not None:
            shown["auto_restart"]["given_up"] = restarts.given_up
    return shown


def task_state(number: int, status: Status) -> TaskState:
    return {"id": number, **state(status)}


def connector_state(info: ConnectorStateInfo) -> ConnectorState:
    return {
        "name": info.name,
        "connector": state(info.connector),
        "tasks": [task_state(number, info.tasks[number]) for number in sorted(info.tasks)],
        "type": info.type,
    }


def plugin(info: PluginInfo) -> Plugin:
    shown: Plugin = {"class": info.cls, "type": info.type}
    if info.version is not None:
        shown["version"] = info.version
    return shown
