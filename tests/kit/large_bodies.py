"""A request body that costs a worker most, and the endpoints that take bodies."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Final

MIB: Final = 1 << 20
#: Ten MiB; each pair of braces would become an object.
OBJECTS: Final = b"[" + b"{}," * (10 * MIB // 3 - 1) + b"{}]"
ENDPOINTS: Final = (
    ("POST", "/connectors"),
    ("PUT", "/connectors/a/config"),
    ("PATCH", "/connectors/a/config"),
    ("PATCH", "/connectors/a/offsets"),
    ("PUT", "/connectors/a/pause"),
    ("POST", "/connectors/a/restart"),
    ("POST", "/connectors/a/tasks"),
    ("PUT", "/connectors/a/fence"),
    ("PUT", "/connector-plugins/x/config/validate"),
    ("PUT", "/admin/loggers/x"),
)


def send(port: int, method: str, path: str, body: bytes, *, chunked: bool) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    pieces: bytes | Iterator[bytes] = body
    if chunked:
        pieces = (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    try:
        connection.request(method, path, pieces, {"Content-Type": "application/json"}, encode_chunked=chunked)
        return connection.getresponse().status
    finally:
        connection.close()
