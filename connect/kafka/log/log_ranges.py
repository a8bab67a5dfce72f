"""Ranges of offsets of one partition, and the committed records in them, each read once."""

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
#: So long a reader may stand at one place before the end.
_STALLED_S: Final = 60.0
#: Ranges that lie so near are read in one go: between transactions there are as many as markers.
_NEAR: Final = 5000
#: Offsets from one to before another.
Range = tuple[int, int]


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


async def read_ranges(
    cluster: Cluster, log: Partition, ranges: Sequence[Range], *, is_decided: bool = False
) -> AsyncGenerator[Any, None]:
    """The committed records in ``ranges``, which ascend, as aiokafka has them, once. What is deleted is passed over.

    Raises:
        RetriableError: the cluster hands out nothing for a minute, the log has lost what was to be read or, where it
            has to be ``is_decided``, a transaction that is open reaches into the ranges.
        SecurityError: READ on the topic is missing.
    """
    if not ranges:
        return
    place, what = TopicPartition(*log), f"cluster {cluster.name}: {log[0]}-{log[1]}"
    clock = asyncio.get_running_loop().time
    with reading(cluster, log[0]):
        # From another place it would be read twice, or not at all.
        async with reader(cluster, read_committed=True, auto_offset_reset="none") as consumer:
            consumer.assign([place])
            stable = (await consumer.end_offsets([place]))[place]
            start = (await consumer.beginning_offsets([place]))[place]
            if is_decided and stable < ranges[-1][1]:
                raise RetriableError(f"{what} is decided up to offset {stable} only")
            for some in stretches(ranges, stable):
                begins, end, at = [first for first, _ in some], some[-1][1], max(some[0][0], start)
                give_up_s = clock() + _STALLED_S
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


async def has_records(cluster: Cluster, log: Partition, begin: int, end: int, *, is_decided: bool = False) -> bool:
    """Whether a reader of committed records gets any from ``begin`` to before ``end``. A compacted log has holes, and
    one of transactions markers: neither is a record. Raises as :func:`read_ranges`."""
    if begin < end:
        async with aclosing(read_ranges(cluster, log, [(begin, end)], is_decided=is_decided)) as records:
            async for _ in records:
                return True
    return False
