"""What a verification found, as values: what `heliograph verify` prints, stores, and shows on a page.

Offsets are of the source unless a field says otherwise. A result holds a limited number of differences for each
partition, and the number of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from connectors.formats.types import Wired

VERSION: Final = 1
#: Differences of one partition that a result names; more are only counted.
NAMED_DIFFERENCES: Final = 100

#: Fields of a record, in the order in which they are compared.
FIELDS: Final = ("key", "value", "headers", "timestamp")


class DifferenceKind(StrEnum):
    """How source and target differ in one record."""

    MISSING = "missing"  # the source has it, the target does not
    EXTRA = "extra"  # the target has it, the source does not
    DOUBLED = "doubled"  # the target has it more often than the source
    CHANGED = "changed"  # both have it, with other contents
    ORDER = "order"  # both have it, at another place


class RangeReason(StrEnum):
    """Why a range was not compared, or need not be equal."""

    RETENTION_SOURCE = "deleted by the source's retention"
    RETENTION_TARGET = "deleted by the target's retention"
    GAP = "a stored gap"
    COMPACTED = "removed by log compaction"
    NOT_COPIED = "not copied yet"
    FILTERED = "dropped by the flow's transforms"
    ABORTED = "aborted transactions"
    NOT_OF_FLOW = "written to the target by others"
    BEFORE_FLOW = "before the flow began to copy"
    UNREADABLE = "could not be read"


class UndecidedReason(StrEnum):
    """Why no log says any more whether a record differs."""

    BEFORE_MAP = "the offset map does not reach it, so nothing says whether the flow or another producer wrote it"
    TOMBSTONE = "the source has removed what would decide: perhaps its tombstone, before the flow copied it"
    ABORTED = "the source has removed what would decide: perhaps an aborted transaction, after the flow copied it"
    EITHER = (
        "the source has removed what would decide: perhaps its tombstone, before the flow copied it, or an aborted "
        "transaction, after the flow copied it"
    )


@dataclass(frozen=True, slots=True)
class Difference(Wired):
    """One record that differs, or that looks so.

    Args:
        topic: The source topic, with ``partition``.
        source_offset: None if the source has no such record.
        target_offset: None if the target has no such record.
        what: For people: which fields differ and how, or the record.
        fields: The fields that differ, of :data:`FIELDS`; only for ``CHANGED``.
        undecided: Why no log says whether it is a difference; None for one that is.
    """

    kind: DifferenceKind
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    what: str
    fields: tuple[str, ...] = ()
    undecided: UndecidedReason | None = None


@dataclass(frozen=True, slots=True)
class ExplainedRange(Wired):
    """Offsets ``first`` to ``last``, of the ``side`` ("source" or "target"), that are not equal for a known reason.

    ``records``: how many records are meant, -1 if that is unknown. ``detail``: more on the reason, for people.
    """

    topic: str
    partition: int
    first: int
    last: int
    reason: RangeReason
    side: str = "source"
    records: int = -1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PartitionResult(Wired):
    """What was found in one source partition.

    Args:
        records: Source records compared, over all runs since the last full one.
        bytes: Source bytes compared, as stored; ``same_bytes`` of them without being decoded.
        verified_from: First source offset compared.
        verified_to: Every source offset below is compared, or explained.
        copied_to: Up to where the flow had copied when the run began; -1 if unknown.
        verified_ms: When ``verified_to`` was reached, in milliseconds since 1970.
        differences: The first :data:`NAMED_DIFFERENCES`, by source offset.
        differences_total: All of them.
        undecided: Likewise what looks like a difference, and no log decides any more; it is in neither of these.
    """

    topic: str
    partition: int
    target_topic: str
    target_partition: int
    records: int
    bytes: int
    same_bytes: int
    verified_from: int
    verified_to: int
    copied_to: int
    verified_ms: int
    differences: tuple[Difference, ...] = ()
    differences_total: int = 0
    explained: tuple[ExplainedRange, ...] = ()
    undecided: tuple[Difference, ...] = ()
    undecided_total: int = 0


class ReadSample(NamedTuple):
    """How many source bytes a run had read at a time, in milliseconds since 1970."""

    at_ms: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class VerificationResult(Wired):
    """One run over a flow.

    Args:
        flow: As in the file, ``us->eu``.
        began_ms: In milliseconds since 1970; likewise ``ended_ms``.
        settings: The options of the run, without secrets.
        is_complete: Every partition reached what was copied when the run began.
        read_bytes: Source bytes that this run read; earlier runs are in ``partitions``.
        read_s: How long this run compared.
        unread: Why partitions could not be compared, a sentence for each.
        samples: The progress of this run, at most a few hundred, in order.
    """

    flow: str
    began_ms: int
    ended_ms: int
    settings: Mapping[str, Any]
    partitions: tuple[PartitionResult, ...]
    is_complete: bool = True
    read_bytes: int = 0
    read_s: float = 0.0
    unread: tuple[str, ...] = ()
    samples: tuple[ReadSample, ...] = ()

    @property
    def differences_total(self) -> int:
        return sum(one.differences_total for one in self.partitions)

    @property
    def undecided_total(self) -> int:
        return sum(one.undecided_total for one in self.partitions)

    @property
    def is_equal(self) -> bool:
        """Whether all that was compared is equal, explained or undecided."""
        return not self.differences_total

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **self.to_wire()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises ValueError for another version."""
        if data.get("version") != VERSION:
            raise ValueError(f"a verification result of version {data.get('version')}, expected {VERSION}")
        return cls.from_wire({name: value for name, value in data.items() if name != "version"})
