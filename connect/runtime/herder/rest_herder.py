"""Answers REST requests from what the worker has read, and passes changes to its herder.

Like the parts of Kafka's ``DistributedHerder`` and ``AbstractHerder`` that REST uses; messages are Java's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.core import herder_api
from connect.core.audit import AuditEntry
from connect.core.config.security_settings import HIDDEN, restored
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, HeliographError, RetriableError, SecurityError
from connect.core.herder import events
from connect.core.herder.herder import Herder
from connect.core.herder.state import HerderMode
from connect.core.model import ConnectorInfo, ConnectorStateInfo, RestartRequest, Status, TargetState, TaskId, TaskInfo
from connect.runtime.audit import AuditLog
from connect.runtime.herder.config_and_status_topics import StatusStore
from connect.runtime.herder.driver import HerderDriver
from connect.runtime.herder.effects_and_fencing import InternalRequests, ZombieFence
from connect.runtime.herder.loggers import Loggers, check_level
from connect.runtime.herder.offsets_and_reports import OffsetsApi, Reports
from connect.runtime.herder.rebalance_stages import Stages
from connect.runtime.plugins.config_validation import error_message, validate_connector, without_secrets
from connect.runtime.plugins.plugin_registry import Plugins

log = logging.getLogger(__name__)

#: The kind of report that any connector has: the audit of its worker's group.
AUDIT: Final = "audit"
#: How long all Java members together may take to validate a config: less than REST's limit for requests of workers.
_JAVA_MEMBERS_S: Final = 20.0


@dataclass(eq=False)
class RuntimeHerder:
    """Implements :class:`connect.core.herder_api.HerderApi`. ``started``: returns once the worker has joined its group.
    ``silent_s``: returns the time since the group's coordinator last answered."""

    core: Herder
    driver: HerderDriver
    config: WorkerConfig
    registry: Plugins
    statuses: StatusStore
    offsets: OffsetsApi
    reports: Reports
    fencing: ZombieFence
    internal: InternalRequests
    levels: Loggers
    stages: Stages
    audit: AuditLog
    started: Callable[[], Awaitable[object]]
    silent_s: Callable[[], float]
    #: Set once the cluster has been reached.
    info: herder_api.WorkerInfo = field(default=herder_api.WorkerInfo("unknown", "unknown", None), init=False)
    #: Whether to log keys of stored configs that have no effect. Keys of a file are logged with their lines instead.
    logs_ignored: bool = field(default=True, init=False)

    # -- the worker ------------------------------------------------------------------------------------

    def worker_info(self) -> herder_api.WorkerInfo:
        return self.info

    def is_ready(self) -> bool:
        return self.core.is_ready

    def stage(self) -> str | None:
        return self.stages.sentence()

    def is_rebalancing(self) -> bool:
        if self.core.mode is HerderMode.MEMBER:
            return self.core.rejoin
        return self.core.mode in (HerderMode.AWAY, HerderMode.JOINING, HerderMode.RESOLVING)

    async def health(self) -> None:
        await self.started()
        await self.driver.turn()
        # Does not depend on source clusters: a restart of this worker would not help them (KIP-1017).
        config, silent_s = self.config, self.silent_s()
        if silent_s * 1000 > config.session_timeout_ms:
            raise herder_api.Unhealthy(
                f"Worker has not reached its group {config.group_id} for {silent_s:.0f} s, which is longer than "
                f"session.timeout.ms ({config.session_timeout_ms})."
            )

    # -- reading ---------------------------------------------------------------------------------------

    async def connectors(self) -> Sequence[str]:
        await self.started()
        return self.core.snapshot.connectors()

    async def connector_info(self, name: str) -> ConnectorInfo:
        await self._settled()
        return self._connector(name)

    def known_connector(self, name: str) -> ConnectorInfo:
        return self._connector(name)

    async def connector_config(self, name: str) -> Mapping[str, str]:
        await self._settled()
        return self._config(name)

    async def task_infos(self, name: str) -> Sequence[TaskInfo]:
        await self._settled()
        self._config(name)
        snapshot = self.core.snapshot
        return [TaskInfo(task, snapshot.task_config(task) or {}) for task in snapshot.task_ids(name)]

    def connector_status(self, name: str) -> ConnectorStateInfo:
        status = self.statuses.log.status(name)
        if status is None:
            raise herder_api.NotFound(f"No status found for connector {name}")
        tasks = self.statuses.log.tasks(name)
        return ConnectorStateInfo(name, status, dict(sorted(tasks.items())), self._type(name))

    def task_status(self, task: TaskId) -> Status:
        status = self.statuses.log.status(task)
        if status is None:
            raise herder_api.NotFound(f"No status found for task {task}")
        return status

    def without_secrets(self, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
        connector = self.core.snapshot.connector_config(name)
        return without_secrets(config, config if connector is None else connector, self.registry)

    # -- changing --------------------------------------------------------------------------------------

    async def put_connector(
        self, name: str, config: herder_api.Config, target_state: TargetState | None, *, allow_replace: bool
    ) -> herder_api.Put:
        await self.started()
        checked = await self._validated(name, self._restored(name, config))
        return await self._put(events.PutConnector(name, checked, target_state, allow_replace, self._type_of(checked)))

    async def patch_connector(self, name: str, patch: herder_api.Config) -> herder_api.Put:
        await self.started()
        if not self.core.is_leader:
            raise herder_api.NotLeader("Only the leader can patch connector configs.", self.core.leader_url)
        patched = {**self._config(name), **self._restored(name, patch)}
        checked = await self._validated(name, {key: value for key, value in patched.items() if value is not None})
        return await self._put(events.PutConnector(name, checked, None, True, self._type_of(checked)))

    async def _put(self, operation: events.PutConnector) -> herder_api.Put:
        put = await self.driver.request(operation)
        assert isinstance(put, herder_api.Put)
        return put

    async def delete_connector(self, name: str) -> None:
        await self._asked(events.DeleteConnector(name))

    async def set_target_state(self, name: str, state: TargetState) -> None:
        await self._asked(events.SetTargetState(name, state))

    async def restart_connector(self, name: str) -> None:
        await self._asked(events.RestartConnector(name))

    async def restart_task(self, task: TaskId) -> None:
        await self._asked(events.RestartTask(task))

    async def restart(self, request: RestartRequest) -> ConnectorStateInfo:
        shown = await self._asked(events.Restart(request))
        assert isinstance(shown, ConnectorStateInfo)
        return replace(shown, type=self._type(request.connector))

    async def _asked(self, operation: events.HerderOperation) -> Any:
        await self.started()
        return await self.driver.request(operation)

    # -- topics in use ---------------------------------------------------------------------------------

    async def active_topics(self, name: str) -> Sequence[str]:
        if not self.config.topic_tracking_enable:
            raise herder_api.Forbidden("Topic tracking is disabled.")
        return sorted(use.topic for use in self.statuses.log.topics(name))

    async def reset_active_topics(self, name: str) -> None:
        if not self.config.topic_tracking_enable:
            raise herder_api.Forbidden("Topic tracking is disabled.")
        if not self.config.topic_tracking_allow_reset:
            raise herder_api.Forbidden("Topic tracking reset is disabled.")
        self.statuses.forget_topics(name)

    # -- offsets ---------------------------------------------------------------------------------------

    async def connector_offsets(self, name: str) -> Sequence[herder_api.SourceOffset]:
        await self.started()
        self._refer_to_java(name)
        if self._type(name) == "sink":
            raise herder_api.BadRequest(
                f"{name} is a sink connector, and this worker has source connectors only. Read the offsets of the "
                f"consumer group connect-{name}, or ask one of Java's workers."
            )
        moving = self.core.snapshot.target_state(name) is not TargetState.STOPPED
        return await self.offsets.read(name, self._config(name), moving=moving)

    async def alter_offsets(self, name: str, offsets: Sequence[herder_api.SourceOffset] | None) -> str:
        await self.started()
        if offsets is not None and not offsets:
            raise herder_api.BadRequest("Partitions / offsets need to be provided for an alter offsets request")

        async def modifiable() -> Mapping[str, str]:
            await self.driver.request(events.CheckOffsets(name))
            config = self._config(name)
            if not self.core.can_run(config) and self.core.java_urls:
                raise herder_api.BadRequest(
                    f"Connector {name} has a class that only Java's workers have, and this worker leads the group, so "
                    "its offsets cannot be changed. Send the request again while one of Java's workers leads."
                )
            return config

        return await self.offsets.modify(name, modifiable, offsets)

    # -- requests from other workers -------------------------------------------------------------------

    async def put_task_configs(self, name: str, read: herder_api.ReadConfigs, signature: herder_api.Signature) -> None:
        await self.started()
        self.core.check_signature(signature)
        await self.driver.request(events.PutTaskConfigs(name, tuple(await asyncio.to_thread(read))))

    async def fence_zombies(self, name: str, signature: herder_api.Signature) -> None:
        await self.started()
        self.core.check_signature(signature)
        try:
            await self.fencing.fence(name)
        except SecurityError as error:
            # 400, because the requester would retry for two minutes after a 500, which may be a passing error.
            raise herder_api.BadRequest(str(error)) from error

    def sign_forwarded(self, request: herder_api.ForwardedRequest) -> Mapping[str, str]:
        sign = self.core.signer()
        return {} if sign is None else sign(request.to_bytes())

    def check_forwarded(
        self, request: herder_api.ForwardedRequest, signature: str | None, algorithm: str | None
    ) -> None:
        self.core.check_forwarded(herder_api.Signature(signature, algorithm, request.to_bytes()))

    # -- reports ---------------------------------------------------------------------------------------

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        await self.started()
        config = self._config(name)
        if kind == AUDIT:
            try:
                return await self.audit.report(query)
            except ConfigError as error:
                raise herder_api.BadRequest(str(error)) from None
        return await self.reports.report(name, config, kind, query)

    def record(self, entry: AuditEntry) -> None:
        self.audit.put(entry)

    # -- plugins ---------------------------------------------------------------------------------------

    def plugins(self, *, connectors_only: bool) -> Sequence[herder_api.PluginInfo]:
        return self.registry.plugins(connectors_only=connectors_only)

    def plugin_config(self, plugin: str, version: str | None) -> Sequence[herder_api.ConfigKeyInfo]:
        return self.registry.plugin_config(plugin, version)

    async def validate(self, plugin: str, config: herder_api.Config) -> herder_api.ConfigInfos:
        config = self._restored(config.get("name"), config)
        if (infos := await self._validated_by_java(config)) is not None:
            return infos
        with self.stages.doing("performing multi-property validation for the connector"):
            return await validate_connector(config, self.registry, self.config, self.config.transformer)

    # -- loggers ---------------------------------------------------------------------------------------

    def loggers(self) -> Mapping[str, herder_api.LoggerLevel]:
        return self.levels.all()

    def logger(self, name: str) -> herder_api.LoggerLevel:
        return self.levels.one(name)

    def set_logger(self, name: str, level: str) -> Sequence[str]:
        return self.levels.set(name, level)

    async def set_cluster_logger(self, name: str, level: str) -> None:
        check_level(level)
        await self._asked(events.SetLogger(name, level.upper()))

    # -- shared ----------------------------------------------------------------------------------------

    async def _settled(self) -> None:
        await self.started()
        if self.core.rebalance_expected:
            raise herder_api.RebalanceExpected

    def _config(self, name: str) -> Mapping[str, str]:
        config = self.core.snapshot.connector_config(name)
        if config is None:
            raise herder_api.NotFound(f"Connector {name} not found")
        return config

    def _connector(self, name: str) -> ConnectorInfo:
        config = self._config(name)
        return ConnectorInfo(name, config, self.core.snapshot.task_ids(name), self._type(name))

    def _type(self, name: str) -> str:
        config = self.core.snapshot.connector_config(name)
        return "unknown" if config is None else self._type_of(config)

    def _type_of(self, config: Mapping[str, str]) -> str:
        return self.registry.connector_type(config.get("connector.class"))

    def _restored(self, name: str | None, config: herder_api.Config) -> herder_api.Config:
        """Return a config in which hidden values are the stored ones. Raises BadRequest if one is not stored."""
        restored_config = restored(config, self.core.snapshot.connector_config(name or "") or {})
        for key, value in restored_config.items():
            if value == HIDDEN:
                raise herder_api.BadRequest(
                    f"{key} is {HIDDEN}, and connector {name} has no stored value. Send the value itself."
                )
        return restored_config

    def _refer_to_java(self, name: str) -> None:
        """Raise ElsewhereError if Java members may have the class of a connector, and this worker has not."""
        if self.core.can_run(self._config(name)):
            return
        # A former leader's are of members that may have left.
        if self.core.is_leader and self.core.java_urls:
            raise herder_api.NotAssigned(
                f"Only Java's workers have the class of connector {name}.", self.core.java_urls[0]
            )
        self._refer_to_leader()

    def _refer_to_leader(self) -> None:
        """Raise NotLeader on a worker that follows, because only the leader knows which members are Java's."""
        if not self.core.is_leader and (self.core.leader_url or "").startswith("http"):
            raise herder_api.NotLeader("Only the leader knows which workers have this class.", self.core.leader_url)

    async def _validated_by_java(self, config: herder_api.Config) -> herder_api.ConfigInfos | None:
        """Return how a Java member validates a config of a class that this worker does not have; None if it has it, or
        no other member is known to have it."""
        given = {key: value for key, value in config.items() if value is not None}
        if "connector.class" not in given or self.core.can_run(given):
            return None
        self._refer_to_leader()
        # A member that refuses, such as one that asks for another password, says nothing about the others.
        refused: HeliographError | None = None
        now_s, urls = asyncio.get_running_loop().time, self.core.java_urls
        ends_s = now_s() + _JAVA_MEMBERS_S
        for number, url in enumerate(urls):
            limit_s = (ends_s - now_s()) / (len(urls) - number)
            try:
                async with asyncio.timeout(limit_s):
                    infos = await self.internal.validate(url, given["connector.class"], config)
            except TimeoutError:
                refused = RetriableError(f"The worker at {url} did not validate the config within {limit_s:.1f} s.")
            except HeliographError as error:
                refused = error
            else:
                if infos is not None:
                    return infos
        if refused is not None:
            raise refused
        return None

    async def _validated(self, name: str, config: herder_api.Config) -> Mapping[str, str]:
        infos = await self.validate("", config)
        if infos.error_count:
            raise herder_api.BadRequest(error_message(infos))
        if self.logs_ignored and isinstance(infos, herder_api.ConfigInfosWithWarnings):
            for warning in infos.warnings:
                log.warning("connector %s: %s", name, warning)
        return {key: value for key, value in config.items() if value is not None}
