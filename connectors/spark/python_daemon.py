"""The Python daemon that Spark starts on this machine (``spark.python.daemon.module``), the parent of its workers.

It hands over to the daemon that the driver has preloaded, which saves a second or more. If there is none, it serves.
"""

from __future__ import annotations

import os

from connectors.spark.daemon_socket import PLACE_VARIABLE, give_place

if __name__ == "__main__" and not give_place(os.environ.get(PLACE_VARIABLE, "")):
    from connectors.spark import early_daemon

    early_daemon.load()
    early_daemon.serve()
