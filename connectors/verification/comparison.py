"""Compare a range of a source partition with its copy, in one pass over both logs.

Batches with the same payload are equal without a look inside. Others are decoded and compared record by record. Where
records differ, both logs are aligned by digests; what has no partner is explained once the range is read.

A record without a partner is, in this order: at another place (the other log has it too, without a partner), changed
(it resembles the one between the same neighbours), doubled (the source has it, and its copy is elsewhere), missing or
extra. In a compacted log only the last record of its key decides (``last_records.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from connectors.verification.alignment import (
    SURE,
    Alignment,
    Lone,
    align,
    alone,
    changed_fields,
    describe_change,
    describe_record,
    digest_of,
    equal_prefix,
    has_own_time,
    nth_with_nth,
    paired,
)
from connectors.verification.last_records import LastRecords
from connectors.verification.log_reader import Cursor, LogReader, Transform, is_same
from connectors.verification.ranges import Findings, RangePlan, RangeResult, of_others
from connectors.verification.report import Difference, DifferenceKind, RangeReason, UndecidedReason

#: Records of each log that are aligned at once: first, and at most.
_FIRST_WINDOW: Final = 64
_LARGEST_WINDOW: Final = 4096
_WIDER: Final = 4
#: How often a range is searched for where the other log continues: each time reads the rest of it again.
_MOST_SEARCHES: Final = 16

#: Opens a reader of a side, "source" or "target", from an offset to another.
Open = Callable[[str, int, int], LogReader]


class Comparison:
    """Compares one range."""

    def __init__(self, plan: RangePlan, open_reader: Open, transform: Transform | None = None) -> None:
        self._plan, self._open, self._transform = plan, open_reader, transform
        self._source = Cursor(open_reader("source", plan.begin, plan.end), transform)
        self._target = Cursor(open_reader("target", plan.target_begin, plan.target_end))
        self._ours: list[Lone] = []
        self._theirs: list[Lone] = []
        self._blocks = 0
        self._is_timed = True
        self._held_bytes = 0
        self._searches = 0
        #: Whether the range begins with records of block 0.
        self._begins_lone = False
        self.result = RangeResult(plan.begin, plan.target_begin)
        self._found = Findings(plan, self.result)
        #: Source offset behind the last record that has a partner.
        self._matched_to = plan.begin
        self._last_records: LastRecords | None = None
        if any(plan.is_compacted):
            is_transformed = transform is not None
            self._last_records = LastRecords(plan, self._again, open_reader, self._found, is_transformed=is_transformed)

    @property
    def read_bytes(self) -> int:
        """Source bytes read so far."""
        return self._source.reader.bytes

    async def run(self) -> RangeResult:
        """Compare, and return what was found. Raises what the readers raise."""
        result = self.result
        async with aclosing(self._source.reader), aclosing(self._target.reader):
            await self._walk()
            await self._finish()
        result.bytes, result.filtered = self._source.bytes, self._source.filtered
        if result.filtered:
            last = self._source.position - 1
            self._found.explain("source", self._plan.begin, last, RangeReason.FILTERED, result.filtered)
        result.differences.sort(key=_place)
        result.undecided.sort(key=_place)
        return result

    async def _walk(self) -> None:
        source, target, result = self._source, self._target, self.result
        while True:
            if source.is_between_batches and target.is_between_batches:
                mine, other = await source.peek(), await target.peek()
                if mine is not None and other is not None and is_same(mine, other):
                    result.records += mine.records
                    result.same_bytes += mine.bytes
                    source.pass_over()
                    target.pass_over()
                    self._matched_to = source.position
                    continue
            if not await source.fill() or not await target.fill():
                return
            count = self._compare()
            result.records += count
            source.take(count)
            target.take(count)
            if count:
                self._matched_to = source.position
            if not source.is_between_batches and not target.is_between_batches:
                await self._resync()

    def _compare(self) -> int:
        source, target = self._source, self._target
        ours = source.records if not source.at else source.records[source.at :]
        return equal_prefix(ours, target.records if not target.at else target.records[target.at :])

    async def _resync(self) -> None:
        """Align what follows, keep what has no partner, and continue behind it."""
        source, target, size = self._source, self._target, _FIRST_WINDOW
        while True:
            most_bytes = self._plan.held_bytes // 4
            ours, theirs = await source.window(size, most_bytes), await target.window(size, most_bytes)
            is_all = (
                source.is_over
                and target.is_over
                and len(ours) == len(source.records) - source.at
                and len(theirs) == len(target.records) - target.at
            )
            self._is_timed = not any(map(has_own_time, theirs))
            found = align(
                [digest_of(one, self._is_timed) for one in ours],
                [digest_of(one, self._is_timed) for one in theirs],
                is_all=is_all,
                is_most=size >= _LARGEST_WINDOW or sum(map(size_of, ours)) > most_bytes,
            )
            if found is not None:
                break
            size *= _WIDER
        if found.taken == (0, 0):
            if await self._skip(ours, theirs):
                return
            due = sum(one.offset < self._plan.due for one in ours) if self._plan.due >= 0 else len(ours)
            # What may not be copied yet is not the counterpart of what others wrote.
            found = nth_with_nth(min(due, len(theirs))) if due else alone(len(theirs))
        self._keep(self._without_not_copied(found, ours), ours, theirs)
        if self._held_bytes > self._plan.held_bytes:
            await self._settle()

    async def _skip(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        """Keep what one log has before the place where the other continues, if that is further on than can be aligned.
        Return whether there is such a place."""
        for side, cursor, held, here, there in (
            ("source", self._source, self._ours, ours, theirs),
            ("target", self._target, self._theirs, theirs, ours),
        ):
            if self._searches >= _MOST_SEARCHES:
                return False
            self._searches += 1
            until = await self._place_of(there, side, here[0].offset, cursor.reader.end)
            if until is None:
                continue
            other_after = (self._target if side == "source" else self._source).position
            # A settlement puts other lists there.
            is_source = held is self._ours
            while await cursor.fill() and cursor.records[cursor.at].offset < until:
                one = cursor.records[cursor.at]
                self._hold(self._ours if is_source else self._theirs, one, (other_after, there[0].offset), 0)
                cursor.take(1)
                if self._held_bytes > self._plan.held_bytes:
                    await self._settle()
            self._blocks += 1
            return True
        return False

    async def _place_of(self, records: Sequence[Any], side: str, begin: int, end: int) -> int | None:
        """Return the offset, from ``begin`` on, where a side has some of the other's ``records`` in a row."""
        digests = [digest_of(one, self._is_timed) for one in records]
        length = min(SURE, len(digests))
        wanted = {tuple(digests[at : at + length]) for at in range(len(digests) - length + 1)}
        last: deque[int] = deque(maxlen=length)
        offsets: deque[int] = deque(maxlen=length)
        cursor = Cursor(self._open(side, begin, end), self._transform if side == "source" else None)
        async with aclosing(cursor.reader):
            while await cursor.fill():
                for one in cursor.take_all():
                    last.append(digest_of(one, self._is_timed))
                    offsets.append(one.offset)
                    if tuple(last) in wanted:
                        return offsets[0]
        return None

    def _without_not_copied(self, found: Alignment, ours: Sequence[Any]) -> Alignment:
        """Leave source records out behind which the target has nothing, and that the flow may not have copied yet."""
        mine, other = found.taken
        lone, target = list(found.ours), self._target
        if not target.is_over or other < len(target.records) - target.at:
            return found
        while lone and lone[-1][0] == mine - 1 and ours[mine - 1].offset >= self._plan.due:
            lone.pop()
            mine -= 1
        return Alignment((mine, other), lone, found.theirs, found.blocks)

    def _keep(self, found: Alignment, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
        for index, block, first, end in found.ours:
            between = _between(theirs, first, end, self._target.position)
            self._hold(self._ours, ours[index], between, block, _key_at(theirs, end))
        for index, block, first, end in found.theirs:
            between = _between(ours, first, end, self._source.position)
            self._hold(self._theirs, theirs[index], between, block, _key_at(ours, end))
        self._blocks += found.blocks
        mine, other = found.taken
        lone = {each[0] for each in found.ours}
        if (last := next((at for at in reversed(range(mine)) if at not in lone), None)) is not None:
            self._matched_to = ours[last].offset + 1
        self.result.records += mine - len(found.ours)
        self._source.take(mine)
        self._target.take(other)

    def _hold(
        self, held: list[Lone], record: Any, between: tuple[int, int], block: int, next_key: bytes | None = None
    ) -> None:
        """``between``: the other log's ``other_after`` and ``other_offset`` of :class:`Lone`."""
        if not self.result.records and not self._blocks:
            self._begins_lone = True
        held.append(Lone(record, between[1], between[0], self._blocks + block, next_key))
        self._held_bytes += size_of(record)

    async def _finish(self) -> None:
        """Take what one log has left, and explain all lone records."""
        source, target, plan = self._source, self._target, self._plan
        while await target.fill():
            for one in target.take_all():
                self._hold(self._theirs, one, (source.position, plan.end), 0)
            if self._held_bytes > plan.held_bytes:
                await self._settle()
        while await source.fill():
            due = [one for one in source.records[source.at :] if one.offset < plan.due]
            for one in due:
                self._hold(self._ours, one, (target.position, plan.target_end), 0)
            source.take(len(due))
            if not source.is_between_batches:  # the flow has still to copy the others
                self._found.explain("source", source.records[source.at].offset, plan.end - 1, RangeReason.NOT_COPIED)
                break
            if self._held_bytes > plan.held_bytes:
                await self._settle()
        else:
            source.position = plan.end if not plan.is_last else max(source.position, min(plan.due, plan.end))
        await self._settle()
        if self._last_records is not None:
            await self._last_records.judge(min(source.position, plan.due) if plan.due >= 0 else self._matched_to)
        self.result.verified_to = max(source.position, plan.begin)
        self.result.target_to = plan.target_end
        self._explain_deleted()

    def _explain_deleted(self) -> None:
        for side, reader, reason in (
            ("source", self._source.reader, RangeReason.RETENTION_SOURCE),
            ("target", self._target.reader, RangeReason.RETENTION_TARGET),
        ):
            for first, end in reader.deleted:
                self._found.explain(side, first, min(end, reader.end) - 1, reason)

    async def _settle(self) -> None:
        """Explain the lone records so far."""
        if not self._ours and not self._theirs:
            return
        ours, theirs, self._ours, self._theirs, self._held_bytes = self._ours, self._theirs, [], [], 0
        left_ours, left_theirs = self._without_explained(ours, theirs)
        if self._last_records is not None:
            left = set(map(id, (*left_ours, *left_theirs)))
            self._last_records.leave(one for one in (*ours, *theirs) if id(one) not in left)
            self._last_records.suspect(left_ours, left_theirs)
            return
        ours, theirs = self._moved(left_ours, left_theirs)
        taken = set()
        for mine, other in paired(ours, theirs):
            fields = changed_fields(mine.record, other.record)
            what = describe_change(mine.record, other.record, fields)
            self._differs(DifferenceKind.CHANGED, mine, other, what, fields)
            taken |= {id(mine), id(other)}
        ours, theirs = ([one for one in some if id(one) not in taken] for some in (ours, theirs))
        if theirs:
            theirs = await self._doubled(theirs)
        is_of_others = of_others(self._plan)
        foreign = [one for one in theirs if is_of_others(one.record.offset)]
        theirs = self._explained(theirs, foreign, "target", RangeReason.NOT_OF_FLOW)
        for one in ours:
            self._differs(DifferenceKind.MISSING, one, None, describe_record(one.record))
        for one in theirs:
            what = describe_record(one.record)
            if one.record.offset < self._plan.map_begin:
                before_map = UndecidedReason.BEFORE_MAP
                self._found.differs(DifferenceKind.EXTRA, None, one.record.offset, what, undecided=before_map)
            else:
                self._differs(DifferenceKind.EXTRA, None, one, what)

    def _without_explained(self, ours: list[Lone], theirs: list[Lone]) -> tuple[list[Lone], list[Lone]]:
        """Explain the records that are in a gap, and those whose counterparts the other log has deleted."""
        plan, source, target = self._plan, self._source.reader, self._target.reader
        ours = self._explained(ours, _inside(ours, plan.gaps), "source", RangeReason.GAP)
        theirs = self._explained(theirs, _inside(theirs, plan.target_gaps), "target", RangeReason.GAP)
        gone = _beside(ours, target, self._begins_lone and plan.may_begin_later[1])
        ours = self._explained(ours, gone, "source", RangeReason.RETENTION_TARGET)
        gone = _beside(theirs, source, self._begins_lone and plan.may_begin_later[0])
        return ours, self._explained(theirs, gone, "target", RangeReason.RETENTION_SOURCE)

    def _explained(self, lone: list[Lone], some: list[Lone], side: str, reason: RangeReason) -> list[Lone]:
        """Explain some of the lone records, and return the others."""
        if not some:
            return lone
        self._found.explain(side, some[0].record.offset, some[-1].record.offset, reason, len(some))
        explained = set(map(id, some))
        return [one for one in lone if id(one) not in explained]

    def _moved(self, ours: list[Lone], theirs: list[Lone]) -> tuple[list[Lone], list[Lone]]:
        """Report what both logs have, at different places."""
        by_digest: dict[int, list[Lone]] = {}
        for one in theirs:
            by_digest.setdefault(digest_of(one.record, self._is_timed), []).append(one)
        left, moved = [], set()
        for mine in ours:
            some = by_digest.get(digest_of(mine.record, self._is_timed))
            if not some:
                left.append(mine)
                continue
            other = some.pop(0)
            moved.add(id(other))
            self._differs(DifferenceKind.ORDER, mine, other, f"at another place: {describe_record(mine.record)}")
        return left, [one for one in theirs if id(one) not in moved]

    async def _doubled(self, theirs: list[Lone]) -> list[Lone]:
        """Report what the source has once and the target again; reads the source's range again."""
        plan = self._plan
        wanted = {digest_of(one.record, self._is_timed) for one in theirs}
        found: dict[int, int] = {}
        begin = max(plan.begin - (plan.end - plan.begin), 0)
        cursor = Cursor(self._open("source", begin, plan.end), self._transform)
        async with aclosing(cursor.reader):
            while await cursor.fill():
                for one in cursor.take_all():
                    if (digest := digest_of(one, self._is_timed)) in wanted:
                        found.setdefault(digest, one.offset)
        left = []
        for one in theirs:
            offset = found.get(digest_of(one.record, self._is_timed))
            if offset is None:
                left.append(one)
            else:
                self._differs(DifferenceKind.DOUBLED, offset, one, f"copied again: {describe_record(one.record)}")
        return left

    def _differs(
        self, kind: DifferenceKind, mine: Lone | int | None, other: Lone | None, what: str, fields: tuple[str, ...] = ()
    ) -> None:
        source_offset = mine.record.offset if isinstance(mine, Lone) else mine
        self._found.differs(kind, source_offset, None if other is None else other.record.offset, what, fields)

    def _again(self, side: str) -> Cursor:
        """Open a log of the range once more."""
        plan = self._plan
        if side == "source":
            return Cursor(self._open(side, plan.begin, plan.end), self._transform)
        return Cursor(self._open(side, plan.target_begin, plan.target_end))


def _inside(lone: Sequence[Lone], ranges: Sequence[tuple[int, int]]) -> list[Lone]:
    return [one for one in lone if any(first <= one.record.offset <= last for first, last in ranges)]


def _beside(lone: Sequence[Lone], other: LogReader, begins_later: bool) -> list[Lone]:
    """Return the records next to what the other log has deleted: those that the range begins with, and those whose
    neighbours in the other log are on either side of what it deleted."""
    ends = [min(end, other.end) for _, end in other.deleted]
    return [
        one
        for one in lone
        if (begins_later and one.block == 0) or any(one.other_after <= end <= one.other_offset for end in ends)
    ]


def _key_at(records: Sequence[Any], at: int) -> bytes | None:
    return records[at].key if at < len(records) else None


def size_of(record: Any) -> int:
    """Return about how many bytes of memory a record takes."""
    return 200 + len(record.key or b"") + len(record.value or b"")


def _between(records: Sequence[Any], first: int, end: int, position: int) -> tuple[int, int]:
    """Return the offset behind the record before ``first``, and that of the record at ``end``."""
    after = records[first - 1].offset + 1 if first else position
    return after, int(records[end].offset if end < len(records) else records[-1].offset + 1)


def _place(one: Difference) -> tuple[int, int]:
    return (
        one.source_offset if one.source_offset is not None else 2**63,
        one.target_offset if one.target_offset is not None else -1,
    )
