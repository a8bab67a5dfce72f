"""Defines how a worker controls a running task, measures it, and is notified of its events.

The metrics are Kafka's ``WorkerTask`` and source metrics. Times are in milliseconds of ``clock``; rates, maxima and
means cover a window of about a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from connect.core.errors import may_recover
from connect.core.metrics import StateTimes, Windowed
from connect.core.model import State, TargetState, TaskId
from connect.kafka.concurrency import Scope, wall_ms
from connect.runtime.plugins.plugin_errors import SecretMask


class Interrupted(Exception):
    """The task stops and must not continue with this record; never leaves the task's loop."""


class TaskControl:
    """The target state of one task. STOPPED, which tasks should never get, is a request to stop."""

    def __init__(self, target: TargetState) -> None:
        self.stopping = asyncio.Event()
        self._target = target
        self._changed = asyncio.Event()
        self._scope: asyncio.Timeout | None = None
        self.set_target(target)

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    @property
    def is_paused(self) -> bool:
        return self._target is TargetState.PAUSED and not self.is_stopping

    def set_target(self, target: TargetState) -> None:
        """Set the target state; no effect once the task is stopping."""
        if self.is_stopping:
            return
        self._target = target
        self._changed.set()
        if target is TargetState.STOPPED:
            self.stop()

    def stop(self) -> None:
        self.stopping.set()
        self._changed.set()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def changed(self) -> None:
        """Wait for the next request after the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def unpaused(self) -> bool:
        """Wait while the task is paused; return False if it is stopping."""
        while self.is_paused:
            await self.changed()
        return not self.is_stopping

    async def unless_stopped(self, doing: Callable[[], Awaitable[None]]) -> bool:
        """Await ``doing``; return False if a stop interrupted it."""
        scope = self._scope = asyncio.timeout(0 if self.is_stopping else None)
        try:
            async with scope:
                await doing()
        except TimeoutError:
            if not scope.expired():
                raise
            return False
        finally:
            self._scope = None
        return True


@dataclass(slots=True)
class Starts:
    """Numbers of attempted and successful starts of connectors, or tasks, on a worker."""

    succeeded: int = 0
    failed: int = 0
    #: 1 for each successful start, 0 for each failed one.
    well: Windowed = field(default_factory=Windowed, compare=False)
    clock: Callable[[], int] = field(default=wall_ms, repr=False)

    def ended(self, *, well: bool) -> None:
        self.succeeded += well
        self.failed += not well
        self.well.record(well, self.clock())


@dataclass(slots=True)
class TaskCounters:
    """Counts since the task was created. ``last_error_ms`` is since the epoch (0: none yet). ``polled``: records that
    the task returned. ``written``: records sent. ``active``: records polled, but not yet written or skipped.
    ``failures``: failed attempts, ``errors``: failed records, ``skipped``: records skipped after errors, ``retries``:
    retried attempts, ``logged``: logged errors. ``transaction_records``: the size of each committed transaction.
    ``commits_well``: 1 for each successful commit, 0 for each failed one."""

    polled: int = 0
    written: int = 0
    active: int = 0
    poll_records: Windowed = field(default_factory=Windowed)
    written_records: Windowed = field(default_factory=Windowed)
    active_records: Windowed = field(default_factory=Windowed)
    poll_ms: Windowed = field(default_factory=Windowed)
    batch_records: Windowed = field(default_factory=Windowed)
    commit_ms: Windowed = field(default_factory=Windowed)
    commits_well: Windowed = field(default_factory=Windowed)
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    retries: int = 0
    logged: int = 0
    last_error_ms: int = 0
    transaction_records: Windowed = field(default_factory=Windowed)
    states: StateTimes = field(default_factory=StateTimes)
    clock: Callable[[], int] = field(default=wall_ms, repr=False)

    def changed(self, state: State) -> None:
        self.states.changed(state, self.clock())

    def batch_polled(self, records: int, took_ms: float) -> None:
        now_ms = self.clock()
        self.polled += records
        self.poll_records.record(records, now_ms)
        self.poll_ms.record(took_ms, now_ms)
        self.active += records
        self.active_records.record(self.active, now_ms)

    def batch_taken(self, records: int) -> None:
        """Count a batch about to be sent; a retried batch counts again."""
        self.batch_records.record(records, self.clock())

    def record_done(self, *, written: bool) -> None:
        """Count a record that was sent or skipped."""
        now_ms = self.clock()
        self.active -= 1
        self.active_records.record(self.active, now_ms)
        if written:
            self.written += 1
            self.written_records.record(1, now_ms)

    def copied(self, records: int, batches: int) -> None:
        """Count records that an engine has read and written; the mean size of their batches counts once."""
        now_ms = self.clock()
        self.polled += records
        self.written += records
        self.poll_records.record(records, now_ms)
        self.written_records.record(records, now_ms)
        if batches:
            self.batch_records.record(records / batches, now_ms)

    def left_out(self, records: int) -> None:
        """Count records that an engine left out because of an error."""
        self.failures += records
        self.errors += records
        self.skipped += records
        self.last_error_ms = self.clock()

    def committed(self, took_ms: float) -> None:
        now_ms = self.clock()
        self.commit_ms.record(took_ms, now_ms)
        self.commits_well.record(1, now_ms)

    def commit_failed(self) -> None:
        self.commits_well.record(0, self.clock())

    def transaction_committed(self, records: int) -> None:
        self.transaction_records.record(records, self.clock())


#: Reports that the task is now RUNNING or PAUSED.
Report = Callable[[State], None]


class TaskRun(Protocol):
    """One run of a task. After :meth:`start` was called :meth:`close` is, whatever happens between."""

    async def start(self) -> None:
        """Do everything up to RUNNING. Raises the error that prevents it, or Interrupted if the task is stopping."""

    async def execute(self, control: TaskControl, report: Report) -> None:
        """Work until ``control`` requests a stop, with pauses. Raises the error that ends the task."""

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        """Continue with another resolved config; return False if that needs a restart. Called while it executes."""

    async def close(self, timeout_s: float) -> None:
        """Close everything; failures are logged. ``timeout_s`` is for what is still to be sent. After a cancelled
        close it is called again, for the rest."""

    async def abandon(self) -> None:
        """Send and store nothing more, because the task did not stop in time, and do not wait for its author's code.
        A :meth:`close` may be running, or follow."""


Check = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ClaimChecks:
    """What a task awaits when it claims its transactional id; whatever it raises fails the task. ``before``: zombie
    fencing, before the claim. ``after``: after the claim: is the task still ours? ``is_stopping``: whether the task is
    stopping; then it claims nothing, because a successor may have."""

    before: Check | None
    after: Check | None
    is_stopping: Callable[[], bool]

    async def may_claim(self) -> None:
        """Raise Interrupted if the task is stopping."""
        if self.before is not None:
            await self.before()
        if self.is_stopping():
            raise Interrupted


@dataclass(slots=True)
class Known:
    """Facts filled in step by step, so that after an error the known ones are shown and all known secrets masked."""

    version: str | None = None
    #: Classes and versions by Java's attributes, as ``task-class``.
    parts: dict[str, str] = field(default_factory=dict)
    #: Of each transform and predicate: kind, alias, class, version.
    steps: list[tuple[str, str, str, str]] = field(default_factory=list)
    secrets: SecretMask = field(default_factory=SecretMask)


@dataclass(frozen=True, slots=True)
class FailureTrace:
    """Why a connector or task is FAILED: the error's full text without resolved secrets, and whether a restart may
    help. ``is_at_end``: it failed while stopping, so no restart follows; another instance may run by then."""

    trace: str
    may_recover: bool
    is_at_end: bool = False

    @classmethod
    def of(cls, error: Exception, secrets: SecretMask, *, is_at_end: bool = False) -> FailureTrace:
        return cls(secrets.trace(error), may_recover(error), is_at_end)


class Runner:
    """A connector or task in its own asyncio task. ``state`` is the last reported one, for metrics."""

    def __init__(self, name: str, starts: Starts) -> None:
        self.state = State.UNASSIGNED
        self.known = Known()
        self._starts: Starts | None = starts
        self._abandoned = False
        self._scope = Scope(name)
        self._running: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start to run; the returned task ends when everything has stopped, and never raises."""
        self._running = self._scope.spawn(self._run(), self._scope.name)
        return self._running

    def unfinished(self) -> list[asyncio.Task[None]]:
        return [each for each in (self._running, self._leaving) if each is not None and not each.done()]

    def _reported(self, state: State) -> None:
        if self._starts is not None:
            # The first reported state says whether the start succeeded.
            self._starts.ended(well=state is not State.FAILED)
            self._starts = None
        self.state = state

    async def _run(self) -> None:
        raise NotImplementedError


class WorkerListener(Protocol):
    """Notified of every change, in order, in the worker's loop; must neither block nor raise. ``failure`` is given with
    FAILED; ``version`` is that of the connector's plugin."""

    def reported(self, work: str | TaskId, state: State, failure: FailureTrace | None, version: str | None) -> None:
        """Note that a connector or task is RUNNING, PAUSED, STOPPED, FAILED, or no longer here (UNASSIGNED)."""

    def connector_failed(self, name: str) -> None:
        """Note that a running instance FAILED; not called if it failed while stopping: another may start by then."""

    def task_configs_wanted(self, name: str) -> None:
        """Note that a connector has reached STARTED, or requests a reconfiguration of its tasks."""

    def topic_used(self, topic: str, task: TaskId) -> None:
        """Note a task's record to a topic (KIP-558); called for every record or batch, because a user may reset the
        list of topics at any time."""
