"""What workers ask of each other (Kafka's ``InternalClusterResource``), signed with the group's session key."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends
from starlette.responses import Response

from connect.core.herding import Signature
from connect.core.signing import ALGORITHM_HEADER, SIGNATURE_HEADER
from rest import bodies
from rest.calls import WORKERS_BODY_ELEMENTS, Call, Calling, Name, WorkersCalling, json_answered

router = APIRouter(prefix="/connectors/{connector}", include_in_schema=False, dependencies=[Depends(json_answered)])


@router.post("/tasks")
async def put_task_configs(call: WorkersCalling, connector: Name) -> Response:
    """A connector's new task configs, from the worker that runs it."""
    signature = await _signature(call)
    read = partial(bodies.read, signature.body, bodies.TASK_CONFIGS, WORKERS_BODY_ELEMENTS)
    operation = call.herder.put_task_configs(connector, read, signature)
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


@router.put("/fence")
async def fence_zombies(call: Calling, connector: Name) -> Response:
    """Fence off a source connector's older tasks (KIP-618)."""
    operation = call.herder.fence_zombies(connector, await _signature(call))
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


async def _signature(call: Call) -> Signature:
    headers = call.request.headers
    return Signature(headers.get(SIGNATURE_HEADER), headers.get(ALGORITHM_HEADER), await call.body())
