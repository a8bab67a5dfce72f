"""Bodies of answers, their fields in Java's order, made of what the herder says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NotRequired

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from connect.core import herding, model
from rest.errors import JSON


class ServerInfo(TypedDict):
    version: str
    commit: str
    kafka_cluster_id: str | None


class WorkerStatus(TypedDict):
    status: str
    message: str


class TaskId(TypedDict):
    connector: str
    task: int


class ConnectorInfo(TypedDict):
    name: str
    config: Mapping[str, str]
    tasks: list[TaskId]
    type: str


class TaskInfo(TypedDict):
    id: TaskId
    config: Mapping[str, str]


class State(TypedDict):
    state: str
    worker_id: str
    version: str | None
    trace: NotRequired[str]


class TaskState(TypedDict):
    id: int
    state: str
    worker_id: str
    version: str | None
    trace: NotRequired[str]


class ConnectorState(TypedDict):
    name: str
    connector: State
    tasks: list[TaskState]
    type: str


class Expanded(TypedDict):
    status: NotRequired[ConnectorState]
    info: NotRequired[ConnectorInfo]


class ActiveTopics(TypedDict):
    topics: list[str]


class Offset(TypedDict):
    partition: Mapping[str, Any] | None
    offset: Mapping[str, Any] | None


class Offsets(TypedDict):
    offsets: list[Offset]


class Message(TypedDict):
    message: str


#: ``class`` cannot be a name in a class body.
Plugin = TypedDict("Plugin", {"class": str, "type": str, "version": NotRequired[str]})


class ConfigKey(TypedDict):
    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: list[str]


class ConfigValue(TypedDict):
    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: bool


class ConfigInfo(TypedDict):
    definition: ConfigKey | None
    value: ConfigValue


class ConfigInfos(TypedDict):
    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class LoggerLevel(TypedDict):
    level: str
    last_modified: int | None


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type=JSON)


def server_info(info: herding.WorkerInfo) -> ServerInfo:
    return {"version": info.version, "commit": info.commit, "kafka_cluster_id": info.kafka_cluster_id}


def connector_info(info: model.ConnectorInfo) -> ConnectorInfo:
    return {
        "name": info.name,
        "config": dict(info.config),
        "tasks": [task_id(each) for each in info.tasks],
        "type": info.type,
    }


def task_id(task: model.TaskId) -> TaskId:
    return {"connector": task.connector, "task": task.task}


def task_info(info: model.TaskInfo) -> TaskInfo:
    return {"id": task_id(info.id), "config": dict(info.config)}


def state(status: model.Status) -> State:
    shown: State = {"state": str(status.state), "worker_id": status.worker_id, "version": status.version}
    if status.trace:
        shown["trace"] = status.trace
    return shown


def task_state(number: int, status: model.Status) -> TaskState:
    return {"id": number, **state(status)}


def connector_state(info: model.ConnectorStateInfo) -> ConnectorState:
    return {
        "name": info.name,
        "connector": state(info.connector),
        "tasks": [task_state(number, info.tasks[number]) for number in sorted(info.tasks)],
        "type": info.type,
    }


def offsets(entries: Iterable[herding.SourceOffset]) -> Offsets:
    return {"offsets": [{"partition": each.partition, "offset": each.offset} for each in entries]}


def plugin(info: herding.PluginInfo) -> Plugin:
    shown: Plugin = {"class": info.cls, "type": info.type}
    if info.version is not None:
        shown["version"] = info.version
    return shown


def config_key(key: herding.ConfigKeyInfo) -> ConfigKey:
    return {
        "name": key.name,
        "type": key.type,
        "required": key.required,
        "default_value": key.default_value,
        "importance": key.importance,
        "documentation": key.documentation,
        "group": key.group,
        "order_in_group": key.order,
        "width": key.width,
        "display_name": key.display_name,
        "dependents": list(key.dependents),
    }


def config_infos(infos: herding.ConfigInfos) -> ConfigInfos:
    return {
        "name": infos.name,
        "error_count": infos.error_count,
        "groups": list(infos.groups),
        "configs": [_config_info(each) for each in infos.configs],
    }


def _config_info(info: herding.ConfigInfo) -> ConfigInfo:
    value = info.value
    return {
        "definition": None if info.definition is None else config_key(info.definition),
        "value": {
            "name": value.name,
            "value": value.value,
            "recommended_values": list(value.recommended_values),
            "errors": list(value.errors),
            "visible": value.visible,
        },
    }


def logger_level(level: herding.LoggerLevel) -> LoggerLevel:
    return {"level": level.level, "last_modified": level.last_modified_ms}
