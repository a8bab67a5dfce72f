"""Computes ranges of offsets of one partition, and reads the committed records in them, each once."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import reader, reading
from connect.kafka.log.offsets import Partition

_POLL_MS: Final = 250
#: How long a reader may make no progress before the end.
_STALLED_S: Final = 60.0
#: Ranges this close are read in one go: between transactions there are as many ranges as markers.
_NEAR: Final = 5000
#: First offset and end offset (exclusive).
Range = tuple[int, int]


def without(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """Return ``ranges`` without ``others``, both ascending. One pass over both, because transactions leave thousands
    of ranges."""
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
    """Return the ranges, ascending, with those that touch or overlap merged."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def coalesce_ranges(ranges: Iterable[Range], end: int) -> Iterator[list[Range]]:
    """Yield groups of the ascending ``ranges`` before ``end``. Ranges are in one group if reading on to the next is
    cheaper than a new seek, because they are at most :data:`_NEAR` apart."""
    some: list[Range] = []
    for first, behind in ranges:
        if first >= min(behind, end):
            continue
        if some and first - some[-1][1] > _NEAR:
            yield some
            some = []
        some.append((first, min(behind, end)))
    if some:
        yield some


def inside(records: Iterable[Any], ranges: Sequence[Range], begins: Sequence[int]) -> Iterator[Any]:
    """Yield the records in one of ``ranges``, which ascend and begin at ``begins``."""
    for record in records:
        at = bisect_right(begins, record.offset) - 1
        if at >= 0 and record.offset < ranges[at][1]:
            yield record


async def read_ranges(
    cluster: Cluster, log: Partition, ranges: Sequence[Range], *, is_decided: bool = False
) -> AsyncGenerator[Any, None]:
    """Yield the committed records in the ascending ``ranges`` once, as aiokafka's records; skip deleted ones. Raises
    RetriableError if there is no progress for a minute, the log has lost an offset or, with ``is_decided``, an open
    transaction reaches into the ranges, and SecurityError if READ on the topic is missing."""
    if not ranges:
        return
    place, what = TopicPartition(*log), f"cluster {cluster.name}: {log[0]}-{log[1]}"
    clock = asyncio.get_running_loop().time
    with reading(cluster, log[0]):
        # After a reset to another offset, records would be read twice or not at all.
        async with reader(cluster, read_committed=True, auto_offset_reset="none") as consumer:
            consumer.assign([place])
            stable = (await consumer.end_offsets([place]))[place]
            start = (await consumer.beginning_offsets([place]))[place]
            if is_decided and stable < ranges[-1][1]:
                raise RetriableError(f"{what} is stable only up to offset {stable}")
            for some in coalesce_ranges(ranges, stable):
                begins, end, at = [first for first, _ in some], some[-1][1], max(some[0][0], start)
                give_up_s = clock() + _STALLED_S
                consumer.seek(place, at)
                while at < end:
                    try:
                        fetched = (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, [])
                    except OffsetOutOfRangeError as error:
                        raise RetriableError(f"{what} has lost offset {at} during the read; run this again") from error
                    for record in inside(fetched, some, begins):
                        yield record
                    if (now := int(await consumer.position(place))) != at:
                        at, give_up_s = now, clock() + _STALLED_S
                    elif clock() > give_up_s:
                        raise RetriableError(
                            f"{what} could not be read from offset {at} for {_STALLED_S:g} s; check that its brokers "
                            "answer, then run this again"
                        )


async def has_records(cluster: Cluster, log: Partition, begin: int, end: int, *, is_decided: bool = False) -> bool:
    """Return whether there are committed records from ``begin`` up to ``end`` (exclusive); gaps left by compaction and
    transaction markers are not records. Raises the errors of :func:`read_ranges`."""
    if begin < end:
        async with aclosing(read_ranges(cluster, log, [(begin, end)], is_decided=is_decided)) as records:
            async for _ in records:
                return True
    return False
