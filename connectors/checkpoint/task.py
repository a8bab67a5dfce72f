"""MirrorCheckpoint's task: looks where its groups stand at the source, and writes where that is on the target.

Kafka's ``MirrorCheckpointTask``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from connect.api.connector import Props
from connect.api.source import BYTES, RecordMetadata, SourceRecord, SourceTask
from connect.core.errors import HeliographError
from connect.kafka.clock import wall_ms
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.patience import Patience
from connectors.checkpoint.groups import decode
from connectors.checkpoint.live_offsets import LiveOffsets
from connectors.checkpoint.looking import GroupLook
from connectors.checkpoint.offset_sync import GroupOffsetSync
from connectors.checkpoint.settings import ASSIGNED_GROUPS, CheckpointSettings, checkpoint_settings
from connectors.checkpoint.shared_maps import SharedMaps
from connectors.clients import Kind, Side
from connectors.latencies import Latencies, Task, Written
from connectors.map_reader import MapReader
from connectors.mirror_records import Checkpoint, MalformedRecord
from connectors.schedule import Schedule

log = logging.getLogger(__name__)

_SYNC: Final = "sync group offsets"
_AGAIN_FIRST_MS: Final = 1_000
_AGAIN_LAST_MS: Final = 30_000


class MirrorCheckpointTask(SourceTask):
    """Of some groups. Each poll sleeps an interval, then has their new checkpoints."""

    def __init__(self, written: Written, maps: SharedMaps) -> None:
        self._written = written
        self._shared_maps = maps
        self._map: MapReader | None = None
        self._latencies = Latencies()
        self._name = Task("", "", "")
        self._groups: list[str] = []
        self._interval_s = 0
        self._has_begun = False
        self._clusters: list[Cluster] = []
        self._schedule: Schedule | None = None

    async def start(self, props: Props) -> None:
        """Clusters that do not answer yet are waited for by the polls, as no checkpoint may be written before those
        that were written are known."""
        settings = self._settings = checkpoint_settings(props)
        self._interval_s = settings.emit_interval_s or 0
        self._again = Patience(log, f"{settings.flow}: no checkpoints now", _AGAIN_FIRST_MS, _AGAIN_LAST_MS)
        self._groups = decode(props.get(ASSIGNED_GROUPS, ""))
        index = props.get("task.index", "0")
        self._name = Task(settings.source_alias, settings.target_alias, index)
        self._written.checkpoints[self._name] = self._latencies
        task = f"-{index}"
        syncs_side: Side = "source" if settings.syncs_on_source else "target"
        source = self._cluster(settings, "source", "admin", "checkpoint-source-admin", task)
        target = self._cluster(settings, "target", "admin", "checkpoint-target-admin", task)
        reading = self._cluster(settings, "target", "consumer", "checkpoints-target-consumer", task)
        syncs = self._cluster(settings, syncs_side, "consumer", f"offset-syncs-{syncs_side}-consumer", task)
        consumer = settings.connection("target", "consumer", "offset-map-target-consumer", "")
        self._map = self._shared_maps.join(consumer, settings.target_alias, settings.map_topic)
        self._look = GroupLook(settings, self._groups, source, reading, syncs, self._map)
        self._live = LiveOffsets(target, settings.map_topic, settings.flow)
        if settings.sync_interval_s is not None:
            sync = GroupOffsetSync(settings.flow, target, self._groups, self._look.checkpoints)
            # Not ``admin.timeout.ms``: groups that cannot be asked would take the time of those behind them.
            self._schedule = Schedule(settings.flow, timeout_s=None)
            self._schedule.add(_SYNC, sync.run, settings.sync_interval_s)
        log.info("%s: checkpoints of %d groups: %s", settings.flow, len(self._groups), ", ".join(self._groups))

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
        return [record for of_group in records for record in of_group] or None

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        if metadata is not None:
            place = record.source_partition
            labels = (str(place["group"]), str(place["topic"]), str(place["partition"]))
            if self._live.written(str(place["group"])):
                await self._live.store()
            self._latencies.written(labels, record.timestamp_ms or 0, wall_ms())

    async def stop(self) -> None:
        # A successor may have begun already.
        if self._written.checkpoints.get(self._name) is self._latencies:
            del self._written.checkpoints[self._name]
        if self._schedule is not None:
            await self._schedule.stop()
        if self._map is not None:
            await self._shared_maps.leave(self._map)
        for cluster in self._clusters:
            await cluster.close()

    def _cluster(self, settings: CheckpointSettings, side: Side, kind: Kind, role: str, task: str) -> Cluster:
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
        """What is new of a group. One that cannot be asked for does not hold up the others."""
        try:
            return await self._look.newer(group)
        except HeliographError as error:
            log.warning("%s: no checkpoints of group %s now: %s", self._settings.flow, group, error)
            return []

    def _records(self, checkpoints: Iterable[Checkpoint], now_ms: int) -> Iterator[SourceRecord]:
        """Without those whose text is too long for a checkpoint; brokers may allow groups more than that."""
        for one in checkpoints:
            try:
                yield self._record(one, now_ms)
            except MalformedRecord as error:
                where = f"{one.topic}-{one.partition}"
                log.warning("%s: group %s gets no checkpoint of %s: %s", self._settings.flow, one.group, where, error)

    def _record(self, checkpoint: Checkpoint, now_ms: int) -> SourceRecord:
        return SourceRecord(
            # The order of the fields is that of Java's map, and part of the stored key.
            source_partition={
                "partition": checkpoint.partition,
                "topic": checkpoint.topic,
                "group": checkpoint.group,
            },
            source_offset={"offset": 0},
            topic=self._settings.checkpoints_topic,
            partition=0,
            key=checkpoint.key(),
            key_schema=BYTES,
            value=checkpoint.value(),
            value_schema=BYTES,
            timestamp_ms=now_ms,
        )
