"""A herder that is a dict, to stand behind a REST server in tests of that server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from connect.core.audit import AuditEntry
from connect.core.config.config_def import ConfigDef
from connect.core.config.security_settings import hidden
from connect.core.herder_api import (
    ALGORITHM_HEADER,
    SIGNATURE_HEADER,
    AlreadyExists,
    Config,
    ConfigInfo,
    ConfigInfos,
    ConfigKeyInfo,
    ConfigValueInfo,
    ForwardedRequest,
    LoggerLevel,
    NotFound,
    PluginInfo,
    Put,
    ReadConfigs,
    SessionKey,
    Signature,
    SourceOffset,
    WorkerInfo,
    check,
    sign,
)
from connect.core.model import (
    ConnectorInfo,
    ConnectorStateInfo,
    RestartRequest,
    State,
    Status,
    TargetState,
    TaskId,
    TaskInfo,
)

#: The session key of its group.
GROUP_KEY = SessionKey(b"k" * 32, "HmacSHA256", 0)
RUNNING = Status(State.RUNNING, "w:8083", 3, version="4.3.1")
KEY = ConfigKeyInfo("topic", "STRING", True, None, "HIGH", "Where to.", "Common", 1, "LONG", "Topic")


class DictHerder:
    """Keeps configs; each connector has two tasks, the second failed; ``hangs`` names methods that never end."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, str]] = {}
        self.states: dict[str, TargetState] = {}
        self.refusals: dict[str, Exception] = {}
        self.hangs: set[str] = set()
        self.done: list[tuple[Any, ...]] = []
        self.ready = True
        self.worker_id = RUNNING.worker_id
        self.doing: str | None = None
        self.rebalancing = False
        self.has_key = True
        self.offsets: list[SourceOffset] = []
        self.audited: list[AuditEntry] = []
        self.levels: dict[str, LoggerLevel] = {"root": LoggerLevel("INFO", None)}

    def add(self, name: str, **config: str) -> None:
        self.configs[name] = {"name": name, **config}

    async def _asked(self, method: str, *arguments: Any) -> None:
        self._noted(method, *arguments)
        if method in self.hangs:
            await asyncio.Event().wait()

    def _noted(self, method: str, *arguments: Any) -> None:
        self.done.append((method, *arguments))
        if method in self.refusals:
            raise self.refusals[method]

    def _config(self, name: str) -> dict[str, str]:
        if name not in self.configs:
            raise NotFound(f"Connector {name} not found")
        return self.configs[name]

    def worker_info(self) -> WorkerInfo:
        return WorkerInfo("4.3.1", "abc", "cluster-1")

    def is_ready(self) -> bool:
        return self.ready

    def stage(self) -> str | None:
        return self.doing

    def is_rebalancing(self) -> bool:
        return self.rebalancing

    async def health(self) -> None:
        await self._asked("health")

    async def connectors(self) -> Sequence[str]:
        await self._asked("connectors")
        return list(self.configs)

    async def connector_info(self, name: str) -> ConnectorInfo:
        await self._asked("connector_info", name)
        return self.known_connector(name)

    def known_connector(self, name: str) -> ConnectorInfo:
        return ConnectorInfo(name, self._config(name), (TaskId(name, 0), TaskId(name, 1)), "source")

    async def connector_config(self, name: str) -> Mapping[str, str]:
        await self._asked("connector_config", name)
        return self._config(name)

    async def task_infos(self, name: str) -> Sequence[TaskInfo]:
        await self._asked("task_infos", name)
        return [TaskInfo(TaskId(name, 0), self._config(name))]

    def without_secrets(self, name: str, config: Mapping[str, str]) -> dict[str, str]:
        return hidden(config, ConfigDef())

    def connector_status(self, name: str) -> ConnectorStateInfo:
        self._noted("connector_status", name)
        if name not in self.configs:
            raise NotFound(f"No status found for connector {name}")
        running = replace(RUNNING, worker_id=self.worker_id)
        failed = Status(State.FAILED, self.worker_id, 3, trace="it broke")
        return ConnectorStateInfo(name, running, {1: failed, 0: running}, "source")

    def task_status(self, task: TaskId) -> Status:
        self._noted("task_status", task)
        self._config(task.connector)
        return RUNNING

    async def put_connector(
        self, name: str, config: Config, target_state: TargetState | None, *, allow_replace: bool
    ) -> Put:
        await self._asked("put_connector", name, dict(config), target_state)
        if name in self.configs and not allow_replace:
            raise AlreadyExists(f"Connector {name} already exists")
        created = name not in self.configs
        self.configs[name] = {key: value for key, value in config.items() if value is not None}
        return Put(created, ConnectorInfo(name, self.configs[name], (), "source"))

    async def patch_connector(self, name: str, patch: Config) -> Put:
        await self._asked("patch_connector", name, dict(patch))
        changed = {**self._config(name), **patch}
        self.configs[name] = {key: value for key, value in changed.items() if value is not None}
        return Put(False, ConnectorInfo(name, self.configs[name], (), "source"))

    async def delete_connector(self, name: str) -> None:
        await self._asked("delete_connector", name)
        self._config(name)
        del self.configs[name]

    async def set_target_state(self, name: str, state: TargetState) -> None:
        await self._asked("set_target_state", name, state)
        self._config(name)
        self.states[name] = state

    async def restart_connector(self, name: str) -> None:
        await self._asked("restart_connector", name)
        self._config(name)

    async def restart_task(self, task: TaskId) -> None:
        await self._asked("restart_task", task)
        self._config(task.connector)

    async def restart(self, request: RestartRequest) -> ConnectorStateInfo:
        await self._asked("restart", request)
        return self.connector_status(request.connector)

    async def active_topics(self, name: str) -> Sequence[str]:
        await self._asked("active_topics", name)
        return ["t1", "t2"]

    async def reset_active_topics(self, name: str) -> None:
        await self._asked("reset_active_topics", name)

    async def connector_offsets(self, name: str) -> Sequence[SourceOffset]:
        await self._asked("connector_offsets", name)
        self._config(name)
        return self.offsets

    async def alter_offsets(self, name: str, offsets: Sequence[SourceOffset] | None) -> str:
        await self._asked("alter_offsets", name, offsets)
        self._config(name)
        self.offsets = list(offsets or ())
        what = "reset" if offsets is None else "altered"
        return f"The offsets for this connector have been {what} successfully"

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        await self._asked("connector_report", name, kind, dict(query))
        self._config(name)
        return {"kind": kind, **query}

    def record(self, entry: AuditEntry) -> None:
        self.audited.append(entry)

    async def put_task_configs(self, name: str, read: ReadConfigs, signature: Signature) -> None:
        if "put_task_configs" in self.refusals:
            raise self.refusals["put_task_configs"]
        await self._asked("put_task_configs", name, [dict(each) for each in read()], signature)

    async def fence_zombies(self, name: str, signature: Signature) -> None:
        await self._asked("fence_zombies", name, signature)

    def sign_forwarded(self, request: ForwardedRequest) -> dict[str, str]:
        if not self.has_key:
            return {}
        return {SIGNATURE_HEADER: sign(GROUP_KEY, "HmacSHA256", request.to_bytes()), ALGORITHM_HEADER: "HmacSHA256"}

    def check_forwarded(self, request: ForwardedRequest, signature: str | None, algorithm: str | None) -> None:
        check(Signature(signature, algorithm, request.to_bytes()), GROUP_KEY, ["HmacSHA256"])

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        source = PluginInfo("org.example.FileConnector", "source", "4.3.1")
        return [source] if connectors_only else [source, PluginInfo("org.example.Upper", "transformation", None)]

    def plugin_config(self, plugin: str, version: str | None) -> Sequence[ConfigKeyInfo]:
        self._noted("plugin_config", plugin, version)
        return [KEY]

    async def validate(self, plugin: str, config: Config) -> ConfigInfos:
        await self._asked("validate", plugin, dict(config))
        values = [
            ConfigInfo(KEY, ConfigValueInfo("topic", None, errors=("it is missing",))),
            ConfigInfo(None, ConfigValueInfo("unknown", "x")),
        ]
        return ConfigInfos("org.example.FileConnector", 1, ("Common",), tuple(values))

    def loggers(self) -> Mapping[str, LoggerLevel]:
        return self.levels

    def logger(self, name: str) -> LoggerLevel:
        if name not in self.levels:
            raise NotFound(f"Logger {name} not found.")
        return self.levels[name]

    def set_logger(self, name: str, level: str) -> Sequence[str]:
        self._noted("set_logger", name, level)
        self.levels[name] = LoggerLevel(level.upper(), 1_700_000_000_000)
        return [name]

    async def set_cluster_logger(self, name: str, level: str) -> None:
        await self._asked("set_cluster_logger", name, level)
