"""MirrorHeartbeat: a record at every interval that says that a flow is alive.

Kafka's ``MirrorHeartbeatConnector`` and ``MirrorHeartbeatTask``. The worker's producer writes the records, so they
show that the whole way works: worker, target and, where they are mirrored, the flows behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from connect.api.connector import Props
from connect.api.plugins import KAFKA_VERSION
from connect.api.source import BYTES, RecordMetadata, SourceConnector, SourceRecord, SourceTask
from connect.core.config import ConfigDef, Values
from connect.core.model import NewTopic
from connect.kafka.admin import Admin
from connect.kafka.clock import wall_ms
from connect.kafka.concurrency import Scope
from connect.kafka.settings import connection_settings
from connectors.clients import connector_client, inner_client_id
from connectors.config_defs import HEARTBEAT
from connectors.internal_topic import keep_making
from connectors.latencies import Latencies, Task, Written
from connectors.mirror_records import Heartbeat
from connectors.offset_checks import require_offset, require_string
from connectors.policies import make_policy

log = logging.getLogger(__name__)

_FACTOR_KEY: Final = "heartbeats.topic.replication.factor"
_SOURCE: Final = "sourceClusterAlias"
_TARGET: Final = "targetClusterAlias"


def topic_of_heartbeats(props: Props) -> NewTopic:
    """The topic that a connector with these properties makes."""
    return NewTopic(
        make_policy(props).heartbeats_topic(),
        partitions=1,
        replication_factor=HEARTBEAT.parse(props).integer(_FACTOR_KEY),
        configs={"cleanup.policy": "compact"},
    )


class MirrorHeartbeatConnector(SourceConnector):
    """``org.apache.kafka.connect.mirror.MirrorHeartbeatConnector``: makes the topic, and has one task."""

    def __init__(self, written: Written | None = None) -> None:
        self._written = written or Written()
        self._props: Props = {}
        self._interval_s: int | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def version(cls) -> str:
        return KAFKA_VERSION

    @classmethod
    def task_class(cls) -> str:
        return "org.apache.kafka.connect.mirror.MirrorHeartbeatTask"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return HEARTBEAT

    async def start(self, props: Props) -> None:
        """Make the topic on the target, also where no heartbeats are emitted.

        The first attempt is waited for, ``admin.timeout.ms`` at most; further ones go on behind.
        """
        values = HEARTBEAT.parse(props)
        self._props, self._interval_s = props, _interval_s(values)
        target = values.string("target.cluster.alias")
        client = connector_client(props, "target", "admin")
        client_id = inner_client_id(
            f"{values.string('source.cluster.alias')}->{target}",
            values.string("name"),
            "heartbeats-target-admin",
            client.get("client.id", ""),
        )
        connection = connection_settings(client, client_id=client_id, where=f"cluster {target}")
        admin = Admin(connection, target, f"set {_FACTOR_KEY} lower")
        self._closing.push_async_callback(admin.close)
        scope = await self._closing.enter_async_context(Scope(values.string("name")))
        topic = topic_of_heartbeats(props)
        tried = asyncio.Event()
        scope.spawn(keep_making(admin, topic, tried), f"create {topic.name} for {values.string('name')}")
        try:
            async with asyncio.timeout(values.integer("admin.timeout.ms") / 1000):
                await tried.wait()
        except TimeoutError:
            log.warning("topic %s is not made yet; going on", topic.name)

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        return [] if self._interval_s is None else [self._props]

    def make_task(self) -> MirrorHeartbeatTask:
        return MirrorHeartbeatTask(self._written)

    async def stop(self) -> None:
        await self._closing.aclose()

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Offsets of heartbeats mean nothing; only those that a task could have written are taken, and any reset."""
        for partition, offset in offsets:
            if offset is not None:
                require_string(partition, _SOURCE)
                require_string(partition, _TARGET)
                require_offset(partition, offset, only_zero=True)
        return True


class MirrorHeartbeatTask(SourceTask):
    """Sleeps an interval, then has one record."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._latencies = Latencies()
        self._name = Task("", "", "")
        self._interval_s = 0
        self._topic = ""
        self._source_alias = ""
        self._target_alias = ""

    async def start(self, props: Props) -> None:
        values = HEARTBEAT.parse(props)
        self._interval_s = _interval_s(values) or 0
        self._topic = make_policy(props).heartbeats_topic()
        self._source_alias = values.string("source.cluster.alias")
        self._target_alias = values.string("target.cluster.alias")
        self._name = Task(self._source_alias, self._target_alias, "0")
        self._written.heartbeats[self._name] = self._latencies

    async def stop(self) -> None:
        # A successor may have begun already.
        if self._written.heartbeats.get(self._name) is self._latencies:
            del self._written.heartbeats[self._name]

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        if metadata is not None:
            self._latencies.written((), record.timestamp_ms or 0, wall_ms())

    async def poll(self) -> Sequence[SourceRecord]:
        await asyncio.sleep(self._interval_s)
        now_ms = wall_ms()
        heartbeat = Heartbeat(self._source_alias, self._target_alias, now_ms)
        return [
            SourceRecord(
                # The order of the fields is that of Java's map, and part of the stored key.
                source_partition={_SOURCE: self._source_alias, _TARGET: self._target_alias},
                source_offset={"offset": 0},
                topic=self._topic,
                partition=0,
                key=heartbeat.key(),
                key_schema=BYTES,
                value=heartbeat.value(),
                value_schema=BYTES,
                timestamp_ms=now_ms,
            )
        ]


def _interval_s(values: Values) -> int | None:
    """Seconds between heartbeats, None where there are none."""
    interval_s = values.integer("emit.heartbeats.interval.seconds")
    return interval_s if values.boolean("emit.heartbeats.enabled") and interval_s >= 0 else None
