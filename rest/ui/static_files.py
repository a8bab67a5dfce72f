"""Serves the dashboard's static files: read once, with a tag for caches, and compressed for browsers that take it."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response

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
        self._files = {
            path.relative_to(_ROOT).as_posix(): _file(path) for path in _ROOT.rglob("*") if path.suffix in _TYPES
        }

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
