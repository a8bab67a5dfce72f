"""Which records of a partition a cluster has of its own: not copied to there, and not yet from there."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from aiokafka import TopicPartition as Assigned
from aiokafka.errors import OffsetOutOfRangeError

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, epoch_ends, told_offsets
from connect.kafka.topiclog import reader, reading
from connectors.dataplane.plan import TopicPartition
from connectors.map_reader import MapReader
from connectors.positions import Position

_POLL_MS: Final = 250
#: So long a reader may stand at one place before the end.
_STALLED_S: Final = 60.0
#: Ranges that lie so near are read in one go: between transactions there are as many as markers.
_NEAR: Final = 5000
#: Of a record's timestamp: its producer gave it.
CREATE_TIME: Final = 0
#: Offsets from one to before another.
Range = tuple[int, int]


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


def without(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """What is left of ``ranges`` without ``others``, both ascending (pure). One pass over both: between transactions
    there are thousands."""
    found: list[Range] = []
    at = 0
    for start, end in ranges:
        begin = start
        while at < len(others) and others[at][1] <= begin:
            at += 1
        for index in range(at, len(others)):
            first, behind = others[index]
            if first >= end:
                break
            if first > begin:
                found.append((begin, first))
            begin = max(begin, behind)
        if begin < end:
            found.append((begin, end))
    return found


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Those that touch or overlap as one, ascending (pure)."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def stretches(ranges: Iterable[Range], end: int, near: int = _NEAR) -> Iterator[list[Range]]:
    """Ranges before ``end``, which ascend, with those together that lie so ``near`` that reading on is cheaper than a
    new beginning (pure)."""
    some: list[Range] = []
    for first, behind in ranges:
        if first >= min(behind, end):
            continue
        if some and first - some[-1][1] > near:
            yield some
            some = []
        some.append((first, min(behind, end)))
    if some:
        yield some


def inside(records: Iterable[Any], ranges: Sequence[Range], begins: Sequence[int]) -> Iterator[Any]:
    """Those that lie in one of ``ranges``, which ascend and begin at ``begins`` (pure)."""
    for record in records:
        at = bisect_right(begins, record.offset) - 1
        if at >= 0 and record.offset < ranges[at][1]:
            yield record


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


async def read_ranges(cluster: Cluster, log: TopicPartition, ranges: Sequence[Range]) -> AsyncGenerator[Any, None]:
    """The committed records in ``ranges`` as aiokafka has them, once. Raises RetriableError where the cluster hands
    out nothing for a minute, or the log has lost what was to be read, and as the cluster."""
    if not ranges:
        return
    place, what = Assigned(log.topic, log.partition), f"cluster {cluster.name}: {log}"
    clock = asyncio.get_running_loop().time
    with reading(cluster, log.topic):
        # From another place it would be read twice, or not at all.
        async with reader(cluster, read_committed=True, auto_offset_reset="none") as consumer:
            consumer.assign([place])
            stable = (await consumer.end_offsets([place]))[place]
            for some in stretches(ranges, stable):
                begins, end, at, give_up_s = [first for first, _ in some], some[-1][1], some[0][0], clock() + _STALLED_S
                consumer.seek(place, at)
                while at < end:
                    try:
                        fetched = (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, [])
                    except OffsetOutOfRangeError as error:
                        raise RetriableError(
                            f"{what} has lost offset {at} while it was read: run this again"
                        ) from error
                    for record in inside(fetched, some, begins):
                        yield record
                    if (now := int(await consumer.position(place))) != at:
                        at, give_up_s = now, clock() + _STALLED_S
                    elif clock() > give_up_s:
                        raise RetriableError(
                            f"{what} could not be read from offset {at} on for {_STALLED_S:g} s: see whether its "
                            "brokers answer; then run this again"
                        )


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
