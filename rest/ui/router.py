"""Answers requests below ``/ui``: the page, its files, its data and its events. All are GET and need the role VIEW.

Files are read once, with a tag for caches, and compressed for browsers that take it. Actions of pages are requests of
the REST API, so its roles apply.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connect.core.errors import HeliographError
from connect.core.herder_api import NotFound, RequestRefused
from connect.kafka.concurrency import wall_ms
from rest.access import Caller
from rest.bodies import json_response
from rest.errors import RestError
from rest.other_workers import Forwarder
from rest.request_handling import CALLER
from rest.rest_config import Flows
from rest.ui.flows_and_workers import SOURCE, FlowWorkers, KeptAnswers, UiFlow, details_together, flows_of
from rest.ui.snapshots import LiveFeed, Snapshots

_ROOT: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: Pages get scripts, styles and data from this worker alone, and no other site's page may frame them.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    compressed: bytes
    type: str
    tag: str


class StaticFiles:
    """All files, by path below ``static``. The constructor reads and compresses them, which takes some 10 ms."""

    def __init__(self) -> None:
        paths = [path for path in _ROOT.rglob("*") if path.suffix in _TYPES]
        self._files = {path.relative_to(_ROOT).as_posix(): _file(path) for path in paths}

    @property
    def pages(self) -> list[str]:
        """The names of the pages, such as ``overview``."""
        return sorted(Path(name).stem for name in self._files if name.startswith("pages/"))

    def response(self, name: str, request: Headers) -> Response | None:
        """Return the answer to a request for a file; 304 if the client has it. None if there is no such file."""
        file = self._files.get(name)
        if file is None:
            return None
        # no-cache: kept, and asked for again each time, so that all files are of one release.
        headers = {**SAFE_HEADERS, "etag": file.tag, "cache-control": "no-cache", "vary": "Accept-Encoding"}
        if file.tag in request.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.get("accept-encoding", ""):
            return Response(file.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=file.type)
        return Response(file.body, headers=headers, media_type=file.type)


def _file(path: Path) -> _File:
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return _File(body, gzip.compress(body, mtime=0), _TYPES[path.suffix], tag)


ROOT: Final = "ui"
#: Which connector of a flow a report is of.
_PART: Final = "part"
DETAILS: Final = "details"


class Dashboard:
    """The ASGI application below ``/ui``; ``request_s`` limits the time of a report."""

    def __init__(self, request_s: float, forwarder: Forwarder) -> None:
        #: Of the process; read for every request, so flows may be added later.
        self.herders: Flows = {}
        self._request_s = request_s
        self._files: StaticFiles | None = None
        self._answers = KeptAnswers()
        self._workers = FlowWorkers(forwarder, self._answers)
        self._snapshots = Snapshots(self._answers, self._workers)
        self._feed = LiveFeed(lambda: self._snapshots.take(self.herders))

    async def close(self) -> None:
        await self._feed.close()
        await self._answers.close()

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
                return _json(await self._snapshots.take(self.herders))
            case ["flows", flow, kind]:
                query = dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True))
                return _json(await self._report(unquote(flow), unquote(kind), query))
        raise RestError(404, "HTTP 404 Not Found")

    async def _me(self, caller: Caller) -> dict[str, Any]:
        version = next((herder.worker_info().version for herder in self.herders.values()), None)
        pages = (await self._static()).pages
        return {"name": caller.name, "role": caller.role.name, "version": version, "pages": pages}

    async def _report(self, name: str, kind: str, query: dict[str, str]) -> dict[str, Any]:
        """Return a report of a flow's connector: of the source, or of the ``part`` in the query."""
        part = query.pop(_PART, SOURCE)
        flow = (await flows_of(self.herders)).get(name)
        if flow is None:
            raise NotFound(f"No flow {name} found")
        if part not in flow.connectors:
            raise NotFound(f"{name} has no {part} connector")
        try:
            async with asyncio.timeout(self._request_s):
                report = dict(await flow.herder.connector_report(flow.connectors[part], kind, query))
                return await self._whole(flow, report) if (part, kind) == (SOURCE, DETAILS) else report
        except TimeoutError:
            raise RestError(500, f"{name} gave no {kind} report within {self._request_s:.0f} s") from None
        except (RequestRefused, RestError):
            raise
        except HeliographError as error:
            raise RestError(500, str(error)) from error

    async def _whole(self, flow: UiFlow, details: Mapping[str, Any]) -> dict[str, Any]:
        """Return the details of a flow with the figures of all its workers."""
        reports = await self._workers.reports(flow)
        found = await asyncio.to_thread(details_together, details, reports, wall_ms())
        for worker in found["workers"]:
            worker["is_this"] = self._workers.is_this(worker["worker_id"])
        return found


def _json(body: dict[str, Any]) -> Response:
    return json_response(body, headers={**SAFE_HEADERS, "cache-control": "no-store"})
