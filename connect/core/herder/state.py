"""What a herder knows and what it wants done; shared by the parts that decide (``herder_*``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from connect.core.config_topic import ConfigLog
from connect.core.herder.assignor import IncrementalAssignor
from connect.core.herder.events import Effect, ReadConfig, Reply, Request, Say, WriteConfig
from connect.core.herder.membership import COMPATIBLE, EAGER, SESSIONED, Allocation, Assignment
from connect.core.model import RestartRequest, Status, TaskId

#: What ``connect.protocol`` offers, the preferred first (Kafka's ``ConnectProtocolCompatibility``).
OFFERED: Final[Mapping[str, tuple[str, ...]]] = {
    "eager": (EAGER,),
    "compatible": (COMPATIBLE, EAGER),
    "sessioned": (SESSIONED, COMPATIBLE, EAGER),
}

#: Attempts to read the config topic, each after a longer pause, before the pauses begin anew (``BACKOFF_RETRIES``).
READ_ATTEMPTS: Final = 5

#: Even where no rebalance is ever delayed.
LEAST_PAUSE_MS: Final = 250
_MAX_PAUSE_MS: Final = 60_000

Step = tuple[tuple[str, bytes | None], ...]


def pause_ms(failures: int) -> int:
    """How long what has failed so many times in a row before waits for its next attempt."""
    # Bounded twice, so that no large number is made on the way.
    return min(LEAST_PAUSE_MS << min(failures, 16), _MAX_PAUSE_MS)


class Statuses(Protocol):
    """What the status topic says, read while a step is made
    (:class:`connect.core.status_and_offset_topics.StatusLog`)."""

    def connectors(self) -> Collection[str]:
        """Connectors of which a status is known, of themselves or of a task."""
        ...

    def status(self, work: str | TaskId) -> Status | None: ...

    def tasks(self, connector: str) -> Mapping[int, Status]:
        """The known statuses of a connector's tasks, by number."""
        ...


@dataclass(frozen=True, slots=True)
class HerderSettings:
    """The worker's settings that a herder decides by, named as in the worker's file.

    Args:
        protocol: ``connect.protocol``: eager, compatible or sessioned.
        max_delay_ms: ``scheduled.rebalance.max.delay.ms``; ``max_delay_is_set`` where the worker's file has it.
        reconfigures_live: Running tasks are offered new configs before they are restarted. Not under exactly-once,
            where each set of task configs has a fencing round of its own.
        lease_ms: What members are told of how long our work outlives the last answered heartbeat; at most the
            session timeout.
        key_algorithm: ``inter.worker.key.generation.algorithm``.
        key_size_bits: ``inter.worker.key.size``; None for the algorithm's own.
        key_ttl_ms: ``inter.worker.key.ttl.ms``; 0: keys do not age.
    """

    protocol: str = "sessioned"
    worker_sync_timeout_ms: int = 3_000
    worker_unsync_backoff_ms: int = 300_000
    max_delay_ms: int = 300_000
    max_delay_is_set: bool = False
    rebalance_timeout_ms: int = 60_000
    reconfigures_live: bool = True
    lease_ms: int = 10_000
    request_timeout_ms: int = 90_000
    key_algorithm: str = "HmacSHA256"
    key_size_bits: int | None = None
    key_ttl_ms: int = 3_600_000
    verification_algorithms: tuple[str, ...] = ("HmacSHA256",)


class HerderMode(StrEnum):
    """Where a worker stands with its group."""

    #: The topics are not read yet.
    LOADING = "loading"
    #: Out of the group until the config topic can be read.
    AWAY = "away"
    JOINING = "joining"
    #: A round has ended, and its work is not begun yet.
    RESOLVING = "resolving"
    MEMBER = "member"
    GONE = "gone"


@dataclass(slots=True)
class MutableAllocation:
    """Connectors and tasks, as sets that are changed in place."""

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
    """Where the task configs of the connectors that run here stand, each on its way to the config topic."""

    #: To be computed as soon as nothing else is in the way; a dict for its order.
    wanted: dict[str, None] = field(default_factory=dict)
    #: What is under way by its token: an older answer is of an older instance.
    computing: dict[str, int] = field(default_factory=dict)
    #: Computed, and not looked at yet.
    computed: dict[str, tuple[Mapping[str, str], ...] | Exception] = field(default_factory=dict)
    #: Handed to the leader, no answer yet.
    sending: dict[str, int] = field(default_factory=dict)
    #: What was found to be its tasks last, and has been written or found there: whoever overwrites that is corrected.
    published: dict[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    #: Stopped connectors that have tasks, and when a leader is to take these away.
    stranded_at_ms: dict[str, int] = field(default_factory=dict)
    #: When to try again.
    retry_at_ms: dict[str, int] = field(default_factory=dict)
    #: Failed attempts in a row.
    failures: dict[str, int] = field(default_factory=dict)
    #: When the first of them began.
    first_ms: dict[str, int] = field(default_factory=dict)

    def forget(self, connector: str) -> None:
        self.wanted.pop(connector, None)
        self.computing.pop(connector, None)
        self.computed.pop(connector, None)
        self.sending.pop(connector, None)
        self.published.pop(connector, None)
        self.succeed(connector)

    def succeed(self, connector: str) -> None:
        self.retry_at_ms.pop(connector, None)
        self.failures.pop(connector, None)
        self.first_ms.pop(connector, None)


@dataclass(slots=True)
class PendingEvent:
    """Something begun that ends as an event. An exclusive one holds back joins and requests until then."""

    exclusive: bool
    then: Callable[[Exception | bool | None], None]


class HerderState:
    """The whole state of a herder. The parts change it and add to ``out``; nothing else does.

    Invariants: ``running`` is within ``held`` but for work that the config topic has taken away since; in MEMBER all
    of ``held`` that is configured runs; in JOINING exactly one join is under way.
    """

    def __init__(self, settings: HerderSettings, worker_url: str, statuses: Statuses) -> None:
        self.settings = settings
        self.worker_url = worker_url
        self.statuses = statuses
        self.log = ConfigLog()
        #: Whether what is read of the config topic is of before our time: it tells how things are, and is no news.
        self.history = True
        self.assignor = IncrementalAssignor(settings.max_delay_ms, settings.max_delay_is_set)
        self.out: list[Effect] = []
        self.now_ms = 0

        self.mode = HerderMode.LOADING
        self.ready = False
        self.protocol = OFFERED[settings.protocol][0]
        self.member: str | None = None
        self.generation = -1
        self.assignment: Assignment | None = None
        #: What is ours by the last assignment (Java's assignment snapshot): None before the first.
        self.held: MutableAllocation | None = None
        #: What was started here and not stopped since.
        self.running = MutableAllocation()
        self.join_token = 0
        #: Counts the rounds that we were asked to assign; the last one we saw through to its end, else -1.
        self.round = 0
        self.completed_round = -1
        self.rejoin = False
        #: Whether a member with our own REST address was warned of.
        self.said_same_url = False
        #: When our work ends, unless we have joined the round that has begun.
        self.join_by_ms: int | None = None
        self.scheduled_ms: int | None = None
        self.away_until_ms: int | None = None
        #: Rounds in a row that came to nothing, and when the next is joined where that is not at once.
        self.vain_rounds = 0
        self.again_at_ms: int | None = None
        self.read_attempts = READ_ATTEMPTS
        self.must_read = False

        #: Connectors of the config, as of the last change that was looked at.
        self.known: set[str] = set()
        #: The config offset after the last record that changed what there is to share out.
        self.changed_at = -1
        #: When the first such record came since the last round's assignments were made.
        self.changed_ms = 0
        self.restarts: dict[str, RestartRequest] = {}
        #: When what failed here is restarted automatically.
        self.auto_restart_at_ms: dict[str | TaskId, int] = {}

        #: On the leader: who owns what by the last assignments, and the members' urls.
        self.owners: Mapping[str | TaskId, str] = {}
        self.urls: Mapping[str, str] = {}
        self.claim = False
        self.making_key = False
        #: Session keys in a row that could not be written, and when the next is made.
        self.key_failures = 0
        self.key_again_ms = 0

        self.publishing = Publishing()
        #: Requests without a reply yet, by id; a dict for its order.
        self.open: dict[int, None] = {}
        #: Those of them that wait for their turn, and since when.
        self.requests: deque[tuple[int, Request]] = deque()
        #: Requests to be answered when a connector has started: id by connector.
        self.starting: dict[str, list[int]] = {}
        self.waiting: dict[int, PendingEvent] = {}
        self._token = 0

    # what may be asked

    @property
    def busy(self) -> bool:
        return self.making_key or any(one.exclusive for one in self.waiting.values())

    @property
    def is_leader(self) -> bool:
        return self.assignment is not None and self.member is not None and self.member == self.assignment.leader

    @property
    def leader_url(self) -> str | None:
        return self.assignment.leader_url if self.assignment is not None else None

    @property
    def rebalance_expected(self) -> bool:
        """Whether the config has changed what there is to share out since the last round's assignments were made."""
        return self.assignment is not None and self.changed_at > self.assignment.config_offset

    def change(self) -> None:
        """The record just read has changed what there is to share out."""
        if not self.rebalance_expected:
            self.changed_ms = self.now_ms
        self.changed_at = self.log.offset

    # what may be wanted

    def emit(self, effect: Effect) -> None:
        self.out.append(effect)

    def say(self, line: str, level: str = "info") -> None:
        self.out.append(Say(level, line))

    def reply(self, request: int, value: object = None, error: Exception | None = None) -> None:
        del self.open[request]
        self.out.append(Reply(request, value, error))

    def read_config(self, then: Callable[[bool], None]) -> None:
        """Read the config topic to its end; nothing else is begun meanwhile."""
        token = self._wait(exclusive=True, then=lambda ok: then(ok is True))
        self.emit(ReadConfig(token, self.settings.worker_sync_timeout_ms))

    def write_config(self, steps: Iterable[Step], then: Callable[[Exception | None], None]) -> None:
        """Write as leader; nothing else is begun meanwhile."""

        def ended(error: Exception | bool | None) -> None:
            failed = error if isinstance(error, Exception) else None
            # Whatever failed, the transactional writer may have been fenced off: it is claimed anew before the next.
            self.claim = self.claim or failed is not None
            then(failed)

        self.emit(WriteConfig(self._wait(exclusive=True, then=ended), tuple(steps)))

    def write_config_beside(self, step: Step, then: Callable[[Exception | None], None]) -> None:
        """Write what any worker may write, whatever else is under way."""
        token = self._wait(exclusive=False, then=lambda error: then(error if isinstance(error, Exception) else None))
        self.emit(WriteConfig(token, (step,), as_leader=False))

    def ended(self, token: int, outcome: Exception | bool | None) -> None:
        """What was begun with this token has ended."""
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
