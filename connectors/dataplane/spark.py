"""The Spark driver: a child process of the worker that holds the SparkSession, starts jobs and hands back rows.

The only import of pyspark in the project, so pandas, py4j and its threads stay out of the worker, and a dead JVM
is answered by a new child. Commands come as JSON lines on standard input, events go out on standard output:

    in   {"conf": {...}, "close_timeout_s": 3.0}           once, first; the time that the JVM gets to end in order
         {"type": "start", "job": id, "payload": {...}}    one slice; the payload is shipped to its task
         {"type": "cancel", "job": id}                     the last resort
    out  {"type": "ready", "spark": "4.3.0"}, {"type": "done", "job", "rows"},
         {"type": "failed", "job", "error"}, {"type": "broken", "error"}

The end of standard input ends the process, so no Spark is left behind by a worker that was killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
from functools import partial
from typing import Any, Final, TextIO

_JVM_LOST: Final = 3


class Driver:
    """One SparkSession and the jobs on it, each in a thread of its own."""

    def __init__(self, events: TextIO) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._session: Any = None

    def emit(self, event: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._events.write(json.dumps(event) + "\n")
            self._events.flush()

    def open(self, conf: dict[str, str]) -> None:
        from pyspark.sql import SparkSession

        # While the JVM starts there is time for what the first job needs of Python.
        threading.Thread(target=_load_ahead, name="load ahead", daemon=True).start()

        builder = SparkSession.builder.appName("heliograph")
        for key, value in conf.items():
            builder = builder.config(key, value)
        self._session = builder.getOrCreate()
        self._watch_jvm()
        self.emit({"type": "ready", "spark": self._session.version})

    def _watch_jvm(self) -> None:
        """A session without its JVM is of no use to anybody: end, so that the worker starts a new one."""
        gateway = self._session.sparkContext._gateway

        def wait() -> None:
            gateway.proc.wait()
            os._exit(_JVM_LOST)

        threading.Thread(target=wait, name="JVM watch", daemon=True).start()

    def start(self, job: str, payload: dict[str, Any]) -> None:
        from pyspark import InheritableThread

        InheritableThread(target=self._run, args=(job, payload), name=f"job {job}", daemon=True).start()

    def cancel(self, job: str) -> None:
        self._session.sparkContext.cancelJobGroup(job)

    def close(self) -> None:
        """Stop the session and let the JVM end in order: it may have an archive of its classes to write."""
        if self._session is not None:
            gateway = self._session.sparkContext._gateway
            self._session.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()

    def _run(self, job: str, payload: dict[str, Any]) -> None:
        from connectors.dataplane import executor

        try:
            self._session.sparkContext.setJobGroup(job, f"copy {payload['flow']}, epoch {payload['epoch']}")
            frame = self._session.range(1, numPartitions=1)
            copied = frame.mapInArrow(partial(executor.copy_slices, payload), executor.SCHEMA_DDL)
            self.emit({"type": "done", "job": job, "rows": copied.toArrow().to_pylist()})
        except Exception as error:
            self.emit({"type": "failed", "job": job, "error": _one_line(error)})


def main() -> None:
    """Serve the worker until it closes our standard input."""
    # Spark, its JVM and libraries may print; standard output belongs to the events.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver(events)
    first = json.loads(sys.stdin.readline())
    try:
        driver.open(first["conf"])
    except Exception as error:
        driver.emit({"type": "broken", "error": _one_line(error)})
        sys.exit(1)
    for line in sys.stdin:
        command = json.loads(line)
        if command["type"] == "start":
            driver.start(command["job"], command["payload"])
        elif command["type"] == "cancel":
            driver.cancel(command["job"])
    if not first["close_timeout_s"]:
        os._exit(0)
    # Neither a JVM that does not stop nor threads that wait for one may keep the process.
    threading.Timer(first["close_timeout_s"], os._exit, (0,)).start()
    with contextlib.suppress(Exception):
        driver.close()
    os._exit(0)


def _load_ahead() -> None:
    importlib.import_module("pandas")
    importlib.import_module("connectors.dataplane.executor")


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


if __name__ == "__main__":
    main()
