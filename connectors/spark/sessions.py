"""The two kinds of Spark session, behind one face: one with a JVM below it, and a client of a Spark Connect server.

Spark Connect knows no SparkContext: no job groups and no JVM to watch, but tags and a server that answers or does not.
Each imports of pyspark what it needs when it is opened, as one may be without what the other needs.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import javaproperties

Lost = Callable[[str], None]
#: Makes the frame of a job.
Make = Callable[[Any], Any]

#: So often a lost answer of a Spark Connect server is asked for again; Spark's own patience of ten minutes is too long
#: for who has to start anew.
_SUBMIT_ARGS: Final = "PYSPARK_SUBMIT_ARGS"
_CONNECT_RETRIES: Final = 3
_CONNECT_MAX_BACKOFF_MS: Final = 1000


class SparkStopped(Exception):
    """The session has ended by itself: a cluster took its application away."""


class _Session:
    """What both kinds share. Calls block; jobs run in threads of their own."""

    _session: Any = None

    def version(self) -> str:
        """Return Spark's."""
        return str(self._session.version)

    def use(self, asked: Callable[[Any], Any]) -> Any:
        """Return what ``asked`` finds in the session."""
        return asked(self._session)


class ClassicSession(_Session):
    """A driver with a JVM of its own below it: Spark on this machine, or the driver of an application on a cluster."""

    def open(self, conf: Mapping[str, str], lost: Lost) -> list[str]:
        """Start or connect; ``lost`` is called when the JVM ends. Return sentences on keys without effect."""
        from pyspark.sql import SparkSession

        with _properties_file(conf) as path:
            arguments = f"--load-spark-defaults --properties-file {shlex.quote(path)}"
            os.environ[_SUBMIT_ARGS] = f"{arguments} {os.environ.get(_SUBMIT_ARGS, 'pyspark-shell')}"
            self._session = SparkSession.builder.appName("heliograph").getOrCreate()
        gateway = self._session.sparkContext._gateway

        def wait() -> None:
            gateway.proc.wait()
            lost("its JVM ended")

        threading.Thread(target=wait, name="JVM watch", daemon=True).start()
        return []

    def ask(self) -> None:
        """Return once Spark has answered something. Raise when it will not answer any more."""
        if self._session.sparkContext._jsc.sc().isStopped():
            raise SparkStopped("the application was ended by its cluster")

    def ship(self, archive: str) -> None:
        """Let executors import from an archive of Python code."""
        self._session.sparkContext.addPyFile(archive)

    def thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> threading.Thread:
        """Return a thread that a job may run in."""
        from pyspark import InheritableThread

        # One thread of the JVM for this one, so that a job group is of this job only.
        thread: threading.Thread = InheritableThread(target=target, args=args, name=name, daemon=True)
        return thread

    def run(self, job: str, description: str, make: Make) -> None:
        """Run a job to its end."""
        self._session.sparkContext.setJobGroup(job, description)
        make(self._session).toArrow()

    def cancel(self, job: str) -> None:
        """Cancel a job in Spark; its Python may continue to write for a moment."""
        self._session.sparkContext.cancelJobGroup(job)

    def close(self) -> None:
        """The JVM too ends in order: it may have an archive of its classes to write."""
        gateway = self._session.sparkContext._gateway
        self._session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


class ConnectSession(_Session):
    """A client of a Spark Connect server."""

    def open(self, conf: Mapping[str, str], lost: Lost) -> list[str]:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        del lost  # a server that is gone does not say so: it has to be asked
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

    def ask(self) -> None:
        # Not the version, which the client remembers.
        self._session.conf.get("spark.sql.adaptive.enabled")

    def ship(self, archive: str) -> None:
        self._session.addArtifacts(archive, pyfile=True)

    def thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=name, daemon=True)

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


@contextmanager
def _properties_file(conf: Mapping[str, str]) -> Iterator[str]:
    """The keys in a file that only we can read: pyspark would write them on a command line, which all can."""
    # In the folder that goes with the engine, should this process be killed meanwhile.
    folder = os.environ.get("SPARK_LOCAL_DIRS", "")
    place = folder if folder and Path(folder).is_dir() else None
    handle, path = tempfile.mkstemp(prefix="heliograph-", suffix=".properties", dir=place)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            javaproperties.dump(dict(conf), file, timestamp=False)
        yield path
    finally:
        Path(path).unlink()


def _tag(job: str) -> str:
    return f"heliograph-{job}"
