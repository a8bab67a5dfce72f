"""What workers ask of each other (Kafka's ``InternalClusterResource``), signed with the group's session key."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from connect.core.herding import Signature
from connect.core.signing import ALGORITHM_HEADER, SIGNATURE_HEADER
from rest import bodies
from rest.calls import Call, Calling, Name, json_answered

router = APIRouter(prefix="/connectors/{connector}", include_in_schema=False, dependencies=[Depends(json_answered)])


@router.post("/tasks")
async def put_task_configs(call: Calling, connector: Name) -> Response:
    """A connector's new task configs, from the worker that runs it."""
    configs = bodies.read(await call.body(), bodies.TASK_CONFIGS)
    operation = call.herder.put_task_configs(connector, configs, await _signature(call))
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


@router.put("/fence")
async def fence_zombies(call: Calling, connector: Name) -> Response:
    """Fence off a source connector's older tasks (KIP-618)."""
    operation = call.herder.fence_zombies(connector, await _signature(call))
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


async def _signature(call: Call) -> Signature:
    headers = call.request.headers
    return Signature(headers.get(SIGNATURE_HEADER), headers.get(ALGORITHM_HEADER), await call.body())
