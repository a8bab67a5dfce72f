"""How requests fail: one table of statuses, and Java's answers in place of the web framework's own.

Every body of an error is ``{"error_code": status, "message": text}`` (Kafka's ``ConnectExceptionMapper``), but where
Java's server answers before its resources are there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from connect.core import herder_api
from connect.core.errors import HeliographError, RetriableError
from connect.core.herder_api import RequestRefused

log = logging.getLogger(__name__)

TOO_LARGE: Final = 413
JSON: Final = "application/json"

_STATUS: Final[Mapping[type[RequestRefused], int]] = {
    herder_api.BadRequest: 400,
    herder_api.Forbidden: 403,
    herder_api.NotFound: 404,
    herder_api.AlreadyExists: 409,
    herder_api.RebalanceExpected: 409,
    herder_api.RequestConflict: 409,
    herder_api.ElsewhereError: 409,
    herder_api.NotReady: 503,
}
#: The order in which Java's hash has them.
_METHODS: Final = ("HEAD", "DELETE", "POST", "GET", "OPTIONS", "PUT", "PATCH")
#: A refused body is read on to its end, so that the client comes to read the answer; but not without end.
_DRAINED_BYTES: Final = 256 << 20


class RestError(HeliographError):
    """A request is answered with this status and message; both may come from another worker."""

    def __init__(self, status: int, message: str | None, error_code: int | None = None) -> None:
        super().__init__(message or "")
        self.status = status
        self.message = message
        self.error_code = status if error_code is None else error_code


class TimedOut(RestError, RetriableError):
    """The worker was not done in time."""

    def __init__(self, stage: str | None) -> None:
        super().__init__(500, "Request timed out" if stage is None else f"Request timed out. {stage}")


def status_of(refusal: RequestRefused) -> int:
    """The HTTP status of a refusal, by its nearest class in the table."""
    return next((_STATUS[cls] for cls in type(refusal).__mro__ if cls in _STATUS), 500)


def error_body(status: int, message: str | None) -> bytes:
    return orjson.dumps({"error_code": status, "message": message})


def error_response(status: int, message: str | None, error_code: int | None = None) -> Response:
    body = error_body(status if error_code is None else error_code, message)
    return (_TooLarge if status == TOO_LARGE else Response)(body, status, media_type=JSON)


class _TooLarge(Response):
    """Says that the body is too large, then takes what still comes of it: a connection that is closed over unread
    bytes is reset, and the client would never see why."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left = _DRAINED_BYTES
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                break
        await send({"type": "http.response.body", "body": b""})


# -- Jersey's and Jetty's answers --------------------------------------------------------------------------------------


def install(app: FastAPI, routes: Iterable[Route]) -> None:
    """Give ``app`` Java's answers to whatever goes wrong. ``routes`` are all that it serves."""
    known = tuple(routes)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
            return _jersey(error.status_code)
        allowed = _allowed(known, request)
        allow = {"allow": ",".join(allowed)}
        if request.method == "OPTIONS":
            return Response(", ".join(allowed), headers={**allow, "content-type": "text/plain"})
        response = _jersey(error.status_code)
        response.headers.update(allow)
        return response

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, _bad_path)
    app.add_exception_handler(HeliographError, _known_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _defect)


def _allowed(routes: Iterable[Route], request: Request) -> list[str]:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    methods = {"OPTIONS"}
    for route in routes:
        if route.path_regex.match(path):
            methods |= route.methods or set()
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods, key=_METHODS.index)


def _jersey(status: int) -> Response:
    return error_response(status, f"HTTP {status} {HTTPStatus(status).phrase}")


async def _bad_path(request: Request, error: Exception) -> Response:
    # All other parameters are read leniently; what cannot be read is a task that is no number.
    return _jersey(404)


async def _known_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RestError):
        return error_response(error.status, error.message, error.error_code)
    if isinstance(error, RequestRefused):
        return error_response(status_of(error), str(error))
    log.warning("%s %s failed: %s", request.method, request.url.path, error)
    return error_response(500, str(error))


async def _gone(request: Request, error: Exception) -> Response:
    return error_response(400, "The client went away before its request had arrived.")


async def _defect(request: Request, error: Exception) -> Response:
    # Its text may hold anything, a secret too; the log's formatter and reader know better what to do with it.
    log.error("%s %s failed by a defect", request.method, request.url.path, exc_info=error)
    return error_response(500, f"The worker failed to handle this request ({type(error).__name__}); see its log.")


def not_acceptable() -> HTTPException:
    return HTTPException(406)


def unsupported_media_type() -> HTTPException:
    return HTTPException(415)


def html_page(status: int, method: str) -> Response:
    """What Jetty answers itself: where no resource is registered yet, and to paths that it does not take."""
    headers = {"cache-control": "must-revalidate,no-cache,no-store"}
    if method not in ("GET", "POST", "HEAD"):
        return Response(b"", status, headers)
    text = f"{status} {HTTPStatus(status).phrase}"
    page = (
        f"<html>\n<head>\n<title>Error {text}</title>\n</head>\n<body>\n<h2>HTTP ERROR {text}</h2>\n</body>\n</html>\n"
    )
    return Response(page, status, {**headers, "content-type": "text/html;charset=iso-8859-1"})
