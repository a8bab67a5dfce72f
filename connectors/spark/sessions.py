"""The two kinds of Spark session, behind one face: one with a JVM below it, and a client of a Spark Connect server.

Spark Connect knows no SparkContext: no job groups and no JVM to watch, but tags and a server that answers or does not.
Each imports of pyspark what it needs when it is opened, as one may be without what the other needs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from connectors.dataplane import entry
from connectors.spark.handover import PLACE_VARIABLE
from connectors.spark.jvm import Jvm

Lost = Callable[[str], None]
#: Makes the frame of a job.
Make = Callable[[Any], Any]

#: So often a lost answer of a Spark Connect server is asked for again; Spark's own patience of ten minutes is too long
#: for who has to start anew.
_SUBMIT_ARGS: Final = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES: Final = "spark.properties"
_CONNECT_RETRIES: Final = 3
_CONNECT_MAX_BACKOFF_MS: Final = 1000


class SparkStopped(Exception):
    """The session has ended by itself: a cluster took its application away."""


class ClassicSession:
    """A driver with a JVM of its own below it: Spark on this machine, or the driver of an application on a cluster.

    Slices are jobs of its SparkContext. A session with SQL, which takes a second more, is made once a query needs it.
    """

    _context: Any = None
    _jvm: Jvm | None = None
    _daemon: subprocess.Popen[bytes] | None = None

    def open(self, conf: Mapping[str, str], properties: str, lost: Lost) -> list[str]:
        """Start or connect; ``lost`` is called when the JVM ends. Return sentences on keys without effect.

        ``properties``: the same keys as a properties file has them.
        """
        with _folder_of(properties) as folder:
            arguments = ["--load-spark-defaults", "--properties-file", str(folder / _PROPERTIES)]
            more = shlex.split(os.environ.get(_SUBMIT_ARGS, "pyspark-shell"))
            jvm = self._jvm = Jvm([*arguments, *more], folder)
            if PLACE_VARIABLE in os.environ:
                self._daemon = _early_daemon()
            from pyspark import SparkContext

            jvm.serve_pyspark()
            self._context = SparkContext(appName="heliograph")

        def wait() -> None:
            jvm.wait()
            lost("its JVM ended")

        threading.Thread(target=wait, name="JVM watch", daemon=True).start()
        return []

    def version(self) -> str:
        """Return Spark's."""
        return str(self._context.version)

    def use(self, asked: Callable[[Any], Any]) -> Any:
        """Return what ``asked`` finds in the session."""
        from pyspark.sql import SparkSession

        return asked(SparkSession.builder.getOrCreate())

    def ask(self) -> None:
        """Return once Spark has answered something. Raise when it will not answer any more."""
        if self._context._jsc.sc().isStopped():
            raise SparkStopped("the application was ended by its cluster")

    def ship(self, archive: str) -> None:
        """Let executors import from an archive of Python code."""
        self._context.addPyFile(archive)

    def thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> threading.Thread:
        """Return a thread that a job may run in."""
        from pyspark import InheritableThread

        # One thread of the JVM for this one, so that a job group is of this job only.
        thread: threading.Thread = InheritableThread(target=target, args=args, name=name, daemon=True)
        return thread

    def wake(self) -> None:
        """Have a Python worker started in the background, for the first slice to find it."""
        self.thread(self._start_worker, (), "first Python worker").start()

    def _start_worker(self) -> None:
        # Whatever is wrong is found by the first slice as well, which has somebody to say it to.
        with contextlib.suppress(Exception):
            self._context.parallelize([0], 1).mapPartitions(entry.begin).collect()
        if self._daemon is not None and self._daemon.stdin is not None:
            self._daemon.stdin.close()  # which ends it unless it has the place of Spark's by now

    def copy(self, job: str, description: str, payload: dict[str, Any]) -> None:
        """Run the slice that ``payload`` names to its end."""
        self._context.setJobGroup(job, description)
        self._context.parallelize([0], 1).mapPartitions(partial(entry.copy_slice, payload)).collect()

    def run(self, job: str, description: str, make: Make) -> None:
        """Run a job of a query to its end."""
        self._context.setJobGroup(job, description)
        self.use(make).toArrow()

    def cancel(self, job: str) -> None:
        """Cancel a job in Spark; its Python may continue to write for a moment."""
        self._context.cancelJobGroup(job)

    def close(self) -> None:
        """The JVM too ends in order: it may have an archive of its classes to write."""
        gateway = self._context._gateway
        self._context.stop()
        gateway.shutdown()
        assert self._jvm is not None, "it was opened"
        self._jvm.end()


class ConnectSession:
    """A client of a Spark Connect server, which has no SparkContext: there all jobs are queries."""

    _session: Any = None

    def open(self, conf: Mapping[str, str], properties: str, lost: Lost) -> list[str]:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        del properties, lost  # a server that is gone does not say so: it has to be asked
        # No other key at first: what sets it would wait for an answer with Spark's own patience.
        self._session = SparkSession.builder.remote(conf["spark.remote"]).create()
        policy = DefaultPolicy(max_retries=_CONNECT_RETRIES, max_backoff=_CONNECT_MAX_BACKOFF_MS)
        self._session.client.set_retry_policies([policy])
        self.ask()
        return [sentence for key, value in conf.items() if (sentence := self._set(key, value))]

    def _set(self, key: str, value: str) -> str:
        if key == "spark.remote":
            return ""
        try:
            self._session.conf.set(key, value)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            return f"{key} has no effect: it is the Spark Connect server's to set ({reason})"
        return ""

    def version(self) -> str:
        return str(self._session.version)

    def use(self, asked: Callable[[Any], Any]) -> Any:
        return asked(self._session)

    def ask(self) -> None:
        # Not the version, which the client remembers.
        self._session.conf.get("spark.sql.adaptive.enabled")

    def ship(self, archive: str) -> None:
        self._session.addArtifacts(archive, pyfile=True)

    def thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=name, daemon=True)

    def wake(self) -> None:
        """Nothing: its Python workers are the server's to start."""

    def copy(self, job: str, description: str, payload: dict[str, Any]) -> None:
        from connectors.dataplane import executor

        slice_ = partial(executor.copy_slices, payload)
        self.run(
            job, description, lambda session: session.range(1, numPartitions=1).mapInArrow(slice_, executor.SCHEMA_DDL)
        )

    def run(self, job: str, description: str, make: Make) -> None:
        del description  # what the server shows of an operation is its plan
        self._session.addTag(_tag(job))
        make(self._session).toArrow()

    def cancel(self, job: str) -> None:
        self._session.interruptTag(_tag(job))

    def close(self) -> None:
        self._session.stop()


Session = ClassicSession | ConnectSession


def session_for(conf: Mapping[str, str]) -> Session:
    """Return a session that is not open yet."""
    return ConnectSession() if "spark.remote" in conf else ClassicSession()


def _early_daemon() -> subprocess.Popen[bytes]:
    """Start the parent of the Python workers; it ends with its standard input until it has a place."""
    # Spark gives its workers this seed when the user names none.
    environment = {"PYTHONHASHSEED": "0", **os.environ}
    command = [sys.executable, "-m", "connectors.spark.early_daemon"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)


@contextmanager
def _folder_of(properties: str) -> Iterator[Path]:
    """A folder for us alone, with the keys in a file: pyspark would write them on a command line, for all to read."""
    # In the folder that goes with the engine, should this process be killed meanwhile.
    scratch = os.environ.get("SPARK_LOCAL_DIRS", "")
    place = scratch if scratch and Path(scratch).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="heliograph-", dir=place) as name:
        folder = Path(name)
        (folder / _PROPERTIES).write_text(properties, encoding="ascii")
        yield folder


def _tag(job: str) -> str:
    return f"heliograph-{job}"
