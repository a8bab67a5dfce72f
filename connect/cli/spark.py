"""The Spark of a process, from ``spark.*`` keys. Imports little, so that Spark can start first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from connect.embedded.java import find_java
from connectors.flows import Flow
from connectors.spark.class_archive import with_archive
from connectors.spark.engine import SparkEngine
from connectors.spark.settings import SparkKind, SparkSettings, check_spark

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
