"""Defines the events and effects of a herder, as plain values, so that a whole group can be simulated.

The driver passes one event at a time to the herder and performs its effects in order before the next event. An effect
only begins a long operation, whose end is another event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connect.core.model import RestartRequest, State, TargetState, TaskId


class Event:
    """What a herder takes in."""

    __slots__ = ()


class HerderOperation:
    """What a :class:`Request` asks for."""

    __slots__ = ()


class Effect:
    """What a herder has its driver do."""

    __slots__ = ()


# -- events: the internal topics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigRecord(Event):
    """A record of the config topic, in order; records before :class:`Ready` are history."""

    offset: int
    key: str | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """The three topics were read to their ends, so the worker may join."""


@dataclass(frozen=True, slots=True)
class ConfigLogReset(Event):
    """The config topic was recreated or has lost records; all its records follow again."""


@dataclass(frozen=True, slots=True)
class ConfigRead(Event):
    """:class:`ReadConfig` has ended, after the events of its records. ``ok`` False: the timeout expired."""

    token: int
    ok: bool


@dataclass(frozen=True, slots=True)
class ConfigWritten(Event):
    """:class:`WriteConfig` has ended. Unless there is an ``error``, its records came before as events."""

    token: int
    error: Exception | None = None


# -- events: the group -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderElected(Event):
    """The coordinator requests the assignments of a rebalance from this worker. ``members``: metadata bytes by id."""

    protocol: str
    leader: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """A rebalance has ended with this worker's ``assignment``, in bytes; ``token`` is that of its :class:`Join`."""

    token: int
    generation: int
    member: str
    leader: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class RebalanceBegun(Event):
    """The coordinator has begun a rebalance, which this worker must join."""


@dataclass(frozen=True, slots=True)
class MembershipLost(Event):
    """The coordinator has removed or fenced this worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """No heartbeat was answered for the length of the lease, so other workers may take over the work."""


# -- events: work on this worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskConfigsWanted(Event):
    """A connector on this worker has reached STARTED, or requests reconfiguration of its tasks."""

    connector: str


@dataclass(frozen=True, slots=True)
class TaskConfigsComputed(Event):
    """:class:`ComputeTaskConfigs` has ended; ``error`` if the connector could not return its task configs. ``configs``
    are raw: references to secrets are not resolved."""

    token: int
    connector: str
    configs: Sequence[Mapping[str, str]] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TaskConfigsSent(Event):
    """:class:`SendTaskConfigs` has ended."""

    token: int
    connector: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ConnectorFailed(Event):
    """A connector on this worker failed to start."""

    connector: str


@dataclass(frozen=True, slots=True)
class ScheduleAutoRestart(Event):
    """Restart a failed connector (by name) or task after a pause; ``wait_ms`` None cancels the restart."""

    work: str | TaskId
    wait_ms: int | None


@dataclass(frozen=True, slots=True)
class ReconfigurationRefused(Event):
    """:class:`ReconfigureTasks` has ended, and these tasks could not accept their new configs while running."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class SessionKeyMade(Event):
    """:class:`MakeSessionKey` has ended."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """A deadline of the herder may have passed."""


@dataclass(frozen=True, slots=True)
class Stopping(Event):
    """The worker must leave its group."""


# -- events: requests --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutConnector(HerderOperation):
    """Store a validated config; ``type`` is source, sink or unknown."""

    name: str
    config: Mapping[str, str]
    target_state: TargetState | None
    allow_replace: bool
    type: str


@dataclass(frozen=True, slots=True)
class DeleteConnector(HerderOperation):
    name: str


@dataclass(frozen=True, slots=True)
class SetTargetState(HerderOperation):
    name: str
    state: TargetState


@dataclass(frozen=True, slots=True)
class RestartConnector(HerderOperation):
    name: str


@dataclass(frozen=True, slots=True)
class RestartTask(HerderOperation):
    task: TaskId


@dataclass(frozen=True, slots=True)
class Restart(HerderOperation):
    """Restart across the group. The reply is the connector's resulting state, with an unknown ``type``."""

    request: RestartRequest


@dataclass(frozen=True, slots=True)
class PutTaskConfigs(HerderOperation):
    """Store task configs that another worker computed; the signature is already verified."""

    name: str
    configs: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class CheckOffsets(HerderOperation):
    """Check whether the offsets of a connector may be modified now."""

    name: str


@dataclass(frozen=True, slots=True)
class CheckFence(HerderOperation):
    """Check whether the older tasks of a connector may be fenced, after all current rebalances."""

    name: str


@dataclass(frozen=True, slots=True)
class PutTaskCount(HerderOperation):
    """Store that all older tasks are fenced (KIP-618), if the task configs are still those of ``generation``."""

    name: str
    task_count: int
    generation: int


@dataclass(frozen=True, slots=True)
class SetLogger(HerderOperation):
    """Set the level of loggers on every worker."""

    namespace: str
    level: str


@dataclass(frozen=True, slots=True)
class Request(Event):
    """An operation; exactly one :class:`Reply` with the same id follows."""

    id: int
    operation: HerderOperation


@dataclass(frozen=True, slots=True)
class RequestWithdrawn(Event):
    """The requester waits no longer. A request that is still queued is dropped: running it later would surprise its
    user."""

    id: int


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply(Effect):
    """The result of a request: a value or an error."""

    id: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ReadConfig(Effect):
    """Read the config topic to its end, then :class:`ConfigRead`."""

    token: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class WriteConfig(Effect):
    """Append to the config topic, each step in order and read back before the next, then :class:`ConfigWritten`.
    ``steps``: batches of (key, value). ``as_leader``: use the leader's transactional writer, if there is one, and begin
    no step after the lease has expired, because another worker may be the leader by then."""

    token: int
    steps: tuple[tuple[tuple[str, bytes | None], ...], ...]
    as_leader: bool = True


@dataclass(frozen=True, slots=True)
class ClaimWriter(Effect):
    """Claim the config topic's transactional writer, if there is one, for this new leader."""


@dataclass(frozen=True, slots=True)
class MakeSessionKey(Effect):
    """Generate a random key of ``size`` bytes, then :class:`SessionKeyMade`."""

    size: int


@dataclass(frozen=True, slots=True)
class Join(Effect):
    """Join or rejoin the group. ``protocols``: name and metadata bytes, the preferred first. Replaces a join in
    progress."""

    token: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Leave(Effect):
    reason: str


@dataclass(frozen=True, slots=True)
class Assign(Effect):
    """The leader's response to :class:`LeaderElected`: assignment bytes by member id."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StartConnector(Effect):
    """Start an instance with the target state ``target`` and the config in the snapshot."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True)
class StartTask(Effect):
    task: TaskId
    target: TargetState


@dataclass(frozen=True, slots=True)
class StopWork(Effect):
    """Stop connectors and tasks. Performed when they have stopped, or were abandoned after the graceful timeout."""

    connectors: tuple[str, ...]
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class ReconfigureTasks(Effect):
    """Offer running tasks their new configs, then :class:`ReconfigurationRefused` if any tasks need a restart."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class ChangeTarget(Effect):
    """Set the target state of a connector and its tasks on this worker."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True)
class ComputeTaskConfigs(Effect):
    """Request the task configs of a connector on this worker, then :class:`TaskConfigsComputed`."""

    token: int
    name: str


@dataclass(frozen=True, slots=True)
class SendTaskConfigs(Effect):
    """Send task configs to the leader's internal REST endpoint, then :class:`TaskConfigsSent`."""

    token: int
    leader_url: str
    name: str
    configs: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class FailConnector(Effect):
    """Fail a connector on this worker with an error until it is restarted."""

    name: str
    error: Exception


@dataclass(frozen=True, slots=True)
class WriteStatus(Effect):
    """Write the status of a connector (by name) or a task. DESTROYED is written as a tombstone; ``safe``: do not
    overwrite a status of a newer generation."""

    work: str | TaskId
    state: State
    safe: bool = False


@dataclass(frozen=True, slots=True)
class ForgetTopics(Effect):
    name: str


@dataclass(frozen=True, slots=True)
class SetLevel(Effect):
    namespace: str
    level: str


@dataclass(frozen=True, slots=True)
class Say(Effect):
    """Log a line about what the herder did and why."""

    level: str
    line: str
