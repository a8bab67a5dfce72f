"""First and last offsets of partitions, asked of their leaders (ListOffsets)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kafka.errors import for_code
from kafka.protocol.consumer.offsets import ListOffsetsRequest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster

EARLIEST: Final = -2
LATEST: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

Partition = tuple[str, int]


async def list_offset(cluster: Cluster, partition: Partition, timestamp_ms: int) -> int:
    """One partition's offset at a time, or ``EARLIEST``/``LATEST``; errors as :func:`list_offsets`."""
    return (await list_offsets(cluster, [partition], timestamp_ms))[partition]


async def list_offsets(
    cluster: Cluster, partitions: Collection[Partition], timestamp_ms: int, isolation: int = READ_UNCOMMITTED
) -> dict[Partition, int]:
    """The offset of each partition at ``timestamp_ms`` (or ``EARLIEST``, ``LATEST``); -1 where there is none.

    Raises :class:`RetriableError` where a leader is missing or moved, :class:`PermanentError` for a refusal.
    """
    metadata = await cluster.metadata({topic for topic, _ in partitions})
    by_leader: dict[int, list[Partition]] = {}
    for topic, index in partitions:
        known = metadata.topics.get(topic)
        partition = known.partitions.get(index) if known else None
        if partition is None or partition.leader < 0:
            raise RetriableError(f"{topic}-{index} has no leader now")
        by_leader.setdefault(partition.leader, []).append((topic, index))
    found: dict[Partition, int] = {}
    for leader, of_leader in by_leader.items():
        connection = await cluster.connection(leader)
        answer = await connection.call(_request(of_leader, timestamp_ms, isolation))
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    _refused(topic.name, row.partition_index, row.error_code)
                found[topic.name, row.partition_index] = row.offset
    return found


def _request(partitions: Collection[Partition], timestamp_ms: int, isolation: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
    for topic, index in partitions:
        entry = topics.setdefault(topic, ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[]))
        entry.partitions.append(
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=index, current_leader_epoch=-1, timestamp=timestamp_ms
            )
        )
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=list(topics.values()))


def _refused(topic: str, index: int, code: int) -> None:
    error = for_code(code)
    message = f"{topic}-{index}: the broker refuses to list offsets: {getattr(error, 'message', error.__name__)}"
    if getattr(error, "retriable", False):
        raise RetriableError(message)
    raise PermanentError(message)
