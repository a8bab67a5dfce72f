"""The parent of Spark's Python workers on this machine, with what a slice needs loaded before it forks.

Workers then start at once and share this memory. The driver starts this process beside the JVM, so that it has loaded
everything when Spark wants its first worker; then it takes the place of the process that Spark starts for that. Only
when the master is local: a cluster's executors have a daemon of their own, which may run before this package has been
shipped.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

from connectors.spark.handover import PLACE_VARIABLE, Taker


class _WithoutPandas(MetaPathFinder):
    """As if pandas were not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def load() -> None:
    """Load what the workers need."""
    sys.path[:] = without_archives(sys.path)
    import pyarrow
    import pyspark.worker  # noqa: F401

    from connectors.control_link.code_version import running_code
    from connectors.dataplane import slice as _executor  # noqa: F401

    # Else the first array that a worker makes of a list looks for pandas and loads it, which takes longer than a lease
    # on a slow machine; nothing here needs it.
    sys.meta_path.insert(0, _WithoutPandas())
    pyarrow.array([0])
    del sys.meta_path[0]
    running_code()  # once for all workers, and before an upgrade puts other code where this came from
    gc.collect()
    # What is frozen is never touched by a collection in a worker, and so stays shared.
    gc.freeze()


def without_archives(path: list[str]) -> list[str]:
    """Return ``path`` without the archives of the pyspark that is installed on it as a folder.

    Spark puts them first. Python compiles all that it takes from them, at every start, and looks into them for every
    other module too.
    """
    found = PathFinder.find_spec("pyspark", [entry for entry in path if Path(entry).is_dir()])
    if found is None or found.origin is None:
        return path
    home = Path(found.origin).parent
    return [entry for entry in path if not Path(entry).is_relative_to(home)]


def serve() -> None:
    """Fork workers for the JVM at the standard input and output, until it closes them."""
    from pyspark.daemon import manager

    manager()


def main() -> None:
    """Wait for the place; end with the standard input."""
    taker = Taker(os.environ[PLACE_VARIABLE])
    load()
    if taker.take():
        serve()


if __name__ == "__main__":
    main()
