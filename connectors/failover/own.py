"""Which records of a partition a cluster has of its own: not copied to there, and not yet from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log_ranges import Range, read_ranges, without
from connect.kafka.offsets import EARLIEST, LATEST, epoch_ends, told_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.map_reader import MapReader
from connectors.positions import Position

#: Of a record's timestamp: its producer gave it.
CREATE_TIME: Final = 0


@dataclass(frozen=True, slots=True)
class Own:
    """Records that only one cluster holds: the first and last offset, and how many."""

    topic: str
    partition: int
    first: int
    last: int
    records: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.records} records, offsets {self.first} to {self.last}"


async def own_ranges(
    copies: MapReader, log: TopicPartition, topic_id: UUID | None, begin: int, end: int
) -> list[Range]:
    """Offsets of ``log`` that ``copies``, the map of the flow that writes there, does not know to be copies. Maps of
    another topic than ``topic_id``, which was there before, do not count. Raises as the map reader's look-ups."""
    copied: list[Range] = []
    for pair in copies.pairs_to(log):
        if None not in (topic_id, pair.target_topic_id) and topic_id != pair.target_topic_id:
            continue
        for chunk in copies.chunks(pair):
            copied += [
                (run.downstream, run.downstream_end)
                for run in await copies.runs(pair, chunk)
                if run.downstream_end > begin and run.downstream < end
            ]
    return without([(begin, end)], sorted(copied))


def identity(record: Any) -> tuple[Any, ...]:
    """What a copy has in common with its record, as aiokafka has it, whatever its topic (pure)."""
    return record.key, record.value, tuple((name, bytes(value or b"")) for name, value in record.headers)


async def count(cluster: Cluster, log: TopicPartition, ranges: Sequence[Range]) -> Own | None:
    """How many records there are; None for none. Raises as :func:`read_ranges`."""
    first = last = -1
    records = 0
    async for record in read_ranges(cluster, log, ranges):
        first = record.offset if first < 0 else first
        last = record.offset
        records += 1
    return Own(log.topic, log.partition, first, last, records) if records else None


class Fate(StrEnum):
    SAME = "same"
    RECREATED = "recreated"
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
        return Log(Fate.RECREATED, topic_id, begin, end)
    copied = position.next_source_offset
    same_to = min(copied, end, epoch_end if epoch_end >= 0 else copied)
    return Log(Fate.CUT if same_to < copied else Fate.SAME, topic_id, begin, end, same_to)


def is_kept(position: Position, known: TopicMetadata | None) -> bool:
    """Whether the topic on the target is the one that the flow has copied into (pure)."""
    return (
        known is not None
        and position.target_partition in known.partitions
        and (None in (known.topic_id, position.target_topic_id) or known.topic_id == position.target_topic_id)
    )


async def logs_now(
    source: Cluster, positions: Mapping[TopicPartition, Position], *, must_tell: bool = True
) -> dict[TopicPartition, Log]:
    """Of every position. Raises as the source, and RetriableError where a partition has no leader; unless it
    ``must_tell``, such a partition counts as gone."""
    topics = (await source.metadata({one.topic for one in positions})).topics if positions else {}
    there = [one for one in positions if one.topic in topics and one.partition in topics[one.topic].partitions]
    begins, silent = await told_offsets(source, there, EARLIEST)
    ends, more = await told_offsets(source, there, LATEST)
    if must_tell and (silent := silent | more):
        raise RetriableError(f"cluster {source.name}: {next(iter(silent.values()))}")
    there = [one for one in there if one in begins and one in ends]
    ends_of_epochs = await epoch_ends(source, {one: positions[one].source_leader_epoch for one in there})
    found = dict.fromkeys(positions, GONE)
    for one in there:
        epoch_end = ends_of_epochs[one].offset if one in ends_of_epochs else -1
        found[one] = became(positions[one], topics[one.topic].topic_id, begins[one], ends[one], epoch_end)
    return found
