"""The HTTP servers of a process: one for each listener, in the worker's own loop (Kafka's ``RestServer``)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.lifespan.off import LifespanOff  # which uvicorn would import on the loop

from connect.core.errors import ConfigError, PermanentError
from connect.core.herding import Herder
from connect.core.rest_defs import Listener
from connect.kafka.concurrency import Scope
from rest.app import Limits, Part, create_app
from rest.forward import Forwarder
from rest.front import Flows, Front, ManyHerders, OneHerder, TopOfFlows
from rest.headers import AnswerHeaders
from rest.protocol import BoundedProtocol
from rest.settings import ADMIN_HTTPS_PREFIX, HTTPS_PREFIX, Metrics, RestSettings, RestTls

log = logging.getLogger(__name__)

#: Connections of a listener, idle ones included; above, 503.
MAX_CONNECTIONS: Final = 512
_STOPS_WITHIN_S: Final = 5
_KEEP_ALIVE_S: Final = 30
_REQUEST_HEAD_BYTES: Final = 32 << 10


class CannotListen(PermanentError):
    """A listener's address cannot be had."""


@dataclass(slots=True)
class _Running:
    listener: Listener
    socket: socket.socket
    server: uvicorn.Server
    scope: Scope

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


async def _no_metrics() -> bytes:
    return b""


class RestServer:
    """Binds the listeners at :meth:`start`, and answers 404 until it knows whom to :meth:`serve`.

    Args:
        settings: See :class:`RestSettings`.
        tls: Contexts for https; None where nothing is https.
        metrics: What ``/metrics`` shows.
        limits: How long answers may take.

    Raises:
        ConfigError: A setting cannot be used.
    """

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
        self._front = Front(AnswerHeaders(settings))
        self._admin_front = Front(None)
        self._main: list[_Running] = []
        self._admin: list[_Running] = []
        self._own_host = ""
        self._apps: dict[Part, FastAPI] = {}
        #: Requests to other workers go through this one; it is closed by :meth:`stop`.
        self.forwarder = Forwarder(None if tls is None else tls.client)

    async def start(self) -> None:
        """Bind all listeners.

        Raises:
            CannotListen: An address is not ours or not free; then none is bound.
            ConfigError: A listener is https and there are no keys.
        """
        try:
            for listener in self._settings.listeners:
                self._main.append(await self._listen(listener, self._front, HTTPS_PREFIX))
            for listener in self._settings.admin_listeners or ():
                self._admin.append(await self._listen(listener, self._admin_front, ADMIN_HTTPS_PREFIX))
            self._own_host = await _own_host()
        except BaseException:
            await self.stop()
            raise
        self.forwarder.own_url = self.advertised_url
        log.info("REST server listening at %s, advertised as %s", _listed(self._main), self.advertised_url)
        if all(_is_loopback(each.host) for each in self._settings.listeners):
            log.info(
                "REST is served on this machine only; if workers or users of other machines need it, set "
                "listeners = http://:%s in the worker's file",
                self._main[0].port,
            )
        if self._admin:
            log.info("loggers are served at %s", _listed(self._admin))

    async def prepare(self, part: Part | None = None) -> None:
        """Make what is to be served, by default by :meth:`serve`, in a thread: that takes a tenth of a second."""
        await asyncio.to_thread(self._app, part or self._whole)

    def serve(self, herder: Herder) -> None:
        """Serve the whole API of the one herder of this process."""
        self._front.app = OneHerder(self._app(self._whole), herder)
        if self._admin:
            self._admin_front.app = OneHerder(self._app(Part.LOGGERS), herder)

    def serve_flows(self, flows: Flows, *, public: bool) -> None:
        """Serve the herders of a dedicated mirror, each below ``/{source}/{target}``.

        Args:
            flows: Looked at for every request.
            public: The whole API, with ``/health`` and ``/metrics`` at the top; else what workers ask of each other.
        """
        app = self._app(Part.ALL if public else Part.INTERNAL)
        top = TopOfFlows(flows, self._metrics, self._limits.health_s) if public else None
        self._front.app = ManyHerders(app, flows, top)

    @property
    def _whole(self) -> Part:
        return Part.ALL if self._settings.admin_listeners is None else Part.WITHOUT_LOGGERS

    def _app(self, part: Part) -> FastAPI:
        if part not in self._apps:
            self._apps[part] = create_app(part, self._settings, self.forwarder, self._metrics, self._limits)
        return self._apps[part]

    @property
    def ports(self) -> Sequence[int]:
        """The bound port of each main listener, in their order."""
        return [each.port for each in self._main]

    @property
    def admin_ports(self) -> Sequence[int]:
        return [each.port for each in self._admin]

    @property
    def advertised_url(self) -> str:
        """Where other workers and users reach this one, with a slash at the end. Known once started.

        Scheme: as advertised, else http where a listener is, else https. Host and port: as advertised, else those of
        the first listener of that scheme, and for a listener on all interfaces this machine's address.
        """
        settings = self._settings
        schemes = {each.listener.scheme for each in self._main}
        scheme = settings.advertised_scheme or ("http" if "http" in schemes else "https")
        first = next((each for each in self._main if each.listener.scheme == scheme), None)
        host = settings.advertised_host or (first and first.listener.host) or self._own_host
        port = settings.advertised_port or (first or self._main[0]).port
        return f"{Listener(scheme, host, port)}/"

    async def stop(self) -> None:
        """Take no more requests, end those that run within a few seconds, and close everything. May be repeated."""
        running = [*self._main, *self._admin]
        self._main, self._admin = [], []
        await asyncio.gather(*map(_stopped, running))
        await self.forwarder.close()

    async def _listen(self, listener: Listener, front: Front, https_prefix: str) -> _Running:
        context = self._server_context(https_prefix) if listener.scheme == "https" else None
        bound = await _bind(listener)
        try:
            server = uvicorn.Server(_uvicorn_config(front, context))
            server.config.load()
            # What uvicorn's own serve() does, without its signal handlers: signals are the command's.
            server.lifespan = LifespanOff(server.config)
            await server.startup(sockets=[bound])
        except BaseException:
            bound.close()
            raise
        scope = Scope(f"rest {listener}")
        scope.spawn(server.main_loop(), f"rest {listener}")
        return _Running(listener, bound, server, scope)

    def _server_context(self, prefix: str) -> SSLContext:
        if self._tls is None:
            raise ConfigError("an https listener needs the ssl.keystore keys of this server", "listeners")
        return self._tls.server(prefix)


def _uvicorn_config(front: Front, context: SSLContext | None) -> uvicorn.Config:
    return uvicorn.Config(
        front,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        # What it would log are mistakes of clients; ours are logged by rest.errors.
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOPS_WITHIN_S,
        h11_max_incomplete_event_size=_REQUEST_HEAD_BYTES,
        ssl_context_factory=None if context is None else lambda *_: context,
    )


async def _stopped(running: _Running) -> None:
    server = running.server
    await running.scope.close()
    await server.shutdown(sockets=[running.socket])
    # What did not end in time was cancelled; a client that reads nothing keeps no connection.
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


async def _bind(listener: Listener) -> socket.socket:
    try:
        if not listener.host:
            return _bind_everywhere(listener.port)
        found = await asyncio.get_running_loop().getaddrinfo(
            listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return _bound(_tcp(family), address)
    except OSError as error:
        raise CannotListen(
            f"listeners: cannot listen on {listener}: {error.strerror or error}; set a free address of this machine"
        ) from error


def _bind_everywhere(port: int) -> socket.socket:
    try:
        both = _tcp(socket.AF_INET6)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        return _bound(_tcp(socket.AF_INET), ("", port))
    return _bound(both, ("::", port))


def _tcp(family: int) -> socket.socket:
    """With the protocol named: asyncio sends small segments at once only on connections of such a socket.

    Without, an answer's body waits up to 40 ms for the client's acknowledgement of its headers.
    """
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)


def _bound(fresh: socket.socket, address: tuple[object, ...]) -> socket.socket:
    try:
        fresh.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        fresh.setblocking(False)
        fresh.bind(address)
        fresh.listen()
    except OSError:
        fresh.close()
        raise
    return fresh


async def _own_host() -> str:
    """This machine's address by its own name, as Java's ``InetAddress.getLocalHost``."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(socket.gethostname(), None, family=socket.AF_INET)
        return str(found[0][4][0])
    except OSError:
        return "127.0.0.1"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _listed(running: Sequence[_Running]) -> str:
    return ", ".join(str(Listener(each.listener.scheme, each.listener.host, each.port)) for each in running)
