"""The worker's hold on Spark: a child process with the SparkSession, asked for jobs, replaced when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson

from connect.core.errors import ConfigError, PermanentError, RetriableError

log = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 120.0
_STOP_MARGIN_S: Final = 1.0
_LAST_ROWS_S: Final = 1.0
#: How much of what Spark prints is kept, for the message that says why it ended.
_TAIL_LINES: Final = 20
_MAX_EVENT_BYTES: Final = 64 * 1024 * 1024

#: What makes a Spark of copying tasks start fast, stay small and stop soon. Keys of the user win.
DEFAULT_CONF: Final[Mapping[str, str]] = {
    "spark.master": "local[64,4]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.locality.wait": "0",
    "spark.scheduler.mode": "FAIR",
    # A second attempt beside a live one would be a second writer.
    "spark.speculation": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.python.task.killTimeout": "200ms",
}
#: Bytes do not pass through the JVM, so it is tuned to start fast and stay small: C1 only, one GC thread.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -Xlog:disable -Xlog:all=error:stderr"


class EngineLost(RetriableError):
    """Spark's driver process or its JVM is gone; the next job starts a new one."""


class EngineBroken(PermanentError):
    """Spark cannot be started at all with these settings on this machine."""


@dataclass(slots=True)
class Job:
    """One slice's Spark job; ``finished`` gives its rows or :class:`EngineLost`/``RetriableError``."""

    job_id: str
    finished: asyncio.Future[list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How Spark is started.

    Args:
        java_home: The Java that it runs on.
        conf: The user's ``spark.*`` keys.
        java_options: More options for its JVM.
        close_timeout_s: How long the JVM may take to end in order; it has nothing to save, so none by default.
    """

    java_home: Path
    conf: Mapping[str, str] = field(default_factory=dict)
    java_options: str = ""
    close_timeout_s: float = 0.0

    def merged(self) -> dict[str, str]:
        options = f"{JAVA_OPTIONS} {self.java_options}".strip()
        merged = {**DEFAULT_CONF, "spark.driver.extraJavaOptions": options, **self.conf}
        if merged["spark.master"].startswith("local"):
            merged.setdefault("spark.python.daemon.module", "connectors.dataplane.daemon")
        return merged

    def slots(self) -> int | None:
        """How many tasks run at once on this master; None where only Spark knows."""
        match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", self.merged()["spark.master"].strip())
        if match is None:
            return None
        number = match.group(1)
        return (os.cpu_count() or 1) if number == "*" else int(number or 1)


def check_slots(settings: SparkSettings, slices: int) -> None:
    """Every slice needs two slots for a moment, since the next epoch starts ahead; :class:`ConfigError` if fewer."""
    slots = settings.slots()
    if slots is not None and slots < 2 * slices:
        raise ConfigError(
            f"{slices} slices need {2 * slices} Spark slots (each next epoch starts ahead), but "
            f"spark.master = {settings.merged()['spark.master']} has {slots}; raise it to local[{2 * slices},4] "
            f"or more, or lower tasks.max",
            key="spark.master",
        )


class SparkEngine:
    """Starts the driver child in the background, hands jobs to it, and starts another one when it is lost."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._printed: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ready: asyncio.Future[None] | None = None
        self._jobs: dict[str, Job] = {}
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()
        self._stopping = False
        # Spark leaves its scratch files behind when it is killed; this folder goes with the engine.
        self._scratch = TemporaryDirectory(prefix="heliograph-spark-", ignore_cleanup_errors=True)

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to stop, and so starts nothing more."""
        return self._stopping

    def begin(self) -> asyncio.Task[None]:
        """Start Spark in the background; the task's error comes again from the first job."""
        task = asyncio.create_task(self._ensure(), name="start Spark")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def start_job(self, payload: Mapping[str, Any]) -> Job:
        """Start one slice; raises :class:`EngineLost` or :class:`EngineBroken` where Spark does not come up."""
        await self._ensure()
        job = Job(str(next(self._ids)), asyncio.get_running_loop().create_future())
        job.finished.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._jobs[job.job_id] = job
        self._tell({"type": "start", "job": job.job_id, "payload": dict(payload)})
        return job

    def cancel(self, job: Job) -> None:
        """Spark's own cancel, the last resort: the Python worker may write on for a moment."""
        if not job.finished.done():
            self._tell({"type": "cancel", "job": job.job_id})

    def abandon(self) -> None:
        """Spark takes jobs and does not run them, as a frozen JVM does: end it, and the next job gets a new one."""
        if self._process is not None:
            log.warning("Spark does not run what it is given; starting another one")
            _kill_group(self._process.pid)

    async def stop(self) -> None:
        """End the child and its JVM within a few seconds, whatever state they are in."""
        self._stopping = True
        async with self._lock:  # a launch under way is not cancelled: its process would be nobody's
            process = self._process
        if process is None:
            self._scratch.cleanup()
            return
        if self._jobs:
            # Slices that just said «done» are about to hand back their rows.
            await asyncio.wait([job.finished for job in self._jobs.values()], timeout=_LAST_ROWS_S)
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), self._settings.close_timeout_s + _STOP_MARGIN_S)
        except TimeoutError:
            _kill_group(process.pid)
            await process.wait()
        _kill_group(process.pid)
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._scratch.cleanup()

    async def _ensure(self) -> None:
        async with self._lock:
            if self._stopping:
                raise EngineLost("Spark was stopped")
            if self._ready is None or (self._ready.done() and self._process is None):
                try:
                    await self._launch()
                except OSError as error:
                    raise EngineLost(f"Spark's driver process could not be started: {error}") from error
        assert self._ready is not None
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), _START_TIMEOUT_S)
        except TimeoutError as error:
            raise EngineLost(f"Spark was not ready within {_START_TIMEOUT_S:.0f} s") from error

    async def _launch(self) -> None:
        environment = {
            **os.environ,
            "JAVA_HOME": str(self._settings.java_home),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # numpy's thread pools cost each Python worker memory that a copier never uses
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "connectors.dataplane.spark",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            limit=_MAX_EVENT_BYTES,
            # A group of its own: a terminal's Ctrl-C is for the worker, which then ends Spark in order.
            start_new_session=True,
        )
        # Not before: what waits for it while no process comes up would wait for ever.
        self._ready = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._process = process
        conf = {"spark.local.dir": self._scratch.name, **self._settings.merged()}
        conf["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={self._scratch.name}"
        self._tell({"conf": conf, "close_timeout_s": self._settings.close_timeout_s})
        self._printed.clear()
        self._readers = [
            asyncio.create_task(self._read(process), name="events of Spark"),
            asyncio.create_task(self._read_printed(process), name="output of Spark"),
        ]

    def _tell(self, command: Mapping[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(orjson.dumps(command) + b"\n")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        broken = ""
        try:
            while line := await process.stdout.readline():
                event = orjson.loads(line)
                if event["type"] == "broken":
                    broken = event["error"]
                else:
                    self._happened(event)
            await process.wait()
        except Exception as error:
            log.error("Spark's driver process said what nobody understands; it is started anew", exc_info=error)
        finally:
            _kill_group(process.pid)
            self._lost(broken)

    async def _read_printed(self, process: asyncio.subprocess.Process) -> None:
        """What Spark, its JVM and its Python workers print: for who looks closer, and for the message of an end."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # a line over the bound: its head is dropped
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._printed.append(text)
            log.debug("Spark: %s", text)

    def _happened(self, event: dict[str, Any]) -> None:
        if event["type"] == "ready":
            log.info("Spark %s is ready", event["spark"])
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            return
        job = self._jobs.pop(event["job"], None)
        if job is None or job.finished.done():
            return
        if event["type"] == "done":
            job.finished.set_result(event["rows"])
        else:
            job.finished.set_exception(RetriableError(f"the Spark job failed: {event['error']}"))

    def _lost(self, broken: str) -> None:
        self._process = None
        error: Exception = EngineLost("Spark's driver process ended")
        if broken:
            error = EngineBroken(f"Spark does not start: {_reason(self._printed) or broken}; check the spark.* keys")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        if not self._stopping:
            log.warning("%s; it last printed: %s", error, " | ".join(self._printed) or "nothing")
        for job in self._jobs.values():
            if not job.finished.done():
                job.finished.set_exception(error)
        self._jobs.clear()


def _reason(printed: Iterable[str]) -> str:
    """The first line of what a JVM printed that is neither a warning nor a frame: what it ended of."""
    return next((line for line in printed if line.strip() and not line.startswith(("WARNING", "\tat "))), "")


def _kill_group(pid: int) -> None:
    """End the child's whole group, JVM and Python workers included; nothing of Spark outlives its driver."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
