"""Bodies of answers that differ from what the herder says; the others are its own classes, as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from connect.core.herding import PluginInfo, SourceOffset
from connect.core.model import ConnectorStateInfo, Status, TaskId
from rest.errors import JSON


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
    """Answer with ``body`` as JSON; dataclasses and task ids become objects with their fields in order."""
    return Response(orjson.dumps(body, TaskId._asdict), status, headers, media_type=JSON)


def state(status: Status) -> State:
    """Return the state of a connector or a task without what REST does not show."""
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
