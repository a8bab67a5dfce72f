"""What a running task counts, read by whoever shows it (Kafka's ``WorkerTask`` and source metrics).

Times are in milliseconds of ``clock``; rates, maxima and means are over a window of about a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from connect.core.measures import StateTimes, Windowed
from connect.core.model import State
from connect.kafka.clock import wall_ms


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
