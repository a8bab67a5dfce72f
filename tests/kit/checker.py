"""Reads a source topic and its mirror, each record once, and says what is missing, doubled, out of order or changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from tests.kit import marked
from tests.kit.log_reader import Key, LogReader
from tests.kit.sequences import SequenceTracker

_POLL_S: Final = 0.1


class TopicPair(NamedTuple):
    """A source topic, its mirror, and how many partitions both have."""

    source: str
    target: str
    partitions: int


@dataclass(slots=True)
class LogState:
    """What was found in one partition as read so far."""

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
    aborted: int
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

    @property
    def faults(self) -> list[str]:
        """A line for each partition that is not exact."""
        return [
            f"{found.target}-{found.partition}: gaps {found.gaps}, duplicates {found.duplicates}, "
            f"disorder {found.disorder}, damaged {found.damaged}, behind {found.behind}; {found.fault}"
            for found in self.partitions
            if not found.is_exact
        ]

    def total(self, name: str) -> int:
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
            "aborted",
        )
        counts = ", ".join(f"{name.replace('_', ' ')} {self.total(name)}" for name in names)
        fault = next((found.fault for found in self.partitions if found.fault), "")
        return f"{counts}; first fault: {fault}" if fault else counts


class Checker:
    """Compares pairs of topics between two clusters; ``async with`` opens and closes its connections."""

    def __init__(
        self, source_bootstrap: str, target_bootstrap: str, pairs: Collection[TopicPair], *, committed: bool = False
    ) -> None:
        """``committed``: what an aborted or open transaction left in the target counts as not there."""
        self._pairs = tuple(pairs)
        self._source = _Side(source_bootstrap, {pair.source: pair.partitions for pair in pairs})
        self._target = _Side(target_bootstrap, {pair.target: pair.partitions for pair in pairs}, committed=committed)

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
            markers=self._target.followed[pair.target, index].markers,
            aborted=self._target.followed[pair.target, index].aborted,
            fault=target.order.first_fault or target.first_damage,
        )


class _Side(LogReader):
    """All marked topics of one cluster, and what was found in them."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int], *, committed: bool = False) -> None:
        super().__init__(bootstrap, self._judge, committed=committed)
        for topic, partitions in topics.items():
            self.follow(topic, partitions)
        self.logs = {key: LogState() for key in self.followed}

    def _judge(self, key: Key, position: int, batch: Any) -> None:
        (topic, index), log = key, self.logs[key]
        sequences = []
        for record in batch:
            if record.offset < position:
                continue
            partition, sequence = marked.KEY.unpack(record.key)
            found = marked.damage(sequence, record.value, record.timestamp, record.headers)
            if partition != index:
                found = f"belongs to partition {partition}"
            if found:
                log.damaged += 1
                log.first_damage = log.first_damage or f"{topic}-{index} offset {record.offset}: {found}"
            sequences.append(sequence)
        log.order.take(sequences, f"{topic}-{index} from offset {batch.base_offset}")
