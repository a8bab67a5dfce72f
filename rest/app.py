"""The FastAPI applications: the whole API of a worker, its loggers alone, what other workers ask alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from rest import errors
from rest.calls import REQUEST_TIMEOUT_S
from rest.forward import Forwarder
from rest.routes import connectors, internal, life, loggers, offsets, plugins, reports, root
from rest.settings import Metrics, RestSettings

HEALTH_TIMEOUT_S: Final = 10.0

_WORKER: Final = (
    root.router,
    connectors.router,
    life.router,
    offsets.router,
    reports.router,
    internal.router,
    plugins.router,
)


class Part(Enum):
    """What an application serves."""

    ALL = (*_WORKER, loggers.router)
    WITHOUT_LOGGERS = _WORKER
    LOGGERS = (loggers.router,)
    INTERNAL = (internal.router,)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a request and a question for the worker's health may take."""

    request_s: float = REQUEST_TIMEOUT_S
    health_s: float = HEALTH_TIMEOUT_S


def create_app(
    part: Part, settings: RestSettings, forwarder: Forwarder, metrics: Metrics, limits: Limits | None = None
) -> FastAPI:
    """An application for any herder: that of a request stands in its scope (:data:`rest.calls.HERDER`)."""
    app = FastAPI(
        title="Kafka Connect REST API of Heliograph",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if part in (Part.ALL, Part.WITHOUT_LOGGERS) else None,
        redirect_slashes=False,
    )
    limits = limits or Limits()
    app.state.settings, app.state.forwarder, app.state.metrics = settings, forwarder, metrics
    app.state.request_timeout_s, app.state.health_timeout_s = limits.request_s, limits.health_s
    routers: Sequence[APIRouter] = part.value
    for each in routers:
        app.include_router(each)
    errors.install(app, [route for each in routers for route in each.routes if isinstance(route, Route)])
    _prepare_routes(app)
    return app


def _prepare_routes(app: FastAPI) -> None:
    """What FastAPI would do at the first request, a tenth of a second long: while nobody waits for an answer."""
    nowhere = {"type": "http", "method": "GET", "path": "/ ", "root_path": "", "headers": ()}
    for each in app.routes:
        each.matches(nowhere)
