"""Handles one REST request on this worker, and forwards it to the worker that can answer it.

Requests to other workers are users' requests that are forwarded (Kafka's ``RestClient``), and signed requests between
workers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ssl import SSLContext
from typing import Annotated, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import httpx
import orjson
from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, TypeAdapter
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from connect.core.config.rest_settings import is_loopback
from connect.core.errors import RetriableError
from connect.core.herder_api import (
    FORWARDED_HEADER,
    UNSIGNED,
    Config,
    ConfigInfos,
    ElsewhereError,
    Forbidden,
    ForwardedRequest,
    HerderApi,
)
from connect.core.model import ConnectorInfo
from rest import bodies
from rest.access import ANYONE, Caller, Role
from rest.errors import JSON, TOO_LARGE, BodyRefused, RestError, TimedOut, not_acceptable, unsupported_media_type
from rest.rest_config import RestSettings

log = logging.getLogger(__name__)

USER_AGENT: Final = "kafka-connect"
#: The first hop waits for the second, so reading may take more than twice the time limit of a request.
_TIMEOUT: Final = httpx.Timeout(connect=10.0, read=200.0, write=30.0, pool=10.0)
_LIMITS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=4.0)

#: Returns the headers that sign a body (KIP-507); a missing body is signed as empty.
Sign = Callable[[bytes], Mapping[str, str]]


#: Statuses of the leader that may pass: its key is newer than the one that signed; a rebalance is under way; it timed
#: out or gives no reason; it has read no key yet.
_PASSING: Final = (403, 409, 500, 503)
#: How Java says that it does not have a class.
_NO_CLASS: Final = "Failed to find any class"


class Unreachable(RestError, RetriableError):
    """Another worker did not answer."""


class RetriableRefusal(RestError, RetriableError):
    """The leader refuses for a reason that may pass soon."""


class WrongKey(RetriableRefusal, Forbidden):
    """The leader's key differs from the one that signed: after a key rotation, one worker has not read the new key."""


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """Another worker's answer, with a status from 200 to 299."""

    status: int
    body: bytes
    location: str | None


class Forwarder:
    """An HTTP client for other workers, without redirects and without proxies of the environment. ``client_tls``
    creates the context for workers with https URLs."""

    def __init__(self, client_tls: Callable[[], SSLContext] | None = None) -> None:
        #: This worker's advertised URL, once it is known.
        self.own_url: str | None = None
        self._client_tls = client_tls
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def send(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ForwardedAnswer:
        """Send a request; ``url`` is absolute, with an encoded path.

        Raises:
            RestError: The other worker refuses, with its status and message; or it advertises our own URL.
            Unreachable: It did not answer.
        """
        if self.own_url is not None and url.startswith(self.own_url):
            raise RestError(
                409,
                f"The worker that must answer this request advertises {self.own_url}, as this worker does. Set "
                "rest.advertised.host.name, or listeners, on each worker of the group to an address of its machine.",
            )
        content = {} if body is None else {"content-type": JSON}
        try:
            client = self._client("https" if url.startswith("https:") else "http")
            response = await client.request(
                method, url, content=body, headers={"accept": JSON, **content, **(headers or {})}
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            log.warning("Could not reach another worker, %s %s: %s", method, url.partition("?")[0], reason)
            raise Unreachable(500, f"IO Error trying to forward REST request: {reason}") from error
        if 200 <= response.status_code < 300:
            return ForwardedAnswer(response.status_code, response.content, response.headers.get("location"))
        if response.status_code >= 400:
            raise _refusal(response)
        raise RestError(500, f"Unexpected status code when handling forwarded request: {response.status_code}")

    def _client(self, scheme: str) -> httpx.AsyncClient:
        client = self._clients.get(scheme)
        if client is None:
            client = self._clients[scheme] = httpx.AsyncClient(
                verify=self._verify(scheme),
                timeout=_TIMEOUT,
                limits=_LIMITS,
                headers={"user-agent": USER_AGENT},
                follow_redirects=False,
                trust_env=False,
            )
        return client

    def _verify(self, scheme: str) -> SSLContext | bool:
        if scheme == "http":
            return False  # saves reading certificates
        return True if self._client_tls is None else self._client_tls()

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()


def _refusal(response: httpx.Response) -> RestError:
    status = response.status_code
    try:
        body = orjson.loads(response.content)
        return RestError(status, body["message"], int(body["error_code"]))
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        host = response.request.url.netloc.decode("ascii", "replace")
        return RestError(status, f"The worker at {host} answered {status} without a reason.")


def join(url: str, path: str) -> str:
    """Return ``path`` below a worker's URL, which may end with a slash."""
    return url.rstrip("/") + path


class InternalClient:
    """Sends the requests between workers of a group.

    Args:
        forwarder: The client that sends them.
        namespace: (source, target) of a dedicated mirror's group, the start of its paths.
    """

    def __init__(self, forwarder: Forwarder, namespace: Sequence[str] = ()) -> None:
        self._forwarder = forwarder
        self._prefix = "".join(f"/{quote(each, safe='')}" for each in namespace)

    async def post_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Mapping[str, str]], sign: Sign | None
    ) -> None:
        """Send a connector's task configs to the leader. ``sign`` is None below protocol version 2. Errors as
        :meth:`Forwarder.send`, or :class:`RetriableRefusal` if a retry may succeed."""
        body = orjson.dumps([dict(each) for each in configs])
        await self._send("POST", leader_url, connector, "tasks", body, sign)

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        """Ask the leader to fence a source connector's older tasks (KIP-618). Errors as :meth:`post_task_configs`."""
        await self._send("PUT", leader_url, connector, "fence", None, sign)

    async def validate(self, url: str, connector_class: str, config: Config) -> ConfigInfos | None:
        """Have the worker at ``url`` validate a connector's config; None if it does not have the class. Errors as
        :meth:`Forwarder.send`."""
        path = f"{self._prefix}/connector-plugins/{quote(connector_class, safe='')}/config/validate"
        try:
            answer = await self._forwarder.send("PUT", join(url, path), orjson.dumps(dict(config)))
        except RestError as error:
            if _NO_CLASS in (error.message or ""):
                return None
            raise
        return bodies.CONFIG_INFOS.validate_json(answer.body)

    async def _send(
        self, method: str, leader_url: str, connector: str, what: str, body: bytes | None, sign: Sign | None
    ) -> None:
        path = f"{self._prefix}/connectors/{quote(connector, safe='')}/{what}"
        headers = {} if sign is None else sign(body or b"")
        try:
            await self._forwarder.send(method, join(leader_url, path), body, headers)
        except RestError as error:
            # Although we signed it: a former leader forwarded the request, which Java does without the signature.
            is_unsigned = sign is not None and error.message == UNSIGNED
            if isinstance(error, RetriableError) or not (is_unsigned or error.status in _PASSING):
                raise
            cls = WrongKey if error.status == 403 else RetriableRefusal
            raise cls(error.status, error.message, error.error_code) from error


T = TypeVar("T")

#: The key of an ASGI scope that holds the herder of a request.
HERDER: Final = "heliograph.herder"
#: The key of an ASGI scope that holds the :class:`rest.access.Caller`.
CALLER: Final = "heliograph.caller"
#: The key of an ASGI scope that holds the request's :class:`BodyShare`.
SHARE: Final = "heliograph.share"
#: Limit for requests between workers: a connector with a thousand tasks has 2 MB of configs.
WORKERS_BODY_BYTES: Final = 10 << 20
WORKERS_BODY_ELEMENTS: Final = 1_000_000
REQUEST_TIMEOUT_S: Final = 90.0
_MAX_INT: Final = 2**31 - 1
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class BodyBudget:
    """Bounds the bodies in memory whose senders are not known, or not yet: a signature can be checked only when the
    whole body is there. ``most_bytes`` in all, half of them from one address."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: Counter[str] = Counter()

    @contextmanager
    def share(self, address: str) -> Iterator[BodyShare]:
        """Yield the share of a request, which it gives back at its end."""
        share = BodyShare(self, address)
        try:
            yield share
        finally:
            share.release()

    def take(self, address: str, size: int) -> None:
        """Add bytes; a negative ``size`` gives them back. Raises BodyRefused (503)."""
        if size > 0 and (
            self._held.total() + size > self._most_bytes or self._held[address] + size > self._most_bytes // 2
        ):
            raise BodyRefused(503, "Too many requests between workers are arriving. Try again later.")
        self._held[address] += size
        if not self._held[address]:
            del self._held[address]


class BodyShare:
    """The bytes of one request in a :class:`BodyBudget`."""

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self._budget = budget
        self._address = address
        self._bytes = 0

    def take(self, size: int) -> None:
        """Add bytes. Raises BodyRefused (503)."""
        self._budget.take(self._address, size)
        self._bytes += size

    def release(self) -> None:
        """Give all bytes back, at the end of the request or because its sender is known now."""
        self._budget.take(self._address, -self._bytes)
        self._bytes = 0


async def read_body(receive: Receive, limit_bytes: int, share: BodyShare | None) -> bytes:
    """Return the whole body of a request; ``share`` None: its sender is known. Raises BodyRefused, and ClientDisconnect
    if the client leaves before its end."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        try:
            if len(body) + len(chunk) > limit_bytes:
                raise too_large(limit_bytes)
            if share is not None:
                share.take(len(chunk))
        except BodyRefused:
            # What still comes is only read.
            body.clear()
            if share is not None:
                share.release()
            raise
        body += chunk
        more = message.get("more_body", False)
    return bytes(body)


def too_large(limit_bytes: int) -> BodyRefused:
    return BodyRefused(TOO_LARGE, f"The body of a request may have at most {limit_bytes} bytes.")


class Call:
    """A request as the endpoints see it. Raises BodyRefused (413) if its Content-Length exceeds ``limit_bytes``."""

    def __init__(self, request: Request, limit_bytes: int) -> None:
        self.request = request
        self._limit_bytes = limit_bytes
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit_bytes:
            raise too_large(limit_bytes)
        self.herder: HerderApi = request.scope[HERDER]
        #: Who asks.
        self.caller: Caller = request.scope[CALLER]
        self._forwarder: Forwarder = request.app.state.forwarder
        self._timeout_s: float = request.app.state.request_timeout_s
        self._body: bytes | None = None

    async def body(self) -> bytes:
        """Return the whole body. Raises BodyRefused (413, 503)."""
        if self._body is None:
            is_known = self.caller.role is not Role.NONE and self.caller is not ANYONE
            share = None if is_known else self.request.scope[SHARE]
            self._body = await read_body(self.request.receive, self._limit_bytes, share)
        return self._body

    async def json(self, shape: TypeAdapter[T]) -> T:
        """Return the body as parsed JSON.

        Raises:
            RestError: 413, it is too large; 503, too many are arriving; 500, it has another shape.
            HTTPException: 415, a body without Content-Type.
        """
        body = await self.body()
        if body and "content-type" not in self.request.headers:
            raise unsupported_media_type()
        return await asyncio.to_thread(bodies.read, body, shape)  # up to a tenth of a second

    def shown(self, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return a config of a connector or its task as the caller may see it: only an admin sees passwords."""
        return config if self.caller.role is Role.ADMIN else self.herder.without_secrets(name, config)

    def shown_info(self, info: ConnectorInfo) -> ConnectorInfo:
        return replace(info, config=self.shown(info.name, info.config))

    async def within_time(self, operation: Awaitable[T]) -> T:
        """Wait for the herder. Raises TimedOut after the time limit of a request; it says what the worker is doing."""
        try:
            async with asyncio.timeout(self._timeout_s) as timeout:
                return await operation
        except TimeoutError:
            if not timeout.expired():
                raise
            raise TimedOut(self.herder.stage()) from None

    async def here_or_elsewhere(self, operation: Awaitable[T], respond: Callable[[T], Response]) -> Response:
        """Answer with the herder's result, or forward the request to the worker that the herder names."""
        try:
            return respond(await self.within_time(operation))
        except ElsewhereError as elsewhere:
            return await self._forwarded(elsewhere)

    async def _forwarded(self, elsewhere: ElsewhereError) -> Response:
        """Forward at most twice: a user's request with ``forward=true``, then with ``forward=false``."""
        path = self.request.scope["path"]
        forward = self.request.query_params.get("forward", "").strip()
        if forward and not _is_true(forward):
            log.error(
                "Request '%s %s' failed because it couldn't find the target Connect worker within two hops (between "
                "workers).",
                self.request.method,
                path,
            )
            raise RestError(
                409, "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
            ) from elsewhere
        if elsewhere.url is None:
            raise RestError(
                409,
                "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was "
                "underway.",
            ) from elsewhere
        query = [(name, value) for name, value in parse_qsl(self.request.url.query, True) if name != "forward"]
        query.append(("forward", "false" if forward else "true"))
        target = f"{path}?{urlencode(query)}"
        url = join(elsewhere.url, target)
        headers: dict[str, str] = {}
        if self.caller.role is not Role.NONE:
            user = self.caller.to_header(time.time())
            asked = ForwardedRequest(self.request.method, url, user, await self.body())
            headers = {FORWARDED_HEADER: asked.user, **self.herder.sign_forwarded(asked)}
        authorization = self.request.headers.get("authorization")
        # For Java's workers. Over a network it would be readable.
        if authorization is not None and (url.startswith("https:") or is_loopback(urlsplit(url).hostname or "")):
            headers["authorization"] = authorization
        log.debug("forwarding %s %s to %s", self.request.method, path, elsewhere.url)
        answer = await self._forwarder.send(self.request.method, url, await self.body() or None, headers)
        location = {} if answer.location is None else {"location": self._absolute(urlsplit(answer.location).path)}
        return Response(answer.body, answer.status, location, media_type=JSON if answer.body else None)

    def location_of(self, connector: str) -> str:
        """Return a connector's absolute URL, on the host of the request."""
        root: str = self.request.scope.get("root_path", "")
        return self._absolute(f"{root}/connectors/{quote(connector, safe=_PATH_SAFE)}")

    def _absolute(self, path: str) -> str:
        url = self.request.url
        return f"{url.scheme}://{url.netloc}{path}"


#: What Java's ``UriBuilder`` does not encode in a path segment, without the semicolon, which would end a name.
_PATH_SAFE: Final = "!$&'()*+,=:@~"


async def _call(request: Request) -> Call:
    settings: RestSettings = request.app.state.settings
    return Call(request, settings.max_request_bytes)


async def _workers_call(request: Request) -> Call:
    settings: RestSettings = request.app.state.settings
    return Call(request, max(settings.max_request_bytes, WORKERS_BODY_BYTES))


# -- parameters of endpoints -------------------------------------------------------------------------------------------


def _decoded(segment: str) -> str:
    return unquote(segment, errors="strict")


def _task_number(segment: str) -> int:
    if _INTEGER.fullmatch(segment) is None or abs(int(segment)) > _MAX_INT:
        raise ValueError("not a task number")
    return int(segment)


def _is_true(value: object) -> bool:
    """Parse as Java's ``Boolean.valueOf``: everything except ``true`` is false."""
    return str(value).lower() == "true"


def _is_true_or_blank(value: object) -> bool:
    """Parse a flag that is true by default, also for a parameter without a value."""
    return not str(value).strip() or _is_true(value)


Calling = Annotated[Call, Depends(_call)]
#: A call from another worker.
WorkersCalling = Annotated[Call, Depends(_workers_call)]
#: Paths are matched before they are decoded, so that a name may contain a slash.
Name = Annotated[str, Path(), BeforeValidator(_decoded)]
TaskNumber = Annotated[int, Path(), BeforeValidator(_task_number)]
Flag = Annotated[bool, Query(), BeforeValidator(_is_true)]
#: A flag that is true by default.
TrueFlag = Annotated[bool, Query(), BeforeValidator(_is_true_or_blank)]


async def json_answered(request: Request) -> None:
    """Refuse a client that does not accept JSON, as Java's ``@Produces``."""
    accepted = request.headers.getlist("accept")
    ranges = [each for line in accepted for each in line.split(",") if each.strip()]
    if ranges and not any(_takes_json(each) for each in ranges):
        raise not_acceptable()


async def json_asked(request: Request) -> None:
    """Refuse a body whose Content-Type is not JSON, as Java's ``@Consumes``."""
    content_type = request.headers.get("content-type")
    if content_type is not None and content_type.partition(";")[0].strip().lower() not in _JSON_RANGES:
        raise unsupported_media_type()


_JSON_RANGES: Final = ("application/json", "application/*", "*/*")


def _takes_json(media_range: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in media_range.split(";"))
    # curl and Java's URLConnection send a bare * for any type.
    return kind in (*_JSON_RANGES, "*") and not any(_is_zero(each) for each in parameters)


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", "0", ".")
