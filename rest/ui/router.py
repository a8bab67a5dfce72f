"""Answers requests below ``/ui``: the page, its files, its data and its events. All are GET and need the role VIEW.

Actions of pages are requests of the REST API, so its roles apply.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connect.core.errors import HeliographError
from connect.core.herder_api import NotFound, RequestRefused
from rest.access import Caller
from rest.bodies import json_response
from rest.errors import RestError
from rest.request_handling import CALLER
from rest.ui.flows import SOURCE, Herders, flows_of, snapshot
from rest.ui.live import LiveFeed
from rest.ui.static_files import INDEX, SAFE_HEADERS, StaticFiles

ROOT: Final = "ui"
#: Which connector of a flow a report is of.
_PART: Final = "part"


class Dashboard:
    """The ASGI application below ``/ui``.

    Args:
        request_s: Time limit of a report.
    """

    def __init__(self, request_s: float) -> None:
        #: Of the process; read for every request, so flows may be added later.
        self.herders: Herders = {}
        self._request_s = request_s
        self._files: StaticFiles | None = None
        self._feed = LiveFeed(lambda: snapshot(self.herders))

    async def close(self) -> None:
        """End the streams of events."""
        await self._feed.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            raise RestError(405, "HTTP 405 Method Not Allowed")
        match scope["path"].split("/")[2:]:
            case ["events"]:
                await self._feed.stream(receive, send)
                return
            case ["api", *path]:
                response = await self._api(path, scope)
            case []:
                response = await self._file(INDEX, scope)
            case ["static", *path]:
                response = await self._file("/".join(path), scope)
            case _:
                raise RestError(404, "HTTP 404 Not Found")
        await response(scope, receive, send)

    async def _static(self) -> StaticFiles:
        if self._files is None:
            self._files = await asyncio.to_thread(StaticFiles)
        return self._files

    async def _file(self, name: str, scope: Scope) -> Response:
        found = (await self._static()).response(name, Headers(scope=scope))
        if found is None:
            raise RestError(404, "HTTP 404 Not Found")
        return found

    async def _api(self, path: list[str], scope: Scope) -> Response:
        match path:
            case ["me"]:
                return _json(await self._me(scope[CALLER]))
            case ["flows"]:
                return _json(await snapshot(self.herders))
            case ["flows", flow, kind]:
                query = dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True))
                return _json(await self._report(unquote(flow), unquote(kind), query))
        raise RestError(404, "HTTP 404 Not Found")

    async def _me(self, caller: Caller) -> dict[str, Any]:
        versions = {herder.worker_info().version for herder in self.herders.values()}
        return {
            "name": caller.name,
            "role": caller.role.name,
            "version": next(iter(versions), None),
            "pages": (await self._static()).pages,
        }

    async def _report(self, name: str, kind: str, query: dict[str, str]) -> dict[str, Any]:
        """Return a report of a flow's connector: of the source, or of the ``part`` in the query. Raises NotFound,
        RequestRefused, RestError."""
        part = query.pop(_PART, SOURCE)
        flow = (await flows_of(self.herders)).get(name)
        if flow is None:
            raise NotFound(f"No flow {name} found")
        if part not in flow.connectors:
            raise NotFound(f"{name} has no {part} connector")
        try:
            async with asyncio.timeout(self._request_s):
                return dict(await flow.herder.connector_report(flow.connectors[part], kind, query))
        except TimeoutError:
            raise RestError(500, f"{name} gave no {kind} report within {self._request_s:.0f} s") from None
        except (RequestRefused, RestError):
            raise
        except HeliographError as error:
            raise RestError(500, str(error)) from error


def _json(body: dict[str, Any]) -> Response:
    return json_response(body, headers={**SAFE_HEADERS, "cache-control": "no-store"})
