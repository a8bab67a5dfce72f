"""How far a flow is behind: per partition, topic and flow, in records, bytes and time (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import nsmallest
from typing import Any


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One source partition.

    Args:
        position: The next source offset to copy.
        end: Behind the last record that may be copied: the high watermark, under ``read_committed`` the last stable
            offset.
        records: Offsets that wait, an upper bound of records: markers and what compaction took count until the copy
            has passed them. Those that the source no longer has are not among them, but in ``lost``.
        bytes: What they take at the source, estimated by their share of the partition's offsets; -1 unknown.
        ms: Age of the oldest that waits, by its batch's timestamp; 0 where none waits, -1 unknown.
        offset_bytes: What an offset of the source takes on average; -1 unknown.
    """

    topic: str
    partition: int
    target_topic: str
    position: int
    end: int
    records: int
    bytes: int = 0
    ms: int = 0
    lost: int = 0
    offset_bytes: float = field(default=-1.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PartitionLag.__dataclass_fields__ if name != "offset_bytes"}

    def lost_sight(self) -> PartitionLag:
        """The same if its source does not answer."""
        return replace(self, records=-1, bytes=-1, ms=-1)

    def at(self, position: int, end: int, ms: int) -> PartitionLag:
        """The same where the copy has come to ``position`` since, and the source to ``end``."""
        begin = max(position, self.end - self.records) if self.lost else position
        records = max(end - begin, 0)
        size = -1 if self.offset_bytes < 0 else round(records * self.offset_bytes)
        return replace(self, position=position, end=end, records=records, bytes=size if records else 0, ms=ms)


@dataclass(frozen=True, slots=True)
class FlowLag:
    """Of all partitions of a flow that are looked at.

    Args:
        unknown: Those that could not be, and why.
        known_ms: When it was looked at, in milliseconds since 1970; -1 never.
        is_known: False if nothing could be looked at now, so that all is as unknown as it was at ``known_ms``.
    """

    partitions: tuple[PartitionLag, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)
    known_ms: int = -1
    is_known: bool = True

    def lost(self, flow: str, why: str, known_ms: int = -1) -> FlowLag:
        """What is left of it if a cluster does not answer any more; ``known_ms``: it was known then too."""
        return FlowLag(
            tuple(one.lost_sight() for one in self.partitions),
            {flow: why},
            max(self.known_ms, known_ms),
            is_known=False,
        )

    def to_json(self, most: int) -> dict[str, Any]:
        """With the ``most`` partitions that are furthest behind; see docs/operations.md."""
        whole = together(self.partitions)
        if not self.is_known:
            whole = replace(whole, records=-1, bytes=-1, ms=-1)
        return {
            **asdict(whole),
            "unknown_since_ms": None if self.is_known or self.known_ms < 0 else self.known_ms,
            "topics": {topic: asdict(lag) for topic, lag in by_topic(self.partitions).items()},
            "furthest": [one.to_json() for one in furthest(self.partitions, most)],
            "unknown": dict(self.unknown),
        }


@dataclass(frozen=True, slots=True)
class Lag:
    """Of several partitions together: sums, and the greatest age; -1 where it is not known, of records and age if it
    is not known of one."""

    partitions: int
    records: int
    bytes: int
    ms: int
    lost: int


def lag_of(
    topic: str, partition: int, target_topic: str, position: int, start: int, end: int, size_bytes: int
) -> PartitionLag:
    """``start``, ``end`` and ``size_bytes`` (-1 unknown) are the source partition's now. The age is left at -1 where
    something waits, for who reads it."""
    begin = max(position, start)
    records = max(end - begin, 0)
    span = end - start
    share = -1 if size_bytes < 0 or span <= 0 else min(round(size_bytes * records / span), size_bytes)
    return PartitionLag(
        topic,
        partition,
        target_topic,
        position,
        end,
        records,
        bytes=share if records else 0,
        ms=-1 if records else 0,
        lost=max(min(start, end) - position, 0),
        offset_bytes=-1.0 if size_bytes < 0 or span <= 0 else size_bytes / span,
    )


def together(lags: Iterable[PartitionLag]) -> Lag:
    each = list(lags)
    known = [one.bytes for one in each if one.bytes >= 0]
    is_known = all(one.records >= 0 for one in each)
    return Lag(
        len(each),
        sum(one.records for one in each) if is_known else -1,
        sum(known) if known or not each else -1,
        max((one.ms for one in each), default=0) if is_known else -1,
        sum(one.lost for one in each),
    )


def by_topic(lags: Iterable[PartitionLag]) -> dict[str, Lag]:
    found: dict[str, list[PartitionLag]] = {}
    for one in lags:
        found.setdefault(one.topic, []).append(one)
    return {topic: together(each) for topic, each in sorted(found.items())}


def furthest(lags: Sequence[PartitionLag], most: int) -> list[PartitionLag]:
    """The ``most`` partitions that are furthest behind: by records, then by age; those that are not are left out."""
    behind = [one for one in lags if one.records > 0 or one.lost]
    return nsmallest(most, behind, key=lambda one: (-one.records, -one.ms, one.topic, one.partition))
