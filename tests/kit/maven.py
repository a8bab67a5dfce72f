"""A small Maven repository on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from connect.embedded import cluster_config


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder without telling standard error of every request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        del format, args


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP at the host and port that this yields."""
    server = ThreadingHTTPServer((cluster_config.HOST, 0), partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="repository")
    thread.start()
    try:
        yield f"{cluster_config.HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def publish(folder: Path, coordinates: str, jar: bytes, dependencies: str = "") -> Path:
    """Put a jar and its description into the repository in ``folder``; return the jar's path."""
    group, artifact, version = coordinates.split(":")
    place = folder.joinpath(*group.split("."), artifact, version)
    place.mkdir(parents=True)
    (place / f"{artifact}-{version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>"
        f"<artifactId>{artifact}</artifactId><version>{version}</version>{dependencies}</project>"
    )
    file = place / f"{artifact}-{version}.jar"
    file.write_bytes(jar)
    return file
