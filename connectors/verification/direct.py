"""Compare topics of two running clusters in this process, whether a flow copies them or not, by the nth records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import closing, gather_limited
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offset, list_offsets
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.formats.types import TopicPartition
from connectors.verification.comparison import Comparison
from connectors.verification.log_reader import LogReader
from connectors.verification.ranges import RangePlan, RangeResult
from connectors.verification.report import Difference

#: Pairs of partitions compared at the same time.
_AT_ONCE = 4
_FETCH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TopicsComparison:
    """``records`` of all ``partitions`` are equal; ``difference`` describes the first one that is not."""

    partitions: int
    records: int
    difference: str | None = None


async def compare_topics(
    source: ConnectionSettings, target: ConnectionSettings, topics: Mapping[str, str]
) -> TopicsComparison:
    """Compare what source and target hold at the time of the call; ``topics``: target topic by source topic. Aborted
    records do not count. Raises ClusterUnreachable if no broker of a cluster answers, PermanentError if a topic
    does not exist, or the target has fewer partitions, and RetriableError if a broker stopped sending."""
    here, there = Cluster(source), Cluster(target)
    async with closing(here, there):
        pairs = []
        for name, copy in topics.items():
            count, copies = await _partition_count(here, name), await _partition_count(there, copy)
            if count > copies:
                raise PermanentError(
                    f"{name} at {here.name} has {count} partitions, its copy {copy} at {there.name} only {copies}"
                )
            pairs += [(TopicPartition(name, index), TopicPartition(copy, index)) for index in range(count)]
        results = await gather_limited(lambda pair: _compare(here, there, *pair), pairs, _AT_ONCE)
    differences = [one for result in results for one in result.differences]
    first = _described(differences[0], topics) if differences else None
    return TopicsComparison(len(pairs), sum(one.records for one in results), first)


async def _partition_count(cluster: Cluster, topic: str) -> int:
    found = (await cluster.metadata({topic})).topics.get(topic)
    if found is None or not found.partitions:
        raise PermanentError(f"topic {topic} does not exist at {cluster.name}")
    return len(found.partitions)


async def _compare(here: Cluster, there: Cluster, source: TopicPartition, target: TopicPartition) -> RangeResult:
    sides = {"source": (here, source), "target": (there, target)}
    places = []
    for cluster, one in sides.values():
        begin = await list_offset(cluster, one, EARLIEST)
        places.append((begin, (await list_offsets(cluster, [one], LATEST, READ_COMMITTED))[one]))
    (begin, end), (target_begin, target_end) = places
    plan = RangePlan(*source, *target, begin, end, target_begin, target_end, due=end, is_last=True)

    def open_reader(side: str, first: int, behind: int) -> LogReader:
        return LogReader(*sides[side], first, behind, is_committed=True, fetch_bytes=_FETCH_BYTES)

    return await Comparison(plan, open_reader).run()


def _described(one: Difference, topics: Mapping[str, str]) -> str:
    places = (
        (TopicPartition(one.topic, one.partition), one.source_offset),
        (TopicPartition(topics[one.topic], one.partition), one.target_offset),
    )
    where = " and ".join(f"{place} at offset {offset}" for place, offset in places if offset is not None)
    return f"{where}: {one.kind}: {one.what}"
