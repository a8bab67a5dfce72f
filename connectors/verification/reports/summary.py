"""What every form of a report says of a verification: the headline, coverage by topic, explained ranges by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from connect.core.wording import bytes_text, counted
from connectors.verification.report import Difference, ExplainedRange, PartitionResult, RangeReason, VerificationResult


@dataclass(slots=True)
class TopicCoverage:
    """One source topic, its partitions summed up.

    ``compared``, ``explained`` and ``left`` are source offsets up to which the flow had copied: ``left`` are not
    compared yet. ``records`` and ``bytes`` were compared, ``same_bytes`` of them without being decoded.
    """

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
    counts: Counter[tuple[RangeReason, str]] = Counter()
    offsets: Counter[tuple[RangeReason, str]] = Counter()
    records: dict[tuple[RangeReason, str], int] = {}
    for one in ranges(result):
        key = (one.reason, one.side)
        counts[key] += 1
        offsets[key] += one.last - one.first + 1
        known = records.get(key, 0)
        records[key] = -1 if -1 in (known, one.records) else known + one.records
    return [Explanation(*key, counts[key], offsets[key], records[key]) for key, _ in offsets.most_common()]


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
