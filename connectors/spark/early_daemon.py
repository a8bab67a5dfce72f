"""A preloaded Python daemon: the parent of Spark's Python workers on this machine, which imports all that they need.

Forked workers start at once and share its memory. The driver starts this process together with the JVM, so that the
imports are done when Spark needs its first worker. Then it takes the place of the daemon that Spark starts. This works
with a local master only: executors of a cluster start their daemon before this package is shipped to them.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

from connectors.spark.python_daemon import PLACE_VARIABLE, Taker


class _WithoutPandas(MetaPathFinder):
    """An import hook that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def load() -> None:
    sys.path[:] = without_archives(sys.path)
    import pyarrow
    import pyspark.worker  # noqa: F401

    from connectors.control_link.code_version import running_code
    from connectors.dataplane import slice as _executor  # noqa: F401

    # Else the first array that a worker makes of a list imports pandas, which nothing here needs and which takes longer
    # than a lease on a slow machine.
    sys.meta_path.insert(0, _WithoutPandas())
    pyarrow.array([0])
    del sys.meta_path[0]
    running_code()  # cached for all workers, before an upgrade replaces the files of this code
    gc.collect()
    # Because a collection in a worker does not touch frozen objects, their memory stays shared.
    gc.freeze()


def without_archives(path: list[str]) -> list[str]:
    """Return ``path`` without pyspark's zip archives, if pyspark is also installed on it as a folder.

    Because Spark puts the archives first, Python would search them for each module and compile what it imports from
    them at each start.
    """
    found = PathFinder.find_spec("pyspark", [entry for entry in path if Path(entry).is_dir()])
    if found is None or found.origin is None:
        return path
    home = Path(found.origin).parent
    return [entry for entry in path if not Path(entry).is_relative_to(home)]


def serve() -> None:
    """Fork workers for the JVM at standard input and output, until it closes them."""
    from pyspark.daemon import manager

    manager()


def main() -> None:
    """Load, then take over from Spark's daemon; end with standard input."""
    taker = Taker(os.environ[PLACE_VARIABLE])
    load()
    if taker.take():
        serve()


if __name__ == "__main__":
    main()
