"""First and last offsets of partitions, asked of their leaders (ListOffsets)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kafka.errors import for_code
from kafka.protocol.consumer.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, refusal_of
from connect.kafka.concurrency import gather_limited

EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
#: Partitions of a request: thousands in one would hold up the loop while it is built.
_MOST_ASKED: Final = 500

Partition = tuple[str, int]


async def list_offset(cluster: Cluster, partition: Partition, timestamp_ms: int) -> int:
    """One partition's offset at a time, or ``EARLIEST``/``LATEST``; errors as :func:`list_offsets`."""
    return (await list_offsets(cluster, [partition], timestamp_ms))[partition]


async def list_offsets(
    cluster: Cluster,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int = READ_UNCOMMITTED,
    *,
    metadata: ClusterMetadata | None = None,
) -> dict[Partition, int]:
    """The offset of each partition at ``timestamp_ms`` (or ``EARLIEST``, ``LATEST``); -1 where there is none.

    ``metadata``: of their topics, just asked for; without, it is asked for first.

    Raises :class:`RetriableError` where a leader is missing or moved, :class:`PermanentError` for a refusal.
    """
    found = {}
    for partition, (offset, code) in (await _ask(cluster, partitions, timestamp_ms, isolation, metadata)).items():
        if code:
            raise _refused(partition, code)
        found[partition] = offset
    return found


async def told_offsets(
    cluster: Cluster,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int = READ_UNCOMMITTED,
    *,
    leader_s: float | None = None,
) -> tuple[dict[Partition, int], dict[Partition, str]]:
    """As :func:`list_offsets`, of those whose leaders answer now, within ``leader_s``; of the others the reason. All
    leaders are asked at the same time.

    Raises :class:`RetriableError` where the cluster does not tell its leaders.
    """
    if not partitions:
        return {}, {}
    metadata = await cluster.metadata({topic for topic, _ in partitions})
    found: dict[Partition, int] = {}
    missing: dict[Partition, str] = {}
    by_leader: dict[int, list[Partition]] = {}
    for partition in partitions:
        leader = metadata.leader(*partition)
        if leader is None:
            missing[partition] = f"{partition[0]}-{partition[1]} has no leader now"
        else:
            by_leader.setdefault(leader, []).append(partition)

    async def ask(leader: int) -> None:
        led = by_leader[leader]
        try:
            async with asyncio.timeout(leader_s):
                answered = await _ask_leader(cluster, leader, led, timestamp_ms, isolation, metadata)
        except TimeoutError:
            missing.update(dict.fromkeys(led, f"broker {leader} does not answer within {leader_s:g} s"))
        except HeliographError as error:
            missing.update(dict.fromkeys(led, str(error)))
        else:
            for partition, (offset, code) in answered.items():
                if code:
                    missing[partition] = str(_refused(partition, code))
                else:
                    found[partition] = offset

    await gather_limited(ask, by_leader)
    return found, missing


async def unknown_ends(cluster: Cluster, partitions: Collection[Partition]) -> dict[Partition, str]:
    """Those of ``partitions`` whose leaders do not tell their ends for now, with the reason: after an election a leader
    does not know how far its log is replicated until enough replicas are in sync (KIP-207).

    Raises as :func:`list_offsets`, but for such partitions.
    """
    errors = {
        partition: _refused(partition, code)
        for partition, (_, code) in (await _ask(cluster, partitions, LATEST, READ_UNCOMMITTED)).items()
        if code
    }
    for error in errors.values():
        if not isinstance(error, RetriableError):
            raise error
    return {partition: str(error) for partition, error in errors.items()}


class EpochEnd(NamedTuple):
    """``offset``: behind the last record of ``epoch``, which is that asked for, or the one before where the log lacks
    it; both are -1 where it has neither."""

    epoch: int
    offset: int


async def epoch_ends(cluster: Cluster, epochs: Mapping[Partition, int]) -> dict[Partition, EpochEnd]:
    """Where each partition's leader epoch ends (OffsetForLeaderEpoch, KIP-101). Epochs below 0 are not asked for.

    Raises :class:`RetriableError` where a leader is missing or does not tell.
    """
    wanted = {one: epoch for one, epoch in epochs.items() if epoch >= 0}
    found: dict[Partition, EpochEnd] = {}
    if not wanted:
        return found
    metadata = await cluster.metadata({topic for topic, _ in wanted})
    for leader, led in _by_leader(cluster, wanted, metadata).items():
        answer = await (await cluster.connection(leader)).call(_epochs_request(led, wanted, metadata))
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    raise RetriableError(
                        f"cluster {cluster.name}: {topic.topic}-{row.partition} does not tell where its epochs end: "
                        f"{getattr(for_code(row.error_code), 'message', row.error_code)}"
                    )
                found[topic.topic, row.partition] = EpochEnd(row.leader_epoch, row.end_offset)
    return found


async def confirm_leader(
    cluster: Cluster, leader: int, partitions: Collection[Partition], metadata: ClusterMetadata
) -> None:
    """Raise :class:`RetriableError` unless ``leader`` leads each partition in the epoch that ``metadata`` names.

    For answers of requests that carry no leader epoch: a former leader gives them too (DescribeProducers).
    """
    answered = await _ask_leader(cluster, leader, partitions, EARLIEST, READ_UNCOMMITTED, metadata)
    for partition, (_, code) in answered.items():
        if code:
            raise _refused(partition, code)


def _epochs_request(
    partitions: Collection[Partition], epochs: Mapping[Partition, int], metadata: ClusterMetadata
) -> OffsetForLeaderEpochRequest:
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics: dict[str, OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
    for topic, index in partitions:
        entry = topics.setdefault(topic, of_topic(topic=topic, partitions=[]))
        entry.partitions.append(
            of_topic.OffsetForLeaderPartition(
                partition=index,
                current_leader_epoch=metadata.leader_epoch(topic, index),
                leader_epoch=epochs[topic, index],
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))


async def _ask(
    cluster: Cluster,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int,
    metadata: ClusterMetadata | None = None,
) -> dict[Partition, tuple[int, int]]:
    """Offset and error code of each partition."""
    if not partitions:
        return {}
    if metadata is None:
        metadata = await cluster.metadata({topic for topic, _ in partitions})
    ask = partial(_ask_leader, cluster, timestamp_ms=timestamp_ms, isolation=isolation, metadata=metadata)
    by_leader = _by_leader(cluster, partitions, metadata)
    found: dict[Partition, tuple[int, int]] = {}
    for answered in await gather_limited(lambda leader: ask(leader, by_leader[leader]), by_leader):
        found |= answered
    return found


def _by_leader(
    cluster: Cluster, partitions: Collection[Partition], metadata: ClusterMetadata
) -> dict[int, list[Partition]]:
    """Raises RetriableError for one that has no leader now."""
    found: dict[int, list[Partition]] = {}
    for topic, index in partitions:
        leader = metadata.leader(topic, index)
        if leader is None:
            raise RetriableError(f"cluster {cluster.name}: {topic}-{index} has no leader now")
        found.setdefault(leader, []).append((topic, index))
    return found


async def _ask_leader(
    cluster: Cluster,
    leader: int,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int,
    metadata: ClusterMetadata,
) -> dict[Partition, tuple[int, int]]:
    """Offset and error code of each partition that the leader answers for; its requests do not wait for each other."""
    found: dict[Partition, tuple[int, int]] = {}

    async def ask(some: Sequence[Partition]) -> None:
        request = _request(some, timestamp_ms, isolation, metadata)
        answer = await (await cluster.connection(leader)).call(request)
        for topic in answer.topics:
            found.update({(topic.name, row.partition_index): (row.offset, row.error_code) for row in topic.partitions})

    asked = list(partitions)
    await gather_limited(ask, [asked[first : first + _MOST_ASKED] for first in range(0, len(asked), _MOST_ASKED)])
    return found


def _request(
    partitions: Collection[Partition], timestamp_ms: int, isolation: int, metadata: ClusterMetadata
) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
    for topic, index in partitions:
        entry = topics.setdefault(topic, ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[]))
        entry.partitions.append(
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=index,
                current_leader_epoch=metadata.leader_epoch(topic, index),
                timestamp=timestamp_ms,
            )
        )
    return ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=isolation, topics=list(topics.values()))


def _refused(partition: Partition, code: int) -> RetriableError | PermanentError:
    error = for_code(code)
    topic, index = partition
    message = f"{topic}-{index}: the broker refuses to list offsets: {getattr(error, 'message', error.__name__)}"
    return refusal_of(code, message, changes=False)
