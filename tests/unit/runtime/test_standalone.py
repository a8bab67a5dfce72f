"""The runner of one connector, with a connector and tasks in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from connect.api.connector import ConnectorContext
from connect.core.errors import RetriableError
from connect.runtime.standalone import ConnectorRunner


class Connector:
    """Configures one task, until it breaks."""

    def __init__(self) -> None:
        self.is_broken = False
        self.runner: ConnectorContext | None = None

    async def start(self, context: ConnectorContext) -> None:
        self.runner = context

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        if self.is_broken:
            raise KeyError("topics")
        return [{"task.index": "0"}]

    async def stop(self) -> None:
        """Nothing runs here."""


class Task:
    """Runs until stopped."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        self.started.set()
        await self._stopping.wait()
        self.stopped.set()

    def stop(self) -> None:
        self._stopping.set()


async def test_a_connector_that_can_no_longer_configure_its_tasks_has_failed() -> None:
    connector, task = Connector(), Task()
    runner = ConnectorRunner("us->eu", connector, lambda _: task, 1)
    await runner.start()
    await asyncio.wait_for(task.started.wait(), 5)
    connector.is_broken = True
    runner.request_task_reconfiguration()
    await asyncio.wait_for(task.stopped.wait(), 5)
    await runner.stop()
    assert isinstance(runner.failure, KeyError)
    assert runner.has_failed


class Ending(Task):
    """Fails when it is stopped, as one whose positions could not be stored."""

    async def run(self) -> None:
        await super().run()
        raise RetriableError("the target does not answer")


async def test_what_would_be_tried_again_is_a_failure_while_stopping() -> None:
    task = Ending()
    runner = ConnectorRunner("us->eu", Connector(), lambda _: task, 1)
    await runner.start()
    await asyncio.wait_for(task.started.wait(), 5)
    assert runner.failure is None
    await asyncio.wait_for(runner.stop(), 5)
    assert isinstance(runner.failure, RetriableError)
