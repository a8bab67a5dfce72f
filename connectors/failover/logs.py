"""Is what a flow has copied still there? A topic that was made anew, or a log that lost its end, holds other records at
the offsets that are stored: no place may be told by them (KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, epoch_ends, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position


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
    ends_of_epochs = await epoch_ends(source, {one: positions[one].source_leader_epoch for one in there})
    found = dict.fromkeys(positions, GONE)
    for one in there:
        topic_id = topics[one.topic].topic_id
        found[one] = became(
            positions[one],
            topic_id,
            begins[one],
            ends[one],
            ends_of_epochs[one].offset if one in ends_of_epochs else -1,
        )
    return found
