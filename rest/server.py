"""Runs the HTTP servers of a process and builds their FastAPI applications.

* Each listener has a server in the worker's event loop (Kafka's ``RestServer``).
* There are three applications: a worker's whole API, its loggers only, and only the requests between workers.
* Connections have time limits, because a client that sends or reads slowly would hold one without end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from ssl import SSLContext
from typing import Final

import h11
import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope
from uvicorn.lifespan.off import LifespanOff  # which uvicorn would import on the loop
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from connect.core.config.rest_settings import ADMIN_HTTPS_PREFIX, HTTPS_PREFIX, RestListener, serves_others
from connect.core.errors import PermanentError
from connect.core.herder_api import HerderApi
from connect.kafka.acceptor import HANDSHAKE_S, Acceptor, ConnectionLimits, Held, bind
from connect.kafka.concurrency import Scope
from rest import errors, routes
from rest.asgi_entry import AnswerHeaders, AsgiEntry, Guard, ManyHerders, OneHerder, TopOfFlows
from rest.authentication import CERTIFICATE, GIVE_WAY, Authenticator, open_access
from rest.other_workers import Forwarder
from rest.request_handling import WORKERS_BODY_BYTES, BodyBudget, Limits
from rest.rest_config import Flows, Metrics, RestSettings, RestTls
from rest.ui.router import Dashboard

_WORKER: Final = (
    routes.worker_router,
    routes.connectors_router,
    routes.lifecycle_router,
    routes.offsets_router,
    routes.reports_router,
    routes.internal_router,
    routes.plugins_router,
)


class Part(Enum):
    """The endpoints of an application."""

    ALL = (*_WORKER, routes.loggers_router)
    WITHOUT_LOGGERS = _WORKER
    LOGGERS = (routes.loggers_router,)
    INTERNAL = (routes.internal_router,)


def create_app(
    part: Part, settings: RestSettings, forwarder: Forwarder, metrics: Metrics, limits: Limits | None = None
) -> FastAPI:
    """Create an application; a request's scope holds its herder (:data:`rest.request_handling.HERDER`)."""
    app = FastAPI(
        title="Kafka Connect REST API of Heliograph",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if part in (Part.ALL, Part.WITHOUT_LOGGERS) else None,
        redirect_slashes=False,
    )
    app.state.settings, app.state.forwarder, app.state.metrics = settings, forwarder, metrics
    app.state.limits = limits or Limits()
    routers: Sequence[APIRouter] = part.value
    for each in routers:
        app.include_router(each)
    errors.install(app, [route for each in routers for route in each.routes if isinstance(route, Route)])
    _prepare_routes(app)
    return app


def _prepare_routes(app: FastAPI) -> None:
    """Do early, before clients wait, what FastAPI does at the first request: it takes a tenth of a second."""
    nowhere = {"type": "http", "method": "GET", "path": "/ ", "root_path": "", "headers": ()}
    for each in app.routes:
        each.matches(nowhere)


#: From a request's first byte, or the start of the connection, to the request's last byte.
REQUEST_ARRIVES_WITHIN_S: Final = 60.0
#: How long a client may stop reading an answer that is not complete.
ANSWER_MOVES_WITHIN_S: Final = 30.0
#: How long a closed connection may take to send its remaining bytes.
_CLOSES_WITHIN_S: Final = 10.0


class _Deadline:
    """A timer that aborts a connection; runs from arm to disarm."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport, self._seconds = transport, seconds
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _with_connection(app: ASGIApp, known: Mapping[str, object]) -> ASGIApp:
    """Return an application that also gets, in its scope, what the server knows of a connection."""

    async def with_known(scope: AsgiScope, receive: Receive, send: Send) -> None:
        await app({**scope, **known}, receive, send)

    return with_known


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines for what the client does, as one of the connections of ``limits``."""

    def __init__(self, server: uvicorn.Server, limits: ConnectionLimits, held: Held) -> None:
        super().__init__(server.config, server.server_state, {})
        self._limits, self._held, self._gives_way = limits, held, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._held.abort = transport.abort
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.app = _with_connection(self.app, {CERTIFICATE: certificate, GIVE_WAY: self._give_way})
        self._arrival = _Deadline(transport, REQUEST_ARRIVES_WITHIN_S)
        self._reading = _Deadline(transport, ANSWER_MOVES_WITHIN_S)
        self._end = _Deadline(transport, _CLOSES_WITHIN_S)
        self._arrival.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._arrival, self._reading, self._end):
            deadline.disarm()
        self._limits.leave(self._held)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_arrival()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._gives_way = False
        self._watch_arrival()
        if self.transport.is_closing():
            self._end.arm()

    def _watch_arrival(self) -> None:
        """Require the end of a request that has begun. Between requests, uvicorn's keep-alive is the deadline."""
        unread, _ = self.conn.trailing_data
        if self.conn.their_state is h11.SEND_BODY or (self.conn.their_state is h11.IDLE and unread):
            self._arrival.arm()
        else:
            self._arrival.disarm()
        self._watch_wait()

    def _watch_wait(self) -> None:
        """Note whether the next step is the client's: to send a request or the rest of it, or to read the answer."""
        cycle: RequestResponseCycle | None = self.cycle
        is_asked = cycle is not None and not cycle.response_complete and self.conn.their_state is not h11.SEND_BODY
        if is_asked and not self.flow.write_paused and not self._gives_way:
            self._held.waits_since_s = None
        elif self._held.waits_since_s is None:
            self._held.waits_since_s = self.loop.time()

    def _give_way(self) -> None:
        self._gives_way = True
        self._watch_wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading.arm()
        self._watch_wait()

    def resume_writing(self) -> None:
        self._reading.disarm()
        super().resume_writing()
        self._watch_wait()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end.arm()

    def send_400_response(self, msg: str) -> None:
        # After the start of an answer, no other answer can follow.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


log = logging.getLogger(__name__)

#: Connections to the listeners of health and metrics, and from one address.
_METRICS_CONNECTIONS: Final = (64, 32)
_STOPS_WITHIN_S: Final = 5
#: How many of the largest bodies from unknown senders may be in memory.
_LARGEST_BODIES: Final = 4
_KEEP_ALIVE_S: Final = 30
_REQUEST_HEAD_BYTES: Final = 32 << 10


class CannotListen(PermanentError):
    """A listener cannot bind its address."""


@dataclass(slots=True)
class _Running:
    listener: RestListener
    acceptor: Acceptor
    server: uvicorn.Server
    scope: Scope


async def _no_metrics() -> bytes:
    return b""


class RestServer:
    """The HTTP servers of a process: :meth:`start` binds the listeners; they answer 404 until :meth:`serve`. ``tls`` is
    None if nothing uses https. Raises ConfigError if a setting cannot be used."""

    def __init__(
        self,
        settings: RestSettings,
        *,
        tls: RestTls | None = None,
        metrics: Metrics = _no_metrics,
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._metrics = metrics
        self._limits = limits or Limits()
        self._headers = AnswerHeaders(settings)
        budget = BodyBudget(_LARGEST_BODIES * max(settings.max_request_bytes, WORKERS_BODY_BYTES))
        self._asgi_entry = AsgiEntry(self._headers, budget, settings.max_request_bytes)
        #: Sends requests to other workers; closed by :meth:`stop`.
        self.forwarder = Forwarder(None if tls is None else tls.client)
        self._asgi_entry.dashboard = Dashboard(self._limits.request_s, self.forwarder) if settings.has_ui else None
        self._admin_entry = AsgiEntry(None, budget)
        self._metrics_front = AsgiEntry(None, budget)
        self._main: list[_Running] = []
        self._admin: list[_Running] = []
        self._of_metrics: list[_Running] = []
        self._own_host = ""
        self._apps: dict[Part, FastAPI] = {}

    async def start(self) -> None:
        """Bind all listeners or none. Raises CannotListen if an address is not of this machine or not free, ConfigError
        if a listener is https and there are no keys, or a file of users cannot be read."""
        settings = self._settings
        limits = ConnectionLimits(settings.max_connections, settings.max_connections_per_address)
        # So that probes and Prometheus are answered whatever users do.
        own = ConnectionLimits(*_METRICS_CONNECTIONS)
        served = (
            (settings.listeners, self._asgi_entry, HTTPS_PREFIX, limits, self._main),
            (settings.admin_listeners or (), self._admin_entry, ADMIN_HTTPS_PREFIX, limits, self._admin),
            (settings.metrics_listeners, self._metrics_front, HTTPS_PREFIX, own, self._of_metrics),
        )
        try:
            opened = await asyncio.to_thread(open_access, settings, self._tls)
            for notice in opened.notices:
                log.warning("%s", notice)
            self._own_host = await _own_host()
            guard = await asyncio.to_thread(self._guard, opened.authenticator)
            self._asgi_entry.guard = self._admin_entry.guard = guard
            for listeners, front, prefix, of, running in served:
                for each in listeners:
                    context = opened.contexts[prefix] if each.scheme == "https" else None
                    running.append(await self._listen(each, front, of, context))
        except BaseException:
            await self.stop()
            raise
        self.forwarder.own_url = self._asgi_entry.own_url = self.advertised_url
        log.info("REST server listening at %s, advertised as %s", _listed(self._main), self.advertised_url)
        if not serves_others(settings.listeners):
            log.info(
                "REST is served on this machine only. If workers or users on other machines need it, set "
                "listeners = http://:%s and rest.auth.* in the worker's file.",
                self._main[0].acceptor.port,
            )
        if self._admin:
            log.info("loggers are served at %s", _listed(self._admin))
        if self._of_metrics:
            log.info("health and metrics are served at %s", _listed(self._of_metrics))

    def _guard(self, authenticator: Authenticator) -> Guard:
        settings, allowed = self._settings, self._settings.access.allowed_hosts
        names = {"localhost", socket.gethostname(), socket.getfqdn(), settings.advertised_host or "", *allowed}
        names |= {each.host for each in (*settings.listeners, *(settings.admin_listeners or ()))}
        # No other site's page has a password or a token, so with authentication only a set list is checked.
        are_checked = allowed or not authenticator.is_needed
        return Guard(authenticator, frozenset(map(str.lower, names)) if are_checked else None, self._headers)

    async def prepare(self, part: Part | None = None) -> None:
        """Build the application of :meth:`serve`, or of ``part``, in a thread: it takes a tenth of a second."""
        await asyncio.to_thread(self._app, part or self._whole)

    def serve(self, herder: HerderApi) -> None:
        """Serve the whole API of the process's one herder."""
        self._asgi_entry.app = OneHerder(self._app(self._whole), herder)
        self._asgi_entry.show({("", ""): herder})
        self._metrics_front.app = self._top({("", ""): herder})
        if self._admin:
            self._admin_entry.app = OneHerder(self._app(Part.LOGGERS), herder)

    def serve_flows(self, flows: Flows, *, public: bool) -> None:
        """Serve the herders of a dedicated mirror, each below ``/{source}/{target}``; ``flows`` is read for every
        request. ``public``: the whole API, with ``/health`` and ``/metrics`` at the top; else requests between workers.
        """
        app = self._app(Part.ALL if public else Part.INTERNAL)
        self._asgi_entry.app = ManyHerders(app, flows, self._top(flows) if public else None)
        self._asgi_entry.has_flows = True
        if public:
            self._asgi_entry.show(flows)
        self._metrics_front.app = self._top(flows)

    def _top(self, flows: Flows) -> TopOfFlows:
        return TopOfFlows(flows, self._metrics, self._limits.health_s)

    @property
    def _whole(self) -> Part:
        return Part.ALL if self._settings.admin_listeners is None else Part.WITHOUT_LOGGERS

    def _app(self, part: Part) -> FastAPI:
        if part not in self._apps:
            self._apps[part] = create_app(part, self._settings, self.forwarder, self._metrics, self._limits)
        return self._apps[part]

    @property
    def ports(self) -> Sequence[int]:
        """The bound port of each main listener, in order."""
        return [each.acceptor.port for each in self._main]

    @property
    def admin_ports(self) -> Sequence[int]:
        return [each.acceptor.port for each in self._admin]

    @property
    def metrics_ports(self) -> Sequence[int]:
        return [each.acceptor.port for each in self._of_metrics]

    @property
    def advertised_url(self) -> str:
        """This worker's URL for other workers and users, with a slash at the end. Known once started. Scheme: as
        configured, else http if a listener has it, else https. Host and port: as configured, else those of the first
        listener of that scheme, and for a listener on all interfaces this machine's address."""
        settings = self._settings
        schemes = {each.listener.scheme for each in self._main}
        scheme = settings.advertised_scheme or ("http" if "http" in schemes else "https")
        first = next((each for each in self._main if each.listener.scheme == scheme), None)
        host = settings.advertised_host or (first and first.listener.host) or self._own_host
        port = settings.advertised_port or (first or self._main[0]).acceptor.port
        return f"{RestListener(scheme, host, port)}/"

    async def stop(self) -> None:
        """Refuse new requests, end running ones within a few seconds, and close everything. May be called again."""
        running = [*self._main, *self._admin, *self._of_metrics]
        await self._asgi_entry.close()
        for each in (self._main, self._admin, self._of_metrics):
            each.clear()
        await asyncio.gather(*map(_stopped, running))
        await self.forwarder.close()

    async def _listen(
        self, listener: RestListener, front: AsgiEntry, limits: ConnectionLimits, context: SSLContext | None
    ) -> _Running:
        try:
            bound = await bind(listener.host, listener.port)
        except OSError as error:
            why = f"cannot listen on {listener}: {error.strerror or error}"
            raise CannotListen(f"listeners: {why}. Set a free address of this machine.") from error
        server = uvicorn.Server(_uvicorn_config(front))
        server.config.load()
        # As uvicorn's startup does, but without its own listener and its signal handlers.
        server.lifespan, server.servers, server.started = LifespanOff(server.config), [], True

        async def serve(connection: socket.socket, held: Held) -> None:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: BoundedProtocol(server, limits, held),
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            )

        scope = Scope(f"rest {listener}")
        scope.spawn(server.main_loop(), f"rest {listener}")
        return _Running(listener, Acceptor(bound, limits, serve, f"rest {listener}"), server, scope)


def _uvicorn_config(front: AsgiEntry) -> uvicorn.Config:
    return uvicorn.Config(
        front,
        ws="none",
        lifespan="off",
        interface="asgi3",
        # uvicorn would only log clients' mistakes; rest.errors logs ours.
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOPS_WITHIN_S,
        h11_max_incomplete_event_size=_REQUEST_HEAD_BYTES,
    )


async def _stopped(running: _Running) -> None:
    server = running.server
    await running.acceptor.close()
    await running.scope.close()
    await server.shutdown()
    # Requests that did not end in time were cancelled; abort connections whose clients do not read.
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


async def _own_host() -> str:
    """Return this machine's address by its host name, as Java's ``InetAddress.getLocalHost``."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(socket.gethostname(), None, family=socket.AF_INET)
        return str(found[0][4][0])
    except OSError:
        return "127.0.0.1"


def _listed(running: Sequence[_Running]) -> str:
    bound = (replace(each.listener, port=each.acceptor.port) for each in running)
    return ", ".join(map(str, bound))
