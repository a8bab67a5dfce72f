"""Logs in memory, and their comparison as one range."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from connectors.verification.comparison import Comparison
from connectors.verification.log_reader import LogBatch, LogReader
from connectors.verification.ranges import RangePlan, RangeResult

NOW_MS = 1_760_000_000_000


class Rec(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()
    #: LogAppendTime; the first record of a batch decides for all.
    has_own_time: bool = False


#: Offset and record, ascending.
Log = Sequence[tuple[int, Rec]]
#: First offsets and those behind the last.
Deleted = Sequence[tuple[int, int]]


class FakeReader(LogReader):
    """The batches of a log that is in memory."""

    def __init__(self, log: Log, begin: int, end: int, size: int, codec: int, deleted: Deleted = ()) -> None:
        self.where, self.begin, self.end = "a log", begin, end
        self.deleted, self.bytes = list(deleted), 0
        self._behind = log[-1][0] + 1 if log else 0
        log = [one for one in log if not any(first <= one[0] < behind for first, behind in deleted)]
        self._made = self._make(log, size, codec)

    def _make(self, log: Log, size: int, codec: int) -> Iterator[LogBatch]:
        inside = [one for one in log if self.begin <= one[0] < self.end]
        for at in range(0, len(inside), size):
            yield batch_of(inside[at : at + size], codec)

    async def extend(self) -> None:
        self.end = max(self.end, self._behind)

    async def next(self) -> LogBatch | None:
        return next(self._made, None)

    async def aclose(self) -> None: ...


def batch_of(some: Log, codec: int) -> LogBatch:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    first = some[0][0]
    for offset, one in some:
        builder.append(offset - first, one.timestamp_ms, one.key, one.value, list(one.headers))
    raw = bytearray(builder.build())
    raw[0:8] = first.to_bytes(8, "big")
    if some[0][1].has_own_time:
        raw[22] |= 0x08
        raw[17:21] = crc32c.crc32c(bytes(raw[21:])).to_bytes(4, "big")
    times = [one.timestamp_ms for _, one in some]
    return LogBatch(first, some[-1][0], len(some), bytes(raw), 0, len(raw), 2, codec, times[0], max(times))


def compare(
    ours: Log, theirs: Log, codec: int = 0, sizes: tuple[int, int] = (10, 10), deleted: Any = ((), ()), **more: object
) -> RangeResult:
    """``deleted``: what source and target delete meanwhile."""
    ends = tuple(log[-1][0] + 1 if log else 0 for log in (ours, theirs))
    plan = RangePlan("t", 0, "us.t", 0, 0, ends[0], 0, ends[1], due=ends[0], is_last=True)
    plan = replace(plan, **more)  # type: ignore[arg-type]
    logs = {"source": (ours, sizes[0], deleted[0]), "target": (theirs, sizes[1], deleted[1])}

    def open_reader(side: str, begin: int, end: int) -> LogReader:
        log, size, gone = logs[side]
        return FakeReader(log, begin, end, size, codec, gone)

    return asyncio.run(Comparison(plan, open_reader).run())


def log_of(records: Sequence[Rec], begin: int = 0) -> list[tuple[int, Rec]]:
    return list(enumerate(records, begin))


def some_records(count: int, chance: random.Random | None = None) -> list[Rec]:
    chance = chance or random.Random(1)
    return [Rec(b"k%d" % i, chance.randbytes(20), NOW_MS + i // 3, (("n", b"%d" % i),)) for i in range(count)]
