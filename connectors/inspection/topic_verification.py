"""Comparison of mirrored topics with their sources in two running clusters, record by record.

It reads with aiokafka's consumers instead of Heliograph's fetch path, so that a fault there cannot hide itself. Memory
is bounded because neither side may be far ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import teach_consumers
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire.batch import NO_TIMESTAMP
from connectors.inspection.partition_comparison import (
    FIELDS,
    ComparedRecord,
    ComparedSide,
    Difference,
    IdCounts,
    Partition,
    PartitionComparison,
)

logger = logging.getLogger(__name__)

READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"
#: Records taken from a consumer at once, few enough that other tasks of the loop, such as leases, get a turn.
_CHUNK_RECORDS: Final = 2000
#: How many records one side of a partition may be ahead.
_BACKLOG_RECORDS: Final = 10_000
_POLL_MS: Final = 100


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The result for a pair of partitions; ``*_ids`` are None unless records are numbered."""

    source: Partition
    target: Partition
    records: int
    difference: Difference | None
    source_ids: IdCounts | None = None
    target_ids: IdCounts | None = None


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result for several topics, in the order in which they were given."""

    partitions: tuple[PartitionReport, ...]

    @property
    def records(self) -> int:
        """Records that are equal on both sides."""
        return sum(partition.records for partition in self.partitions)

    @property
    def difference(self) -> Difference | None:
        """The first difference, or None if everything is equal."""
        return next((each.difference for each in self.partitions if each.difference is not None), None)

    @property
    def missing(self) -> int:
        """Ids of the source that the target lacks, in gaps and after its last record."""
        pairs = [(each.source_ids, each.target_ids) for each in self.partitions]
        return sum(max(0, t.missing - s.missing) + max(0, s.last_id - t.last_id) for s, t in pairs if s and t)

    @property
    def duplicated(self) -> int:
        """Records that the target has more than once and the source does not."""
        pairs = [(each.source_ids, each.target_ids) for each in self.partitions]
        return sum(max(0, t.duplicated - s.duplicated) for s, t in pairs if s and t)

    @property
    def disordered(self) -> int:
        """Records that follow a later one in the target and not in the source."""
        pairs = [(each.source_ids, each.target_ids) for each in self.partitions]
        return sum(max(0, t.disordered - s.disordered) for s, t in pairs if s and t)


async def compare_topics(
    source: ConnectionSettings,
    target: ConnectionSettings,
    topics: Mapping[str, str],
    *,
    isolation_level: str = READ_UNCOMMITTED,
    fields: Sequence[str] = FIELDS,
    record_id: Callable[[ComparedRecord], int] | None = None,
    stall_ms: int = 30_000,
) -> VerificationReport:
    """Compare what source and target hold at the time of the call.

    Args:
        source: The cluster of the originals.
        target: The cluster of the copies, read as ``read_committed`` because aborted records are not part of a copy.
        topics: Target topic by source topic.
        isolation_level: That of the flow on the source.
        fields: Which of ``FIELDS`` to compare.
        record_id: Returns a record's number, if records are numbered per partition from 0.
        stall_ms: Fail after this time without a new record.

    Raises:
        ClusterUnreachable: No broker of a cluster answers.
        PermanentError: A topic does not exist, or the target has fewer partitions.
        RetriableError: A broker stopped sending.
    """
    pairs = await _partition_pairs(source, target, topics)
    comparisons = [PartitionComparison(*pair, fields=fields, record_id=record_id) for pair in pairs]
    theirs = _PartitionReader(ComparedSide.TARGET, target, READ_COMMITTED, comparisons)
    ours = _PartitionReader(ComparedSide.SOURCE, source, isolation_level, comparisons)
    try:
        # The target's end is read first, so that a running flow does not add records beyond it.
        await theirs.open()
        await ours.open()
        await _run((ours, theirs), comparisons, stall_ms)
    finally:
        await asyncio.gather(ours.close(), theirs.close())
    return VerificationReport(tuple(_report(comparison) for comparison in comparisons))


def _report(comparison: PartitionComparison) -> PartitionReport:
    return PartitionReport(
        comparison.source,
        comparison.target,
        comparison.records,
        comparison.difference,
        comparison.ids(ComparedSide.SOURCE),
        comparison.ids(ComparedSide.TARGET),
    )


async def _run(readers: Sequence[_PartitionReader], comparisons: Sequence[PartitionComparison], stall_ms: int) -> None:
    clock = asyncio.get_running_loop().time
    progress_at = clock()
    while not all(comparison.complete for comparison in comparisons):
        moved = await asyncio.gather(*(reader.read() for reader in readers))
        if any(moved):
            progress_at = clock()
        elif clock() - progress_at > stall_ms / 1000:
            stuck = "; ".join(text for text in (reader.unfinished() for reader in readers) if text)
            raise RetriableError(f"comparison stopped: no record for {stall_ms} ms. Not yet read: {stuck}")


class _PartitionReader:
    """A reader of one side of all comparisons, up to the end offsets at ``open``."""

    def __init__(
        self,
        side: ComparedSide,
        settings: ConnectionSettings,
        isolation_level: str,
        comparisons: Sequence[PartitionComparison],
    ) -> None:
        self._side = side
        self._where = _address(settings)
        self._open = {TopicPartition(*getattr(each, side.value)): each for each in comparisons}
        self._ends: dict[TopicPartition, int] = {}
        teach_consumers()
        self._consumer = AIOKafkaConsumer(
            **settings.aiokafka_arguments(),
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=_POLL_MS,
        )

    async def open(self) -> None:
        try:
            await self._consumer.start()
            self._consumer.assign(list(self._open))
            self._ends = await self._consumer.end_offsets(list(self._open))
            await self._consumer.seek_to_beginning(*self._open)
        except KafkaError as error:
            raise self._translated(error) from error
        await self._finish_read_ones()

    async def close(self) -> None:
        await self._consumer.stop()

    def unfinished(self) -> str:
        """Return the partitions that are not read to their ends, for a message."""
        names = [f"{partition.topic}-{partition.partition}" for partition in self._open]
        return f"{self._side.value} {self._where} {', '.join(names[:5])}" if names else ""

    async def read(self) -> bool:
        """Read a chunk and feed it to the comparisons; return whether there was any record."""
        wanted = [each for each, comparison in self._open.items() if self._wants(comparison)]
        if not wanted:
            return False
        try:
            chunk = await self._consumer.getmany(*wanted, timeout_ms=_POLL_MS, max_records=_CHUNK_RECORDS)
        except KafkaError as error:
            raise self._translated(error) from error
        for partition, records in chunk.items():
            end = self._ends[partition]
            whole = records[-1].offset < end
            known = records if whole else [record for record in records if record.offset < end]
            # Magic 0 has no timestamp, for which magic 2 has -1.
            timed = [one if one.timestamp is not None else replace(one, timestamp=NO_TIMESTAMP) for one in known]
            self._open[partition].feed(self._side, timed)
        await self._finish_read_ones()
        return bool(chunk)

    def _wants(self, comparison: PartitionComparison) -> bool:
        return comparison.backlog(self._side) < _BACKLOG_RECORDS

    async def _finish_read_ones(self) -> None:
        # A log may end in control records, which only the position shows.
        for partition, comparison in list(self._open.items()):
            if comparison.complete or await self._consumer.position(partition) >= self._ends[partition]:
                comparison.end(self._side)
                del self._open[partition]
                self._consumer.pause(partition)

    def _translated(self, error: KafkaError) -> HeliographError:
        text = f"reading the {self._side.value} at {self._where} failed: {type(error).__name__}: {error}"
        if isinstance(error, KafkaConnectionError):
            return ClusterUnreachable(text)
        return RetriableError(text) if error.retriable else PermanentError(text)


async def _partition_pairs(
    source: ConnectionSettings, target: ConnectionSettings, topics: Mapping[str, str]
) -> list[tuple[Partition, Partition]]:
    source_counts, target_counts = await asyncio.gather(
        _partition_counts(source, list(topics)), _partition_counts(target, list(topics.values()))
    )
    pairs = []
    for source_topic, target_topic in topics.items():
        count, target_count = source_counts[source_topic], target_counts[target_topic]
        if count > target_count:
            raise PermanentError(
                f"{source_topic} at {_address(source)} has {count} partitions, "
                f"its copy {target_topic} at {_address(target)} only {target_count}"
            )
        pairs += [(Partition(source_topic, each), Partition(target_topic, each)) for each in range(count)]
    return pairs


async def _partition_counts(settings: ConnectionSettings, topics: Sequence[str]) -> dict[str, int]:
    cluster = Cluster(settings)
    try:
        metadata = await cluster.metadata(topics)
    finally:
        await cluster.close()
    counts = {}
    for topic in topics:
        found = metadata.topics.get(topic)
        if found is None or not found.partitions:
            raise PermanentError(f"topic {topic} does not exist at {_address(settings)}")
        counts[topic] = len(found.partitions)
    return counts


def _address(settings: ConnectionSettings) -> str:
    return ",".join(f"{host}:{port}" for host, port in settings.bootstrap)
