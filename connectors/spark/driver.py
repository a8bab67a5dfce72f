"""The Spark driver: a child process of the worker that holds the Spark session, starts jobs and tells of their ends.

pandas, py4j, gRPC and their threads stay out of the worker, and a dead JVM or a lost server is answered by a new
child. Commands come as JSON lines on standard input, events go out on standard output:

    in   {"conf": {...}, "properties": text, "archive": path or "", "close_timeout_s": 3.0}
                                                           once, first; the keys, also as a file has them, the code to
                                                           ship, and the time to end in order
         {"type": "start", "job": id, "query": text, "payload": {...}}    one slice; its task gets the payload
         {"type": "cancel", "job": id}                     the last resort
         {"type": "check", "check": id, "query": text}     can this be a transform.sql?
    out  {"type": "ready", "spark": "4.3.0"}, {"type": "alive"}, {"type": "notice", "text"},
         {"type": "done", "job"}, {"type": "failed", "job", "failure": {...}},
         {"type": "checked", "check", "problem" or "failure"}, {"type": "lost", "reason"},
         {"type": "broken", "failure": {...}}

The end of standard input ends the process, so no Spark is left behind by a worker that was killed.

What the JVM does not need is imported once it starts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from functools import partial
from typing import Any, Final, NoReturn, TextIO

from connectors.spark.failures import Failure, failure_of
from connectors.spark.sessions import Session, session_for

_LOST: Final = 3
#: How often Spark is asked whether it is there. Its answer is told; a silence is for the worker to judge.
ALIVE_EVERY_S: Final = 3.0


class Driver:
    """One session and the jobs on it, each in a thread of its own."""

    def __init__(self, session: Session, events: TextIO) -> None:
        self._session = session
        self._events = events
        self._lock = threading.Lock()
        self._is_open = False

    def emit(self, event: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._events.write(json.dumps(event) + "\n")
            self._events.flush()

    def open(self, conf: dict[str, str], properties: str, archive: str) -> None:
        # Of a query that cannot be used the user is told; pyspark would print pages as well.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        for text in self._session.open(conf, properties, self._lost):
            self.emit({"type": "notice", "text": text})
        if archive:
            self._session.ship(archive)
        self._session.wake()
        self._is_open = True
        self.emit({"type": "ready", "spark": self._session.version()})
        threading.Thread(target=self._ask_forever, name="is Spark alive", daemon=True).start()

    def _lost(self, reason: str) -> NoReturn:
        """A session without its JVM or server is of no use to anybody: end, so that the worker starts a new one."""
        self.emit({"type": "lost", "reason": reason})
        os._exit(_LOST)

    def _ask_forever(self) -> None:
        while True:
            time.sleep(ALIVE_EVERY_S)
            try:
                self._session.ask()
            except Exception as error:
                if not self._is_open:  # it is being closed, which may take its JVM some seconds
                    return
                self._lost(failure_of(error).text)
            self.emit({"type": "alive"})

    def start(self, job: str, query: str, payload: dict[str, Any]) -> None:
        self._session.thread(self._run, (job, query, payload), f"job {job}").start()

    def check(self, check: str, query: str) -> None:
        """Whether a query can be used; what is wrong with it is told."""
        self._session.thread(self._check, (check, query), f"check {check}").start()

    def _check(self, check: str, query: str) -> None:
        from connectors.spark.query_frame import problem_of

        try:
            self.emit(
                {"type": "checked", "check": check, "problem": self._session.use(partial(problem_of, text=query))}
            )
        except Exception as error:
            self.emit({"type": "checked", "check": check, "failure": failure_of(error).to_wire()})

    def cancel(self, job: str) -> None:
        """In a thread, as a server that does not answer must not hold up the next command."""
        threading.Thread(target=self._cancel, args=(job,), name=f"cancel job {job}", daemon=True).start()

    def _cancel(self, job: str) -> None:
        # It is a courtesy to Spark; a slice has ended by its link long before.
        with contextlib.suppress(Exception):
            self._session.cancel(job)

    def close(self) -> None:
        """Stop the session in order, if there is one."""
        if self._is_open:
            self._is_open = False
            self._session.close()

    def _run(self, job: str, query: str, payload: dict[str, Any]) -> None:
        try:
            description = f"copy {payload['slice']}, epoch {payload['epoch']}"
            if query:
                self._session.run(job, description, lambda session: _frame(session, query, payload))
            else:
                self._session.copy(job, description, payload)
            self.emit({"type": "done", "job": job})
        except Exception as error:
            self.emit({"type": "failed", "job": job, "failure": failure_of(error).to_wire()})


def main() -> None:
    """Serve the worker until it closes our standard input."""
    # Spark, its JVM and libraries may print; standard output belongs to the events.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    driver = Driver(session_for(first["conf"]), events)
    try:
        driver.open(first["conf"], first["properties"], first["archive"])
    except Exception as error:
        driver.emit({"type": "broken", "failure": _why_broken(error, first["conf"]).to_wire()})
        os._exit(1)
    for line in sys.stdin:
        command = json.loads(line)
        if command["type"] == "start":
            driver.start(command["job"], command["query"], command["payload"])
        elif command["type"] == "check":
            driver.check(command["check"], command["query"])
        elif command["type"] == "cancel":
            driver.cancel(command["job"])
    if not first["close_timeout_s"]:
        os._exit(0)
    # Neither a JVM that does not stop nor threads that wait for one may keep the process.
    threading.Timer(first["close_timeout_s"], os._exit, (0,)).start()
    with contextlib.suppress(Exception):
        driver.close()
    os._exit(0)


def _why_broken(error: Exception, conf: dict[str, str]) -> Failure:
    if isinstance(error, ImportError) and "spark.remote" in conf:
        text = f"a package for Spark Connect is missing ({error}); pip install 'heliograph[connect]'"
        return Failure(" ".join(text.split()), settings=True)
    return failure_of(error)


def _frame(session: Any, query: str, payload: dict[str, Any]) -> Any:
    """Two Python stages of one task, with the query between them."""
    from connectors.dataplane import executor
    from connectors.spark.query_frame import ARROW_ROWS_KEY, STAGE_DDL, transformed

    payload = {**payload, "arrow_rows": int(session.conf.get(ARROW_ROWS_KEY))}
    records = session.range(1, numPartitions=1).mapInArrow(partial(executor.transform_slices, payload), STAGE_DDL)
    frame = transformed(session, records, query)
    return frame.mapInArrow(executor.collect_slices, executor.SCHEMA_DDL)


if __name__ == "__main__":
    main()
