"""MirrorCheckpoint's connector: makes the topic, finds groups and hands them to tasks.

Kafka's ``MirrorCheckpointConnector``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from connect.api.connector import Props
from connect.api.plugins import KAFKA_VERSION
from connect.api.source import SourceConnector
from connect.core.config import ConfigDef, ConfigValue
from connect.core.errors import HeliographError
from connect.core.model import NewTopic
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connectors.checkpoint.groups import GroupFinder, decode, encode, split
from connectors.checkpoint.settings import ASSIGNED_GROUPS, CheckpointSettings, checkpoint_settings
from connectors.checkpoint.shared_maps import SharedMaps
from connectors.checkpoint.task import MirrorCheckpointTask
from connectors.config_defs import CHECKPOINT
from connectors.internal_topic import keep_making
from connectors.latencies import Written
from connectors.offset_checks import require_offset, require_partition, require_string
from connectors.schedule import Schedule

log = logging.getLogger(__name__)

REFRESH: Final = "refresh groups"
#: A connector counts as started after this time, whether its clusters have answered or not.
_FIRST_LOOK_S: Final = 10.0
_LOOK_AGAIN_S: Final = 5.0


class MirrorCheckpointConnector(SourceConnector):
    """``org.apache.kafka.connect.mirror.MirrorCheckpointConnector``; its tasks tell ``written`` what they wrote, and
    share ``maps``."""

    def __init__(self, written: Written | None = None, maps: SharedMaps | None = None) -> None:
        self._written = written or Written()
        self._maps = maps or SharedMaps()
        self._props: Props = {}
        self._settings: CheckpointSettings | None = None
        self._finder: GroupFinder | None = None
        self._groups: list[str] | None = None
        self._schedule: Schedule | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def version(cls) -> str:
        return KAFKA_VERSION

    @classmethod
    def task_class(cls) -> str:
        return "org.apache.kafka.connect.mirror.MirrorCheckpointTask"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return CHECKPOINT

    async def validate(self, props: Props, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        amended = dict(values)
        for name, objection in objections(props).items():
            amended[name] = amended.get(name, ConfigValue(name, None)).with_error(objection)
        return amended

    async def start(self, props: Props) -> None:
        """Clusters that do not answer are waited for behind; errors of settings raise."""
        settings = checkpoint_settings(props)
        for warning in settings.warnings:
            log.warning("%s: %s", settings.flow, warning)
        if not settings.enabled:
            return
        self._props, self._settings = props, settings
        source = Cluster(settings.connection("source", "admin", "checkpoint-source-admin"), settings.source_alias)
        self._closing.push_async_callback(source.close)
        connection = settings.connection("target", "admin", "checkpoint-target-admin")
        admin = Admin(connection, settings.target_alias, "set checkpoints.topic.replication.factor lower")
        self._closing.push_async_callback(admin.close)
        self._finder = GroupFinder(settings, source)
        making = keep_making(admin, topic_of_checkpoints(settings))
        scope = await self._closing.enter_async_context(Scope(f"{settings.flow}: checkpoint connector"))
        scope.spawn(making, f"create {settings.checkpoints_topic} for {settings.name}")
        looking = scope.spawn(self._look(self._finder, settings), f"first groups of {settings.flow}")
        await asyncio.wait({looking}, timeout=_FIRST_LOOK_S)
        if self._groups is None:
            log.warning("%s: its groups are looked for in the background", settings.flow)

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        if self._settings is None or self._settings.emit_interval_s is None:
            return []
        groups = self._groups
        if groups is None:
            # Until the first look is over, the groups that had a task keep one, by today's settings.
            assigned = (props.get(ASSIGNED_GROUPS, "") for props in self.context.present_task_configs)
            before = {group for of_task in assigned for group in decode(of_task)}
            groups = sorted(filter(self._settings.group_filter.should_replicate_group, before))
        return [
            {**self._props, ASSIGNED_GROUPS: encode(part), "task.index": str(index)}
            for index, part in enumerate(split(groups, max_tasks))
        ]

    def make_task(self) -> MirrorCheckpointTask:
        return MirrorCheckpointTask(self._written, self._maps)

    async def stop(self) -> None:
        await self._closing.aclose()

    async def _look(self, finder: GroupFinder, settings: CheckpointSettings) -> None:
        """The first look at the groups, repeated until it works; then the next ones at their interval."""
        while self._groups is None:
            try:
                self._groups = await finder.find()
            except HeliographError as error:
                log.warning("%s: %s; looking again in %g s", settings.flow, error, _LOOK_AGAIN_S)
                await asyncio.sleep(_LOOK_AGAIN_S)
        log.info("%s: %d groups get checkpoints", settings.flow, len(self._groups))
        if settings.refresh_groups_interval_s is not None:
            self._schedule = Schedule(settings.flow, settings.admin_timeout_ms / 1000)
            self._closing.push_async_callback(self._schedule.stop)
            self._schedule.add(REFRESH, self._refresh, settings.refresh_groups_interval_s)
            self._schedule.begin()
        self.context.request_task_reconfiguration()

    async def _refresh(self) -> None:
        assert self._finder is not None and self._settings is not None and self._groups is not None
        before, found = set(self._groups), await self._finder.find()
        if new := sorted(set(found) - before):
            log.info("%s: groups that get checkpoints from now on: %s", self._settings.flow, ", ".join(new))
        if gone := sorted(before - set(found)):
            log.info("%s: groups without offsets in mirrored topics: %s", self._settings.flow, ", ".join(gone))
        if new or gone:
            self._groups = found
            self.context.request_task_reconfiguration()

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Offsets of checkpoints mean nothing; only those that a task could have written are taken, and any reset."""
        for partition, offset in offsets:
            if offset is not None:
                require_string(partition, "group")
                require_string(partition, "topic")
                require_partition(partition)
                require_offset(partition, offset, only_zero=True)
        return True


def topic_of_checkpoints(settings: CheckpointSettings) -> NewTopic:
    """The topic that a connector with these settings makes on its target."""
    return NewTopic(
        settings.checkpoints_topic,
        partitions=1,
        replication_factor=settings.replication_factor,
        configs={"cleanup.policy": "compact"},
    )


def objections(props: Props) -> dict[str, str]:
    """By key: why checkpoints could not be emitted (``MirrorCheckpointConfig.validate``)."""
    if props.get("enabled", "true") == "false":
        return {}
    found = {}
    if props.get("emit.checkpoints.enabled") == "false":
        found["emit.checkpoints.enabled"] = (
            "MirrorCheckpointConnector can't run with emit.checkpoints.enabled set to false"
        )
    if props.get("emit.offset-syncs.enabled") == "false":
        found["emit.offset-syncs.enabled"] = "MirrorCheckpointConnector can't run without offset syncs"
    return found
