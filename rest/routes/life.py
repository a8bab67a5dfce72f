"""A connector's life: paused, resumed, stopped, restarted; and the topics it uses (KIP-558)."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from connect.core.herding import Forbidden
from connect.core.model import RestartRequest, TargetState, TaskId
from rest import schemas
from rest.calls import Call, Calling, Flag, Name, TaskNumber, json_answered, json_asked
from rest.schemas import json_response
from rest.settings import RestSettings

router = APIRouter(prefix="/connectors", tags=["life"], dependencies=[Depends(json_answered), Depends(json_asked)])


@router.put("/{connector}/pause", status_code=202)
async def pause(call: Calling, connector: Name) -> Response:
    """Pause a connector and its tasks; answers before they have."""
    return await _target_state(call, connector, TargetState.PAUSED, 202)


@router.put("/{connector}/resume", status_code=202)
async def resume(call: Calling, connector: Name) -> Response:
    """Resume a paused or stopped connector; answers before it has."""
    return await _target_state(call, connector, TargetState.STARTED, 202)


@router.put("/{connector}/stop", status_code=204)
async def stop(call: Calling, connector: Name) -> Response:
    """Stop a connector; its tasks are given up until it is resumed (KIP-875)."""
    return await _target_state(call, connector, TargetState.STOPPED, 204)


async def _target_state(call: Call, connector: str, state: TargetState, status: int) -> Response:
    operation = call.herder.set_target_state(connector, state)
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=status))


@router.post("/{connector}/restart", response_model=schemas.ConnectorState, status_code=202)
async def restart(call: Calling, connector: Name, includeTasks: Flag = False, onlyFailed: Flag = False) -> Response:
    """Restart a connector's instance (204), or with a parameter those parts that it names (202, KIP-745)."""
    if not includeTasks and not onlyFailed:
        alone = call.herder.restart_connector(connector)
        return await call.here_or_elsewhere(alone, lambda _: Response(status_code=204))
    planned = call.herder.restart(RestartRequest(connector, only_failed=onlyFailed, include_tasks=includeTasks))
    return await call.here_or_elsewhere(planned, lambda info: json_response(schemas.connector_state(info), 202))


@router.post("/{connector}/tasks/{task}/restart", status_code=204)
async def restart_task(call: Calling, connector: Name, task: TaskNumber) -> Response:
    """Restart one task."""
    operation = call.herder.restart_task(TaskId(connector, task))
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


@router.get("/{connector}/topics", response_model=dict[str, schemas.ActiveTopics])
async def get_topics(call: Calling, connector: Name) -> Response:
    """The topics that a connector has used since they were last reset."""
    _check_tracking(call)
    topics = await call.within_time(call.herder.active_topics(connector))
    return json_response({connector: {"topics": list(topics)}})


@router.put("/{connector}/topics/reset", status_code=202)
async def reset_topics(call: Calling, connector: Name) -> Response:
    """Forget the topics that a connector has used."""
    if not _check_tracking(call).topic_tracking_reset:
        raise Forbidden("Topic tracking reset is disabled.")
    await call.within_time(call.herder.reset_active_topics(connector))
    return Response(status_code=202)


def _check_tracking(call: Call) -> RestSettings:
    settings: RestSettings = call.request.app.state.settings
    if not settings.topic_tracking:
        raise Forbidden("Topic tracking is disabled.")
    return settings
