"""Is what a flow has copied still there? A topic that was made anew, or a log that lost its end, holds other records at
the offsets that are stored: no place may be told by them (KIP-320)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, error_name
from connect.kafka.offsets import EARLIEST, LATEST, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position

_CONSUMER: Final = -1


class Fate(StrEnum):
    SAME = "same"
    ANEW = "made anew"
    CUT = "truncated"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Log:
    """A partition of a flow's source now.

    Args:
        same_to: Offsets below are those that the flow has copied.
    """

    fate: Fate
    topic_id: UUID | None = None
    begin: int = 0
    end: int = 0
    same_to: int = 0


GONE: Final = Log(Fate.GONE)


def became(position: Position, topic_id: UUID | None, begin: int, end: int, epoch_end: int) -> Log:
    """What has become of the source of ``position``, whose log is from ``begin`` to ``end`` now (pure).

    ``epoch_end``: where the leader epoch of the last batch copied ends now; -1 where nobody knows.
    """
    if None not in (topic_id, position.source_topic_id) and topic_id != position.source_topic_id:
        return Log(Fate.ANEW, topic_id, begin, end)
    copied = position.next_source_offset
    same_to = min(copied, end, epoch_end if epoch_end >= 0 else copied)
    return Log(Fate.CUT if same_to < copied else Fate.SAME, topic_id, begin, end, same_to)


async def logs_now(source: Cluster, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Log]:
    """Of every position. Raises as the source."""
    if not positions:
        return {}
    topics = (await source.metadata({one.topic for one in positions})).topics
    there = [one for one in positions if one.topic in topics and one.partition in topics[one.topic].partitions]
    begins = await list_offsets(source, there, EARLIEST)
    ends = await list_offsets(source, there, LATEST)
    epoch_ends = await _epoch_ends(source, {one: positions[one].source_leader_epoch for one in there})
    found = dict.fromkeys(positions, GONE)
    for one in there:
        topic_id = topics[one.topic].topic_id
        found[one] = became(positions[one], topic_id, begins[one], ends[one], epoch_ends.get(one, -1))
    return found


async def _epoch_ends(source: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Behind the last record of each partition's epoch, or of the one before where that is not there any more."""
    wanted = {one: epoch for one, epoch in epochs.items() if epoch >= 0}
    metadata = await source.metadata({one.topic for one in wanted}) if wanted else None
    by_leader: dict[int, list[TopicPartition]] = {}
    for one in wanted:
        leader = None if metadata is None else metadata.leader(*one)
        if leader is None:
            raise RetriableError(f"cluster {source.name}: {one} has no leader now")
        by_leader.setdefault(leader, []).append(one)
    found: dict[TopicPartition, int] = {}
    for leader, led in by_leader.items():
        answer = await (await source.connection(leader)).call(_request(led, wanted))
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    raise RetriableError(
                        f"cluster {source.name}: {topic.topic}-{row.partition} does not tell where its epochs end: "
                        f"{error_name(row.error_code)}"
                    )
                found[TopicPartition(topic.topic, row.partition)] = row.end_offset
    return found


def _request(
    partitions: Collection[TopicPartition], epochs: Mapping[TopicPartition, int]
) -> OffsetForLeaderEpochRequest:
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics: dict[str, list[TopicPartition]] = {}
    for one in partitions:
        topics.setdefault(one.topic, []).append(one)
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[
            of_topic(
                topic=topic,
                partitions=[
                    of_topic.OffsetForLeaderPartition(
                        partition=one.partition, current_leader_epoch=-1, leader_epoch=epochs[one]
                    )
                    for one in rows
                ],
            )
            for topic, rows in topics.items()
        ],
    )
