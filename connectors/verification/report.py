"""What a verification found, as values that `heliograph verify` stores, and what every form of a report says of them.
Offsets are of the source unless a field says otherwise. The number of differences that are named is limited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from connect.core.wording import bytes_text, counted
from connectors.formats.types import Wired

VERSION: Final = 1
#: Differences of one partition that a result names; more are only counted.
NAMED_DIFFERENCES: Final = 100

#: Fields of a record, in the order in which they are compared.
FIELDS: Final = ("key", "value", "headers", "timestamp")


class DifferenceKind(StrEnum):
    MISSING = "missing"  # the source has it, the target does not
    EXTRA = "extra"  # the target has it, the source does not
    DOUBLED = "doubled"  # the target has it more often than the source
    CHANGED = "changed"  # both have it, with other contents
    ORDER = "order"  # both have it, at another place


class RangeReason(StrEnum):
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
    ``records``: how many records are meant, -1 if that is unknown. ``detail``: more on the reason, for people."""

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


@dataclass(slots=True)
class TopicCoverage:
    """One source topic, its partitions summed up. ``compared``, ``explained`` and ``left`` are source offsets up to
    which the flow had copied: ``left`` are not compared yet. ``records`` and ``bytes`` were compared, ``same_bytes`` of
    them without being decoded."""

    topic: str
    target_topic: str
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    same_bytes: int = 0
    compared: int = 0
    explained: int = 0
    left: int = 0
    differences: int = 0

    @property
    def offsets(self) -> int:
        return self.compared + self.explained + self.left


@dataclass(frozen=True, slots=True)
class Explanation:
    """All ranges of one reason and side. ``records`` is -1 if it is unknown for one of them."""

    reason: RangeReason
    side: str
    ranges: int
    offsets: int
    records: int


def headline(result: VerificationResult) -> str:
    """Return the result in one sentence.

    >>> headline(VerificationResult("us->eu", 0, 0, {}, ()))
    'us->eu: equal, 0 records of 0 partitions compared'
    """
    records = sum(part.records for part in result.partitions)
    compared = f"{records:,} records of {counted(len(result.partitions), 'partition')} compared"
    if result.is_equal:
        verdict = "equal" if result.is_complete and not result.unread else "no difference so far"
    else:
        verdict = "1 difference" if result.differences_total == 1 else f"{result.differences_total:,} differences"
    undecided = f", {result.undecided_total:,} undecided" if result.undecided_total else ""
    return f"{result.flow}: {verdict}{undecided}, {compared}"


def limits(result: VerificationResult) -> list[str]:
    """Return what limits the result, a sentence each."""
    found = [] if result.is_complete else ["Not complete: some partitions were not compared up to what was copied."]
    return [*found, *(f"Not compared: {reason}" for reason in result.unread)]


def differences(result: VerificationResult) -> list[Difference]:
    """Return every difference that the result names, by topic, partition and source offset."""
    return [one for part in _in_order(result) for one in part.differences]


def undecided(result: VerificationResult) -> list[Difference]:
    """Return every undecided record that the result names, as :func:`differences`."""
    return [one for part in _in_order(result) for one in part.undecided]


def _in_order(result: VerificationResult) -> list[PartitionResult]:
    return sorted(result.partitions, key=lambda part: (part.topic, part.partition))


def ranges(result: VerificationResult) -> list[ExplainedRange]:
    """Return the explained ranges by topic, partition and first offset."""
    found = [one for part in result.partitions for one in part.explained]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.side, one.first))


def explanations(result: VerificationResult) -> list[Explanation]:
    """Return the explained ranges summed up, the most offsets first."""
    by_key: defaultdict[tuple[RangeReason, str], list[ExplainedRange]] = defaultdict(list)
    for one in ranges(result):
        by_key[one.reason, one.side].append(one)
    found = []
    for key, some in by_key.items():
        records = [one.records for one in some]
        offsets = sum(one.last - one.first + 1 for one in some)
        found.append(Explanation(*key, len(some), offsets, -1 if -1 in records else sum(records)))
    return sorted(found, key=lambda one: -one.offsets)


def coverage(result: VerificationResult) -> list[TopicCoverage]:
    """Return the coverage of each topic, those with differences first, then by name."""
    found: dict[tuple[str, str], TopicCoverage] = {}
    for part in result.partitions:
        one = found.setdefault((part.topic, part.target_topic), TopicCoverage(part.topic, part.target_topic))
        end = max(part.verified_to, part.copied_to)
        span = max(part.verified_to - part.verified_from, 0)
        explained = sum(
            max(min(each.last + 1, part.verified_to) - max(each.first, part.verified_from), 0)
            for each in part.explained
            if each.side == "source" and each.reason is not RangeReason.NOT_COPIED
        )
        one.partitions += 1
        one.records += part.records
        one.bytes += part.bytes
        one.same_bytes += part.same_bytes
        one.explained += min(explained, span)
        one.compared += span - min(explained, span)
        one.left += end - part.verified_to
        one.differences += part.differences_total
    return sorted(found.values(), key=lambda one: (not one.differences, one.topic, one.target_topic))


def rates(result: VerificationResult) -> Iterator[tuple[float, float]]:
    """Yield (seconds since reading began, MB/s since the sample before) of a run's samples."""
    # Spark starts first.
    begin_ms = at_ms = max((one.at_ms for one in result.samples if not one.read_bytes), default=result.began_ms)
    read = 0
    for sample in result.samples:
        if sample.at_ms > at_ms:
            yield ((sample.at_ms - begin_ms) / 1000, (sample.read_bytes - read) / (sample.at_ms - at_ms) / 1000)
            at_ms, read = sample


def share(part: int, whole: int) -> str:
    """Format a share, never 100 % of less than all, and never 0 % of more than nothing.

    >>> share(1, 3), share(9999, 10000), share(0, 0)
    ('33 %', '>99 %', '-')
    """
    if not whole:
        return "-"
    if 0 < part < whole:
        percent = round(100 * part / whole)
        return "<1 %" if percent == 0 else ">99 %" if percent == 100 else f"{percent} %"
    return "100 %" if part else "0 %"


def speed(result: VerificationResult) -> str:
    """Return how much this run read in which time."""
    read = f"{bytes_text(result.read_bytes)} in {result.read_s:.1f} s"
    return f"{read} ({result.read_bytes / result.read_s / 1e6:.0f} MB/s)" if result.read_s > 0 else read
