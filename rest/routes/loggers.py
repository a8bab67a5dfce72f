"""The levels of loggers, on this worker or on all (KIP-495, KIP-976)."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Depends
from starlette.responses import Response

from connect.core.herding import BadRequest, LoggerLevel
from rest import bodies
from rest.calls import Calling, Name, json_answered, json_asked
from rest.schemas import json_response

log = logging.getLogger(__name__)

router = APIRouter(
    prefix="/admin/loggers", tags=["loggers"], dependencies=[Depends(json_answered), Depends(json_asked)]
)


@router.get("", response_model=dict[str, LoggerLevel])
async def list_loggers(call: Calling) -> Response:
    """All loggers of this worker and their levels."""
    return json_response(dict(call.herder.loggers()))


@router.get("/{logger}", response_model=LoggerLevel)
async def get_logger(call: Calling, logger: Name) -> Response:
    """The level of a logger."""
    return json_response(call.herder.logger(logger))


@router.put("/{logger}", response_model=list[str], openapi_extra=bodies.schema(bodies.CONFIG))
async def set_level(call: Calling, logger: Name, scope: str = "worker") -> Response:
    """Set the level of a logger and of all whose names begin with its; `scope=cluster`: on every worker (204)."""
    level = (await call.json(bodies.CONFIG)).get("level")
    if level is None:
        raise BadRequest("Desired 'level' parameter was not specified in request.")
    if scope.lower() == "cluster":
        await call.within_time(call.herder.set_cluster_logger(logger, level))
        return Response(status_code=204)
    if scope.lower() != "worker":
        log.warning("no scope is called %r; the level is set on this worker", scope)
    return json_response(list(call.herder.set_logger(logger, level)))
