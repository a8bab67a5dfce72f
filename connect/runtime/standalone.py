"""One connector and its tasks in this process, without a group: what a dedicated mirror node runs for each flow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from connect.api.connector import Connector, Props, Task
from connect.core.errors import HeliographError, RetriableError

log = logging.getLogger(__name__)

#: A task that does not end by itself in this time is cancelled (Connect's ``task.shutdown.graceful.timeout.ms``,
#: with room for the acknowledgements that are still on their way).
GRACEFUL_S: Final = 8.0
_START_RETRY_S: Final = 2.0


class ConnectorRunner:
    """Starts a connector, keeps its tasks running as it configures them, and stops both."""

    def __init__(self, name: str, connector: Connector, make_task: Callable[[Props], Task], max_tasks: int) -> None:
        self.tasks: list[Task] = []
        #: The error that ended a task, if one did; the others go on.
        self.failure: BaseException | None = None
        self._name = name
        self._connector = connector
        self._make_task = make_task
        self._max_tasks = max_tasks
        self._configs: list[Props] = []
        self._running: dict[asyncio.Task[None], Task] = {}
        self._reconfigure = asyncio.Event()
        self._stopping = False
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the connector and its first tasks; raises what the connector's start raises."""
        await self._connector.start(self)
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise {self._name}")
        self._reconfigure.set()

    async def stop(self) -> None:
        """Stop tasks, then the connector, in bounded time; what fails meanwhile is :attr:`failure`."""
        self._stopping = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._stop_tasks()
        await self._connector.stop()

    def request_task_reconfiguration(self) -> None:
        self._reconfigure.set()

    @property
    def has_failed(self) -> bool:
        """Whether nothing runs any more because tasks failed."""
        return self.failure is not None and not self._running

    async def _supervise(self) -> None:
        try:
            await self._keep_configured()
        except Exception as error:
            log.error("%s: its tasks can no longer be configured", self._name, exc_info=error)
            self.failure = error
            await self._stop_tasks()

    async def _keep_configured(self) -> None:
        while True:
            await self._reconfigure.wait()
            self._reconfigure.clear()
            configs = list(self._connector.task_configs(self._max_tasks))
            if configs == self._configs:
                continue
            log.info("%s: %d task%s", self._name, len(configs), "" if len(configs) == 1 else "s")
            await self._stop_tasks()
            self._configs = configs
            self.tasks = [self._make_task(config) for config in configs]
            for index, task in enumerate(self.tasks):
                running = asyncio.create_task(self._run(task), name=f"{self._name}-{index}")
                self._running[running] = task
                running.add_done_callback(self._ended)

    async def _run(self, task: Task) -> None:
        try:
            await task.run()
        except RetriableError as error:
            if self._stopping:
                self.failure = error
                return
            log.warning("%s: a task ended (%s) and is started again", self._name, error)
            await asyncio.sleep(_START_RETRY_S)
            self._configs = []
            self._reconfigure.set()
        except HeliographError as error:
            log.error("%s: task failed: %s", self._name, error)
            self.failure = error
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.error("%s: task failed for a reason of ours, please report it", self._name, exc_info=error)
            self.failure = error

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.pop(running, None)

    async def _stop_tasks(self) -> None:
        running = dict(self._running)
        for task in running.values():
            task.stop()
        if running:
            _, late = await asyncio.wait(running, timeout=GRACEFUL_S)
            for one in late:
                log.warning(
                    "%s: %s did not stop within %.0f s and is cancelled", self._name, one.get_name(), GRACEFUL_S
                )
                one.cancel()
            await asyncio.gather(*late, return_exceptions=True)
