"""Open the two kinds of Spark session, classic and Spark Connect, start the JVM, and explain Spark's failures.

- Spark Connect has no SparkContext: instead of job groups and a JVM to watch it has tags and a server to ask. Each
  session imports pyspark's modules when it is opened, because an installation may lack those of the other kind.
- The driver's JVM starts before pyspark is imported, because each takes a second or more.
- A failure is reduced to one line: Spark's messages hold full traces of Python and of the JVM, with the cause inside.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from connect.core.errors import ConfigError
from connectors.dataplane import slice_job
from connectors.formats.types import Wired
from connectors.spark.config import INSECURE, PROTECTION, is_insecure, unprotected
from connectors.spark.python_daemon import PLACE_VARIABLE

#: What an executor's Python lacks, by what Spark says: a module, itself, or the driver's version.
_INCOMPATIBLE: Final = {
    "cannot import": re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'"),
    "is not there:": re.compile(r"Cannot run program \"([^\"]+)\""),
    "is of another version:": re.compile(r"(\[PYTHON_VERSION_MISMATCH\][^\n]*)"),
}
_RAISED: Final = re.compile(r"^([\w.]+(?:Error|Exception|Exit|Interrupt|Warning|Code|Defect|Closed)\b: .*|\w+Error)$")
#: The readable part of a gRPC error.
_DETAILS: Final = re.compile(r"^\s*details = \"(.+)\"$", re.MULTILINE)
_TRACE: Final = "Traceback (most recent call last):"
_MAX_CHARS: Final = 500
#: Errors that only a change of settings can fix.
_SETTINGS: Final = (
    "IllegalArgumentException",
    "Could not parse Master URL",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "[INVALID_CONNECT_URL]",
    "[MASTER_URL_INVALID]",
)


@dataclass(frozen=True, slots=True)
class SparkFailure(Wired):
    """Why a job or a start failed, in one line. ``unfit``: what an executor's Python lacks, to end a sentence with.
    ``python``: whether Python code of a slice raised it. ``settings``: whether only a change of settings helps."""

    text: str
    unfit: str = ""
    python: bool = False
    settings: bool = False


def failure_of(error: BaseException) -> SparkFailure:
    """Return the failure behind an exception of pyspark."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    details = _DETAILS.search(text)
    raised = _last_raised(lines[lines.index(_TRACE) + 1 :]) if _TRACE in lines else details and details[1]
    line = raised or f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    lacks = (f"{what} {match[1]}" for what, pattern in _INCOMPATIBLE.items() if (match := pattern.search(text)))
    return SparkFailure(
        text=line[:_MAX_CHARS],
        unfit=next(lacks, ""),
        python=_TRACE in text,
        settings=isinstance(error, (ConfigError, ImportError)) or any(word in text for word in _SETTINGS),
    )


def _last_raised(lines: Iterable[str]) -> str | None:
    """Return the line of a Python trace that names the exception; of a chain the last, which was not caught."""
    found = None
    for line in lines:
        if line.startswith(("at ", "JVM stacktrace", "Driver stacktrace")):
            break
        if _RAISED.match(line):
            found = line
    return found


_LOOK_S: Final = 0.01
_LENGTH_BYTES: Final = 4


class JvmEnded(Exception):
    """The JVM ended before it accepted commands; its output says why."""


class Jvm:
    """A child JVM, started by Spark's own scripts with the ``arguments`` of ``spark-submit``: they know its class path
    and ``spark-env.sh``. It writes the file with its port and secret into ``folder``."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._reached = folder / "gateway"
        home = spark_home()
        environment = {
            **os.environ,
            # pyspark sets this before it starts a JVM itself.
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._reached),
            # Else the scripts start Python to find it.
            "SPARK_HOME": str(home),
        }
        # It ends with its standard input.
        self._process = subprocess.Popen(
            [home / "bin" / "spark-submit", *arguments], stdin=subprocess.PIPE, env=environment
        )

    def serve_pyspark(self) -> None:
        """Wait until the JVM accepts commands, and point pyspark to it. Raises JvmEnded."""
        while not self._reached.exists():
            if self._process.poll() is not None:
                self.end()
                raise JvmEnded(f"the JVM ended with exit code {self._process.returncode}")
            time.sleep(_LOOK_S)
        reported = self._reached.read_bytes()
        os.environ["PYSPARK_GATEWAY_PORT"] = str(int.from_bytes(reported[:_LENGTH_BYTES], "big"))
        os.environ["PYSPARK_GATEWAY_SECRET"] = reported[2 * _LENGTH_BYTES :].decode()

    def wait(self) -> None:
        self._process.wait()

    def end(self) -> None:
        """Let the JVM shut down, and wait for its end."""
        assert self._process.stdin is not None, "it has a pipe"
        self._process.stdin.close()
        self._process.wait()


def spark_home() -> Path:
    """Return the folder of Spark, by pyspark's own rule."""
    spec = importlib.util.find_spec("pyspark")  # because importing it takes a second
    assert spec is not None and spec.origin is not None, "the project depends on it"
    return Path(runpy.run_path(str(Path(spec.origin).parent / "find_spark_home.py"))["_find_spark_home"]())


Lost = Callable[[str], None]
#: Makes the frame of a job.
Make = Callable[[Any], Any]

_SUBMIT_ARGS: Final = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES: Final = "spark.properties"
#: Retries of a request to a Spark Connect server; Spark's default of ten minutes would delay the next session.
_CONNECT_RETRIES: Final = 3
_CONNECT_MAX_BACKOFF_MS: Final = 1000


class SparkStopped(Exception):
    """The session has ended because the cluster stopped the application."""


class ClassicSession:
    """A driver with its own JVM: Spark on this machine, or the driver of an application on a cluster. Slices are jobs
    of its SparkContext. A SQL session, which takes another second, is created once a query needs it."""

    _context: Any = None
    _jvm: Jvm | None = None
    _daemon: subprocess.Popen[bytes] | None = None

    def open(self, conf: Mapping[str, str], properties: str, lost: Lost) -> list[str]:
        """Start or connect; call ``lost`` when the JVM ends. Return a sentence for each key without effect.
        ``properties``: the same keys as the text of a properties file."""
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
        return str(self._context.version)

    def use(self, asked: Callable[[Any], Any]) -> Any:
        """Return ``asked`` of the SQL session."""
        from pyspark.sql import SparkSession

        return asked(SparkSession.builder.getOrCreate())

    def ask(self) -> None:
        """Wait for any answer from Spark. Raises if Spark will not answer any more."""
        if self._context._jsc.sc().isStopped():
            raise SparkStopped("the cluster ended the application")

    def ship(self, archive: str) -> None:
        """Ship an archive of Python code to executors."""
        self._context.addPyFile(archive)

    def thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> threading.Thread:
        """Return a thread that a job may run in."""
        from pyspark import InheritableThread

        # It has its own JVM thread, so that a job group belongs to one job.
        thread: threading.Thread = InheritableThread(target=target, args=args, name=name, daemon=True)
        return thread

    def wake(self) -> None:
        """Start a Python worker in the background, for the first slice."""
        self.thread(self._start_worker, (), "first Python worker").start()

    def _start_worker(self) -> None:
        # Because the first slice meets the same error and reports it.
        with contextlib.suppress(Exception):
            self._context.parallelize([0], 1).mapPartitions(slice_job.begin).collect()
        if self._daemon is not None and self._daemon.stdin is not None:
            self._daemon.stdin.close()  # ends it, unless it has replaced Spark's daemon by now

    def copy(self, job: str, description: str, payload: dict[str, Any]) -> None:
        """Run the slice or the function that ``payload`` names, until it ends."""
        self._context.setJobGroup(job, description)
        self._context.parallelize([0], 1).mapPartitions(partial(slice_job.run, payload)).collect()

    def run(self, job: str, description: str, make: Make) -> None:
        """Run a job with a query, until it ends."""
        self._context.setJobGroup(job, description)
        self.use(make).toArrow()

    def cancel(self, job: str) -> None:
        """Cancel a job; its Python worker may continue to write for a moment."""
        self._context.cancelJobGroup(job)

    def close(self) -> None:
        """Stop Spark, then let the JVM shut down, because it may have an archive of its classes to write."""
        gateway = self._context._gateway
        self._context.stop()
        gateway.shutdown()
        assert self._jvm is not None, "it was opened"
        self._jvm.end()


class ConnectSession:
    """A client of a Spark Connect server, where all jobs are queries, because there is no SparkContext."""

    _session: Any = None

    def open(self, conf: Mapping[str, str], properties: str, lost: Lost) -> list[str]:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        del properties, lost  # a lost server is noticed only when it is asked
        # Set no other key yet, because that would wait with Spark's default retries.
        self._session = SparkSession.builder.remote(conf["spark.remote"]).create()
        policy = DefaultPolicy(max_retries=_CONNECT_RETRIES, max_backoff=_CONNECT_MAX_BACKOFF_MS)
        self._session.client.set_retry_policies([policy])
        self.ask()
        if not is_insecure(conf):
            self._refuse_open_server(conf["spark.remote"])
        return [sentence for key, value in conf.items() if (sentence := self._set(key, value))]

    def _refuse_open_server(self, remote: str) -> None:
        """Raise ConfigError if executors of the server get their plans in the clear."""
        wrong = [f"{key} = true" for key in PROTECTION if self._session.conf.get(key, "false").lower() != "true"]
        if wrong:
            raise unprotected(" and ".join(wrong) + " at the server", remote.partition(";")[0])

    def _set(self, key: str, value: str) -> str:
        if key in ("spark.remote", INSECURE):
            return ""
        try:
            self._session.conf.set(key, value)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            return f"{key} has no effect: set it on the Spark Connect server ({reason})"
        return ""

    def version(self) -> str:
        return str(self._session.version)

    def use(self, asked: Callable[[Any], Any]) -> Any:
        return asked(self._session)

    def ask(self) -> None:
        # Not the version, because the client caches it.
        self._session.conf.get("spark.sql.adaptive.enabled")

    def ship(self, archive: str) -> None:
        self._session.addArtifacts(archive, pyfile=True)

    def thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=name, daemon=True)

    def wake(self) -> None:
        """Do nothing: the server starts Python workers."""

    def copy(self, job: str, description: str, payload: dict[str, Any]) -> None:
        task = partial(slice_job.run_in_arrow, payload)
        self.run(
            job, description, lambda session: session.range(1, numPartitions=1).mapInArrow(task, slice_job.SCHEMA_DDL)
        )

    def run(self, job: str, description: str, make: Make) -> None:
        del description  # because the server shows only the plan of an operation
        self._session.addTag(_tag(job))
        make(self._session).toArrow()

    def cancel(self, job: str) -> None:
        self._session.interruptTag(_tag(job))

    def close(self) -> None:
        self._session.stop()


Session = ClassicSession | ConnectSession


def session_for(conf: Mapping[str, str]) -> Session:
    """Return the session for these keys, not open yet."""
    return ConnectSession() if "spark.remote" in conf else ClassicSession()


def _early_daemon() -> subprocess.Popen[bytes]:
    """Start the preloaded daemon; until it replaces Spark's daemon, it ends with its standard input."""
    # The seed that Spark sets for workers if the user sets none.
    environment = {"PYTHONHASHSEED": "0", **os.environ}
    command = [sys.executable, "-m", "connectors.spark.python_daemon"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)


@contextmanager
def _folder_of(properties: str) -> Iterator[Path]:
    """Make a private folder with the keys in a file, because pyspark would show them to all on a command line."""
    # In the engine's scratch folder, which is removed even if this process is killed.
    scratch = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    place = scratch if scratch and Path(scratch).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="heliograph-", dir=place) as name:
        folder = Path(name)
        (folder / _PROPERTIES).write_text(properties, encoding="ascii")
        yield folder


def _tag(job: str) -> str:
    return f"heliograph-{job}"
