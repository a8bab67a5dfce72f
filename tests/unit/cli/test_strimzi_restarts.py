"""What a leader starts again for ``autoRestart``, and what it says of it."""

from __future__ import annotations

from typing import cast

import pytest

from connect.cli.strimzi_restarts import look
from connect.core.errors import RetriableError
from connect.core.herding import NotFound
from connect.core.model import ConnectorStateInfo, RestartRequest, State, Status
from connect.runtime.distributed import DistributedWorker
from connectors.strimzi.auto_restart import AutoRestart, Restarts

NAME = "us->eu.MirrorSourceConnector"


class Group:
    """A leader that knows one connector; a restart mends nothing."""

    def __init__(self, connector: State, *tasks: State) -> None:
        self.connector, self.tasks = connector, tasks
        self.asked: list[RestartRequest] = []
        self.error: Exception | None = None
        self.herder = self

    def connector_status(self, name: str) -> ConnectorStateInfo:
        if self.connector is State.DESTROYED:
            raise NotFound(name)
        tasks = {number: Status(state, "w:1", 1) for number, state in enumerate(self.tasks)}
        return ConnectorStateInfo(name, Status(self.connector, "w:1", 1), tasks, "source")

    async def restart(self, request: RestartRequest) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error


async def looked(group: Group, rule: AutoRestart, *minutes: int) -> None:
    watched = {NAME: Restarts(rule)}
    for minute in minutes:
        await look(cast(DistributedWorker, group), watched, minute * 60.0)


@pytest.mark.parametrize(
    ("states", "parts"),
    [
        ((State.FAILED,), "the connector had"),
        ((State.RUNNING, State.RUNNING, State.FAILED), "task 1 had"),
        ((State.FAILED, State.FAILED), "the connector, task 0 had"),
    ],
)
async def test_what_has_failed_is_restarted_and_said(
    states: tuple[State, ...], parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(*states)
    await looked(group, AutoRestart(max_restarts=2), 0, 1, 2, 100)
    assert group.asked == [RestartRequest(NAME, only_failed=True, include_tasks=True)] * 2
    first, second = caplog.messages
    assert parts in first and first.endswith("restart 1 in a row")
    assert second.endswith("restart 2 in a row, the last one that autoRestart.maxRestarts allows")


@pytest.mark.parametrize(
    "states",
    [
        (State.RUNNING, State.RUNNING),
        (State.PAUSED, State.PAUSED),
        (State.STOPPED,),
        (State.RUNNING, State.UNASSIGNED),
        (State.DESTROYED,),
    ],
)
async def test_nothing_else_is_restarted(states: tuple[State, ...]) -> None:
    group = Group(*states)
    await looked(group, AutoRestart(), 0, 100)
    assert group.asked == []


async def test_a_refused_restart_is_said_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(State.FAILED)
    group.error = RetriableError("a rebalance is due")
    await looked(group, AutoRestart(), 0, 1, 2)
    assert len(group.asked) == 2
    assert "the connector has failed and cannot be restarted: a rebalance is due" in caplog.text
