"""What a restart request restarts (KIP-745; Kafka ``RestartRequest``, ``RestartPlan``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from connect.core.model import ConnectorStateInfo, RestartRequest, State, Status, TaskId


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
