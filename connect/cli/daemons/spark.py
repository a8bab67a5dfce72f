"""Starts the Spark of a process from ``spark.*`` keys, and holds ``heliograph warm``.

It imports little, so that Spark can start first. ``warm`` prepares the first start of Spark, for images and fresh
machines.
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

#: How many slices Spark is to have room for in a group that connectors come to: nobody can count tasks beforehand.
_SLICES_OF_A_GROUP: Final = 8
_SIZED_BY: Final = ("spark.master", "spark.remote")


def spark_of_flows(flows: Sequence[Flow]) -> SparkEngine:
    """One engine for all flows, not begun yet: their ``spark.*`` keys together, a later flow's winning.

    Raises:
        ConfigError: A flow's settings are wrong, the keys contradict each other, or give too few slots.
        JavaNotFound: There is no Java to run Spark on.
    """
    settings = [flow.settings() for flow in flows]
    conf = {key: value for one in settings for key, value in one.spark.items()}
    hidden = frozenset(name for flow in flows for name in flow.config.secret_variables())
    return _engine(SparkSettings(None, conf, slices=sum(one.tasks_max for one in settings), hidden=hidden))


def spark_of_worker(props: Mapping[str, str], hidden: frozenset[str]) -> SparkEngine:
    """The engine of a worker of a group, not begun yet; its properties have the ``spark.*`` keys.

    ``hidden``: environment variables that the properties refer to. Errors as :func:`spark_of_flows`.
    """
    conf = {key: value for key, value in props.items() if key.startswith("spark.")}
    return _engine(SparkSettings(None, conf, slices=_SLICES_OF_A_GROUP, hidden=hidden))


def spark_of_streams(conf: Mapping[str, str], slices: int, hidden: frozenset[str]) -> SparkEngine:
    """The engine of so many slices, not begun yet; ``conf`` are ``spark.*`` keys, ``hidden`` environment variables that
    files refer to. Errors as :func:`spark_of_flows`.

    A Spark on this machine that nobody has sized has room for all of them.
    """
    sized = {} if any(key in conf for key in _SIZED_BY) else {"spark.master": f"local[{max(64, slices)},4]"}
    return _engine(SparkSettings(None, {**sized, **conf}, slices=slices, hidden=hidden))


def _engine(settings: SparkSettings) -> SparkEngine:
    check_spark(settings)
    if settings.kind is not SparkKind.CONNECT:
        settings = with_archive(replace(settings, java_home=find_java().parent.parent))
    return SparkEngine(settings)


def warm() -> int:
    """Records the archive of Spark's classes where there is none yet; gives the exit code.

    Raises:
        HeliographError: There is no Java, or Spark does not start.
    """
    java_home = find_java().parent.parent
    settings, archive = SparkSettings(java_home), archive_of(java_home).find()
    if archive is not None:
        print(f"Spark's classes are recorded already: {archive}")
    else:
        print("Recording the classes that Spark loads, half a minute, once.", flush=True)
        print(f"Recorded: {asyncio.run(record_archive(settings))}")
    return EXIT_OK
