"""What one task of a verification gets and returns: a range of a partition, and what was found in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from connectors.formats.types import TopicPartition, Wired
from connectors.verification.report import (
    NAMED_DIFFERENCES,
    Difference,
    DifferenceKind,
    ExplainedRange,
    RangeReason,
    UndecidedReason,
)

NO_MAP: Final = 2**63 - 1
#: About 8 MB.
MOST_RUNS: Final = 50_000


@dataclass(frozen=True, slots=True)
class RangePlan(Wired):
    """What to compare: source offsets from ``begin`` to ``end`` and target offsets from ``target_begin`` to
    ``target_end`` (exclusive).

    Args:
        due: The target must have every source record below; -1 if that is unknown. Others may be not copied yet.
        is_compacted: Whether a cleaner may remove records of source and target.
        is_last: The range ends where both logs end.
        may_begin_later: Whether source and target may have deleted what the range begins with.
        gaps: First and last source offsets that a stored gap explains; ``target_gaps``: target offsets.
        copies: Target ranges (first offset, end) that the map knows as copies; None without a map.
        map_begin: Target offset of the first copy that the map knows, :data:`NO_MAP` without one: what lies before may
            be of others. -1: there are no others.
        runs: The last :data:`MOST_RUNS` runs (source offset, target offset, length) of the map; only for a source that
            a cleaner works on.
        is_committed: Whether the flow reads only committed records.
        held_bytes: About how much may be decoded at once for an alignment.
        ids: Of source and target topic when the range was planned, empty if brokers have none.
    """

    topic: str
    partition: int
    target_topic: str
    target_partition: int
    begin: int
    end: int
    target_begin: int
    target_end: int
    due: int
    is_compacted: tuple[bool, bool] = (False, False)
    is_last: bool = False
    may_begin_later: tuple[bool, bool] = (False, False)
    gaps: tuple[tuple[int, int], ...] = ()
    target_gaps: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] | None = None
    map_begin: int = -1
    runs: tuple[tuple[int, int, int], ...] = ()
    is_committed: bool = True
    held_bytes: int = 16 * 1024 * 1024
    ids: tuple[str, str] = ("", "")

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.target_partition)


@dataclass(slots=True)
class RangeResult(Wired):
    """What was found. ``verified_to`` and ``target_to``: where the next range begins on both sides."""

    verified_to: int
    target_to: int
    records: int = 0
    bytes: int = 0
    same_bytes: int = 0
    filtered: int = 0
    differences: list[Difference] = field(default_factory=list)
    differences_total: int = 0
    explained: list[ExplainedRange] = field(default_factory=list)
    undecided: list[Difference] = field(default_factory=list)
    undecided_total: int = 0


class Findings:
    """Adds to a range's result."""

    def __init__(self, plan: RangePlan, result: RangeResult) -> None:
        self._plan, self._result = plan, result

    def differs(
        self,
        kind: DifferenceKind,
        source: int | None,
        target: int | None,
        what: str,
        fields: tuple[str, ...] = (),
        undecided: UndecidedReason | None = None,
    ) -> None:
        """Add a difference at source and target offsets or, if ``undecided``, what looks like one and no log decides.
        Of each more than :data:`NAMED_DIFFERENCES` are only counted."""
        self.count(undecided is None, undecided is not None)
        named = self._result.differences if undecided is None else self._result.undecided
        if len(named) < NAMED_DIFFERENCES:
            named.append(Difference(kind, *self._plan.source, source, target, what, fields, undecided))

    def count(self, differences: int, undecided: int) -> None:
        """Count records that are not named."""
        self._result.differences_total += differences
        self._result.undecided_total += undecided

    def explain(self, side: str, first: int, last: int, reason: RangeReason, records: int = -1) -> None:
        if first <= last:
            one = ExplainedRange(*self._plan.source, first, last, reason, side, records)
            self._result.explained.append(one)


def of_others(plan: RangePlan) -> Callable[[int], bool]:
    """Return a function that says whether the map knows a target offset as none of its copies."""
    copies = plan.copies
    if copies is None:
        return lambda _: False
    begins = [first for first, _ in copies]

    def is_of_others(offset: int) -> bool:
        at = bisect_right(begins, offset) - 1
        return at < 0 or offset >= copies[at][1]

    return is_of_others
