"""Lists first and last offsets and ends of leader epochs, as partition leaders know them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

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
#: Partitions per request: a request for thousands would block the loop while it is built.
_MOST_ASKED: Final = 500

Partition = tuple[str, int]
#: Offsets, and the errors of the other partitions.
_Offsets = tuple[dict[Partition, int], dict[Partition, RetriableError | PermanentError]]


async def list_offset(cluster: Cluster, partition: Partition, timestamp_ms: int) -> int:
    """Return one partition's offset at a timestamp, or at ``EARLIEST``/``LATEST``; errors as :func:`list_offsets`."""
    return (await list_offsets(cluster, [partition], timestamp_ms))[partition]


async def list_offsets(
    cluster: Cluster,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int = READ_UNCOMMITTED,
    *,
    metadata: ClusterMetadata | None = None,
) -> dict[Partition, int]:
    """Return the offset of each partition at ``timestamp_ms`` (or ``EARLIEST``, ``LATEST``); -1 if there is none.
    ``metadata``: current metadata of their topics, otherwise fetched first. Raises :class:`RetriableError` if a leader
    is missing or has moved, :class:`PermanentError` for other errors."""
    found, refused = await _ask(cluster, partitions, timestamp_ms, isolation, metadata)
    for error in refused.values():
        raise error
    return found


async def known_offsets(
    cluster: Cluster,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int = READ_UNCOMMITTED,
    *,
    leader_s: float | None = None,
) -> tuple[dict[Partition, int], dict[Partition, str]]:
    """Return the offsets of partitions whose leaders answer within ``leader_s``, and the reason for each other
    partition. Asks all leaders at the same time. Raises :class:`RetriableError` if the cluster does not return
    metadata."""
    if not partitions:
        return {}, {}
    metadata = await cluster.metadata({topic for topic, _ in partitions})
    found: dict[Partition, int] = {}
    missing = {
        (topic, index): f"{topic}-{index} has no leader now"
        for topic, index in partitions
        if metadata.leader(topic, index) is None
    }
    of_leader = by_leader(cluster, [one for one in partitions if one not in missing], metadata)

    async def ask(leader: int) -> None:
        led = of_leader[leader]
        try:
            async with asyncio.timeout(leader_s):
                answered, refused = await _ask_leader(cluster, leader, led, timestamp_ms, isolation, metadata)
        except TimeoutError:
            missing.update(dict.fromkeys(led, f"broker {leader} did not answer within {leader_s:g} s"))
        except HeliographError as error:
            missing.update(dict.fromkeys(led, str(error)))
        else:
            found.update(answered)
            missing.update((partition, str(error)) for partition, error in refused.items())

    await gather_limited(ask, of_leader)
    return found, missing


async def unknown_ends(cluster: Cluster, partitions: Collection[Partition]) -> dict[Partition, str]:
    """Return the partitions whose leaders do not know their ends now, with the reason: after an election a leader does
    not know how far its log is replicated until enough replicas are in sync (KIP-207). Raises RetriableError if a
    leader is missing, PermanentError for errors that are not retriable."""
    _, refused = await _ask(cluster, partitions, LATEST, READ_UNCOMMITTED)
    for error in refused.values():
        if not isinstance(error, RetriableError):
            raise error
    return {partition: str(error) for partition, error in refused.items()}


class EpochEnd(NamedTuple):
    """``offset`` is the end of ``epoch``, which is the requested one, or an earlier one if the log lacks it; both are
    -1 if it has neither."""

    epoch: int
    offset: int


async def epoch_ends(cluster: Cluster, epochs: Mapping[Partition, int]) -> dict[Partition, EpochEnd]:
    """Return the end of each partition's leader epoch (OffsetForLeaderEpoch, KIP-101); epochs below 0 are left out.
    Raises :class:`RetriableError` if a leader is missing or returns an error."""
    wanted = {one: epoch for one, epoch in epochs.items() if epoch >= 0}
    found: dict[Partition, EpochEnd] = {}
    if not wanted:
        return found
    metadata = await cluster.metadata({topic for topic, _ in wanted})
    for leader, led in by_leader(cluster, wanted, metadata).items():
        answer = await (await cluster.connection(leader)).call(_epochs_request(led, wanted, metadata))
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    raise RetriableError(
                        f"cluster {cluster.name}: {topic.topic}-{row.partition} cannot return the end of an epoch: "
                        f"{getattr(for_code(row.error_code), 'message', row.error_code)}"
                    )
                found[topic.topic, row.partition] = EpochEnd(row.leader_epoch, row.end_offset)
    return found


async def confirm_leader(
    cluster: Cluster, leader: int, partitions: Collection[Partition], metadata: ClusterMetadata
) -> None:
    """Raise :class:`RetriableError` unless ``leader`` leads each partition in the epoch of ``metadata``. For responses
    without a leader epoch, which a former leader sends too (DescribeProducers)."""
    _, refused = await _ask_leader(cluster, leader, partitions, EARLIEST, READ_UNCOMMITTED, metadata)
    for error in refused.values():
        raise error


def _epochs_request(
    partitions: Collection[Partition], epochs: Mapping[Partition, int], metadata: ClusterMetadata
) -> OffsetForLeaderEpochRequest:
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = [
        of_topic(
            topic=topic,
            partitions=[
                of_topic.OffsetForLeaderPartition(
                    partition=index,
                    current_leader_epoch=metadata.leader_epoch(topic, index),
                    leader_epoch=epochs[topic, index],
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(partitions).items()
    ]
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)


async def _ask(
    cluster: Cluster,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int,
    metadata: ClusterMetadata | None = None,
) -> _Offsets:
    if not partitions:
        return {}, {}
    if metadata is None:
        metadata = await cluster.metadata({topic for topic, _ in partitions})
    ask = partial(_ask_leader, cluster, timestamp_ms=timestamp_ms, isolation=isolation, metadata=metadata)
    led = by_leader(cluster, partitions, metadata)
    found, refused = dict[Partition, int](), dict[Partition, RetriableError | PermanentError]()
    for answered, errors in await gather_limited(lambda leader: ask(leader, led[leader]), led):
        found |= answered
        refused |= errors
    return found, refused


def by_leader(
    cluster: Cluster, partitions: Collection[Partition], metadata: ClusterMetadata
) -> dict[int, list[Partition]]:
    """Group partitions by leader. Raises RetriableError if one has no leader now."""
    found: dict[int, list[Partition]] = {}
    for topic, index in partitions:
        leader = metadata.leader(topic, index)
        if leader is None:
            raise RetriableError(f"cluster {cluster.name}: {topic}-{index} has no leader now")
        found.setdefault(leader, []).append((topic, index))
    return found


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


async def _ask_leader(
    cluster: Cluster,
    leader: int,
    partitions: Collection[Partition],
    timestamp_ms: int,
    isolation: int,
    metadata: ClusterMetadata,
) -> _Offsets:
    """Return the offset or the error of each partition that the leader answers for, from concurrent requests."""
    found: dict[Partition, int] = {}
    refused: dict[Partition, RetriableError | PermanentError] = {}

    async def ask(some: Sequence[Partition]) -> None:
        request = _request(some, timestamp_ms, isolation, metadata)
        answer = await (await cluster.connection(leader)).call(request)
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    refused[topic.name, row.partition_index] = _refused(topic.name, row)
                else:
                    found[topic.name, row.partition_index] = row.offset

    asked = list(partitions)
    await gather_limited(ask, [asked[first : first + _MOST_ASKED] for first in range(0, len(asked), _MOST_ASKED)])
    return found, refused


def _request(
    partitions: Collection[Partition], timestamp_ms: int, isolation: int, metadata: ClusterMetadata
) -> ListOffsetsRequest:
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        of_topic(
            name=topic,
            partitions=[
                of_topic.ListOffsetsPartition(
                    partition_index=index,
                    current_leader_epoch=metadata.leader_epoch(topic, index),
                    timestamp=timestamp_ms,
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(partitions).items()
    ]
    return ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=isolation, topics=topics)


def _refused(topic: str, row: Any) -> RetriableError | PermanentError:
    error = for_code(row.error_code)
    reason = getattr(error, "message", error.__name__)
    line = f"{topic}-{row.partition_index}: the broker refuses to list offsets: {reason}"
    return refusal_of(row.error_code, line, changes=False)
