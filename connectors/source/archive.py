"""An archive of the classes that Spark loads at its start (AppCDS), so that the next start takes half as long.

It belongs to one Java and one pyspark, is kept in the cache folder, and is never needed: a JVM whose archive does not
fit goes on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from connect.embedded.cache import cache_dir
from connectors.source.engine import SparkEngine
from connectors.source.spark_settings import SparkSettings

_RECORD_TIMEOUT_S: Final = 120.0
#: A port of loopback where nobody listens: the slice of the recording ends at once, having loaded all it needs.
_NOBODY: Final = {"host": "127.0.0.1", "port": 9, "certificate": "", "token": "", "slice": "recording", "epoch": 0}


def archive_of(java_home: Path) -> Path:
    """Where the archive for this Java and this pyspark is kept, whether it exists or not."""
    release = java_home / "release"
    described = release.read_bytes() if release.is_file() else b""
    parts = (str(java_home.resolve()).encode(), described, version("pyspark").encode())
    return cache_dir() / "spark" / f"classes-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.jsa"


def with_archive(settings: SparkSettings) -> SparkSettings:
    """The settings with the archive in use, where one has been recorded."""
    if settings.java_home is None:
        return settings
    archive = archive_of(settings.java_home)
    if not archive.is_file():
        return settings
    return replace(settings, java_options=f"-XX:SharedArchiveFile={archive}")


async def record_archive(settings: SparkSettings) -> Path:
    """Start Spark once, run a slice that finds nothing to do, and keep the classes that were loaded.

    Raises :class:`connectors.source.engine.EngineLost` or ``EngineBroken`` where Spark does not start.
    """
    assert settings.java_home is not None, "classes of a Spark that runs on a Java of this machine"
    archive = archive_of(settings.java_home)
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(f".{os.getpid()}")
    engine = SparkEngine(
        replace(settings, java_options=f"-XX:ArchiveClassesAtExit={unfinished}", close_timeout_s=_RECORD_TIMEOUT_S)
    )
    try:
        job = await engine.start_job(_NOBODY, query="")
        await job.finished
        await engine.stop()
        unfinished.replace(archive)
    finally:
        await engine.stop()
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
    return archive
