"""Holds the state of a herder, which the modules of this package share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.herder.assignor import IncrementalAssignor
from connect.core.herder.events import Effect, ReadConfig, Reply, Request, Say, WriteConfig
from connect.core.herder.membership import COMPATIBLE, EAGER, SESSIONED, Allocation, Assignment
from connect.core.model import RestartRequest, TaskId
from connect.core.status_and_offset_topics import StatusLog

#: Protocols offered for each ``connect.protocol``, the preferred first (Kafka's ``ConnectProtocolCompatibility``).
OFFERED: Final[Mapping[str, tuple[str, ...]]] = {
    "eager": (EAGER,),
    "compatible": (COMPATIBLE, EAGER),
    "sessioned": (SESSIONED, COMPATIBLE, EAGER),
}

#: Attempts to read the config topic, each after a longer pause, before the pauses start over (``BACKOFF_RETRIES``).
READ_ATTEMPTS: Final = 5

#: Used even if rebalances are never delayed.
LEAST_PAUSE_MS: Final = 250
_MAX_PAUSE_MS: Final = 60_000

Step = tuple[tuple[str, bytes | None], ...]


def pause_ms(failures: int) -> int:
    """Return the pause before the next attempt after ``failures`` earlier failures in a row."""
    # The exponent is limited too, to avoid large integers.
    return min(LEAST_PAUSE_MS << min(failures, 16), _MAX_PAUSE_MS)


class HerderMode(StrEnum):
    """The state of a worker's group membership."""

    #: The topics have not been read yet.
    LOADING = "loading"
    #: Out of the group until the config topic can be read.
    AWAY = "away"
    JOINING = "joining"
    #: A rebalance has ended, and its work has not started yet.
    RESOLVING = "resolving"
    MEMBER = "member"
    GONE = "gone"


@dataclass(slots=True)
class MutableAllocation:
    connectors: set[str] = field(default_factory=set)
    tasks: set[TaskId] = field(default_factory=set)

    def add(self, other: Allocation) -> None:
        self.connectors.update(other.connectors)
        self.tasks.update(other.tasks)

    def remove(self, other: Allocation) -> None:
        self.connectors.difference_update(other.connectors)
        self.tasks.difference_update(other.tasks)

    def clear(self) -> None:
        self.connectors.clear()
        self.tasks.clear()

    def freeze(self) -> Allocation:
        return Allocation(tuple(sorted(self.connectors)), tuple(sorted(self.tasks)))


@dataclass(slots=True)
class Publishing:
    """The progress of task configs of this worker's connectors to the config topic, by connector."""

    #: Task configs to compute as soon as possible; a dict for its order.
    wanted: dict[str, None] = field(default_factory=dict)
    #: Tokens of computations in progress: a result with an older token is from an older instance.
    computing: dict[str, int] = field(default_factory=dict)
    #: Results that have not been handled yet.
    computed: dict[str, tuple[Mapping[str, str], ...] | Exception] = field(default_factory=dict)
    #: Tokens of task configs sent to the leader, without a response yet.
    sending: dict[str, int] = field(default_factory=dict)
    #: The last computed task configs that were written or already in the topic. Other task configs that overwrite them
    #: are corrected.
    published: dict[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    #: Stopped connectors that have tasks, and when the leader removes these.
    remove_tasks_at_ms: dict[str, int] = field(default_factory=dict)
    #: Times of retries.
    retry_at_ms: dict[str, int] = field(default_factory=dict)
    #: Failed attempts in a row.
    failures: dict[str, int] = field(default_factory=dict)
    #: Start times of the first failed attempts.
    first_ms: dict[str, int] = field(default_factory=dict)

    def forget(self, connector: str) -> None:
        steps: tuple[dict[str, Any], ...] = (self.wanted, self.computing, self.computed, self.sending, self.published)
        for step in steps:
            step.pop(connector, None)
        self.succeed(connector)

    def succeed(self, connector: str) -> None:
        for attempts in (self.retry_at_ms, self.failures, self.first_ms):
            attempts.pop(connector, None)


@dataclass(slots=True)
class PendingEvent:
    """An operation in progress that ends with an event. An exclusive one delays joins and requests until then."""

    exclusive: bool
    then: Callable[[Exception | bool | None], None]


class HerderState:
    """The whole state of a herder. Only the modules of this package change it and add to ``out``.

    Args:
        config: The worker's settings.
        worker_url: This worker's advertised REST URL.
        statuses: The folded status topic; never changed here.
        can_run: Whether this worker has the class of a connector, by its raw config. Members with a lease have the same
            plugins as this worker; which plugins Java members have is not known.

    Invariants: ``running`` is within ``held``, except for work that the config topic has removed since; in MEMBER all
    configured work in ``held`` runs; in JOINING exactly one join is in progress.
    """

    def __init__(
        self,
        config: WorkerConfig,
        worker_url: str,
        statuses: StatusLog,
        can_run: Callable[[Mapping[str, str]], bool] = lambda _: True,
    ) -> None:
        self.config = config
        self.worker_url = worker_url
        self.statuses = statuses
        self.can_run = can_run
        #: The folded config topic.
        self.snapshot = ConfigLog()
        #: Whether records of the config topic are history, which sets the state but triggers no actions.
        self.history = True
        self.assignor = IncrementalAssignor(config.max_delay_ms, config.max_delay_is_set)
        self.out: list[Effect] = []
        self.now_ms = 0

        self.mode = HerderMode.LOADING
        #: Whether the worker has completed a rebalance.
        self.is_ready = False
        #: The group's protocol by its name on the wire; before the first rebalance the preferred one.
        self.protocol = OFFERED[config.connect_protocol][0]
        self.member: str | None = None
        #: The generation of the last rebalance, -1 before the first.
        self.generation = -1
        self.last_assignment: Assignment | None = None
        #: The work assigned to this worker (Java's assignment snapshot); None before the first assignment.
        self.held: MutableAllocation | None = None
        #: The work that was started here and not stopped since.
        self.running = MutableAllocation()
        self.join_token = 0
        #: The number of rebalances assigned by this worker, and the last one that it completed as leader, else -1.
        self.round = 0
        self.completed_round = -1
        self.rejoin = False
        #: Whether a warning was logged about another member with the same REST address.
        self.said_same_url = False
        #: When the work must stop, unless this worker has joined the current rebalance.
        self.join_by_ms: int | None = None
        self.scheduled_ms: int | None = None
        self.away_until_ms: int | None = None
        #: Consecutive rebalances without effect, and when to join the next one unless that is at once.
        self.failed_rounds = 0
        self.again_at_ms: int | None = None
        self.read_attempts = READ_ATTEMPTS
        self.must_read = False

        #: Configured connectors, as of the last handled change.
        self.known: set[str] = set()
        #: The config offset after the last record that added or removed connectors or tasks.
        self.changed_at = -1
        #: The time of the first such record since the last assignments.
        self.changed_ms = 0
        self.restarts: dict[str, RestartRequest] = {}
        #: Times of automatic restarts.
        self.auto_restart_at_ms: dict[str | TaskId, int] = {}

        #: On the leader: the owners by the last assignments, and the URLs of members.
        self.owners: Mapping[str | TaskId, str] = {}
        self.urls: Mapping[str, str] = {}
        #: On the leader: the URLs of the Java members.
        self.java_urls: tuple[str, ...] = ()
        self.claim = False
        self.making_key = False
        #: Consecutive failures to write a session key, and the time of the next attempt.
        self.key_failures = 0
        self.key_again_ms = 0

        self.publishing = Publishing()
        #: Ids of requests without a reply; a dict for its order.
        self.open: dict[int, None] = {}
        #: Queued requests by id, the oldest first.
        self.requests: OrderedDict[int, Request] = OrderedDict()
        #: Ids of requests that wait for the start of a connector, by connector.
        self.starting: dict[str, list[int]] = {}
        self.waiting: dict[int, PendingEvent] = {}
        self._token = 0

    # views

    @property
    def busy(self) -> bool:
        return self.making_key or any(one.exclusive for one in self.waiting.values())

    @property
    def is_leader(self) -> bool:
        return self.last_assignment is not None and self.member == self.last_assignment.leader

    @property
    def is_stopping(self) -> bool:
        """Whether the worker is leaving its group permanently."""
        return self.mode is HerderMode.GONE

    @property
    def assignment(self) -> Allocation:
        """All work assigned by the last rebalance, started or not."""
        return (self.held or MutableAllocation()).freeze()

    @property
    def leader_url(self) -> str | None:
        """The leader's REST URL; None if the leader is not known."""
        return self.last_assignment.leader_url if self.last_assignment is not None else None

    @property
    def has_changed(self) -> bool:
        """Whether connectors or tasks were added or removed since the last assignments."""
        return self.last_assignment is not None and self.changed_at > self.last_assignment.config_offset

    @property
    def rebalance_expected(self) -> bool:
        """Whether a config change is about to cause a rebalance, so that knowledge of other workers may be outdated."""
        return self.mode is HerderMode.MEMBER and self.has_changed

    def change(self) -> None:
        """Note that the record just read added or removed connectors or tasks."""
        if not self.has_changed:
            self.changed_ms = self.now_ms
        self.changed_at = self.snapshot.offset

    # effects

    def emit(self, effect: Effect) -> None:
        self.out.append(effect)

    def say(self, line: str, level: str = "info") -> None:
        self.out.append(Say(level, line))

    def reply(self, request: int, value: object = None, error: Exception | None = None) -> None:
        del self.open[request]
        self.out.append(Reply(request, value, error))

    def read_config(self, then: Callable[[bool], None]) -> None:
        """Read the config topic to its end; nothing else begins meanwhile."""
        token = self._wait(exclusive=True, then=lambda ok: then(ok is True))
        self.emit(ReadConfig(token, self.config.sync_timeout_ms))

    def write_config(self, steps: Iterable[Step], then: Callable[[Exception | None], None]) -> None:
        """Write as leader; nothing else begins meanwhile."""

        def ended(error: Exception | bool | None) -> None:
            failed = error if isinstance(error, Exception) else None
            # After any error the transactional writer may be fenced, so it is claimed again before the next write.
            self.claim = self.claim or failed is not None
            then(failed)

        self.emit(WriteConfig(self._wait(exclusive=True, then=ended), tuple(steps)))

    def write_config_unordered(self, step: Step, then: Callable[[Exception | None], None]) -> None:
        """Write a step that any worker may write, without waiting for other operations."""
        token = self._wait(exclusive=False, then=lambda error: then(error if isinstance(error, Exception) else None))
        self.emit(WriteConfig(token, (step,), as_leader=False))

    def ended(self, token: int, outcome: Exception | bool | None) -> None:
        waiting = self.waiting.pop(token, None)
        if waiting is not None:
            waiting.then(outcome)

    def next_token(self) -> int:
        self._token += 1
        return self._token

    def _wait(self, *, exclusive: bool, then: Callable[[Exception | bool | None], None]) -> int:
        token = self.next_token()
        self.waiting[token] = PendingEvent(exclusive, then)
        return token
