"""What restart requests restart, and which of several is kept."""

from __future__ import annotations

import pytest

from connect.core.model import ConnectorStateInfo, RestartRequest, State, Status, TaskId, plan_restart


def status(state: State) -> Status:
    return Status(state, "host:8083", 3, "java.lang.Exception: boom" if state is State.FAILED else None, "4.3.1")


def state_info(connector: State, *tasks: State) -> ConnectorStateInfo:
    return ConnectorStateInfo("c", status(connector), {n: status(task) for n, task in enumerate(tasks)}, "source")


RUNNING, FAILED, PAUSED = State.RUNNING, State.FAILED, State.PAUSED


@pytest.mark.parametrize(
    ("only_failed", "include_tasks", "connector", "restarts_connector", "tasks"),
    [
        (False, False, RUNNING, True, ()),
        (False, True, RUNNING, True, (0, 1, 2)),
        (True, False, RUNNING, False, ()),
        (True, False, FAILED, True, ()),
        (True, True, RUNNING, False, (1,)),
        (True, True, FAILED, True, (1,)),
    ],
)
def test_plans(
    only_failed: bool, include_tasks: bool, connector: State, restarts_connector: bool, tasks: tuple[int, ...]
) -> None:
    current = state_info(connector, RUNNING, FAILED, PAUSED)
    plan = plan_restart(RestartRequest("c", only_failed, include_tasks), current)
    assert plan.restarts_connector is restarts_connector
    assert plan.tasks == tuple(TaskId("c", task) for task in tasks)
    restarting = [number for number, task in plan.shown.tasks.items() if task.state is State.RESTARTING]
    assert restarting == list(tasks)
    assert (plan.shown.connector.state is State.RESTARTING) is restarts_connector


def test_what_restarts_keeps_its_trace_and_its_worker() -> None:
    plan = plan_restart(RestartRequest("c", True, True), state_info(FAILED, FAILED))
    for shown in (plan.shown.connector, plan.shown.tasks[0]):
        assert shown == Status(State.RESTARTING, "host:8083", 3, "java.lang.Exception: boom", "4.3.1")
    assert str(plan) == "plan to restart connector and 1 of 1 tasks of c"
