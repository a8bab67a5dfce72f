"""Maps errors to HTTP statuses in one table, and replaces the web framework's error answers with Java's.

Every error body is ``{"error_code": status, "message": text}`` (Kafka's ``ConnectExceptionMapper``), except when Java's
server answers before its resources are registered.
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
#: The order in Java's hash set.
_METHODS: Final = ("HEAD", "DELETE", "POST", "GET", "OPTIONS", "PUT", "PATCH")
#: A refused body is read to its end so that the client reads the answer, but only up to this size.
_DRAINED_BYTES: Final = 256 << 20


class RestError(HeliographError):
    """An answer with this status and message, perhaps from another worker."""

    def __init__(self, status: int, message: str | None, error_code: int | None = None) -> None:
        super().__init__(message or "")
        self.status = status
        self.message = message
        self.error_code = status if error_code is None else error_code


class TimedOut(RestError, RetriableError):
    """The worker did not finish in time."""

    def __init__(self, stage: str | None) -> None:
        super().__init__(500, "Request timed out" if stage is None else f"Request timed out. {stage}")


class BodyRefused(RestError):
    """The worker does not take the body of a request: 413, it is too large; 503, too many others are arriving."""


def status_of(refusal: RequestRefused) -> int:
    """Return the HTTP status of a refusal, by its nearest base class in the table."""
    return next((_STATUS[cls] for cls in type(refusal).__mro__ if cls in _STATUS), 500)


def error_response(status: int, message: str) -> Response:
    return response_of(RestError(status, message))


def response_of(error: RestError) -> Response:
    cls = _Unread if isinstance(error, BodyRefused) else Response
    body = orjson.dumps({"error_code": error.error_code, "message": error.message})
    return cls(body, error.status, media_type=JSON)


class _Unread(Response):
    """Answer that the body is refused, then read the rest of it: closing a connection with unread bytes resets it, and
    the client would not see the answer."""

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
    """Give ``app``, which serves exactly ``routes``, Java's answers to all errors."""
    known = tuple(routes)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
            return _jersey(error.status_code)
        allowed = _allowed(known, request)
        response = _jersey(error.status_code)
        if request.method == "OPTIONS":
            response = Response(", ".join(allowed), headers={"content-type": "text/plain"})
        response.headers["allow"] = ",".join(allowed)
        return response

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, _bad_path)
    app.add_exception_handler(HeliographError, _known_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _defect)


def _allowed(routes: Iterable[Route], request: Request) -> list[str]:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    methods = {"OPTIONS"}.union(*(route.methods or () for route in routes if route.path_regex.match(path)))
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods, key=_METHODS.index)


def _jersey(status: int) -> Response:
    return error_response(status, f"HTTP {status} {HTTPStatus(status).phrase}")


async def _bad_path(request: Request, error: Exception) -> Response:
    # All other parameters are parsed leniently; the only invalid one is a task number that is not a number.
    return _jersey(404)


async def _known_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RestError):
        return response_of(error)
    if isinstance(error, RequestRefused):
        return error_response(status_of(error), str(error))
    log.warning("%s %s failed: %s", request.method, request.url.path, error)
    return error_response(500, str(error))


async def _gone(request: Request, error: Exception) -> Response:
    return error_response(400, "The client disconnected before its request was complete.")


async def _defect(request: Request, error: Exception) -> Response:
    # The error's text may contain a secret, so only the log gets it.
    log.error("%s %s failed because of a bug", request.method, request.url.path, exc_info=error)
    return error_response(500, f"The worker failed to handle this request ({type(error).__name__}); see its log.")


def html_page(status: int, method: str) -> Response:
    """Return Jetty's own error page, sent while no resource is registered and for paths that Jetty refuses."""
    headers = {"cache-control": "must-revalidate,no-cache,no-store"}
    if method not in ("GET", "POST", "HEAD"):
        return Response(b"", status, headers)
    text = f"{status} {HTTPStatus(status).phrase}"
    head, body = f"<title>Error {text}</title>", f"<h2>HTTP ERROR {text}</h2>"
    page = f"<html>\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    return Response(page, status, {**headers, "content-type": "text/html;charset=iso-8859-1"})
