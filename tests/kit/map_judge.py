"""The offset map against brute force: both logs are read whole, and every offset is looked up in both directions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka import TopicPartition as KafkaPartition

from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import reader
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offset
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, OffsetLocation
from tests.kit.clients import cluster_at

#: A fault.
UNKNOWN: Final = "a record of the target that the map does not know"
#: In a fault: the map answers that it begins later.
BELOW: Final = f"({OffsetLocation.BELOW.value})"


class Content(NamedTuple):
    """What makes a record the same: all but its offset."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Log:
    records: dict[int, Content]
    start: int
    end: int


@dataclass(slots=True)
class Verdict:
    same: int = 0
    next_survivor: int = 0
    below: int = 0
    not_copied_yet: int = 0
    reversed: int = 0
    faults: list[str] = field(default_factory=list)


async def judge_map(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: str,
    partition: TopicPartition,
    *,
    read_committed: bool,
    looks: int | None = None,
) -> Verdict:
    """Judge a pair at rest by the map in ``topic``; ``looks``: about so many records of a long log, None: every one."""
    async with cluster_at(source.bootstrap) as ours, cluster_at(target.bootstrap) as theirs:
        maps = MapReader(theirs, topic, partitions=[partition])
        await maps.follow()
        pair, position = maps.current(partition), maps.position(partition)
        if pair is None or position is None:
            return Verdict(faults=[f"nothing is stored of {partition}"])
        verdict = Verdict()
        before = await read_log(ours, partition, read_committed=read_committed)
        after = await read_log(theirs, TopicPartition(pair.target_topic, pair.target_partition), read_committed=True)
        await _judge_forward(maps, pair, before, after, position.next_source_offset, verdict, looks)
        await _judge_reverse(maps, pair, before, after, verdict, looks)
        return verdict


async def read_log(cluster: Cluster, partition: TopicPartition, *, read_committed: bool) -> Log:
    """A whole partition, with aiokafka: our own fetch path cannot hide a fault of its own."""
    start, end = [await list_offset(cluster, partition, at) for at in (EARLIEST, LATEST)]
    found: dict[int, Content] = {}
    known = KafkaPartition(*partition)
    async with reader(cluster, read_committed=read_committed, auto_offset_reset="earliest") as consumer:
        consumer.assign([known])
        consumer.seek(known, start)
        while await consumer.position(known) < end:
            for records in (await consumer.getmany(timeout_ms=250)).values():
                for record in records:
                    content = Content(record.key, record.value, record.timestamp, tuple(record.headers))
                    found[record.offset] = content
    return Log(found, start, end)


def _chosen(log: Log, looks: int | None) -> Iterator[tuple[int, Content]]:
    """Records to look up: all, or about ``looks`` and the edges of what lies together."""
    stride = 1 if looks is None else max(len(log.records) // looks, 1)
    for at, (offset, content) in enumerate(log.records.items()):
        if at % stride == 0 or offset - 1 not in log.records or offset + 1 not in log.records:
            yield offset, content


async def _judge_forward(
    maps: MapReader, pair: MapPair, source: Log, target: Log, copied_to: int, verdict: Verdict, looks: int | None
) -> None:
    survivors = _Survivors(target)
    for offset, content in _chosen(source, looks):
        if offset >= copied_to:
            verdict.not_copied_yet += 1
            continue
        found = await maps.forward(pair, offset)
        fault = ""
        if found is None or found.place in (OffsetLocation.GAP, OffsetLocation.BEYOND):
            fault = "a record that was copied is not in the map"
        elif found.place is OffsetLocation.BELOW:
            verdict.below += 1
            if survivors.first_from(target.start) not in (None, survivors.first_from(found.offset)):
                fault = "it is below the map, though target records before the map are still there"
        elif found.offset in target.records:
            verdict.same += 1
            if target.records[found.offset] != content:
                fault = f"the target has {target.records[found.offset]} there, not {content}"
        else:
            verdict.next_survivor += 1
            fault = await _judge_survivor(maps, pair, offset, survivors.first_from(found.offset))
        _report(verdict, f"source offset {offset} -> {_words(found)}: {fault}", fault)


async def _judge_survivor(maps: MapReader, pair: MapPair, offset: int, survivor: int | None) -> str:
    """A record that the target lost maps to before the copies of all that come behind it, and behind none of them."""
    if survivor is None:
        return ""
    back = await maps.reverse(pair, survivor)
    if back is None or back.place is not OffsetLocation.INSIDE or back.offset <= offset:
        return f"the next that survives, {survivor}, is not one that comes later in the source ({_words(back)})"
    return ""


async def _judge_reverse(
    maps: MapReader, pair: MapPair, source: Log, target: Log, verdict: Verdict, looks: int | None
) -> None:
    for offset, content in _chosen(target, looks):
        found = await maps.reverse(pair, offset)
        verdict.reversed += 1
        fault = ""
        if found is None or found.place is not OffsetLocation.INSIDE:
            fault = UNKNOWN
        elif found.offset in source.records and source.records[found.offset] != content:
            fault = f"the source has {source.records[found.offset]} there, not {content}"
        elif await maps.forward(pair, found.offset) != MappedOffset(offset, OffsetLocation.INSIDE):
            fault = f"forward from there is {_words(await maps.forward(pair, found.offset))}"
        _report(verdict, f"target offset {offset} -> {_words(found)}: {fault}", fault)


class _Survivors:
    """The target's records in order, to find the first at or behind an offset."""

    def __init__(self, target: Log) -> None:
        self._offsets = sorted(target.records)

    def first_from(self, offset: int) -> int | None:
        at = bisect_left(self._offsets, offset)
        return self._offsets[at] if at < len(self._offsets) else None


def _report(verdict: Verdict, sentence: str, fault: str) -> None:
    if fault:
        verdict.faults.append(sentence)


def _words(found: MappedOffset | None) -> str:
    return "nothing" if found is None else f"{found.offset} ({found.place.value})"
