"""``heliograph warm``: what can be prepared before the first start of Spark, for images and fresh machines."""

from __future__ import annotations

import asyncio

from connect.cli.console import EXIT_OK
from connect.embedded.java import find_java
from connectors.spark.class_archive import archive_of, record_archive
from connectors.spark.settings import SparkSettings


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
