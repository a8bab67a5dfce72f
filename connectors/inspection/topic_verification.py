"""Compare mirrored topics with their sources in two running clusters, record by record.

Key, value, headers, timestamp and order are compared, by pairing the nth records of source and target. Offsets are not,
because a mirror of a compacted or transactional topic has other offsets. Aborted records do not count. It reads with
aiokafka's consumers instead of Heliograph's fetch path, so that a fault there cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Final

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.log_ranges import read_ranges
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire.batch import NO_TIMESTAMP
from connectors.formats.types import TopicPartition

#: Most characters of a value in a message.
ABBREVIATED_CHARS: Final = 80
#: Pairs of partitions compared at the same time.
_AT_ONCE: Final = 4
_EVERYTHING: Final = ((0, 2**63 - 1),)


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """``records`` of all ``partitions`` are equal; ``difference`` describes the first one that is not."""

    partitions: int
    records: int
    difference: str | None = None


async def compare_topics(
    source: ConnectionSettings, target: ConnectionSettings, topics: Mapping[str, str]
) -> VerificationReport:
    """Compare what source and target hold at the time of the call; ``topics``: target topic by source topic.

    Raises:
        ClusterUnreachable: No broker of a cluster answers.
        PermanentError: A topic does not exist, or the target has fewer partitions.
        RetriableError: A broker stopped sending.
    """
    here, there = Cluster(source), Cluster(target)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(here.close)
        closing.push_async_callback(there.close)
        pairs = []
        for name, copy in topics.items():
            count, copies = await _partition_count(here, name), await _partition_count(there, copy)
            if count > copies:
                raise PermanentError(
                    f"{name} at {here.name} has {count} partitions, its copy {copy} at {there.name} only {copies}"
                )
            pairs += [(TopicPartition(name, index), TopicPartition(copy, index)) for index in range(count)]
        found = await gather_limited(lambda pair: _compare(here, there, *pair), pairs, _AT_ONCE)
    difference = next((one for _, one in found if one is not None), None)
    return VerificationReport(len(pairs), sum(equal for equal, _ in found), difference)


async def _partition_count(cluster: Cluster, topic: str) -> int:
    found = (await cluster.metadata({topic})).topics.get(topic)
    if found is None or not found.partitions:
        raise PermanentError(f"topic {topic} does not exist at {cluster.name}")
    return len(found.partitions)


async def _compare(
    here: Cluster, there: Cluster, source: TopicPartition, target: TopicPartition
) -> tuple[int, str | None]:
    """Return how many records are equal before the first difference, and the difference, if any."""
    equal = 0
    async with (
        aclosing(read_ranges(here, source, _EVERYTHING)) as ours,
        aclosing(read_ranges(there, target, _EVERYTHING)) as theirs,
    ):
        while True:
            mine, other = await anext(ours, None), await anext(theirs, None)
            if mine is None and other is None:
                return equal, None
            if differs := difference(mine, other):
                return equal, f"{_place(source, mine)} and {_place(target, other)} differ in {differs}"
            equal += 1


def difference(ours: Any, theirs: Any) -> str:
    """Return the first field in which two records of aiokafka differ, with both values; empty if they are equal. None
    stands for a log that has ended."""
    if ours is None or theirs is None:
        shown = [f"a record {abbreviate(one.value)}" if one is not None else "no record" for one in (ours, theirs)]
        return f"length: {shown[0]} against {shown[1]}"
    for name in ("key", "value", "headers", "timestamp"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        # Magic 0 has no timestamp, for which magic 2 has -1.
        if mine != other and (name != "timestamp" or {mine, other} != {None, NO_TIMESTAMP}):
            return f"{name}: {abbreviate(mine)} against {abbreviate(other)}"
    return ""


def _place(partition: TopicPartition, record: Any) -> str:
    return f"{partition} after its end" if record is None else f"{partition} at offset {record.offset}"


def abbreviate(value: object) -> str:
    """Format a value in at most ``ABBREVIATED_CHARS`` characters, bytes as text if they are printable UTF-8.

    >>> abbreviate(b'{"id":1}'), abbreviate(b"a" * 100)[-9:]
    ('\'{"id":1}\'', 'aa...100B')
    """
    if not isinstance(value, bytes):
        shown = repr(value)
        return shown if len(shown) <= ABBREVIATED_CHARS else shown[: ABBREVIATED_CHARS - 3] + "..."
    head = value[:ABBREVIATED_CHARS]
    text = head.decode("utf-8", errors="replace")
    shown = repr(text) if text.isprintable() and "\ufffd" not in text else repr(head)
    if len(head) == len(value) and len(shown) <= ABBREVIATED_CHARS:
        return shown
    tail = f"...{len(value)}B"
    return shown.rstrip("'\"")[: ABBREVIATED_CHARS - len(tail)] + tail
