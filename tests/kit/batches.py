"""Batches put into a topic exactly as they are given, and the headers of those that a topic holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from kafka.protocol.producer.produce import ProduceRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import fetch_api
from tests.kit.clients import cluster_at

#: Of batches by a producer without an id.
NO_PRODUCER = (-1, -1, -1)
_RETRIABLE = (3, 5, 6)  # a topic that was made just now
_LEADER_DEADLINE_S = 120.0


def produce_request(topic: str, partition: int, batch: bytes) -> ProduceRequest:
    """Of one batch as it is, acknowledged by all replicas in sync."""
    data = ProduceRequest.TopicProduceData
    row = data.PartitionProduceData(index=partition, records=batch)
    topics = [data(name=topic, partition_data=[row])]
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=20_000, topic_data=topics)


async def produced(
    cluster: Cluster, topic: str, partition: int, batch: bytes, *, again: Collection[int] = ()
) -> tuple[int, int]:
    """The error code and base offset with which a batch is answered; it is sent again at the codes of ``again``."""
    request = produce_request(topic, partition, batch)
    async with asyncio.timeout(_LEADER_DEADLINE_S):
        while True:
            leader = await _leader(cluster, topic, partition)
            answer = await (await cluster.connection(leader)).call(request, at_most=11)
            found = answer.responses[0].partition_responses[0]
            if found.error_code not in again:
                return found.error_code, found.base_offset
            await asyncio.sleep(0.02)


async def _leader(cluster: Cluster, topic: str, partition: int) -> int:
    leader = (await cluster.topics({topic})).leader(topic, partition)
    if leader is None:
        raise RetriableError(f"{topic} has no leader now")
    return leader


class Topics:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def put(
        self, topic: str, part: Sequence[records.Record], codec: int = 0, producer: tuple[int, int, int] = NO_PRODUCER
    ) -> None:
        """One batch of ``part`` into partition 0; their offsets do not matter. ``producer``: id, epoch, sequence."""
        batch = bytes(records.build(part, codec, *producer))
        code, _ = await produced(self._cluster, topic, 0, batch, again=_RETRIABLE)
        assert code == 0, f"{topic}: {code}"

    async def headers(self, topic: str) -> list[wire.BatchHeader]:
        connection = await self._cluster.connection(await _leader(self._cluster, topic, 0))
        named = fetch_api.TopicOnWire(topic, (await self._cluster.topics({topic})).topics[topic].topic_id)
        limits = fetch_api.FetchLimits(100, 1, 2**26, 2**26, fetch_api.READ_UNCOMMITTED)
        found: list[wire.BatchHeader] = []
        position = 0
        while True:
            row = await fetch_api.fetch_one(connection, named, 0, (position, -1, -1), limits)
            assert row.error_code == 0, f"{topic}: {row.error_code}"
            found += [wire.read_header(row.records, start) for start, _, _ in wire.extents(row.records)]
            if not found or found[-1].last_offset + 1 >= row.high_watermark:
                return found
            position = found[-1].last_offset + 1

    async def end(self, topic: str) -> int:
        """Behind the last offset; -1 where the topic or its leader is not there."""
        try:
            connection = await self._cluster.connection(await _leader(self._cluster, topic, 0))
        except RetriableError:
            return -1
        named = fetch_api.TopicOnWire(topic, (await self._cluster.topics({topic})).topics[topic].topic_id)
        limits = fetch_api.FetchLimits(0, 0, 1, 1, fetch_api.READ_UNCOMMITTED)
        row = await fetch_api.fetch_one(connection, named, 0, (0, -1, -1), limits)
        return -1 if row.error_code else row.high_watermark


@asynccontextmanager
async def topics_of(bootstrap: str) -> AsyncIterator[Topics]:
    async with cluster_at(bootstrap) as cluster:
        yield Topics(cluster)
