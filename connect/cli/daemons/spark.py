"""Spark engines of processes from their ``spark.*`` keys, and ``heliograph warm``, which prepares Spark's first start.

It imports little, so that Spark can start early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from connect.cli.console import EXIT_OK
from connect.embedded.java import find_java
from connectors.config.mm2_properties import Flow
from connectors.spark.class_data_archive import archive_of, record_archive, with_archive
from connectors.spark.config import SparkKind, SparkSettings, check_spark
from connectors.spark.engine import SparkEngine

#: How many slices Spark has room for in a Connect group, whose tasks are not known at start.
_SLICES_OF_A_GROUP: Final = 8
_SIZED_BY: Final = ("spark.master", "spark.remote")


def spark_of_flows(flows: Sequence[Flow]) -> SparkEngine:
    """Return the engine of all flows, not started: their ``spark.*`` keys are merged, later flows win.

    Raises:
        ConfigError: A flow's settings are wrong, the keys contradict each other, or there are too few slots.
        JavaNotFound: There is no Java to run Spark on.
    """
    settings = [flow.settings() for flow in flows]
    conf = {key: value for one in settings for key, value in one.spark.items()}
    hidden = frozenset(name for flow in flows for name in flow.config.secret_variables())
    return _engine(SparkSettings(None, conf, slices=sum(one.tasks_max for one in settings), hidden=hidden))


def spark_of_worker(props: Mapping[str, str], hidden: frozenset[str]) -> SparkEngine:
    """Return the engine of a Connect worker, not started, from the ``spark.*`` keys of its properties.

    ``hidden``: environment variables that the properties refer to. Raises the errors of :func:`spark_of_flows`.
    """
    conf = {key: value for key, value in props.items() if key.startswith("spark.")}
    return _engine(SparkSettings(None, conf, slices=_SLICES_OF_A_GROUP, hidden=hidden))


def spark_of_streams(conf: Mapping[str, str], slices: int, hidden: frozenset[str]) -> SparkEngine:
    """Return the engine of MirrorMaker 1's streams, not started, with room for all slices unless ``conf`` sizes Spark.

    ``hidden``: environment variables that the files refer to. Raises the errors of :func:`spark_of_flows`.
    """
    sized = {} if any(key in conf for key in _SIZED_BY) else {"spark.master": f"local[{max(64, slices)},4]"}
    return _engine(SparkSettings(None, {**sized, **conf}, slices=slices, hidden=hidden))


def _engine(settings: SparkSettings) -> SparkEngine:
    check_spark(settings)
    if settings.kind is not SparkKind.CONNECT:
        settings = with_archive(replace(settings, java_home=find_java().parent.parent))
    return SparkEngine(settings)


def warm() -> int:
    """Record the archive of Spark's classes unless it exists, and return the exit code.

    Raises:
        HeliographError: There is no Java, or Spark does not start.
    """
    java_home = find_java().parent.parent
    settings, archive = SparkSettings(java_home), archive_of(java_home).find()
    if archive is not None:
        print(f"Spark's classes are already cached: {archive}")
    else:
        print("Caching the classes that Spark loads. This takes about half a minute, once.", flush=True)
        print(f"Cached: {asyncio.run(record_archive(settings))}")
    return EXIT_OK
