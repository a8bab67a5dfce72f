"""What Spark starts as the parent of its Python workers on this machine.

It gives its place to the process that the driver has started beside the JVM, which has loaded what takes a second or
more. When there is none, it is the parent itself.
"""

from __future__ import annotations

import os

from connectors.spark.handover import PLACE_VARIABLE, give_place

if __name__ == "__main__" and not give_place(os.environ.get(PLACE_VARIABLE, "")):
    from connectors.spark import early_daemon

    early_daemon.load()
    early_daemon.serve()
