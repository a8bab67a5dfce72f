"""The values that describe a worker group: ids, states, life cycles, restarts, and REST's views.

* The life cycle of a connector's instance is a table (Kafka's ``WorkerConnector``): which method to call, and what
  follows.
* A restart request selects what to restart (KIP-745; Kafka ``RestartRequest``, ``RestartPlan``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal, NamedTuple


class TaskId(NamedTuple):
    """One task of a connector (Kafka's ``ConnectorTaskId``); tasks count from 0.

    A tuple, since a leader puts ten thousands of them into sets and in order while its loop waits.
    """

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


def connector_of(work: str | TaskId) -> str:
    """Return the name of a connector, or of a task's."""
    return work.connector if isinstance(work, TaskId) else work


class TargetState(StrEnum):
    """What the users want a connector to do."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class State(StrEnum):
    """What a connector or a task does; STOPPED is of connectors only, DESTROYED is never shown."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    DESTROYED = "DESTROYED"


@dataclass(frozen=True, slots=True)
class Restarts:
    """Automatic restarts of a connector or a task in a row: the last or next one has number ``count``, and its time is
    ``at_ms`` (since 1970). ``given_up``: why no other follows a failure."""

    count: int = 0
    at_ms: int = 0
    given_up: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a connector or a task, as a record of the status topic says it.

    ``generation`` is the group's generation in which it was written, ``trace`` the whole text of an error;
    ``restarts`` None: nothing was restarted automatically.
    """

    state: State
    worker_id: str
    generation: int
    trace: str | None = None
    version: str | None = None
    restarts: Restarts | None = None


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector as ``GET /connectors/{c}`` shows it; ``type`` is source, sink or unknown."""

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
    """A connector's status and those of its tasks by number, as ``GET /connectors/{c}/status`` shows them."""

    name: str
    connector: Status
    tasks: Mapping[int, Status]
    type: str


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made; -1 takes the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


#: For the topics of positions. Kafka's defaults clean nothing for a week or a gigabyte, and each start reads all of it.
#: A segment is cleaned once it is not written to any more, so these bound what lies in 25 partitions of two topics.
#: Markers of transactions are kept as long as tombstones are, a day by default.
CLEANED_SOON: Final[Mapping[str, str]] = {
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": str(10 * 60_000),
    "max.compaction.lag.ms": str(60 * 60_000),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(60 * 60_000),
}


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """Which parts of a connector to restart (KIP-745)."""

    connector: str
    only_failed: bool = False
    include_tasks: bool = False


class Phase(StrEnum):
    """Where an instance stands. INIT: made, and told nothing yet."""

    INIT = "INIT"
    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Step:
    """What a change of target asks of an instance.

    ``call`` is made first, where there is one (``stop`` only on what was started). Then the instance is ``phase`` and
    shows ``state``; where the call raised, it is ``phase_on_error`` and shows FAILED, unless that is STOPPED, which
    counts even then.
    """

    call: Literal["start", "stop"] | None
    phase: Phase
    state: State
    phase_on_error: Phase = Phase.FAILED


_RUN: Final = Step("start", Phase.STARTED, State.RUNNING)
_WAIT: Final = Step(None, Phase.PAUSED, State.PAUSED)
_REST: Final = Step("stop", Phase.STOPPED, State.STOPPED, Phase.STOPPED)

#: A pair that is missing asks for nothing: the instance is there already, or has failed and is not stopped.
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
    """What an instance in ``phase`` has to do for ``target``; None: nothing."""
    return _STEPS.get((phase, target))


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """A request against the statuses of its moment.

    ``shown`` is the connector's status with RESTARTING wherever something is going to be restarted; traces stay.
    """

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
    """How much a request is likely to restart: of several for one connector the highest is the one to keep."""
    return 2 * (not request.only_failed) + request.include_tasks


def plan_restart(request: RestartRequest, current: ConnectorStateInfo) -> RestartPlan:
    """The plan for ``request``, from the statuses of the connector and its tasks."""
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
