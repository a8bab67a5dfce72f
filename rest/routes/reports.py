"""What Java's API has nothing of: how far a mirror is behind, and the states of its partitions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from rest.calls import Call, Calling, Name, json_answered
from rest.schemas import json_response

router = APIRouter(
    prefix="/connectors/{connector}", tags=["beyond Kafka Connect"], dependencies=[Depends(json_answered)]
)


@router.get("/lag", response_model=dict[str, Any])
async def get_lag(call: Calling, connector: Name, top: str = "10") -> Response:
    """How far a MirrorSource is behind, and which of its partitions are furthest, asked of both clusters now."""
    return await _reported(call, connector, "lag", top=top)


@router.get("/partitions", response_model=dict[str, Any])
async def get_partitions(call: Calling, connector: Name, state: str = "") -> Response:
    """The partitions of a MirrorSource with their states, or those of one state; reasons, and what to do."""
    return await _reported(call, connector, "partitions", state=state)


async def _reported(call: Call, connector: str, kind: str, **query: str) -> Response:
    return json_response(dict(await call.within_time(call.herder.connector_report(connector, kind, query))))
