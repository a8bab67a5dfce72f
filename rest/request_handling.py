"""Handles one REST request on this worker, and forwards it to the worker that can answer it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, Self, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from connect.core.config.rest_settings import is_loopback
from connect.core.config.security_settings import changed_keys
from connect.core.herder_api import FORWARDED_HEADER, Config, ElsewhereError, ForwardedRequest, HerderApi, NotFound
from connect.core.model import ConnectorInfo
from rest import bodies
from rest.access import ANYONE, Caller, Role
from rest.errors import JSON, TOO_LARGE, BodyRefused, RestError, TimedOut
from rest.other_workers import Forwarder, join
from rest.rest_config import RestSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Keys of an ASGI scope: the herder of a request; its :class:`rest.access.Caller`; what the endpoint notes for the
#: audit, fields of an :class:`connect.core.audit.AuditEntry`; its :class:`BodyShare`.
HERDER: Final = "heliograph.herder"
CALLER: Final = "heliograph.caller"
NOTED: Final = "heliograph.noted"
SHARE: Final = "heliograph.share"
#: Limit for requests between workers: a connector with a thousand tasks has 2 MB of configs.
WORKERS_BODY_BYTES: Final = 10 << 20
WORKERS_BODY_ELEMENTS: Final = 1_000_000
#: Java's messages.
_TWO_HOPS: Final = (
    "Request '%s %s' failed because it couldn't find the target Connect worker within two hops (between workers)."
)
_CONFLICT: Final = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
_NO_LEADER: Final = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
)
_MAX_INT: Final = 2**31 - 1
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a request, and of a health check."""

    request_s: float = 90.0
    #: Of a request that another worker sends: the HTTP client of Java's workers gives up after 30 s.
    workers_s: float = 25.0
    #: Of a request that was forwarded before: the worker in between still has time to pass on the answer.
    second_hop_s: float = 20.0
    health_s: float = 10.0


class BodyBudget:
    """Bounds the bodies in memory whose senders are not known, or not yet: a signature can be checked only when the
    whole body is there. ``most_bytes`` in all, half of them from one address."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: Counter[str] = Counter()

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
    """The bytes of one request in a :class:`BodyBudget`, given back at the end of its context."""

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self._budget, self._address, self._bytes = budget, address, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

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


class _LimitReached(Exception):
    """The time limit of a request is over."""


class Call:
    """A request as the endpoints see it. Raises BodyRefused (413) if its Content-Length exceeds ``limit_bytes``.
    ``of_worker``: another worker of the group sends it, as it does each request with the parameter ``forward``."""

    def __init__(self, request: Request, limit_bytes: int, *, of_worker: bool) -> None:
        self.request = request
        self._limit_bytes = limit_bytes
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit_bytes:
            raise too_large(limit_bytes)
        self.herder: HerderApi = request.scope[HERDER]
        #: Who asks.
        self.caller: Caller = request.scope[CALLER]
        self._forwarder: Forwarder = request.app.state.forwarder
        forward = request.query_params.get("forward", "").strip()
        self._of_worker = of_worker or bool(forward)
        self._is_second_hop = bool(forward) and not _is_true(forward)
        limits: Limits = request.app.state.limits
        self._timeout_s = limits.workers_s if self._of_worker else limits.request_s
        if self._is_second_hop:
            self._timeout_s = limits.second_hop_s
        #: By the clock of the loop. Set when the herder is asked, because a body may take longer to arrive.
        self._until_s: float | None = None
        self._body: bytes | None = None

    async def body(self) -> bytes:
        """Return the whole body. Raises BodyRefused (413, 503)."""
        if self._body is None:
            is_known = self.caller.role is not Role.NONE and self.caller is not ANYONE
            share = None if is_known else self.request.scope[SHARE]
            self._body = await read_body(self.request.receive, self._limit_bytes, share)
        return self._body

    async def json(self, shape: TypeAdapter[T]) -> T:
        """Return the body as parsed JSON. Raises RestError (413, too large; 503, too many are arriving; 500, another
        shape), HTTPException (415, a body without Content-Type)."""
        body = await self.body()
        if body and "content-type" not in self.request.headers:
            raise HTTPException(415)
        return await asyncio.to_thread(bodies.read, body, shape)  # up to a tenth of a second

    def shown(self, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return a config of a connector or its task as the caller may see it: only an admin sees passwords."""
        return config if self.caller.role is Role.ADMIN else self.herder.without_secrets(name, config)

    def shown_info(self, info: ConnectorInfo) -> ConnectorInfo:
        return replace(info, config=self.shown(info.name, info.config))

    def note(self, **fields: object) -> None:
        """Note for the audit what the request changes: fields of an AuditEntry."""
        self.request.scope[NOTED].update(fields)

    def note_config(self, name: str, after: Config, *, patches: bool = False) -> None:
        """Note which keys of a connector's config would change, with secrets masked. ``patches``: ``after`` has only
        keys to change, None to remove one."""
        try:
            before = self.herder.known_connector(name).config
        except NotFound:
            before = {}
        whole = {**before, **after} if patches else after
        # With the class of the config itself, because its secrets are declared there.
        changed = changed_keys(before, whole, lambda each: self.herder.without_secrets("", each))
        self.note(connector=name, changed=changed)

    async def within_time(self, operation: Awaitable[T]) -> T:
        """Wait for the herder until the time limit of the request, which begins with the first wait. Raises TimedOut,
        which says what the worker is doing; RestError (409) for another worker's request, if this worker is joining."""
        try:
            return await self._until_limit(operation)
        except _LimitReached:
            if self._of_worker and self.herder.is_rebalancing():
                raise RestError(409, _CONFLICT) from None
            raise TimedOut(self.herder.stage()) from None

    async def _until_limit(self, operation: Awaitable[T]) -> T:
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._until_s) as timeout:
                return await operation
        except TimeoutError:
            if not timeout.expired():
                raise
            raise _LimitReached from None

    async def here_or_elsewhere(self, operation: Awaitable[T], respond: Callable[[T], Response]) -> Response:
        """Answer with the herder's result, or forward the request to the worker that the herder names."""
        try:
            return respond(await self.within_time(operation))
        except ElsewhereError as elsewhere:
            return await self._forwarded(elsewhere)

    async def _forwarded(self, elsewhere: ElsewhereError) -> Response:
        """Forward at most twice: a user's request with ``forward=true``, then with ``forward=false``."""
        path = self.request.scope["path"]
        if self._is_second_hop:
            log.error(_TWO_HOPS, self.request.method, path)
            raise RestError(409, _CONFLICT) from elsewhere
        if elsewhere.url is None:
            raise RestError(409, _NO_LEADER) from elsewhere
        query = [(name, value) for name, value in parse_qsl(self.request.url.query, True) if name != "forward"]
        query.append(("forward", "false" if self.request.query_params.get("forward", "").strip() else "true"))
        url = join(elsewhere.url, f"{path}?{urlencode(query)}")
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
        sending = self._forwarder.send(self.request.method, url, await self.body() or None, headers)
        try:
            answer = await (self._until_limit(sending) if self._of_worker else sending)
        except _LimitReached:
            raise TimedOut(f"The worker at {elsewhere.url} did not answer in time.") from None
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


# -- parameters of endpoints -------------------------------------------------------------------------------------------


def _call(*, of_worker: bool, least_limit_bytes: int = 0) -> Any:
    async def call(request: Request) -> Call:
        settings: RestSettings = request.app.state.settings
        return Call(request, max(settings.max_request_bytes, least_limit_bytes), of_worker=of_worker)

    return Depends(call)


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


Calling = Annotated[Call, _call(of_worker=False)]
#: A call from another worker with task configs, which may be large.
WorkersCalling = Annotated[Call, _call(of_worker=True, least_limit_bytes=WORKERS_BODY_BYTES)]
#: A call from another worker without a body.
FencingCalling = Annotated[Call, _call(of_worker=True)]
#: Paths are matched before they are decoded, so that a name may contain a slash.
Name = Annotated[str, Path(), BeforeValidator(partial(unquote, errors="strict"))]
TaskNumber = Annotated[int, Path(), BeforeValidator(_task_number)]
Flag = Annotated[bool, Query(), BeforeValidator(_is_true)]
#: A flag that is true by default.
TrueFlag = Annotated[bool, Query(), BeforeValidator(_is_true_or_blank)]


async def json_answered(request: Request) -> None:
    """Refuse a client that does not accept JSON, as Java's ``@Produces``."""
    accepted = request.headers.getlist("accept")
    ranges = [each for line in accepted for each in line.split(",") if each.strip()]
    if ranges and not any(_takes_json(each) for each in ranges):
        raise HTTPException(406)


async def json_asked(request: Request) -> None:
    """Refuse a body whose Content-Type is not JSON, as Java's ``@Consumes``."""
    content_type = request.headers.get("content-type")
    if content_type is not None and content_type.partition(";")[0].strip().lower() not in _JSON_RANGES:
        raise HTTPException(415)


_JSON_RANGES: Final = ("application/json", "application/*", "*/*")


def _takes_json(media_range: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in media_range.split(";"))
    # curl and Java's URLConnection send a bare * for any type.
    return kind in (*_JSON_RANGES, "*") and not any(_is_zero(each) for each in parameters)


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", "0", ".")
