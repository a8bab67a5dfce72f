"""Handles requests before the web framework: raw paths, HEAD, who may do what, configured headers, CORS, the herder.

The worker's file may configure headers of all answers. Cross-origin requests are handled as by Jetty's
``CrossOriginHandler`` in Kafka: an allowed origin is echoed, and a preflight reaches the resource. Unlike there, a
write of a page that is not allowed is refused.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connect.core import herder_api
from connect.core.audit import AuditEntry
from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.config.rest_settings import HeaderRule
from connect.core.errors import ConfigError
from connect.core.herder_api import HerderApi, RequestRefused
from connect.kafka.acceptor import network_of
from connect.kafka.tracing import record_request
from rest import access
from rest.access import Caller, Role, below_flow
from rest.authentication import Authenticator, KeysMissing, Unauthenticated
from rest.bodies import WorkerStatus, json_response
from rest.errors import RestError, error_response, html_page, response_of, status_of
from rest.other_workers import join
from rest.request_handling import CALLER, HERDER, NOTED, SHARE, BodyBudget, BodyShare, read_body
from rest.rest_config import Flows, Metrics, RestSettings
from rest.routes import health_of, metrics_response
from rest.ui.router import ROOT, Dashboard

_DEFAULT_METHODS: Final = ("HEAD", "POST", "GET")
_PREFLIGHT_MAX_AGE_S: Final = "60"
_RULES_KEY: Final = "response.http.headers.config"
_ORIGIN_KEY: Final = "access.control.allow.origin"


class AnswerHeaders:
    """The headers to add to answers. Raises :class:`ConfigError` for a setting that cannot be a header."""

    def __init__(self, settings: RestSettings) -> None:
        self._rules = tuple(map(_checked, settings.header_rules))
        self._origins = settings.allowed_origins
        self._patterns = tuple(map(_pattern, settings.allowed_origins))
        self._methods = ",".join(settings.allowed_methods or _DEFAULT_METHODS)

    def add_to(self, answer: MutableHeaders, method: str, request: Headers, now_s: float) -> None:
        """Add to the headers of an answer to ``method`` with the headers ``request``; ``now_s`` is wall-clock time."""
        for rule in self._rules:
            value = rule.value
            if rule.action.endswith("Date"):
                value = formatdate(now_s + int(value) / 1000, usegmt=True)
            if rule.action.startswith("set"):
                answer[rule.name] = value
            else:
                answer.append(rule.name, value)
        if self._origins:
            # Even without an Origin header: a cache must not give one site's answer to another.
            answer.append("Vary", "Origin")
            for name, value in self._cross_origin(method, request):
                answer[name] = value

    def _cross_origin(self, method: str, request: Headers) -> Iterator[tuple[str, str]]:
        origin = request.get("origin")
        if origin is None or not self.allows_origin(origin):
            return
        yield "Access-Control-Allow-Origin", origin
        if method == "OPTIONS" and "access-control-request-method" in request:
            yield "Access-Control-Allow-Methods", self._methods
            yield "Access-Control-Allow-Headers", "Content-Type"
            yield "Access-Control-Max-Age", _PREFLIGHT_MAX_AGE_S

    def allows_origin(self, origins: str) -> bool:
        """Return whether the worker's file allows pages of an ``Origin`` header."""
        if "*" in self._origins:
            return True
        return any(pattern.fullmatch(each) for each in origins.split() for pattern in self._patterns)


def _pattern(origin: str) -> re.Pattern[str]:
    if origin == "*":
        return re.compile(".*")
    try:
        return re.compile(compile_java(origin).pattern, re.IGNORECASE)
    except (UnsupportedRegex, re.error) as error:
        raise ConfigError(f"'{origin}' is not a regular expression for origins: {error}", _ORIGIN_KEY) from None


def _checked(rule: HeaderRule) -> HeaderRule:
    if rule.action.endswith("Date") and re.fullmatch(r"-?\d+", rule.value) is None:
        text = f"{rule.action} {rule.name}: '{rule.value}' is not a number of milliseconds from now"
        raise ConfigError(text, _RULES_KEY)
    if not (rule.name.isascii() and rule.value.isprintable() and rule.value.isascii()):
        raise ConfigError(f"the header {rule.name!r} contains characters that a header cannot contain", _RULES_KEY)
    return rule


log = logging.getLogger(__name__)

#: An empty segment, a percent sign that encodes nothing, a control character.
_REFUSED: Final = re.compile(r"//|%(?![0-9A-Fa-f]{2})|%[01][0-9A-Fa-f]|%7[Ff]")
_PARAMETERS: Final = re.compile(r";[^/]*")
_NOT_FOUND: Final = "HTTP 404 Not Found"
_LONGEST_LOGGED: Final = 300


class Guard:
    """Admits a request: its host, its origin, its user and the user's role. ``hosts`` are the names of this worker,
    None for any; ``headers``, those of answers, know the allowed origins."""

    def __init__(self, authenticator: Authenticator, hosts: frozenset[str] | None, headers: AnswerHeaders) -> None:
        self._authenticator, self._hosts, self._headers = authenticator, hosts, headers

    async def admit(self, scope: Scope, path: str, forwarded: Caller | None) -> Response | None:
        """Return the refusal of a request; None if it is admitted, and then ``scope`` holds its caller. ``forwarded``:
        the user as another worker of the group has verified."""
        request, method = Headers(scope=scope), scope["method"]
        host, origin = request.get("host"), request.get("origin")
        if self._hosts is not None and not access.is_allowed_host(host, self._hosts):
            return error_response(403, f"This worker does not answer to the name {host}. Add it to rest.allowed.hosts.")
        is_write = method not in ("GET", "HEAD", "OPTIONS")
        if is_write and origin and not (access.is_own_origin(origin, host) or self._headers.allows_origin(origin)):
            return error_response(403, f"Pages of {origin} may not write. Add it to {_ORIGIN_KEY}.")
        needed = access.needed_role(method, path)
        if needed is Role.NONE:
            scope[CALLER] = Caller("", Role.NONE)
            return None
        try:
            caller = forwarded or await self._authenticator.caller(scope, request.get("authorization"))
        except Unauthenticated as error:
            log.info("%s refused for %s: %s", _request(method, path), _peer(scope), error)
            response = error_response(401, "User cannot access the resource.")
            if self._authenticator.challenge:
                response.headers["www-authenticate"] = self._authenticator.challenge
            return response
        except KeysMissing as error:
            return error_response(503, str(error))
        scope[CALLER] = caller
        if caller.role < needed:
            log.info("%s refused: %s has the role %s", _request(method, path), caller.name, caller.role.name.lower())
            lists = "rest.auth.admins, rest.auth.operators and rest.auth.viewers"
            has = f"This needs the role {needed.name.lower()}, and {caller.name} has {caller.role.name.lower()}."
            return error_response(403, f"{has} An administrator of the worker assigns roles in {lists}.")
        return None


def _peer(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _request(method: str, path: str | None) -> str:
    """Return a request for the log: without its query, and short, because anyone may send 64 KB."""
    text = f"{method} {path or '(malformed path)'}"
    return text if len(text) <= _LONGEST_LOGGED else f"{text[:_LONGEST_LOGGED]}..."


class AsgiEntry:
    """The ASGI application of a listener; answers 404 until :attr:`app` is set. ``headers`` None adds no headers;
    ``max_bytes`` limits the bodies of forwarded requests, ``budget`` all bodies of unknown senders."""

    def __init__(self, headers: AnswerHeaders | None, budget: BodyBudget, max_bytes: int = 0) -> None:
        self._headers = headers
        self._budget = budget
        self._max_bytes = max_bytes
        self._forwarded_callers = access.ForwardedCallers()
        #: This worker's advertised URL, for which other workers sign.
        self.own_url = ""
        #: None: every request is admitted, for health and metrics.
        self.guard: Guard | None = None
        self.app: OneHerder | ManyHerders | TopOfFlows | None = None
        #: Whether paths begin with a flow, ``/{source}/{target}``.
        self.has_flows = False
        #: None: this worker has no dashboard.
        self.dashboard: Dashboard | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_as_it_came(scope["raw_path"].decode("ascii"))
        # The HTTP server drops the body of an answer to HEAD itself.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        status, began_s, began_ns = 0, time.monotonic(), time.time_ns()

        async def answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if self._headers is not None and message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                self._headers.add_to(headers, scope["method"], Headers(scope=scope), time.time())
                message = {**message, "headers": headers.raw}
            await send(message)

        with BodyShare(self._budget, network_of(_peer(scope))) as share:
            inner = {**scope, "path": path, "method": method, SHARE: share, NOTED: {}}
            forwarded: Caller | None = None
            try:
                app: ASGIApp | None
                if path is None:
                    app = html_page(400, scope["method"])
                elif self.guard is None:
                    app = self.app
                else:
                    forwarded, receive = await self._forwarded(inner, receive, share)
                    inner_path = below_flow(path) if self.has_flows else path
                    app = await self.guard.admit(inner, inner_path, forwarded) or self._app_of(path)
                await (app or html_page(404, scope["method"]))(inner, receive, answer)
            except RequestRefused as error:
                await error_response(status_of(error), str(error))(inner, receive, answer)
            except RestError as error:
                await response_of(error)(inner, receive, answer)
            except Exception:
                # The framework answers, then raises the error again; rest.errors has already logged it.
                log.debug("%s %s failed", scope["method"], scope["path"], exc_info=True)
            finally:
                # Also if a stop of the server cancels it, because the change may have been made. The worker that
                # forwards a request has recorded it.
                if path is not None and forwarded is None:
                    self._record(inner, path, status)
        self._trace(inner, path, status, began_ns)
        # Reads come every few seconds from probes and scrapers.
        level = logging.DEBUG if method in ("GET", "OPTIONS") else logging.INFO
        if log.isEnabledFor(level):
            caller, took_ms = inner.get(CALLER), (time.monotonic() - began_s) * 1000
            user = caller.name if caller is not None and caller.name else "-"
            log.log(level, "%s %s %s: %d in %.0f ms", _peer(scope), user, _request(method, path), status, took_ms)

    def _app_of(self, path: str) -> ASGIApp | None:
        """Return the application of a path; a flow whose source has the alias ``ui`` keeps its paths."""
        is_of_dashboard = path == f"/{ROOT}" or path.startswith(f"/{ROOT}/")
        if self.app is None or self.dashboard is None or not is_of_dashboard:
            return self.app
        return self.app if self.has_flows and self._herder_of(path) is not None else self.dashboard

    def _herder_of(self, path: str) -> HerderApi | None:
        return None if self.app is None else self.app.herder_of(path)

    def show(self, flows: Flows) -> None:
        """Show the flows on the dashboard, if there is one."""
        if self.dashboard is not None:
            self.dashboard.herders = flows

    async def close(self) -> None:
        """End the dashboard's streams, which otherwise last as long as the server lets a request last."""
        if self.dashboard is not None:
            await self.dashboard.close()

    async def _forwarded(self, scope: Scope, receive: Receive, share: BodyShare) -> tuple[Caller | None, Receive]:
        """Return the user of a request that another worker of the group forwards and has signed, and its body again;
        None for any other request. Raises RequestRefused for a signature that is not the group's, or not new, and
        BodyRefused."""
        request, herder = Headers(scope=scope), self._herder_of(scope["path"])
        user = request.get(herder_api.FORWARDED_HEADER)
        if user is None or herder_api.SIGNATURE_HEADER not in request or herder is None:
            return None, receive
        body = await read_body(receive, self._max_bytes, share)
        query = scope["query_string"].decode("ascii")
        url = join(self.own_url, f"{scope['path']}{'?' if query else ''}{query}")
        asked = herder_api.ForwardedRequest(scope["method"], url, user, body)
        signature, algorithm = request.get(herder_api.SIGNATURE_HEADER), request.get(herder_api.ALGORITHM_HEADER)
        herder.check_forwarded(asked, signature, algorithm)
        caller = self._forwarded_callers.caller(user, time.time())
        share.release()
        left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return left.pop() if left else await receive()

        return caller, again

    def _trace(self, scope: Scope, path: str | None, status: int, began_ns: int) -> None:
        """Record the span of a request, named by its route."""
        caller, method = scope.get(CALLER), scope["method"]
        # Paths that do not exist are without end.
        route = "" if path is None or status == 404 else access.route_of(path, has_flow=self.has_flows)
        attributes: dict[str, str | int] = {"http.request.method": method, "http.response.status_code": status}
        attributes |= {"http.route": route, "enduser.id": caller.name if caller is not None else ""}
        record_request(f"{method} {route}".rstrip(), began_ns, Headers(scope=scope), attributes, failed=status >= 500)

    def _record(self, scope: Scope, path: str, status: int) -> None:
        """Enter a user's request that changes something in the audit, also if it was refused."""
        caller, method = scope.get(CALLER), scope["method"]
        below = below_flow(path) if self.has_flows else path
        herder = self._herder_of(path)
        if caller is None or caller.role is Role.NONE or herder is None or not access.changes_something(method, below):
            return
        parts = below.split("/")[1:]
        noted: dict[str, Any] = {"connector": unquote(parts[1])} if parts[0] == "connectors" and len(parts) > 1 else {}
        noted |= scope[NOTED]
        role = caller.role.name.lower()
        herder.record(AuditEntry("rest", method, path, caller.name, role, status=status, **noted))


def path_as_it_came(path: str) -> str | None:
    """Return the path of a request, still encoded, because an encoded slash does not split it; None if refused. As in
    Java's server, a slash at the end and parameters of segments (``;a=b``) are removed; empty segments and bytes that
    are not UTF-8 are refused. Java refuses encoded slashes, backslashes, dots and percent signs too."""
    if not path.startswith("/") and "://" in path:
        # The absolute form that a client sends to a proxy.
        path = "/" + path.partition("://")[2].partition("/")[2]
    if _REFUSED.search(path):
        return None
    try:
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        return None
    path = _PARAMETERS.sub("", path)
    return path.removesuffix("/") or "/"


class OneHerder:
    """An application that passes every request to the one herder of the process."""

    def __init__(self, app: ASGIApp, herder: HerderApi) -> None:
        self._app = app
        self._herder = herder

    def herder_of(self, path: str) -> HerderApi | None:
        return self._herder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, HERDER: self._herder}, receive, send)


class ManyHerders:
    """An application that passes ``/{source}/{target}/...`` to that flow's herder, for a dedicated mirror (KIP-710).
    ``flows`` is read for every request; ``top`` serves ``/health`` and ``/metrics``, which are 404 without it."""

    def __init__(self, app: ASGIApp, flows: Flows, top: TopOfFlows | None) -> None:
        self._app, self._flows, self._top = app, flows, top

    def herder_of(self, path: str) -> HerderApi | None:
        """Return the herder of the flow to which a path belongs."""
        _, *segments = path.split("/", 3)
        return self._flows.get((unquote(segments[0]), unquote(segments[1]))) if len(segments) > 1 else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        _, *segments = path.split("/", 3)
        if len(segments) < 2:
            top = error_response(404, _NOT_FOUND) if self._top is None else self._top
            await top(scope, receive, send)
            return
        herder = self.herder_of(path)
        if herder is None:
            source, target = map(unquote, segments[:2])
            unknown = f"No replication flow found for source '{source}' and target '{target}'"
            text = unknown if len(segments) > 2 else _NOT_FOUND
            await error_response(404, text)(scope, receive, send)
            return
        root = f"/{segments[0]}/{segments[1]}"
        scope = {**scope, HERDER: herder, "root_path": root, "path": path if len(segments) > 2 else f"{root}/"}
        await self._app(scope, receive, send)


class TopOfFlows:
    """``/health`` of the least healthy flow, and ``/metrics`` of the process; a Connect worker has one herder without a
    flow."""

    _WORST_FIRST: Final = (500, 503, 200)

    def __init__(self, flows: Flows, metrics: Metrics, health_timeout_s: float) -> None:
        self._flows, self._metrics, self._health_timeout_s = flows, metrics, health_timeout_s

    def herder_of(self, path: str) -> HerderApi | None:
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "GET", "/metrics":
                response = await metrics_response(self._metrics)
            case "GET", "/health":
                status, body = await self._health()
                response = json_response(body, status)
            case _, "/metrics" | "/health":
                response = error_response(405, "HTTP 405 Method Not Allowed")
            case _:
                response = error_response(404, _NOT_FOUND)
        await response(scope, receive, send)

    async def _health(self) -> tuple[int, WorkerStatus]:
        flows = dict(self._flows)
        if not flows:
            return 503, {"status": "starting", "message": "Worker is still starting up."}
        answers = await asyncio.gather(*(health_of(herder, self._health_timeout_s) for herder in flows.values()))
        worst = min(zip(flows, answers, strict=True), key=lambda each: self._WORST_FIRST.index(each[1][0]))
        (source, target), (status, body) = worst
        if status != 200:
            flow = f"{source}->{target}: " if source else ""
            body = {"status": body["status"], "message": f"{flow}{body['message']}"}
        return status, body
