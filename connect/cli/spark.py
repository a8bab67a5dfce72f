"""The Spark of a dedicated mirror, from the keys of its flows. Imports little, so that Spark can start first."""

from __future__ import annotations

from collections.abc import Sequence

from connect.embedded.java import find_java
from connectors.flows import Flow
from connectors.source.archive import with_archive
from connectors.source.engine import SparkEngine, SparkSettings, check_slots


def spark_engine(flows: Sequence[Flow]) -> SparkEngine:
    """One engine for all flows, not begun yet: their ``spark.*`` keys together, a later flow's winning.

    Raises:
        ConfigError: A flow's settings are wrong, or there are more slices than Spark slots.
        JavaNotFound: There is no Java to run Spark on.
    """
    settings = [flow.settings() for flow in flows]
    conf = {key: value for one in settings for key, value in one.spark.items()}
    spark = with_archive(SparkSettings(find_java().parent.parent, conf))
    check_slots(spark, sum(one.tasks_max for one in settings))
    return SparkEngine(spark)
