"""What connectors tell of themselves over REST, beside Kafka Connect's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from connect.api.source import SourceConnector, TaskReport
from connect.core.configlog import ConfigLog
from connect.core.errors import ConfigError, RetriableError
from connect.core.herding import BadRequest, NotFound
from connect.core.model import State, TaskId
from connect.core.statuslog import StatusLog
from connect.core.worker_config import WorkerConfig
from connect.kafka.plugin_thread import PluginThread
from connect.runtime.plugin_calls import masked, plugin_call
from connect.runtime.plugins import Plugins
from connect.runtime.traces import passwords, secrets_of

#: As long as a request may take, less some.
_TIMEOUT_S: Final = 60.0


class Reports:
    """Asks a fresh instance of the connector's class; any worker can."""

    def __init__(
        self, config: WorkerConfig, plugins: Plugins, snapshot: Callable[[], ConfigLog], statuses: StatusLog
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._snapshot = snapshot
        self._statuses = statuses

    async def report(self, name: str, raw: Mapping[str, str], kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Raises:
        NotFound: The connector tells nothing of this ``kind``.
        BadRequest: The ``query`` is wrong.
        RetriableError: It cannot be told now, or not in time.
        """
        transformer = self._config.transformer
        props = transformer.transform(raw)
        connector = self._plugins.new_connector(props["connector.class"], props.get("connector.plugin.version"))
        secrets = secrets_of(transformer, raw).with_more(passwords(connector.config_def(), props))
        try:
            async with asyncio.timeout(_TIMEOUT_S) as timeout:
                with plugin_call(f"connector {name} was asked for its {kind}"):
                    told = await _told(name, connector, kind, props, self._tasks(name), query)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RetriableError(f"connector {name} did not tell its {kind} within {_TIMEOUT_S:.0f} s") from None
        except ConfigError as error:
            raise BadRequest(secrets.mask(str(error))) from None
        except Exception as error:
            raise masked(error, secrets) from None
        if told is None:
            raise NotFound(f"Connector {name} tells nothing of its {kind}")
        return told

    def _tasks(self, name: str) -> list[TaskReport]:
        snapshot = self._snapshot()
        return [self._task(task, snapshot.task_config(task) or {}) for task in snapshot.task_ids(name)]

    def _task(self, task: TaskId, config: Mapping[str, str]) -> TaskReport:
        status = self._statuses.status(task)
        if status is None:
            return TaskReport(task.task, State.UNASSIGNED.value, "", config)
        return TaskReport(task.task, status.state.value, status.worker_id, config)


async def _told(name: str, connector: SourceConnector, *asked: Any) -> Mapping[str, Any] | None:
    async with PluginThread(f"report of connector {name}") as thread:
        told: Mapping[str, Any] | None = await thread.call(connector.report, *asked)
        return told
