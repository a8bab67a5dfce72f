"""The parent of Spark's Python workers on this machine, with what a slice needs loaded before it forks.

Workers then start at once and share this memory. Only where the master is local: a cluster's executors have a
daemon of their own, which may run before this package has been shipped.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder

import pyarrow
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from connectors.dataplane import executor as _executor  # noqa: F401
from connectors.dataplane.shipping import running_code


class _WithoutPandas(MetaPathFinder):
    """As if pandas were not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if __name__ == "__main__":
    # Else the first array that a worker makes of a list looks for pandas and loads it, which takes longer than a lease
    # on a slow machine; nothing here needs it.
    sys.meta_path.insert(0, _WithoutPandas())
    pyarrow.array([0])
    del sys.meta_path[0]
    running_code()  # once for all workers, and before an upgrade puts other code where this came from
    gc.collect()
    # What is frozen is never touched by a collection in a worker, and so stays shared.
    gc.freeze()
    manager()
