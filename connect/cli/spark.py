"""The Spark of a dedicated mirror, from the keys of its flows. Imports little, so that Spark can start first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from connect.embedded.java import find_java
from connectors.flows import Flow
from connectors.source.archive import with_archive
from connectors.source.engine import SparkEngine
from connectors.source.spark_settings import SparkKind, SparkSettings, check_spark


def spark_engine(flows: Sequence[Flow]) -> SparkEngine:
    """One engine for all flows, not begun yet: their ``spark.*`` keys together, a later flow's winning.

    Raises:
        ConfigError: A flow's settings are wrong, the keys contradict each other, or give too few slots.
        JavaNotFound: There is no Java to run Spark on.
    """
    settings = [flow.settings() for flow in flows]
    conf = {key: value for one in settings for key, value in one.spark.items()}
    spark = SparkSettings(
        java_home=None,
        conf=conf,
        slices=sum(one.tasks_max for one in settings),
        hidden=frozenset(name for flow in flows for name in flow.config.secret_variables()),
    )
    check_spark(spark)
    if spark.kind is not SparkKind.CONNECT:
        spark = with_archive(replace(spark, java_home=find_java().parent.parent))
    return SparkEngine(spark)
