"""One request on its way: its body, its time, and the worker that can answer it (``HerderRequestHandler``)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, TypeAdapter
from starlette.responses import Response

from connect.core.herding import ElsewhereError, Herder
from rest import bodies
from rest.errors import JSON, TOO_LARGE, RestError, TimedOut, not_acceptable, unsupported_media_type
from rest.forward import Forwarder, join
from rest.settings import RestSettings

log = logging.getLogger(__name__)
T = TypeVar("T")

#: The key of an ASGI scope under which the herder of a request stands.
HERDER: Final = "heliograph.herder"
#: Of requests between workers. A connector of a thousand tasks has 2 MB of configs.
WORKERS_BODY_BYTES: Final = 10 << 20
WORKERS_BODY_ELEMENTS: Final = 1_000_000
REQUEST_TIMEOUT_S: Final = 90.0
_MAX_INT: Final = 2**31 - 1
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class Call:
    """A request as the endpoints see it.

    Raises:
        RestError: 413, it says that its body is longer than ``limit_bytes``.
    """

    def __init__(self, request: Request, limit_bytes: int) -> None:
        self.request = request
        self._limit_bytes = limit_bytes
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit_bytes:
            raise self._too_large()
        self.herder: Herder = request.scope[HERDER]
        self._forwarder: Forwarder = request.app.state.forwarder
        self._timeout_s: float = request.app.state.request_timeout_s
        self._body: bytes | None = None

    async def body(self) -> bytes:
        """The whole body, read once.

        Raises:
            RestError: 413, it is too large.
        """
        if self._body is None:
            self._body = await self._read()
        return self._body

    async def json(self, shape: TypeAdapter[T]) -> T:
        """The body as JSON.

        Raises:
            RestError: 413, it is too large; 500, it is of another shape.
            HTTPException: 415, it does not say that it is JSON.
        """
        body = await self.body()
        if body and "content-type" not in self.request.headers:
            raise unsupported_media_type()
        return await asyncio.to_thread(bodies.read, body, shape)  # which may take a tenth of a second

    async def _read(self) -> bytes:
        body = bytearray()
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > self._limit_bytes:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> RestError:
        return RestError(TOO_LARGE, f"The body of a request may have {self._limit_bytes} bytes at most.")

    async def within_time(self, operation: Awaitable[T]) -> T:
        """Wait for the herder as long as a request may take.

        Raises:
            TimedOut: It took longer; the message says what the worker does instead.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as timeout:
                return await operation
        except TimeoutError:
            if not timeout.expired():
                raise
            raise TimedOut(self.herder.stage()) from None

    async def here_or_elsewhere(self, operation: Awaitable[T], respond: Callable[[T], Response]) -> Response:
        """Answer with what the herder says, or as the worker does that it points to."""
        try:
            return respond(await self.within_time(operation))
        except ElsewhereError as elsewhere:
            return await self._forwarded(elsewhere)

    async def _forwarded(self, elsewhere: ElsewhereError) -> Response:
        """At most two hops: a user's request goes on with ``forward=true``, that one with ``forward=false``."""
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
        url = f"{join(elsewhere.url, path)}?{urlencode(query)}"
        authorization = self.request.headers.get("authorization")
        headers = {} if authorization is None else {"authorization": authorization}
        log.debug("passing %s %s on to %s", self.request.method, path, elsewhere.url)
        answer = await self._forwarder.send(self.request.method, url, await self.body() or None, headers)
        location = {} if answer.location is None else {"location": self._absolute(urlsplit(answer.location).path)}
        return Response(answer.body, answer.status, location, media_type=JSON if answer.body else None)

    def location_of(self, connector: str) -> str:
        """Where a connector is found, as an absolute URL on the host that the client asked."""
        root: str = self.request.scope.get("root_path", "")
        return self._absolute(f"{root}/connectors/{quote(connector, safe=_PATH_SAFE)}")

    def _absolute(self, path: str) -> str:
        url = self.request.url
        return f"{url.scheme}://{url.netloc}{path}"


#: What Java's ``UriBuilder`` leaves as it is in a segment of a path, but for the semicolon, which ends a name.
_PATH_SAFE: Final = "!$&'()*+,=:@~"


async def _call(request: Request) -> Call:
    settings: RestSettings = request.app.state.settings
    return Call(request, settings.max_request_bytes)


async def _workers_call(request: Request) -> Call:
    settings: RestSettings = request.app.state.settings
    return Call(request, max(settings.max_request_bytes, WORKERS_BODY_BYTES))


# -- what endpoints take -----------------------------------------------------------------------------------------------


def _decoded(segment: str) -> str:
    return unquote(segment, errors="strict")


def _task_number(segment: str) -> int:
    if _INTEGER.fullmatch(segment) is None or abs(int(segment)) > _MAX_INT:
        raise ValueError("no number of a task")
    return int(segment)


def _is_true(value: object) -> bool:
    """Java's ``Boolean.valueOf``: everything but ``true`` is false."""
    return str(value).lower() == "true"


def _is_true_or_blank(value: object) -> bool:
    """A parameter without a value has its default."""
    return not str(value).strip() or _is_true(value)


Calling = Annotated[Call, Depends(_call)]
#: Of a request between workers.
WorkersCalling = Annotated[Call, Depends(_workers_call)]
#: Paths are matched before they are decoded, so that a name may hold a slash.
Name = Annotated[str, Path(), BeforeValidator(_decoded)]
TaskNumber = Annotated[int, Path(), BeforeValidator(_task_number)]
Flag = Annotated[bool, Query(), BeforeValidator(_is_true)]
#: One whose default is true.
TrueFlag = Annotated[bool, Query(), BeforeValidator(_is_true_or_blank)]


async def json_answered(request: Request) -> None:
    """Java's ``@Produces``: refuse a client that takes no JSON."""
    accepted = request.headers.getlist("accept")
    ranges = [each for line in accepted for each in line.split(",") if each.strip()]
    if ranges and not any(_takes_json(each) for each in ranges):
        raise not_acceptable()


async def json_asked(request: Request) -> None:
    """Java's ``@Consumes``: refuse a body that says to be anything but JSON."""
    content_type = request.headers.get("content-type")
    if content_type is not None and content_type.partition(";")[0].strip().lower() not in _JSON_RANGES:
        raise unsupported_media_type()


_JSON_RANGES: Final = ("application/json", "application/*", "*/*")


def _takes_json(media_range: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in media_range.split(";"))
    # curl and Java's own URL connection say a plain * for any.
    return kind in (*_JSON_RANGES, "*") and not any(_is_zero(each) for each in parameters)


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", "0", ".")
