"""Connectors: made, read, changed, deleted (Kafka's ``ConnectorsResource``). Their life and offsets are next door."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from connect.core.config import trim
from connect.core.herding import BadRequest, Herder, NotFound, Put
from connect.core.model import TaskId
from rest import bodies, schemas
from rest.calls import Call, Calling, Name, TaskNumber, json_answered, json_asked
from rest.schemas import json_response

log = logging.getLogger(__name__)

router = APIRouter(
    prefix="/connectors", tags=["connectors"], dependencies=[Depends(json_answered), Depends(json_asked)]
)


@router.get("", response_model=list[str] | dict[str, schemas.Expanded])
async def list_connectors(
    call: Calling,
    expand: Annotated[list[str] | None, Query(description="status, info, or both: details of each connector")] = None,
) -> Response:
    """The names of all connectors, or with `expand` what is asked for of each."""
    names = await call.within_time(call.herder.connectors())
    if expand is None:
        return json_response(list(names))
    return json_response(_expanded(call.herder, names, expand))


def _expanded(herder: Herder, names: Sequence[str], expand: Sequence[str]) -> dict[str, dict[str, Any]]:
    if unknown := set(expand) - {"status", "info"}:
        log.info("ignoring unknown expansion types %s", ", ".join(sorted(unknown)))
    shown: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            each: dict[str, Any] = {}
            if "info" in expand:
                each["info"] = herder.known_connector(name)
            if "status" in expand:
                each["status"] = schemas.connector_state(herder.connector_status(name))
            shown[name] = each
        except NotFound:
            log.debug("connector %s has gone while it was looked at, or has no status yet", name)
    return shown


@router.post("", status_code=201, response_model=schemas.ConnectorInfo, openapi_extra=bodies.schema(bodies.CREATE))
async def create_connector(call: Calling) -> Response:
    """Create a connector."""
    request = await call.json(bodies.CREATE)
    name = trim(request.name or "")
    config = _named(name, bodies.required(request.config, "config"))
    state = None if request.initial_state is None else request.initial_state.target_state()
    operation = call.herder.put_connector(name, config, state, allow_replace=False)
    return await call.here_or_elsewhere(operation, lambda put: _put(call, put))


@router.get("/{connector}", response_model=schemas.ConnectorInfo)
async def get_connector(call: Calling, connector: Name) -> Response:
    """A connector's config and tasks."""
    return json_response(await call.within_time(call.herder.connector_info(connector)))


@router.delete("/{connector}", status_code=204)
async def delete_connector(call: Calling, connector: Name) -> Response:
    """Delete a connector, its tasks and its config."""
    return await call.here_or_elsewhere(call.herder.delete_connector(connector), lambda _: Response(status_code=204))


@router.get("/{connector}/config", response_model=dict[str, str])
async def get_config(call: Calling, connector: Name) -> Response:
    """A connector's config as it was written, references to secrets unresolved."""
    return json_response(dict(await call.within_time(call.herder.connector_config(connector))))


@router.put("/{connector}/config", response_model=schemas.ConnectorInfo, openapi_extra=bodies.schema(bodies.CONFIG))
async def put_config(call: Calling, connector: Name) -> Response:
    """Create a connector (201), or replace its config (200)."""
    config = _named(connector, await call.json(bodies.CONFIG))
    operation = call.herder.put_connector(connector, config, None, allow_replace=True)
    return await call.here_or_elsewhere(operation, lambda put: _put(call, put))


@router.patch("/{connector}/config", response_model=schemas.ConnectorInfo, openapi_extra=bodies.schema(bodies.CONFIG))
async def patch_config(call: Calling, connector: Name) -> Response:
    """Change single keys of a config (KIP-477); null removes one."""
    patch = await call.json(bodies.CONFIG)
    operation = call.herder.patch_connector(connector, patch)
    return await call.here_or_elsewhere(operation, lambda put: json_response(put.info))


@router.get("/{connector}/status", response_model=schemas.ConnectorState)
async def get_status(call: Calling, connector: Name) -> Response:
    """The states of a connector and its tasks, as this worker has read them."""
    return json_response(schemas.connector_state(call.herder.connector_status(connector)))


@router.get("/{connector}/tasks", response_model=list[schemas.TaskInfo])
async def get_tasks(call: Calling, connector: Name) -> Response:
    """A connector's tasks and their configs."""
    return json_response(list(await call.within_time(call.herder.task_infos(connector))))


@router.get("/{connector}/tasks/{task}/status", response_model=schemas.TaskState)
async def get_task_status(call: Calling, connector: Name, task: TaskNumber) -> Response:
    """The state of one task."""
    return json_response(schemas.task_state(task, call.herder.task_status(TaskId(connector, task))))


def _named(name: str, config: dict[str, str | None]) -> dict[str, str | None]:
    """The config with the connector's name in it, where it has none."""
    included = config.get("name")
    if included is None:
        return {**config, "name": name}
    if included != name:
        raise BadRequest(f"Connector name configuration ({included}) doesn't match connector name in the URL ({name})")
    return config


def _put(call: Call, put: Put) -> Response:
    if put.created:
        return json_response(put.info, 201, {"location": call.location_of(put.info.name)})
    return json_response(put.info)
