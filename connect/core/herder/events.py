"""What happens to a herder, and what it wants done: plain values, so that a whole group can be simulated.

The driver feeds events in one at a time and performs the effects of each in order, before the next event; what takes
long is begun by its effect and ends as an event of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connect.core.model import RestartRequest, State, TargetState, TaskId

# -- events: the internal topics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A record of the config topic, in order; those before :class:`Ready` are history."""

    offset: int
    key: str | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The three topics were read to their ends: the worker may join."""


@dataclass(frozen=True, slots=True)
class ConfigBegunAnew:
    """The config topic is another one than before, or has lost records: all of it follows once more."""


@dataclass(frozen=True, slots=True)
class ConfigRead:
    """:class:`ReadConfig` has ended; its records came before as events. ``ok`` False: not within its time."""

    token: int
    ok: bool


@dataclass(frozen=True, slots=True)
class ConfigWritten:
    """:class:`WriteConfig` has ended, and what it wrote came back as :class:`ConfigRecord` events, unless ``error``."""

    token: int
    error: Exception | None = None


# -- events: the group -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderElected:
    """The broker asks us for the assignments of a round. ``members``: member id to metadata bytes."""

    protocol: str
    leader: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Joined:
    """A round has ended; ``assignment`` is ours, in bytes; ``token`` that of the :class:`Join` it came of."""

    token: int
    generation: int
    member: str
    leader: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class RebalanceBegun:
    """The coordinator has begun a round: join again."""


@dataclass(frozen=True, slots=True)
class MembershipLost:
    """The coordinator does not know us any more, or has fenced us off."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """No heartbeat was answered for so long that others may take over what we run."""


# -- events: what runs here --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskConfigsWanted:
    """A connector that runs here has reached STARTED, or says that its tasks are to be configured anew."""

    connector: str


@dataclass(frozen=True, slots=True)
class TaskConfigsComputed:
    """:class:`ComputeTaskConfigs` has ended; ``error`` where the connector could not say its tasks.

    ``configs`` are raw: references to secrets stand in them as in the connector's config.
    """

    token: int
    connector: str
    configs: Sequence[Mapping[str, str]] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TaskConfigsSent:
    """:class:`SendTaskConfigs` has ended."""

    token: int
    connector: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ConnectorFailed:
    """A connector that was to run here does not."""

    connector: str


@dataclass(frozen=True, slots=True)
class ScheduleAutoRestart:
    """Restart a connector (by name) or a task that failed here after a pause; ``wait_ms`` None: do not, after all."""

    work: str | TaskId
    wait_ms: int | None


@dataclass(frozen=True, slots=True)
class ReconfigurationRefused:
    """:class:`ReconfigureTasks` has ended, and these could not take their new configs while they run."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class SessionKeyMade:
    """:class:`MakeSessionKey` has ended."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline of the herder's has come, or may have."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker is to leave its group."""


# -- events: requests --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutConnector:
    """Store a validated config; ``type``: source, sink or unknown, as validation found it."""

    name: str
    config: Mapping[str, str]
    target_state: TargetState | None
    allow_replace: bool
    type: str


@dataclass(frozen=True, slots=True)
class DeleteConnector:
    name: str


@dataclass(frozen=True, slots=True)
class SetTargetState:
    name: str
    state: TargetState


@dataclass(frozen=True, slots=True)
class RestartConnector:
    name: str


@dataclass(frozen=True, slots=True)
class RestartTask:
    task: TaskId


@dataclass(frozen=True, slots=True)
class Restart:
    """Answered with the connector's state as it is going to be; its ``type`` is left unknown."""

    request: RestartRequest


@dataclass(frozen=True, slots=True)
class PutTaskConfigs:
    """Store the task configs that another worker computed; its signature is checked."""

    name: str
    configs: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class CheckOffsets:
    """May the offsets of this connector be modified here and now?"""

    name: str


@dataclass(frozen=True, slots=True)
class CheckFence:
    """May the older tasks of this connector be fenced off from here, now that all rounds until now have ended?"""

    name: str


@dataclass(frozen=True, slots=True)
class PutTaskCount:
    """Store that all older tasks are fenced off (KIP-618), if the connector's tasks are still those of ``offset``."""

    name: str
    task_count: int
    generation: int


@dataclass(frozen=True, slots=True)
class SetLogger:
    """Set a level on every worker."""

    namespace: str
    level: str


Operation = (
    PutConnector
    | DeleteConnector
    | SetTargetState
    | RestartConnector
    | RestartTask
    | Restart
    | PutTaskConfigs
    | CheckOffsets
    | CheckFence
    | PutTaskCount
    | SetLogger
)


@dataclass(frozen=True, slots=True)
class Request:
    """An operation; exactly one :class:`Reply` with the same id follows, sooner or later."""

    id: int
    operation: Operation


Event = (
    ConfigRecord
    | ConfigBegunAnew
    | Ready
    | ConfigRead
    | ConfigWritten
    | LeaderElected
    | Joined
    | RebalanceBegun
    | MembershipLost
    | LeaseLost
    | TaskConfigsWanted
    | TaskConfigsComputed
    | TaskConfigsSent
    | ConnectorFailed
    | ScheduleAutoRestart
    | ReconfigurationRefused
    | SessionKeyMade
    | Tick
    | Stopping
    | Request
)

# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a request: a value, or a refusal."""

    id: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """Read the config topic to its end, then :class:`ConfigRead`."""

    token: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """Append to the config topic, each step in order and read back before the next, then :class:`ConfigWritten`.

    ``steps``: batches of (key, value); ``as_leader``: with the leader's transactional writer where there is one, and
    no step is begun once the lease has run out, since another worker may lead by then.
    """

    token: int
    steps: tuple[tuple[tuple[str, bytes | None], ...], ...]
    as_leader: bool = True


@dataclass(frozen=True, slots=True)
class ClaimWriter:
    """This worker has become leader: the config topic's transactional writer is its own, where there is one."""


@dataclass(frozen=True, slots=True)
class MakeSessionKey:
    """Make a key of ``size`` bytes by chance, then :class:`SessionKeyMade`."""

    size: int


@dataclass(frozen=True, slots=True)
class Join:
    """Join the group, or join it again. ``protocols``: name and metadata bytes, the preferred first.

    A join that is under way is given up for this one.
    """

    token: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the group."""

    reason: str


@dataclass(frozen=True, slots=True)
class Assign:
    """The leader's answer to :class:`LeaderElected`: member id to assignment bytes."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StartConnector:
    """Start an instance; it is told to run, to wait or to stand by ``target``. Its config is that of the snapshot."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True)
class StartTask:
    task: TaskId
    target: TargetState


@dataclass(frozen=True, slots=True)
class StopWork:
    """Stop connectors and tasks that run here; performed when they are down or given up, within the grace."""

    connectors: tuple[str, ...]
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class ReconfigureTasks:
    """Offer tasks that run here their new configs, then :class:`ReconfigurationRefused` for those that need to be
    started anew, if any."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class ChangeTarget:
    """A connector that is here, and its tasks that are, are to do ``target`` from now on."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True)
class ComputeTaskConfigs:
    """Ask a connector that runs here for its tasks, then :class:`TaskConfigsComputed`."""

    token: int
    name: str


@dataclass(frozen=True, slots=True)
class SendTaskConfigs:
    """Hand task configs to the leader over its internal REST, then :class:`TaskConfigsSent`."""

    token: int
    leader_url: str
    name: str
    configs: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class FailConnector:
    """A connector that is here does nothing more, for this reason, until it is restarted."""

    name: str
    error: Exception


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status of a connector (by name) or a task. DESTROYED is written as a tombstone; ``safe``: only where
    nobody with a newer generation has written."""

    work: str | TaskId
    state: State
    safe: bool = False


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """Forget the active topics of a deleted connector."""

    name: str


@dataclass(frozen=True, slots=True)
class SetLevel:
    """Set the level of loggers on this worker."""

    namespace: str
    level: str


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log: what the herder did and why."""

    level: str
    line: str


Effect = (
    Reply
    | ReadConfig
    | WriteConfig
    | ClaimWriter
    | MakeSessionKey
    | Join
    | Leave
    | Assign
    | StartConnector
    | StartTask
    | StopWork
    | ReconfigureTasks
    | ChangeTarget
    | ComputeTaskConfigs
    | SendTaskConfigs
    | FailConnector
    | WriteStatus
    | ForgetTopics
    | SetLevel
    | Say
)
