"""Open the two kinds of Spark session, classic and Spark Connect, start the JVM, and explain Spark's failures.

- Spark Connect knows no SparkContext: no job groups and no JVM to watch, but tags and a server that answers or does
  not. Each session imports of pyspark what it needs when it is opened, as one may lack what the other needs.
- The JVM of a driver starts before pyspark is imported, since either takes a second or more.
- A failure becomes one line for people: Spark's messages hold the traces of Python and of the JVM, frame by frame; what
  ended a task is somewhere inside.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from connectors.spark import slice_job
from connectors.spark.handover import PLACE_VARIABLE

_MISSING: Final = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'")
#: The executor's Python itself: not there, or of another version than the driver's.
_NO_PYTHON: Final = re.compile(r"Cannot run program \"([^\"]+)\"")
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*")
_RAISED: Final = re.compile(r"^([\w.]+(?:Error|Exception|Exit|Interrupt|Warning|Code|Defect|Closed)\b: .*|\w+Error)$")
#: What gRPC says in words, among much that it says in none.
_DETAILS: Final = re.compile(r"^\s*details = \"(.+)\"$", re.MULTILINE)
_TRACE: Final = "Traceback (most recent call last):"
_MAX_CHARS: Final = 500
#: What a changed setting mends and nothing else.
_SETTINGS: Final = (
    "IllegalArgumentException",
    "Could not parse Master URL",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "[INVALID_CONNECT_URL]",
    "[MASTER_URL_INVALID]",
)


@dataclass(frozen=True, slots=True)
class SparkFailure:
    """Why a job or a start failed.

    Args:
        text: One line.
        unfit: What an executor's Python lacks, as the end of a sentence; empty if it lacks nothing.
        python: Whether Python code of ours raised it.
        settings: Whether only other settings help.
    """

    text: str
    unfit: str = ""
    python: bool = False
    settings: bool = False

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        return cls(**{name: data[name] for name in cls.__slots__})


def failure_of(error: BaseException) -> SparkFailure:
    """The failure behind an exception of pyspark."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = _TRACE in text
    raised = _last_raised(lines[lines.index(_TRACE) + 1 :]) if _TRACE in lines else _grpc_details(text)
    line = raised or f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return SparkFailure(
        text=line[:_MAX_CHARS],
        unfit=_unfitness(text),
        python=python,
        settings=isinstance(error, ImportError) or any(word in text for word in _SETTINGS),
    )


def _grpc_details(text: str) -> str | None:
    found = _DETAILS.search(text)
    return found.group(1) if found else None


def _last_raised(lines: Iterable[str]) -> str | None:
    """The line in which a Python trace says what was raised; of a chain the last, which is what came out."""
    found = None
    for line in lines:
        if line.startswith(("at ", "JVM stacktrace", "Driver stacktrace")):
            break
        if _RAISED.match(line):
            found = line
    return found


def _unfitness(text: str) -> str:
    if missing := _MISSING.search(text):
        return f"cannot import {missing.group(1)}"
    if no_python := _NO_PYTHON.search(text):
        return f"is not there: {no_python.group(1)}"
    if other := _OTHER_PYTHON.search(text):
        return f"is of another version: {other.group(0)}"
    return ""


_LOOK_S: Final = 0.01
_LENGTH_BYTES: Final = 4


class JvmEnded(Exception):
    """The JVM ended before it took commands; what it printed says why."""


class Jvm:
    """A JVM below this process, made by Spark's own scripts, which know its class path and ``spark-env.sh``.

    Args:
        arguments: Of ``spark-submit``.
        folder: Gets the file in which the JVM says how it is reached.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._reached = folder / "gateway"
        home = spark_home()
        told = {
            # What pyspark sets before it starts a JVM itself.
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._reached),
            # Else the scripts start a Python to find it.
            "SPARK_HOME": str(home),
        }
        # The end of its standard input ends it.
        self._process = subprocess.Popen(
            [home / "bin" / "spark-submit", *arguments], stdin=subprocess.PIPE, env={**os.environ, **told}
        )

    def serve_pyspark(self) -> None:
        """Wait until it takes commands, and let pyspark send its own there. Raises JvmEnded."""
        while not self._reached.exists():
            if self._process.poll() is not None:
                self.end()
                raise JvmEnded(f"the JVM ended with exit code {self._process.returncode}")
            time.sleep(_LOOK_S)
        told = self._reached.read_bytes()
        os.environ["PYSPARK_GATEWAY_PORT"] = str(int.from_bytes(told[:_LENGTH_BYTES], "big"))
        os.environ["PYSPARK_GATEWAY_SECRET"] = told[2 * _LENGTH_BYTES :].decode()

    def wait(self) -> None:
        """Return once it has ended."""
        self._process.wait()

    def end(self) -> None:
        """Let it end in order, and return once it has."""
        assert self._process.stdin is not None, "it has a pipe"
        self._process.stdin.close()
        self._process.wait()


def spark_home() -> Path:
    """Return the folder of Spark, by pyspark's own rule."""
    spec = importlib.util.find_spec("pyspark")  # because to import it takes a second
    assert spec is not None and spec.origin is not None, "the project depends on it"
    rule = runpy.run_path(str(Path(spec.origin).parent / "find_spark_home.py"))["_find_spark_home"]
    return Path(rule())


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
            self._context.parallelize([0], 1).mapPartitions(slice_job.begin).collect()
        if self._daemon is not None and self._daemon.stdin is not None:
            self._daemon.stdin.close()  # which ends it unless it has the place of Spark's by now

    def copy(self, job: str, description: str, payload: dict[str, Any]) -> None:
        """Run the slice that ``payload`` names to its end."""
        self._context.setJobGroup(job, description)
        self._context.parallelize([0], 1).mapPartitions(partial(slice_job.copy_slice, payload)).collect()

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
        from connectors.dataplane import slice as dataplane_slice

        slice_ = partial(dataplane_slice.copy_slices, payload)
        self.run(
            job,
            description,
            lambda session: session.range(1, numPartitions=1).mapInArrow(slice_, dataplane_slice.SCHEMA_DDL),
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
