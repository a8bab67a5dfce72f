"""The offsets of a connector: read, altered, reset (KIP-875)."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Depends
from starlette.responses import Response

from connect.core.herding import BadRequest
from connect.core.jackson import json_text
from rest import bodies, schemas
from rest.calls import Calling, Name, json_answered, json_asked
from rest.errors import JSON
from rest.schemas import json_response

router = APIRouter(
    prefix="/connectors/{connector}/offsets",
    tags=["offsets"],
    dependencies=[Depends(json_answered), Depends(json_asked)],
)


@router.get("", response_model=schemas.Offsets)
async def get_offsets(call: Calling, connector: Name) -> Response:
    """How far a connector has come."""
    offsets = [asdict(each) for each in await call.within_time(call.herder.connector_offsets(connector))]
    # Numbers of any size, and as Java writes them: what is read here may be sent back to alter them.
    return Response(json_text({"offsets": offsets}), media_type=JSON)


@router.patch("", response_model=schemas.Message, openapi_extra=bodies.schema(bodies.OFFSETS))
async def alter_offsets(call: Calling, connector: Name) -> Response:
    """Set offsets of a stopped connector; a null offset removes one."""
    request = await call.json(bodies.OFFSETS)
    if not request.offsets:
        raise BadRequest("Partitions / offsets need to be provided for an alter offsets request")
    operation = call.herder.alter_offsets(connector, request.source_offsets())
    return await call.here_or_elsewhere(operation, lambda text: json_response({"message": text}))


@router.delete("", response_model=schemas.Message)
async def reset_offsets(call: Calling, connector: Name) -> Response:
    """Reset all offsets of a stopped connector: it begins anew."""
    operation = call.herder.alter_offsets(connector, None)
    return await call.here_or_elsewhere(operation, lambda text: json_response({"message": text}))
