"""The two clusters of a run, a source of one broker and a target of as many as there are replicas, and their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from connect.core.errors import RetriableError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import LATEST, list_offsets
from connect.kafka.settings import connection_settings
from connect.wire.batch import BatchHeader, extents, read_header
from connectors.dataplane import reading
from tests.kit.topics import make_topics, until_gone

#: Both clusters alike. Deleted topics leave the disk at once, so that one run's files do not burden the next.
BROKER: Final = {"log.segment.delete.delay.ms": "1000", "log.retention.ms": "-1"}
_SAMPLE_BYTES: Final = 2 * 1024 * 1024
_DEADLINE_S: Final = 120.0
_LIMITS: Final = reading.FetchLimits(0, 1, _SAMPLE_BYTES, _SAMPLE_BYTES, reading.READ_UNCOMMITTED)


def target_of(replication: int, **settings: Any) -> KafkaCluster:
    """Start a target whose topics have so many replicas; a write needs two of them, if there are two."""
    config = {**BROKER, "min.insync.replicas": str(min(2, replication))}
    return KafkaCluster.start("bench-eu", nodes=replication, config=config, **settings)


class BenchError(Exception):
    """A run that cannot be counted, with the reason in one line."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a topic holds; ``record_bytes`` and ``batch_bytes`` are means, headers of batches included."""

    records: int
    record_bytes: float
    batch_bytes: float


class Side:
    """One cluster, as the bench asks it."""

    def __init__(self, brokers: KafkaCluster) -> None:
        self.brokers = brokers
        self._settings = connection_settings(
            {"bootstrap.servers": brokers.bootstrap}, client_id="bench", where="the bench"
        )
        self.cluster = Cluster(self._settings)

    @property
    def bootstrap(self) -> str:
        return self.brokers.bootstrap

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.brokers.nodes]

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.brokers.nodes]

    async def create(self, topic: str, partitions: int, replication: int) -> None:
        await make_topics(self.bootstrap, {topic: partitions}, replicas=replication)

    async def clear(self, kept: Collection[str]) -> None:
        """Delete all topics but these and Kafka's own, and wait until they are gone."""
        names = {name for name in (await self.cluster.metadata(None)).topics if not name.startswith("__")}
        gone = names.difference(kept)
        if not gone:
            return
        admin = Admin(self._settings)
        try:
            for topic, error in (await admin.delete_topics(gone)).items():
                if error is not None:
                    raise BenchError(f"{self.bootstrap}: cannot delete topic {topic}: {error}")
        finally:
            await admin.close()
        await until_gone(self.cluster, gone)

    async def records(self, topic: str, partitions: int) -> int:
        """How many records it has been given; 0 while it is not there."""
        try:
            ends = await list_offsets(self.cluster, [(topic, index) for index in range(partitions)], LATEST)
        except RetriableError:
            return 0
        return sum(ends.values())

    async def contents(self, topic: str, partitions: int) -> Contents:
        """Means are those of the first batches of each partition."""
        headers = [header for index in range(partitions) for header in await self._first(topic, index)]
        sampled = sum(header.record_count for header in headers)
        if not sampled:
            raise BenchError(f"{self.bootstrap}: {topic} holds nothing")
        size = sum(header.size_bytes for header in headers)
        return Contents(await self.records(topic, partitions), size / sampled, size / len(headers))

    async def _first(self, topic: str, index: int) -> Sequence[BatchHeader]:
        metadata = await self.cluster.metadata({topic})
        leader = metadata.leader(topic, index)
        if leader is None:
            raise BenchError(f"{self.bootstrap}: {topic}-{index} has no leader")
        connection = await self.cluster.connection(leader)
        on_wire = reading.TopicOnWire(topic, metadata.topics[topic].topic_id)
        row = await reading.fetch_one(connection, on_wire, index, (0, -1, -1), _LIMITS)
        headers = [read_header(row.records, start) for start, _, _ in extents(row.records)]
        return [header for header in headers if not header.is_control]


@dataclass(frozen=True, slots=True)
class Bed:
    """Both sides of a run."""

    source: Side
    target: Side

    async def clear(self, loads: Collection[str]) -> None:
        """Remove what earlier runs left: every topic of the target, and of the source all but the loads."""
        async with asyncio.timeout(_DEADLINE_S):
            await self.target.clear(())
            await self.source.clear(loads)

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.source.cluster.close)
            closing.push_async_callback(self.target.cluster.close)
