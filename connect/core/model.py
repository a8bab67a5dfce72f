"""Holds the values that describe a worker group: ids, states, life cycles, restarts, and REST's views.

* The life cycle of a connector's instance is a table (Kafka's ``WorkerConnector``) of methods to call and next phases.
* A restart request selects the instances to restart (KIP-745; Kafka ``RestartRequest``, ``RestartPlan``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal, NamedTuple


class TaskId(NamedTuple):
    """The id of a task (Kafka's ``ConnectorTaskId``); tasks count from 0. A tuple, because a leader hashes and sorts
    tens of thousands of ids on its event loop."""

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


def connector_of(work: str | TaskId) -> str:
    return work.connector if isinstance(work, TaskId) else work


class TargetState(StrEnum):
    """The state that users request for a connector."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class State(StrEnum):
    """The state of a connector or a task. Only connectors can be STOPPED; DESTROYED is never shown."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    DESTROYED = "DESTROYED"


@dataclass(frozen=True, slots=True)
class Restarts:
    """Consecutive automatic restarts of a connector or a task: the last or next one has number ``count`` and time
    ``at_ms`` (since 1970). ``given_up``: why there is no further restart."""

    count: int = 0
    at_ms: int = 0
    given_up: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a connector or a task, as in the status topic. ``generation`` is the generation of the group in
    which it was written, ``trace`` the full text of an error; ``restarts`` None: there was no automatic restart."""

    state: State
    worker_id: str
    generation: int
    trace: str | None = None
    version: str | None = None
    restarts: Restarts | None = None


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector, as in ``GET /connectors/{c}``; ``type`` is source, sink or unknown."""

    name: str
    config: Mapping[str, str]
    tasks: tuple[TaskId, ...]
    type: str


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task's id and its raw config."""

    id: TaskId
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConnectorStateInfo:
    """The statuses of a connector and of its tasks by number, as in ``GET /connectors/{c}/status``."""

    name: str
    connector: Status
    tasks: Mapping[int, Status]
    type: str


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1: the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


#: Keys of a mirror that set the replication factor of what it creates.
FACTOR_KEYS: Final = (
    "replication.factor",
    *(f"{each}.topic.replication.factor" for each in ("heartbeats", "checkpoints", "offset-syncs")),
    *(f"{each}.storage.replication.factor" for each in ("config", "offset", "status")),
)


#: Configs of the topics of positions. With Kafka's defaults a segment of up to a week or 1 GiB is not compacted, and
#: each start reads all of it. Only closed segments are compacted, so these configs limit the size of 25 partitions of
#: two topics. Transaction markers are kept for ``delete.retention.ms``, as tombstones are; its default is a day.
CLEANED_SOON: Final[Mapping[str, str]] = {
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": str(10 * 60_000),
    "max.compaction.lag.ms": str(60 * 60_000),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(60 * 60_000),
}


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """A request to restart parts of a connector (KIP-745)."""

    connector: str
    only_failed: bool = False
    include_tasks: bool = False


class Phase(StrEnum):
    """The phase of a connector's instance. INIT: created, no method called yet."""

    INIT = "INIT"
    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Step:
    """A transition of an instance after a change of its target state. ``call`` is called first, if there is one
    (``stop`` only on a started instance). Then the phase is ``phase`` and the shown state ``state``. If the call
    raises, the phase is ``phase_on_error`` and the shown state FAILED, or STOPPED if ``phase_on_error`` is STOPPED."""

    call: Literal["start", "stop"] | None
    phase: Phase
    state: State
    phase_on_error: Phase = Phase.FAILED


_RUN: Final = Step("start", Phase.STARTED, State.RUNNING)
_WAIT: Final = Step(None, Phase.PAUSED, State.PAUSED)
_REST: Final = Step("stop", Phase.STOPPED, State.STOPPED, Phase.STOPPED)

#: A missing pair has no transition: the instance is already in that state, or has failed and must not be stopped.
_STEPS: Final = {
    (Phase.INIT, TargetState.STARTED): _RUN,
    (Phase.INIT, TargetState.PAUSED): _WAIT,
    (Phase.INIT, TargetState.STOPPED): _REST,
    (Phase.STARTED, TargetState.PAUSED): Step("stop", Phase.PAUSED, State.PAUSED),
    (Phase.STARTED, TargetState.STOPPED): _REST,
    (Phase.PAUSED, TargetState.STARTED): _RUN,
    (Phase.PAUSED, TargetState.STOPPED): _REST,
    (Phase.STOPPED, TargetState.STARTED): _RUN,
    (Phase.STOPPED, TargetState.PAUSED): _WAIT,
    # Only this, or a restart, leads out of FAILED.
    (Phase.FAILED, TargetState.STOPPED): _REST,
}


def step_to(phase: Phase, target: TargetState) -> Step | None:
    """Return the transition of an instance in ``phase`` to ``target``; None: there is nothing to do."""
    return _STEPS.get((phase, target))


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """The result of a restart request for the current statuses. ``shown`` holds the statuses with RESTARTING for each
    connector and task to restart; traces are kept."""

    request: RestartRequest
    restarts_connector: bool
    tasks: tuple[TaskId, ...]
    shown: ConnectorStateInfo

    def __str__(self) -> str:
        connector = "connector and " if self.restarts_connector else ""
        return (
            f"plan to restart {connector}{len(self.tasks)} of {len(self.shown.tasks)} tasks of {self.request.connector}"
        )


def impact(request: RestartRequest) -> int:
    """Rank a request by how much it restarts; of several requests for a connector only the highest is kept."""
    return 2 * (not request.only_failed) + request.include_tasks


def plan_restart(request: RestartRequest, current: ConnectorStateInfo) -> RestartPlan:
    """Return the plan for ``request`` from the current statuses of the connector and its tasks."""
    tasks = tuple(
        number
        for number, status in sorted(current.tasks.items())
        if request.include_tasks and _restarts(request, status)
    )
    restarts_connector = _restarts(request, current.connector)
    shown = replace(
        current,
        connector=_restarting(current.connector) if restarts_connector else current.connector,
        tasks={number: _restarting(status) if number in tasks else status for number, status in current.tasks.items()},
    )
    return RestartPlan(request, restarts_connector, tuple(TaskId(request.connector, task) for task in tasks), shown)


def _restarts(request: RestartRequest, status: Status) -> bool:
    return not request.only_failed or status.state is State.FAILED


def _restarting(status: Status) -> Status:
    return replace(status, state=State.RESTARTING)
