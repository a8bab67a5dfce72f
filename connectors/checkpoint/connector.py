"""MirrorCheckpoint's connector finds consumer groups, and its tasks write the groups' checkpoints on the target, as
Kafka's ``MirrorCheckpointConnector`` and ``MirrorCheckpointTask``. All of a worker share one reader of an offset
map."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from connect.api.connector import Props
from connect.api.source import ConnectorReport, RecordMetadata, SourceRecord, SourceTask, TaskReport
from connect.core.config.config_def import ConfigDef, ConfigValue, add_errors
from connect.core.errors import HeliographError
from connect.core.model import NewTopic
from connect.core.wording import counted
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Backoff, Scope, gather_limited, wall_ms
from connect.kafka.long_log import LongLogs
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.checkpoint.group_checkpoints import GroupFinder, GroupLook, LiveOffsets, decode, encode, split
from connectors.checkpoint.group_offset_sync import GroupOffsetSync
from connectors.config.client_config import ClientKind, ClusterSide, open_admin
from connectors.config.connector_configs import ASSIGNED_GROUPS, CheckpointSettings, checkpoint_settings
from connectors.config.definitions import CHECKPOINT
from connectors.connector_base import (
    Latencies,
    MirrorConnector,
    Schedule,
    Task,
    WrittenLatencies,
    check_offsets,
    mirror_record,
)
from connectors.formats.mirror_records import Checkpoint, MalformedRecord
from connectors.internal_topics import keep_making
from connectors.offset_map.reader import MapReader


@dataclass(slots=True)
class _SharedReader:
    settings: ConnectionSettings
    topic: str
    cluster: Cluster
    reader: MapReader
    users: int = 0


class SharedMaps:
    """Map readers of one worker. They have their own connections, which close with the last user."""

    def __init__(self, long_logs: LongLogs | None = None) -> None:
        self._long_logs = long_logs
        self._shared: list[_SharedReader] = []

    def join(self, settings: ConnectionSettings, name: str, topic: str) -> MapReader:
        """Return the reader of ``topic`` on a cluster; each call needs one :meth:`leave`."""
        any_client = replace(settings, client_id="")
        found = next((one for one in self._shared if (one.settings, one.topic) == (any_client, topic)), None)
        if found is None:
            cluster = Cluster(settings, name, long_logs=self._long_logs)
            found = _SharedReader(any_client, topic, cluster, MapReader(cluster, topic, connector=None))
            self._shared.append(found)
        found.users += 1
        return found.reader

    async def leave(self, reader: MapReader) -> None:
        for one in [one for one in self._shared if one.reader is reader]:
            one.users -= 1
            if not one.users:
                self._shared.remove(one)
                await one.cluster.close()


log = logging.getLogger(__name__)

_SYNC: Final = "sync group offsets"
_AGAIN_FIRST_MS: Final = 1_000
_AGAIN_LAST_MS: Final = 30_000


class MirrorCheckpointTask(SourceTask):
    """A task for some groups. Each poll sleeps for an interval and returns their new checkpoints."""

    def __init__(self, written: WrittenLatencies, maps: SharedMaps) -> None:
        self._written, self._shared_maps = written, maps
        self._map: MapReader | None = None
        self._latencies = Latencies()
        self._name = Task("", "", "")
        self._groups: list[str] = []
        self._interval_s = 0
        self._has_begun = False
        self._clusters: list[Cluster] = []
        self._schedule: Schedule | None = None

    async def start(self, props: Props) -> None:
        """Start without waiting for clusters: polls do, because earlier checkpoints must be known before new ones are
        written."""
        settings = self._settings = checkpoint_settings(props)
        self._interval_s = settings.emit_interval_s or 0
        self._again = Backoff(log, f"{settings.flow}: no checkpoints now", _AGAIN_FIRST_MS, _AGAIN_LAST_MS)
        self._groups = decode(props.get(ASSIGNED_GROUPS, ""))
        index = props.get("task.index", "0")
        self._name = Task(settings.source_alias, settings.target_alias, index)
        self._latencies.done_ms = wall_ms()
        self._written.checkpoints[self._name] = self._latencies
        task = f"-{index}"
        syncs_side: ClusterSide = "source" if settings.syncs_on_source else "target"
        source = self._cluster(settings, "source", "admin", "checkpoint-source-admin", task)
        target = self._cluster(settings, "target", "admin", "checkpoint-target-admin", task)
        reading = self._cluster(settings, "target", "consumer", "checkpoints-target-consumer", task)
        syncs = self._cluster(settings, syncs_side, "consumer", f"offset-syncs-{syncs_side}-consumer", task)
        consumer = settings.connection("target", "consumer", "offset-map-target-consumer")
        self._map = self._shared_maps.join(consumer, settings.target_alias, settings.map_topic)
        self._look = GroupLook(settings, self._groups, source, reading, syncs, self._map)
        self._live = LiveOffsets(target, settings.map_topic, settings.flow)
        if settings.sync_interval_s is not None:
            sync = GroupOffsetSync(settings.flow, target, self._groups, self._look.checkpoints)
            # Not ``admin.timeout.ms``: groups that do not answer would take the time of the groups after them.
            self._schedule = Schedule(settings.flow, timeout_s=None)
            self._schedule.add(_SYNC, sync.run, settings.sync_interval_s)
        groups = counted(len(self._groups), "group")
        log.info("%s: checkpoints of %s: %s", settings.flow, groups, ", ".join(self._groups))

    async def poll(self) -> Sequence[SourceRecord] | None:
        try:
            if not self._has_begun:
                await self._begin()
            await asyncio.sleep(self._interval_s)
            await self._look.follow()
        except HeliographError as error:
            await self._again.after(error)
            return None
        self._again.over()
        now_ms = wall_ms()
        newer = await gather_limited(self._newer, self._groups)
        records = [list(self._records(checkpoints, now_ms)) for checkpoints in newer]
        for group, of_group in zip(self._groups, records, strict=True):
            if group in self._look.live:
                self._live.look(group, self._look.live[group], len(of_group))
        await self._live.store()
        self._latencies.done_ms = now_ms
        return [record for of_group in records for record in of_group] or None

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        if metadata is not None:
            place = record.source_partition
            labels = (str(place["group"]), str(place["topic"]), str(place["partition"]))
            if self._live.written(str(place["group"])):
                await self._live.store()
            self._latencies.written(labels, record.timestamp_ms or 0, wall_ms())

    async def stop(self) -> None:
        # A successor may have started already.
        if self._written.checkpoints.get(self._name) is self._latencies:
            del self._written.checkpoints[self._name]
        if self._schedule is not None:
            await self._schedule.stop()
        if self._map is not None:
            await self._shared_maps.leave(self._map)
        for cluster in self._clusters:
            await cluster.close()

    def _cluster(
        self, settings: CheckpointSettings, side: ClusterSide, kind: ClientKind, role: str, task: str
    ) -> Cluster:
        alias = settings.source_alias if side == "source" else settings.target_alias
        cluster = Cluster(settings.connection(side, kind, role, task), alias)
        self._clusters.append(cluster)
        return cluster

    async def _begin(self) -> None:
        await self._look.begin()
        self._has_begun = True
        if self._schedule is not None:
            self._schedule.begin()

    async def _newer(self, group: str) -> list[Checkpoint]:
        """Return a group's new checkpoints. A group that cannot be read does not delay the others."""
        try:
            return await self._look.newer(group)
        except HeliographError as error:
            log.warning("%s: no checkpoints of group %s now: %s", self._settings.flow, group, error)
            return []

    def _records(self, checkpoints: Iterable[Checkpoint], now_ms: int) -> Iterator[SourceRecord]:
        """Leave out checkpoints with texts too long for the format; brokers may allow groups longer ones."""
        for one in checkpoints:
            place = {"partition": one.partition, "topic": one.topic, "group": one.group}
            try:
                yield mirror_record(place, self._settings.checkpoints_topic, one, now_ms)
            except MalformedRecord as error:
                where = f"{one.topic}-{one.partition}"
                log.warning("%s: group %s gets no checkpoint of %s: %s", self._settings.flow, one.group, where, error)


#: Returns a report by kind, config and query; None if there is none of that kind.
ReadReport = Callable[[str, Props, Mapping[str, str]], Awaitable[Mapping[str, Any] | None]]


REFRESH: Final = "refresh groups"
#: A connector counts as started after this time, even if its clusters have not answered.
_FIRST_LOOK_S: Final = 10.0
_LOOK_AGAIN_S: Final = 5.0


class MirrorCheckpointConnector(MirrorConnector):
    """``org.apache.kafka.connect.mirror.MirrorCheckpointConnector``; its tasks share ``written`` and ``maps``."""

    def __init__(
        self, written: WrittenLatencies | None = None, maps: SharedMaps | None = None, reports: ReadReport | None = None
    ) -> None:
        self._written = written or WrittenLatencies()
        self._maps = maps or SharedMaps()
        self._reports = reports
        self._props: Props = {}
        self._settings: CheckpointSettings | None = None
        self._finder: GroupFinder | None = None
        self._groups: list[str] | None = None
        self._schedule: Schedule | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def task_class(cls) -> str:
        return "org.apache.kafka.connect.mirror.MirrorCheckpointTask"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return CHECKPOINT

    async def validate(self, props: Props, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        amended = dict(values)
        for name, objection in objections(props).items():
            add_errors(amended, name, objection)
        return amended

    async def start(self, props: Props) -> None:
        """Start, waiting for clusters in the background. Raises ConfigError for invalid settings."""
        settings = checkpoint_settings(props)
        for warning in settings.warnings:
            log.warning("%s: %s", settings.flow, warning)
        if not settings.enabled:
            return
        self._props, self._settings = props, settings
        source = Cluster(settings.connection("source", "admin", "checkpoint-source-admin"), settings.source_alias)
        self._closing.push_async_callback(source.close)
        connection = settings.connection("target", "admin", "checkpoint-target-admin")
        admin = open_admin(props, connection, settings.target_alias, "set checkpoints.topic.replication.factor lower")
        self._closing.push_async_callback(admin.close)
        self._finder = GroupFinder(settings, source)
        making = keep_making(admin, topic_of_checkpoints(settings))
        scope = await self._closing.enter_async_context(Scope(f"{settings.flow}: checkpoint connector"))
        scope.spawn(making, f"create {settings.checkpoints_topic} for {settings.name}")
        looking = scope.spawn(self._look(self._finder, settings), f"first groups of {settings.flow}")
        await asyncio.wait({looking}, timeout=_FIRST_LOOK_S)
        if self._groups is None:
            log.warning("%s: no groups found yet; still looking in the background", settings.flow)

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        if self._settings is None or self._settings.emit_interval_s is None:
            return []
        groups = self._groups
        if groups is None:
            # Until the first read is over, groups that had a task keep one, if the filter still selects them.
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
        """Find the groups, with retries until it works; then find them again at each interval."""
        while self._groups is None:
            try:
                self._groups = await finder.find()
            except HeliographError as error:
                log.warning("%s: groups could not be read: %s; retrying in %g s", settings.flow, error, _LOOK_AGAIN_S)
                await asyncio.sleep(_LOOK_AGAIN_S)
        log.info("%s: checkpoints for %s", settings.flow, counted(len(self._groups), "group"))
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

    async def report(
        self, kind: str, props: Props, tasks: Sequence[TaskReport], query: Mapping[str, str], connector: ConnectorReport
    ) -> Mapping[str, Any] | None:
        return None if self._reports is None else await self._reports(kind, props, query)

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Check offsets, which mean nothing here: accept only those that a task could have written, and any reset."""
        return check_offsets(offsets, "group", "topic", "partition", only_zero=True)


def topic_of_checkpoints(settings: CheckpointSettings) -> NewTopic:
    return NewTopic(settings.checkpoints_topic, 1, settings.replication_factor, {"cleanup.policy": "compact"})


def objections(props: Props) -> dict[str, str]:
    """Return by key why checkpoints cannot be emitted (``MirrorCheckpointConfig.validate``)."""
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
