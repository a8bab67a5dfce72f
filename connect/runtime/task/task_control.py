"""Defines how a worker controls a running task, measures it, and hears of its events.

* Signals of a worker to a task: pause, resume, stop.
* Metrics of a task (Kafka's ``WorkerTask`` and source metrics). Times are in milliseconds of ``clock``; rates, maxima
  and means cover a window of about a minute.
* Protocols of the two kinds of task: a polled task, and a task that owns its engine.
* Facts that are found while a connector or a task is created.
* The listener that receives the events of the connectors and tasks of a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from connect.core.errors import may_recover
from connect.core.metrics import StateTimes, Windowed
from connect.core.model import State, TargetState, TaskId
from connect.kafka.concurrency import wall_ms
from connect.runtime.plugins.plugin_errors import SecretMask


class TaskControl:
    """The wishes for one task. A target of STOPPED, which tasks should never get, is taken as a wish to stop."""

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
        """What the task is to do; without effect once it is to stop."""
        if self.is_stopping:
            return
        self._target = target
        self._changed.set()
        if target is TargetState.STOPPED:
            self.stop()

    def stop(self) -> None:
        """The task is to end soon and cleanly."""
        self.stopping.set()
        self._changed.set()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def changed(self) -> None:
        """Wait for the next wish after the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def unpaused(self) -> bool:
        """Wait while the task is to pause; False: it is to stop."""
        while self.is_paused:
            await self.changed()
        return not self.is_stopping

    async def unless_stopped(self, doing: Callable[[], Awaitable[None]]) -> bool:
        """Await ``doing``, which is given up when the task is to stop; False then."""
        with self.ended_by_stop() as scope:
            try:
                async with scope:
                    await doing()
            except TimeoutError:
                if not scope.expired():
                    raise
                return False
        return True

    @contextmanager
    def ended_by_stop(self) -> Iterator[asyncio.Timeout]:
        """Lends a time-out scope for one wait that is given up when the task is to stop."""
        self._scope = asyncio.timeout(0 if self.is_stopping else None)
        try:
            yield self._scope
        finally:
            self._scope = None


@dataclass(slots=True)
class Starts:
    """How often connectors, or tasks, were started on a worker, and how often that went well."""

    succeeded: int = 0
    failed: int = 0
    #: One for each that went well, zero for each that did not.
    well: Windowed = field(default_factory=Windowed, compare=False)
    clock: Callable[[], int] = field(default=wall_ms, repr=False)

    def ended(self, *, well: bool) -> None:
        self.succeeded += well
        self.failed += not well
        self.well.record(well, self.clock())


@dataclass(slots=True)
class TaskCounters:
    """Counts since the task was made. ``last_error_ms`` is since the epoch (0: none yet).

    ``polled``: records that the task returned. ``written``: those that were sent, ``active`` those that are polled and
    neither written nor left out yet. ``failures``: attempts that failed, ``errors``: records that did, ``skipped``:
    those that were left out for it, ``retries``: attempts that were repeated, ``logged``: errors told to the log.
    ``transaction_records``: the size of each committed transaction. ``commits_well``: one for each commit that went
    well, zero for each that did not.
    """

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
        """So many are about to be handed over; a batch that is tried again counts again."""
        self.batch_records.record(records, self.clock())

    def record_done(self, *, written: bool) -> None:
        """A record was given to the producer, or left out."""
        now_ms = self.clock()
        self.active -= 1
        self.active_records.record(self.active, now_ms)
        if written:
            self.written += 1
            self.written_records.record(1, now_ms)

    def committed(self, took_ms: float) -> None:
        now_ms = self.clock()
        self.commit_ms.record(took_ms, now_ms)
        self.commits_well.record(1, now_ms)

    def commit_failed(self) -> None:
        self.commits_well.record(0, self.clock())

    def transaction_committed(self, records: int) -> None:
        self.transaction_records.record(records, self.clock())


#: Tells that the task is RUNNING or PAUSED now.
Tell = Callable[[State], None]


class TaskRun(Protocol):
    """One life of a task. After :meth:`start` was called :meth:`close` is, whatever happens between."""

    async def start(self) -> None:
        """Everything up to RUNNING. Raises what makes it impossible, Interrupted where it was told to stop."""
        ...

    async def execute(self, control: TaskControl, tell: Tell) -> None:
        """Work until ``control`` wants the end; pauses in between. Raises what ends the task."""
        ...

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        """Go on with another config, references resolved; False: that takes a new life. Called while it executes."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Let go of everything; what fails is logged. ``timeout_s`` is for what is still to be sent. After a close that
        was cancelled it is called again, for what that left."""
        ...

    async def abandon(self) -> None:
        """The task was given time enough: send and store nothing more, whatever its author's code still does, which is
        not waited for. A :meth:`close` may be under way, or follow."""
        ...


@dataclass(slots=True)
class Known:
    """Filled in step by step, so that an error halfway shows what is known by then and none of the secrets."""

    version: str | None = None
    #: Classes and versions by Java's attributes, as ``task-class``.
    parts: dict[str, str] = field(default_factory=dict)
    #: Of each transform and predicate: kind, alias, class, version.
    steps: list[tuple[str, str, str, str]] = field(default_factory=list)
    secrets: SecretMask = field(default_factory=SecretMask)


@dataclass(frozen=True, slots=True)
class FailureTrace:
    """Why a connector or a task is FAILED: the whole text of the error, free of resolved secrets, and whether a
    restart may help. ``is_at_end``: it was to end, so no restart follows; another may run by then."""

    trace: str
    may_recover: bool
    is_at_end: bool = False

    @classmethod
    def of(cls, error: Exception, secrets: SecretMask, *, is_at_end: bool = False) -> FailureTrace:
        return cls(secrets.trace(error), may_recover(error), is_at_end)


class WorkerListener(Protocol):
    """Hears of every change, in order, within the worker's loop; must neither block nor raise.

    ``failure`` is given with FAILED; ``version`` is that of the connector's plugin.
    """

    def connector_changed(self, name: str, state: State, failure: FailureTrace | None, version: str | None) -> None:
        """An instance is RUNNING, PAUSED, STOPPED, FAILED, or gone from here (UNASSIGNED)."""
        ...

    def connector_failed(self, name: str) -> None:
        """An instance that was to run is FAILED; not said of one that fails as it ends: another may start by then."""
        ...

    def task_changed(self, task: TaskId, state: State, failure: FailureTrace | None, version: str | None) -> None:
        """A task is RUNNING, PAUSED, FAILED, or gone from here (UNASSIGNED)."""
        ...

    def task_configs_wanted(self, name: str) -> None:
        """A connector has reached STARTED, or asks for its tasks to be configured anew."""
        ...

    def topic_used(self, topic: str, task: TaskId) -> None:
        """A task has written a record to a topic, its first one there since it began (KIP-558)."""
        ...
