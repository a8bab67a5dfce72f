"""The worker's side of Spark: starts the driver process, sends it jobs, and replaces it when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import javaproperties
import orjson

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.concurrency import Scope
from connectors.control_link.code_version import make_archive, running_code
from connectors.spark.config import SparkKind, SparkSettings
from connectors.spark.sessions import SparkFailure

log = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 120.0
#: A starting Spark counts as frozen after this silence. It is long, because a download of spark.jars.packages and a
#: cluster's queue may each take minutes.
_START_SILENCE_S: Final = 600.0
_STOP_MARGIN_S: Final = 1.0
_LAST_ROWS_S: Final = 1.0
_LAST_WORDS_S: Final = 2.0
#: The driver reports every three seconds that Spark answers; after this silence Spark counts as frozen.
_SILENCE_S: Final = 20.0
_MAX_TIMEOUT_FACTOR: Final = 8
#: Lines of Spark's output that are kept, for the message when it ends.
_TAIL_LINES: Final = 20
#: Marks the failure of a driver whose JVM on this machine ended before it accepted commands, with any master.
_NO_JVM: Final = "JvmEnded"
_EXCEPTION: Final = re.compile(r"\w(?:Exception|Error)\b")
#: Starts in a row whose JVM may end early before the settings are blamed: the JVM, or the script that starts it, may
#: have been killed, and what is printed then looks like a mistake in the settings.
_MOST_ENDED_STARTS: Final = 2
_MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
_PREFIX: Final = "heliograph-spark-"
_HELD: Final = "held"
#: The process that makes a folder may not have locked it yet at this age.
_YOUNG_S: Final = 60.0
#: Folders removed at a time, so that a start does not wait long for old files.
_MOST_AT_ONCE: Final = 100


class EngineLost(RetriableError):
    """Spark's driver process or its JVM has ended; the next job starts another."""


class EngineBroken(PermanentError):
    """Spark cannot start with these settings on this machine."""


class ExecutorsIncompatible(PermanentError):
    """An executor's Python lacks what every slice needs."""


class SliceCrashed(RetriableError):
    """Python code of a slice ended with an unexpected exception."""


@dataclass(slots=True)
class Job:
    """The Spark job of one slice; ``finished`` gets its result, or an error of this module."""

    job_id: str
    finished: asyncio.Future[str]


class SparkEngine:
    """Starts the driver process in the background, sends it jobs, and starts another one when it is lost."""

    def __init__(self, settings: SparkSettings) -> None:
        self.settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._scope = Scope("Spark")
        self._readers: list[asyncio.Task[None]] = []
        self._printed: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ended_starts = 0
        self._ready: asyncio.Future[None] | None = None
        self._jobs: dict[str, Job] = {}
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()
        self._stopping = False
        self._is_abandoned = False
        #: Why it does not run now; empty if it runs or has not started yet.
        self.problem = ""
        #: Factor on the time that a job may take to start, because on a busy machine a restarted Spark is as slow.
        self.timeout_factor = 1
        self._heard_s = 0.0
        #: Drivers that have ended without having been asked to.
        self.lost = 0
        # Because Spark leaves its scratch files behind when it is killed.
        self._scratch = Scratch()
        # Workers of a local Spark are forked from this installation; executors elsewhere need the code shipped.
        self._archive = None if settings.kind is SparkKind.LOCAL else make_archive(self._scratch.path)

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called, so that nothing more starts."""
        return self._stopping

    @property
    def is_ready(self) -> bool:
        """Whether Spark's driver runs and accepts jobs."""
        started = self._ready is not None and self._ready.done() and not self._ready.cancelled()
        return started and self._process is not None and time.monotonic() - self._heard_s <= _SILENCE_S

    @property
    def jobs(self) -> int:
        """How many jobs run or wait for a slot."""
        return len(self._jobs)

    @property
    def code(self) -> str:
        """The name of the code that slices run (:func:`running_code` there)."""
        return self._archive.stem if self._archive is not None else running_code()

    def begin(self) -> asyncio.Task[None]:
        """Start Spark in the background; the first job raises the task's error again."""
        task = self._scope.spawn(self.ready(), "start Spark")
        task.add_done_callback(_retrieve)
        return task

    async def start_job(self, payload: Mapping[str, Any], query: str) -> Job:
        """Start one slice; ``query`` is its ``transform.sql``, empty for none. Raises :class:`EngineLost` or
        :class:`EngineBroken` if Spark does not start."""
        await self.ready()
        if self._process is None:  # it ended before the event that it is ready was handled
            raise EngineLost("Spark's driver process ended just after its start")
        return self._job("start", query=query, payload=dict(payload))

    def _job(self, kind: str, **command: Any) -> Job:
        job = Job(str(next(self._ids)), asyncio.get_running_loop().create_future())
        job.finished.add_done_callback(_retrieve)
        self._jobs[job.job_id] = job
        self._report({"type": kind, "job": job.job_id, **command})
        return job

    async def problem_of_query(self, query: str) -> str:
        """Return what is wrong with a ``transform.sql``, in Spark's words; empty if nothing is. Raises
        :class:`EngineLost` or :class:`EngineBroken` if Spark cannot be asked."""
        await self.ready()
        check = self._job("check", query=query)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                return await check.finished
        except TimeoutError as error:
            raise EngineLost(f"Spark did not check the query within {_START_TIMEOUT_S:.0f} s") from error
        finally:
            self._jobs.pop(check.job_id, None)

    def cancel(self, job: Job) -> None:
        """Cancel a job in Spark, as the last resort: its Python worker may continue to write for a moment."""
        if not job.finished.done():
            self._report({"type": "cancel", "job": job.job_id})

    @property
    def may_be_full(self) -> bool:
        """Whether a job that does not run may be waiting for a slot. True if Spark answers and, on this machine, has
        more jobs than slots; elsewhere only Spark knows its slots."""
        if self._process is None or time.monotonic() - self._heard_s > _SILENCE_S:
            return False
        slots = self.settings.slots() if self.settings.kind is SparkKind.LOCAL else None
        return slots is None or len(self._jobs) > slots

    def abandon_if_frozen(self) -> bool:
        """Kill Spark, unless a job that does not run may be waiting for a slot; return whether the job is lost."""
        if self._process is None:
            return True
        if self.may_be_full:
            return False
        self._abandon(self._process.pid, "Spark does not run the jobs that it gets; starting another one")
        return True

    def _abandon(self, pid: int, why: str) -> None:
        if not self._is_abandoned:  # else another task has abandoned it already
            log.warning("%s", why)
            self._is_abandoned = True
            self.timeout_factor = min(2 * self.timeout_factor, _MAX_TIMEOUT_FACTOR)
        _kill_group(pid)

    def has_run(self) -> None:
        """Note that a job runs, so Spark is neither frozen nor slow."""
        self.timeout_factor = 1

    async def stop(self) -> None:
        """End the driver process and its JVM within a few seconds, in any state."""
        self._stopping = True
        async with self._lock:  # because the process of a cancelled launch would have no owner
            process = self._process
        if process is None:
            await self._closed()
            return
        if self._jobs:
            # Jobs whose slices have just sent «done» are about to end.
            await asyncio.wait([job.finished for job in self._jobs.values()], timeout=_LAST_ROWS_S)
        if self._ready is not None and not self._ready.done():
            _kill_group(process.pid)  # a starting driver reads no commands, and has no session to close yet
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(self.settings.closing_s + _STOP_MARGIN_S):
                await process.wait()
        except TimeoutError:
            _kill_group(process.pid)
            await process.wait()
        _kill_group(process.pid)
        await self._closed()

    async def _closed(self) -> None:
        """Clean up after Spark's last events are read."""
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._scope.close()
        self._scratch.remove()

    async def ready(self) -> None:
        """Start Spark if necessary, and wait until it accepts jobs. Raises EngineLost or EngineBroken."""
        async with self._lock:
            if self._stopping:
                raise EngineLost("Spark was stopped")
            if self._is_abandoned:
                await asyncio.wait(self._readers)  # else the next job would go to the process that is ending
                self._is_abandoned = False
            if self._ready is None or (self._ready.done() and self._process is None):
                try:
                    await self._launch()
                except OSError as error:
                    raise EngineLost(f"Spark's driver process could not be started: {error}") from error
        assert self._ready is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            silent_s = time.monotonic() - self._heard_s
            if self._process is not None and silent_s > _START_SILENCE_S * self.timeout_factor:
                self._abandon(
                    self._process.pid, f"Spark is starting and has printed nothing for {silent_s:.0f} s; restarting it"
                )
            raise EngineLost(f"Spark was not ready within {_START_TIMEOUT_S:.0f} s") from error

    async def _launch(self) -> None:
        # A separate pipe, because for asyncio a process ends only when its pipes are closed, and a hanging Python
        # worker, in another process group, keeps this one open.
        printed, printing_end = os.pipe()
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(printed, "rb", 0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "connectors.spark.driver_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=printing_end,
                env=self.settings.environment(str(self._scratch.path)),
                limit=_MAX_EVENT_BYTES,
                # A separate group, because a terminal's Ctrl-C is for the worker, which then stops Spark.
                start_new_session=True,
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(printing_end)
        # Not earlier, because if no process starts, a caller would wait for it without end.
        self._ready = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(_retrieve)
        self._process = process
        self._heard_s = time.monotonic()
        conf = self.settings.merged()
        if "spark.driver.extraJavaOptions" in conf:
            conf["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={self._scratch.path}"
        self._report(
            {
                "conf": conf,
                "properties": javaproperties.dumps(conf, timestamp=False),
                "archive": "" if self._archive is None else str(self._archive),
                "close_timeout_s": self.settings.closing_s,
            }
        )
        self._printed.clear()
        printing = self._scope.spawn(self._read_printed(output), "output of Spark")
        printing.add_done_callback(lambda _: pipe.close())
        self._readers = [self._scope.spawn(self._read(process, printing), "events of Spark")]
        self._scope.spawn(_clear_up(), "scratch files of other Sparks")

    def _report(self, command: Mapping[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(orjson.dumps(command) + b"\n")

    async def _read(self, process: asyncio.subprocess.Process, printing: asyncio.Task[None]) -> None:
        assert process.stdout is not None
        end: Exception | None = None
        try:
            while line := await process.stdout.readline():
                self._heard_s = time.monotonic()
                event = orjson.loads(line)
                if event["type"] == "broken":
                    # The driver ends now, and the JVM's output may arrive after this event.
                    await asyncio.wait({printing}, timeout=_LAST_WORDS_S)
                    end = self._why_broken(SparkFailure.from_wire(event["failure"]))
                elif event["type"] == "lost":
                    end = EngineLost(f"Spark ({self.settings.place}) was lost: {event['reason']}")
                else:
                    self._happened(event)
            await process.wait()
            _kill_group(process.pid)
            await asyncio.wait({printing}, timeout=_LAST_ROWS_S)
        except Exception as error:
            log.error("Spark's driver process sent an invalid event; restarting it", exc_info=error)
        finally:
            _kill_group(process.pid)
            printing.cancel()
            if process.stdin is not None:
                process.stdin.close()
            last_words = " | ".join(self._printed) or "nothing"
            self._lost(end or EngineLost(f"Spark's driver process ended; it last printed: {last_words}"))

    def _why_broken(self, failure: SparkFailure) -> Exception:
        """Return EngineLost if a retry may help, as for a cluster; a local JVM that ended several times is broken."""
        if _NO_JVM in failure.text and self._ended_starts < _MOST_ENDED_STARTS:
            self._ended_starts += 1
            return EngineLost(f"Spark's JVM ended while it started: {_reason(self._printed) or 'it printed nothing'}")
        if self.settings.kind is SparkKind.LOCAL or _NO_JVM in failure.text:
            failure = replace(failure, text=_reason(self._printed) or failure.text, settings=True)
        if failure.settings:
            return EngineBroken(f"Spark does not start: {failure.text}; check the spark.* keys")
        return EngineLost(f"Spark at {self.settings.place} does not accept the application: {failure.text}")

    async def _read_printed(self, output: asyncio.StreamReader) -> None:
        """Read what Spark, its JVM and its Python workers print, for the debug log and for the message when it ends."""
        while True:
            try:
                line = await output.readline()
            except ValueError:  # a line over the limit: its head is dropped
                continue
            if not line:
                return
            if self._ready is not None and not self._ready.done():
                self._heard_s = time.monotonic()  # a starting Spark gives no other sign of life
            text = line.decode(errors="replace").rstrip()
            self._printed.append(text)
            log.debug("Spark: %s", text)

    def _happened(self, event: dict[str, Any]) -> None:
        if event["type"] == "ready":
            log.info("Spark %s is ready (%s)", event["spark"], self.settings.place)
            self._ended_starts, self.problem = 0, ""
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            return
        if event["type"] == "notice":
            log.warning("%s", event["text"])
        job = self._jobs.pop(event.get("job", ""), None)
        if job is None or job.finished.done():
            return
        if event["type"] == "done":
            job.finished.set_result(event["result"])
        else:
            job.finished.set_exception(_job_error(SparkFailure.from_wire(event["failure"])))

    def _lost(self, error: Exception) -> None:
        self._process = None
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        if not self._stopping:
            self.problem = str(error)
            log.warning("%s", error)
            self.lost += 1
        for job in self._jobs.values():
            if not job.finished.done():
                job.finished.set_exception(error)
        self._jobs.clear()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future that may have no waiter, because asyncio would log it."""
    if not done.cancelled():
        done.exception()


def _job_error(failure: SparkFailure) -> Exception:
    if failure.unfit:
        return ExecutorsIncompatible(
            f"the Python of an executor {failure.unfit}; every executor needs Heliograph's dependencies and the Python "
            "version of this worker (spark.pyspark.python names it; docs/spark.md)"
        )
    return (SliceCrashed if failure.python else RetriableError)(f"the Spark job failed: {failure.text}")


def _reason(printed: Iterable[str]) -> str:
    """Return the line of a JVM's output that says why it ended: the first exception, else the first line."""
    said = [line for line in printed if line.strip() and not line.startswith(("WARNING", "\tat "))]
    return next((line for line in said if _EXCEPTION.search(line)), said[0] if said else "")


def _kill_group(pid: int) -> None:
    """Kill the driver's whole process group, JVM and Python workers included, so that none outlives the driver."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _clear_up() -> None:
    if removed := await asyncio.to_thread(remove_stale_folders):
        log.info("removed scratch files of %d Spark drivers whose workers were killed", removed)


class Scratch:
    """A new folder, locked by this process until it ends or is killed. Raises OSError if none can be made."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Child processes, which may outlive this one, do not inherit the file.
        self._held = (self.path / _HELD).open("wb")
        fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder and its content; does nothing if called again."""
        self._held.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_stale_folders(now_s: float | None = None) -> int:
    """Remove this user's folders that no process locks any more; return how many. ``now_s``: seconds since 1970."""
    latest_s = (time.time() if now_s is None else now_s) - _YOUNG_S
    found = Path(tempfile.gettempdir()).glob(_PREFIX + "*")
    left = list(itertools.islice((folder for folder in found if _is_left(folder, latest_s)), _MOST_AT_ONCE))
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def _is_left(folder: Path, latest_s: float) -> bool:
    try:
        seen = folder.lstat()
        if folder.is_symlink() or seen.st_uid != os.getuid() or seen.st_mtime > latest_s:
            return False
        with (folder / _HELD).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, made by a version without locks, or removed meanwhile
        return False
    return True
