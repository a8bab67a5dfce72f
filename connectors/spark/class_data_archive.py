"""An archive of the classes that Spark loads at its start (AppCDS), so that the next start takes half as long.

It belongs to one Java and to the jars of one installed pyspark, is kept in the cache folder, and is never needed: a JVM
whose archive does not fit goes on without it, in silence.
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
#: A port of loopback without a listener: slices of the recording end at once, having loaded all they need.
_NOBODY: Final = {"host": "127.0.0.1", "port": 9, "certificate": "", "token": "", "slice": "recording", "epoch": 0}
#: Such jobs load other classes.
_QUERY: Final = "SELECT upper(value) AS value FROM records"


def archive_of(java_home: Path) -> ClassArchive:
    """Return the place of the archive for this Java and this installation of Spark."""
    return ClassArchive.of("spark", java_home, sorted((spark_home() / "jars").glob("*.jar")))


def with_archive(settings: SparkSettings) -> SparkSettings:
    """Return the settings with the archive in use, if one has been recorded."""
    archive = None if settings.java_home is None else archive_of(settings.java_home).find()
    return settings if archive is None else replace(settings, java_options=f"-XX:SharedArchiveFile={archive}")


async def record_archive(settings: SparkSettings) -> Path:
    """Start Spark once, run slices that find nothing to do, and keep the classes that were loaded.

    Raises :class:`connectors.spark.engine.EngineLost` or ``EngineBroken`` where Spark does not start.
    """
    assert settings.java_home is not None, "classes of a Spark that runs on a Java of this machine"
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
