"""Comparison of two partitions record by record, fed in pieces.

Key, value, headers, timestamp and order are compared, by pairing the nth records of source and target. Offsets are not,
because a mirror of a compacted or transactional topic has other offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

#: The compared fields; the first that differs is reported.
FIELDS: Final = ("key", "value", "headers", "timestamp")
#: Most characters of a value in a message.
ABBREVIATED_CHARS: Final = 80
#: How many records are searched for a displaced one when a difference is explained.
_SEARCH_RECORDS: Final = 1000


class ComparedSide(Enum):
    """Which of the two partitions."""

    SOURCE = "source"
    TARGET = "target"


class ComparedRecord(Protocol):
    """A record of aiokafka's consumer."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class Partition(NamedTuple):
    """A partition of a topic, shown as ``orders-3`` like in Kafka's tools."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a pair of partitions.

    ``field`` is one of ``FIELDS``, or ``missing`` (the target ends early), ``extra`` (it has records after the
    source's end), ``duplicate`` (it repeats a record), ``gap`` (it skips records), ``order``. An offset is None if that
    side has no record there. Both values are abbreviated.
    """

    source: Partition
    target: Partition
    source_offset: int | None
    target_offset: int | None
    field: str
    source_value: str
    target_value: str

    def __str__(self) -> str:
        where = f"{_place(self.source, self.source_offset)} and {_place(self.target, self.target_offset)}"
        return f"{where} differ in {self.field}: {self.source_value} against {self.target_value}"


@dataclass(frozen=True, slots=True)
class IdCounts:
    """Counts of numbered records. ``last_id`` is -1 if there was none."""

    records: int
    last_id: int
    missing: int
    duplicated: int
    disordered: int


class IdAudit:
    """A counter of gaps, repeats and disorder among ids that were written as 0, 1, 2, ...

    It keeps one interval per open gap. An id inside an open gap came late (disorder); any other id below the highest
    one is a repeat.
    """

    def __init__(self) -> None:
        # Gap i is [_starts[i], _ends[i]); both lists ascend, so a late id is found by bisection.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._next = 0
        self._records = self._duplicated = self._disordered = 0

    def see(self, record_id: int) -> None:
        self._records += 1
        if record_id < self._next:
            self._see_late(record_id)
            return
        if record_id > self._next:
            self._starts.append(self._next)
            self._ends.append(record_id)
        self._next = record_id + 1

    def _see_late(self, record_id: int) -> None:
        at = bisect_right(self._starts, record_id) - 1
        if at < 0 or record_id >= self._ends[at]:
            self._duplicated += 1
            return
        self._disordered += 1
        start, end = self._starts[at], self._ends[at]
        left = [(start, record_id)] if start < record_id else []
        right = [(record_id + 1, end)] if record_id + 1 < end else []
        self._starts[at : at + 1] = [first for first, _ in left + right]
        self._ends[at : at + 1] = [behind for _, behind in left + right]

    def counts(self) -> IdCounts:
        missing = sum(self._ends) - sum(self._starts)
        return IdCounts(self._records, self._next - 1, missing, self._duplicated, self._disordered)


@dataclass(slots=True)
class _PartitionLog:
    """One side of a comparison: records that were fed and not yet paired."""

    waiting: list[ComparedRecord] = field(default_factory=list)
    audit: IdAudit = field(default_factory=IdAudit)
    last: ComparedRecord | None = None
    ended: bool = False


class PartitionComparison:
    """A comparison that pairs the records of two partitions in order and keeps the first difference.

    Feed both sides in pieces of any size, then end each. After a difference only ids are counted. Memory grows with
    the records that one side is ahead: check ``backlog`` before feeding.

    Args:
        source: The original partition.
        target: The copy.
        fields: Which of ``FIELDS`` to compare, without ``timestamp`` if the target uses LogAppendTime.
        record_id: Returns a record's number, if records are numbered per partition from 0.
    """

    def __init__(
        self,
        source: Partition,
        target: Partition,
        *,
        fields: Sequence[str] = FIELDS,
        record_id: Callable[[ComparedRecord], int] | None = None,
    ) -> None:
        self.source, self.target = source, target
        self.records = 0
        self.difference: Difference | None = None
        self._fields = tuple(fields)
        self._identity = attrgetter(*fields)
        self._record_id = record_id
        self._logs = {side: _PartitionLog() for side in ComparedSide}

    def backlog(self, side: ComparedSide) -> int:
        """Return how many records of ``side`` wait for their counterparts."""
        return len(self._logs[side].waiting)

    def ended(self, side: ComparedSide) -> bool:
        return self._logs[side].ended

    @property
    def complete(self) -> bool:
        """Whether the result is final: both sides ended, or they differ and ids are not counted."""
        if self.difference is not None and self._record_id is None:
            return True
        return all(log.ended for log in self._logs.values())

    def feed(self, side: ComparedSide, records: Iterable[ComparedRecord]) -> None:
        """Take the next records of one side, in the log's order."""
        log = self._logs[side]
        if self._record_id is not None:
            records = list(records)
            for record in records:
                log.audit.see(self._record_id(record))
        if self.difference is None:
            log.waiting.extend(records)
            self._pair()

    def end(self, side: ComparedSide) -> None:
        """Note that ``side`` has no further records."""
        self._logs[side].ended = True
        self._pair()

    def ids(self, side: ComparedSide) -> IdCounts | None:
        """Return the counts by id, or None if records are not numbered."""
        return self._logs[side].audit.counts() if self._record_id else None

    def _pair(self) -> None:
        source, target = self._logs[ComparedSide.SOURCE], self._logs[ComparedSide.TARGET]
        count = min(len(source.waiting), len(target.waiting))
        if count:
            self._compare(source, target, count)
        if self.difference is None:
            self._compare_ends(source, target)
        if self.difference is not None:
            source.waiting.clear()
            target.waiting.clear()

    def _compare(self, source: _PartitionLog, target: _PartitionLog, count: int) -> None:
        # Both maps run in C, and == stops at the first pair that differs; only then that pair is searched for.
        identity = self._identity
        ours, theirs = islice(source.waiting, count), islice(target.waiting, count)
        equal = list(map(identity, ours)) == list(map(identity, theirs))
        if not equal:
            count = next(i for i in range(count) if identity(source.waiting[i]) != identity(target.waiting[i]))
        self.records += count
        if count:
            source.last, target.last = source.waiting[count - 1], target.waiting[count - 1]
            del source.waiting[:count], target.waiting[:count]
        if not equal:
            self._differ(source, target)

    def _compare_ends(self, source: _PartitionLog, target: _PartitionLog) -> None:
        if target.ended and source.waiting:
            lost = source.waiting[0]
            self.difference = self._difference("missing", lost, None, abbreviate(lost.value), "no further record")
        elif source.ended and target.waiting:
            added = target.waiting[0]
            repeated = source.last is not None and self._identity(source.last) == self._identity(added)
            kind = "duplicate" if repeated else "extra"
            self.difference = self._difference(kind, None, added, "no further record", abbreviate(added.value))

    def _differ(self, source: _PartitionLog, target: _PartitionLog) -> None:
        ours, theirs = source.waiting[0], target.waiting[0]
        displaced = self._displaced(source, target)
        if displaced is not None:
            kind, explanation = displaced
            self.difference = self._difference(kind, ours, theirs, abbreviate(ours.value), explanation)
            return
        name = next(name for name in self._fields if getattr(ours, name) != getattr(theirs, name))
        values = abbreviate(getattr(ours, name)), abbreviate(getattr(theirs, name))
        self.difference = self._difference(name, ours, theirs, *values)

    def _displaced(self, source: _PartitionLog, target: _PartitionLog) -> tuple[str, str] | None:
        """Return how the target's record is displaced if the source has it nearby, which explains more than values."""
        found = self._identity(target.waiting[0])
        if source.last is not None and self._identity(source.last) == found:
            return "duplicate", f"the record of source offset {source.last.offset} again"
        for record in islice(source.waiting, 1, _SEARCH_RECORDS):
            if self._identity(record) == found:
                expected = self._identity(source.waiting[0])
                later = any(self._identity(other) == expected for other in islice(target.waiting, 1, _SEARCH_RECORDS))
                return "order" if later else "gap", f"the record of source offset {record.offset}"
        return None

    def _difference(
        self, kind: str, ours: ComparedRecord | None, theirs: ComparedRecord | None, ours_text: str, theirs_text: str
    ) -> Difference:
        offsets = ours.offset if ours else None, theirs.offset if theirs else None
        return Difference(self.source, self.target, *offsets, kind, ours_text, theirs_text)


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


def _place(partition: Partition, offset: int | None) -> str:
    return f"{partition} after its end" if offset is None else f"{partition} at offset {offset}"
