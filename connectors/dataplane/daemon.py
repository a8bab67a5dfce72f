"""The parent of Spark's Python workers on this machine, with what a slice needs loaded before it forks.

Workers then start at once and share this memory. Only where the master is local: a cluster's executors have a
daemon of their own, which may run before this package has been shipped.
"""

from __future__ import annotations

import gc

import pyarrow as _pyarrow  # noqa: F401
from pyspark.daemon import manager

from connectors.dataplane import executor as _executor  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    # What is frozen is never touched by a collection in a worker, and so stays shared.
    gc.freeze()
    manager()
