"""An archive of the classes that Spark loads at startup (AppCDS), which halves the time of the next start.

It belongs to one Java and the jars of one pyspark installation, and is kept in the cache folder. It is optional: a JVM
silently ignores an archive that does not match.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Final

from connect.embedded.java import ClassArchive
from connectors.spark.config import SparkSettings
from connectors.spark.engine import SparkEngine
from connectors.spark.sessions import spark_home

_RECORD_TIMEOUT_S: Final = 120.0
#: A loopback port without a listener: slices of the recording load all that they need, then end at once.
_NOBODY: Final = {"host": "127.0.0.1", "port": 9, "certificate": "", "token": "", "slice": "recording", "epoch": 0}
#: Jobs with a query load more classes.
_QUERY: Final = "SELECT upper(value) AS value FROM records"


def archive_of(java_home: Path) -> ClassArchive:
    """Return the archive's location for this Java and this Spark installation."""
    return ClassArchive.of("spark", java_home, sorted((spark_home() / "jars").glob("*.jar")))


def with_archive(settings: SparkSettings) -> SparkSettings:
    """Return settings that use the archive, if one was recorded."""
    archive = None if settings.java_home is None else archive_of(settings.java_home).find()
    return settings if archive is None else replace(settings, java_options=f"-XX:SharedArchiveFile={archive}")


async def record_archive(settings: SparkSettings) -> Path:
    """Start Spark once, run slices that have nothing to copy, and archive the classes that were loaded.

    Raises :class:`connectors.spark.engine.EngineLost` or ``EngineBroken`` if Spark does not start.
    """
    assert settings.java_home is not None, "only a Spark on this machine's Java has an archive"
    archive = archive_of(settings.java_home)
    draft = archive.draft()
    engine = SparkEngine(
        replace(settings, java_options=f"-XX:ArchiveClassesAtExit={draft}", close_timeout_s=_RECORD_TIMEOUT_S)
    )
    try:
        for query in ("", _QUERY):
            job = await engine.start_job(_NOBODY, query)
            await job.finished
        await engine.stop()
        return archive.keep(draft)
    finally:
        await engine.stop()
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
