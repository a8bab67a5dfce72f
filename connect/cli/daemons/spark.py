"""Spark engines of processes from their ``spark.*`` keys, and ``heliograph warm``, which prepares Spark's first start.

An archive of the classes that Spark loads at startup (AppCDS) halves the time of the next start. It belongs to one Java
and the jars of one pyspark installation, and is kept in the cache folder. It is optional: a JVM silently ignores an
archive that does not match.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from connect.cli.console import EXIT_OK
from connect.embedded.java import ClassArchive, find_java
from connectors.config.mm2_properties import Flow
from connectors.spark.config import SparkKind, SparkSettings, check_spark
from connectors.spark.engine import SparkEngine
from connectors.spark.sessions import spark_home

_RECORD_TIMEOUT_S: Final = 120.0
#: A loopback port without a listener: slices of the recording load all that they need, then end at once.
_NO_LINK: Final = {"host": "127.0.0.1", "port": 9, "certificate": "", "token": "", "slice": "recording", "epoch": 0}
#: Jobs with a query load more classes.
_QUERY: Final = "SELECT upper(value) AS value FROM records"


def archive_of(java_home: Path) -> ClassArchive:
    """Return the archive's location for this Java and this Spark installation."""
    return ClassArchive.of("spark", java_home, sorted((spark_home() / "jars").glob("*.jar")))


def with_archive(settings: SparkSettings) -> SparkSettings:
    """Return settings that use the archive, if one was recorded."""
    archive = None if settings.java_home is None else archive_of(settings.java_home).find()
    return settings if archive is None else replace(settings, java_options=f"-XX:SharedArchiveFile={archive}")


async def record_archive(settings: SparkSettings) -> Path | None:
    """Start Spark once, run slices that have nothing to copy, and archive the classes that were loaded. Return None if
    this Java writes no archive, as one without an archive of the JDK's classes. Raises EngineLost or EngineBroken if
    Spark does not start."""
    assert settings.java_home is not None, "only a Spark on this machine's Java has an archive"
    archive = archive_of(settings.java_home)
    draft = archive.draft()
    options = f"-XX:ArchiveClassesAtExit={draft}"
    engine = SparkEngine(replace(settings, java_options=options, close_timeout_s=_RECORD_TIMEOUT_S))
    try:
        for query in ("", _QUERY):
            job = await engine.start_job(_NO_LINK, query)
            await job.finished
        await engine.stop()
        return archive.keep(draft) if draft.exists() else None
    finally:
        await engine.stop()
        draft.unlink(missing_ok=True)


#: How many slices Spark has room for in a Connect group, whose tasks are not known at start.
_SLICES_OF_A_GROUP: Final = 8
_SIZED_BY: Final = ("spark.master", "spark.remote")


def spark_of_flows(flows: Sequence[Flow]) -> SparkEngine:
    """Return the engine of all flows, not started: their ``spark.*`` keys are merged, later flows win. Raises
    ConfigError if a flow's settings are wrong, the keys contradict each other, or there are too few slots, JavaNotFound
    if there is no Java to run Spark on."""
    settings = [flow.settings() for flow in flows]
    conf = {key: value for one in settings for key, value in one.spark.items()}
    hidden = frozenset(name for flow in flows for name in flow.config.secret_variables())
    return _engine(SparkSettings(None, conf, slices=sum(one.tasks_max for one in settings), hidden=hidden))


def spark_of_worker(props: Mapping[str, str], hidden: frozenset[str]) -> SparkEngine:
    """Return the engine of a Connect worker, not started, from the ``spark.*`` keys of its properties. ``hidden``:
    environment variables that the properties refer to. Raises the errors of :func:`spark_of_flows`."""
    conf = {key: value for key, value in props.items() if key.startswith("spark.")}
    return _engine(SparkSettings(None, conf, slices=_SLICES_OF_A_GROUP, hidden=hidden))


#: Tasks of a verification where only Spark knows its cores.
_TASKS_ELSEWHERE: Final = 2


def spark_for_verification(flow: Flow, tasks: int | None) -> tuple[int, SparkEngine]:
    """Return how many tasks a verification runs at once, by default one a core, and its engine, not started. Raises the
    errors of :func:`spark_of_flows`."""
    conf = dict(flow.settings().spark)
    if tasks is None:
        known, cores = SparkSettings(None, conf), conf.get("spark.cores.max", "")
        tasks = int(cores) if cores.isdigit() else _TASKS_ELSEWHERE
        if known.kind is SparkKind.LOCAL:
            tasks = min(known.slots() or 1, os.cpu_count() or 1)
    hidden = flow.config.secret_variables()
    return tasks, _engine(SparkSettings(None, conf, slices=tasks, hidden=hidden, slices_key="--tasks"))


def spark_of_streams(conf: Mapping[str, str], slices: int, hidden: frozenset[str]) -> SparkEngine:
    """Return the engine of MirrorMaker 1's streams, not started, with room for all slices unless ``conf`` sizes Spark.
    ``hidden``: environment variables that the files refer to. Raises the errors of :func:`spark_of_flows`."""
    sized = {} if any(key in conf for key in _SIZED_BY) else {"spark.master": f"local[{max(64, slices)},4]"}
    return _engine(SparkSettings(None, {**sized, **conf}, slices=slices, hidden=hidden))


def _engine(settings: SparkSettings) -> SparkEngine:
    check_spark(settings)
    if settings.kind is not SparkKind.CONNECT:
        settings = with_archive(replace(settings, java_home=find_java().home))
    return SparkEngine(settings)


def warm() -> int:
    """Record the archive of Spark's classes unless it exists, and return the exit code. Raises HeliographError
    without a Java, or if Spark does not start."""
    java_home = find_java().home
    if archive := archive_of(java_home).find():
        print(f"Spark's classes are already cached: {archive}")
    else:
        print("Caching the classes that Spark loads. This takes about half a minute, once.", flush=True)
        recorded = asyncio.run(record_archive(SparkSettings(java_home)))
        slower = "This Java caches no classes. Spark works, but starts more slowly."
        print(f"Cached: {recorded}" if recorded else slower)
    return EXIT_OK
