"""Reads a source topic and its mirror to their ends and says what is missing, doubled, out of order or changed.

Incremental: each :meth:`Checker.check` goes on where the last one stopped, so a log is read once however many rounds
a run has, and a record that arrives late in a later round is still found. Reads with aiokafka, uncommitted, straight
from the leaders: nothing under test takes part.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from tests.kit import marked
from tests.kit.sequences import SequenceTracker

_FETCH_BYTES: Final = 8 * 1024 * 1024
_PARTITION_BYTES: Final = 2 * 1024 * 1024
_POLL_S: Final = 0.1
_READ_DEADLINE_S: Final = 120.0
_Key = tuple[str, int]


class TopicPair(NamedTuple):
    """A source topic, its mirror, and how many partitions both have."""

    source: str
    target: str
    partitions: int


@dataclass(slots=True)
class LogState:
    """One partition's log as read so far: ``position`` is the next offset to fetch."""

    partition: int
    position: int = 0
    markers: int = 0
    damaged: int = 0
    first_damage: str = ""
    order: SequenceTracker = field(default_factory=SequenceTracker)


@dataclass(frozen=True)
class PartitionReport:
    """A source partition against its mirror; counts are records. ``behind``: not yet mirrored at its end."""

    source: str
    target: str
    partition: int
    source_records: int
    target_records: int
    behind: int
    gaps: int
    duplicates: int
    disorder: int
    damaged: int
    markers: int
    fault: str

    @property
    def is_exact(self) -> bool:
        return not (self.behind or self.gaps or self.duplicates or self.disorder or self.damaged)


@dataclass(frozen=True)
class Report:
    """All partitions of all pairs."""

    partitions: tuple[PartitionReport, ...]

    @property
    def is_exact(self) -> bool:
        return all(partition.is_exact for partition in self.partitions)

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing more is to come, as far as the ends tell; faults do not matter here."""
        return not any(partition.behind for partition in self.partitions)

    def total(self, name: str) -> int:
        """The sum over all partitions of one count, such as ``gaps``."""
        return sum(getattr(partition, name) for partition in self.partitions)

    def summary(self) -> str:
        """One line, with the first fault where there is one."""
        names = (
            "source_records",
            "target_records",
            "behind",
            "gaps",
            "duplicates",
            "disorder",
            "damaged",
            "markers",
        )
        counts = ", ".join(f"{name.replace('_', ' ')} {self.total(name)}" for name in names)
        fault = next((found.fault for found in self.partitions if found.fault), "")
        return f"{counts}; first fault: {fault}" if fault else counts


class Checker:
    """Compares pairs of topics between two clusters; ``async with`` opens and closes its connections."""

    def __init__(self, source_bootstrap: str, target_bootstrap: str, pairs: Collection[TopicPair]) -> None:
        self._pairs = tuple(pairs)
        self._source = _Reader(source_bootstrap, {pair.source: pair.partitions for pair in pairs})
        self._target = _Reader(target_bootstrap, {pair.target: pair.partitions for pair in pairs})

    async def __aenter__(self) -> Self:
        try:
            await self._source.open()
            await self._target.open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._source.close()
        await self._target.close()

    async def check(self) -> Report:
        """Read both sides to their ends and compare."""
        await self._target.read_to_end()
        await self._source.read_to_end()
        return self._report()

    async def caught_up(self, deadline_s: float) -> Report:
        """Check until the mirror has all that the source has now, or the deadline passes."""
        await self._source.read_to_end()
        end = time.monotonic() + deadline_s
        while True:
            await self._target.read_to_end()
            report = self._report()
            if report.is_caught_up or time.monotonic() > end:
                return report
            await asyncio.sleep(_POLL_S)

    def _report(self) -> Report:
        return Report(tuple(self._compare(pair, index) for pair in self._pairs for index in range(pair.partitions)))

    def _compare(self, pair: TopicPair, index: int) -> PartitionReport:
        source = self._source.logs[pair.source, index]
        target = self._target.logs[pair.target, index]
        written = source.order
        if written.first_fault or source.first_damage:
            raise AssertionError(
                f"the writer's own log {pair.source}-{index} is not whole: {written.first_fault or source.first_damage}"
            )
        return PartitionReport(
            source=pair.source,
            target=pair.target,
            partition=index,
            source_records=written.records,
            target_records=target.order.records,
            behind=max(0, written.next_sequence - target.order.next_sequence),
            gaps=target.order.gaps,
            duplicates=target.order.duplicates,
            disorder=target.order.disorder,
            damaged=target.damaged,
            markers=target.markers,
            fault=target.order.first_fault or target.first_damage,
        )


class _Reader:
    """Reads every partition of some topics of one cluster, each once, from offset 0.

    Metadata is asked for all topics at once: asking for one by name could make it.
    """

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        self._bootstrap = bootstrap
        self._client: Any = None
        self.logs = {
            (topic, index): LogState(index) for topic, partitions in topics.items() for index in range(partitions)
        }

    async def open(self) -> None:
        client = AIOKafkaClient(bootstrap_servers=self._bootstrap, client_id="checker", request_timeout_ms=15000)
        await client.bootstrap()
        self._client = client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def read_to_end(self) -> None:
        """Fetch until every partition has been read to its high watermark; a topic not made yet is empty."""
        pending = set(self.logs)
        end = time.monotonic() + _READ_DEADLINE_S
        while pending:
            if time.monotonic() > end:
                raise AssertionError(f"could not read {sorted(pending)} to the end within {_READ_DEADLINE_S:g} s")
            leaders = {key: self._leader(key) for key in pending}
            if None in leaders.values():
                await self._look_again()
                pending -= {key for key in pending if self._leader(key) is None and not self.logs[key].position}
                continue
            for node in set(leaders.values()):
                if node is not None:
                    pending -= await self._fetch(node, [key for key, leader in leaders.items() if leader == node])

    def _leader(self, key: _Key) -> int | None:
        node: int | None = self._client.cluster.leader_for_partition(TopicPartition(*key))
        return None if node == -1 else node

    async def _look_again(self) -> None:
        await asyncio.sleep(_POLL_S)
        await self._client.force_metadata_update()

    async def _fetch(self, node: int, keys: list[_Key]) -> set[_Key]:
        """One fetch; which of ``keys`` have been read to their ends."""
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for topic, index in keys:
            topics.setdefault(topic, []).append((index, self.logs[topic, index].position, _PARTITION_BYTES))
        request = FetchRequest(0, 0, _FETCH_BYTES, 0, list(topics.items()))
        try:
            answer = await self._client.send(node, request)
        except KafkaError:
            await self._look_again()
            return set()
        done = set()
        for topic, partitions in answer.topics:
            for index, error_code, high_watermark, *_, data in partitions:
                if error_code:
                    await self._heed(error_code, topic, index)
                elif self._take(topic, index, data) >= high_watermark:
                    done.add((topic, index))
        return done

    async def _heed(self, error_code: int, topic: str, index: int) -> None:
        error: Any = for_code(error_code)
        if not error.retriable:
            raise AssertionError(f"reading {topic}-{index} at {self.logs[topic, index].position}: {error.__name__}")
        await self._look_again()

    def _take(self, topic: str, index: int, data: bytes) -> int:
        log = self.logs[topic, index]
        batches = MemoryRecords(data or b"")
        while batches.has_next():
            batch: Any = batches.next_batch()
            if batch is None:
                break
            if batch.next_offset <= log.position:
                continue
            if not batch.validate_crc():
                raise AssertionError(f"{topic}-{index} at {batch.base_offset}: wrong CRC")
            if batch.is_control_batch:
                log.markers += 1
            else:
                _take_batch(log, batch, topic)
            log.position = batch.next_offset
        return log.position


def _take_batch(log: LogState, batch: Any, topic: str) -> None:
    sequences = []
    for record in batch:
        if record.offset < log.position:
            continue
        partition, sequence = marked.KEY.unpack(record.key)
        found = marked.damage(sequence, record.value, record.timestamp, record.headers)
        if partition != log.partition:
            found = f"belongs to partition {partition}"
        if found:
            log.damaged += 1
            log.first_damage = log.first_damage or f"{topic}-{log.partition} offset {record.offset}: {found}"
        sequences.append(sequence)
    log.order.take(sequences, f"{topic}-{log.partition} from offset {batch.base_offset}")
