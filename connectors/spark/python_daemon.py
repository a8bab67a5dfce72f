"""What Spark starts as the parent of its Python workers on this machine.

It gives its place to the process that the driver has started beforehand, which has loaded what takes a second or more.
If there is none, it is the parent itself. It imports little, because Spark waits for it.
"""

from __future__ import annotations

import os

from connectors.spark import early_daemon

if __name__ == "__main__" and not early_daemon.exec_early_daemon(os.environ.get(early_daemon.PLACE_VARIABLE, "")):
    early_daemon.load()
    early_daemon.serve()
