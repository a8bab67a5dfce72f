"""The worker itself: ``/``, ``/health`` (KIP-1017) and ``/metrics``."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from connect.core.herding import Herder, Unhealthy, WorkerInfo
from rest.calls import Calling, json_answered
from rest.schemas import WorkerStatus, json_response
from rest.settings import Metrics

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["worker"])
_json = [Depends(json_answered)]


@router.get("/", response_model=WorkerInfo, dependencies=_json)
async def server_info(call: Calling) -> Response:
    """Details about this worker and the Kafka cluster it is connected to."""
    return json_response(call.herder.worker_info())


@router.get("/health", response_model=WorkerStatus, dependencies=_json)
async def health(call: Calling) -> Response:
    """Whether the worker has completed its start (503 while not) and answers (500 if not)."""
    status, body = await health_of(call.herder, call.request.app.state.health_timeout_s)
    return json_response(body, status)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics of this process, in the text format of Prometheus."""
    return await metrics_response(request.app.state.metrics)


async def metrics_response(metrics: Metrics) -> Response:
    return Response(await metrics(), headers={"content-type": _METRICS_TYPE})


async def health_of(herder: Herder, timeout_s: float) -> tuple[int, WorkerStatus]:
    """HTTP status and body of a worker's health."""
    try:
        async with asyncio.timeout(timeout_s) as timeout:
            await herder.health()
    except TimeoutError:
        if not timeout.expired():
            raise
        stage = herder.stage()
        details = f" {stage}" if stage else ""
        if not herder.is_ready():
            return 503, {"status": "starting", "message": f"Worker is still starting up.{details}"}
        text = "Worker was unable to handle this request and may be unable to handle other requests."
        return 500, {"status": "unhealthy", "message": f"{text}{details}"}
    except Unhealthy as error:
        return 500, {"status": "unhealthy", "message": str(error)}
    text = "Worker has completed startup and is ready to handle requests."
    return 200, {"status": "healthy", "message": text}
