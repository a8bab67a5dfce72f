"""Compare a range of a source partition with its copy, in one pass over both logs.

Batches with the same payload are equal without a look inside. Others are decoded and compared record by record. Where
records differ, both logs are aligned by digests; what has no partner is explained once the range is read.

A record without a partner is, in this order: at another place (the other log has it too, without a partner), changed
(it resembles the one between the same neighbours), doubled (the source has it, and its copy is elsewhere), removed by
compaction, missing or extra.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from connectors.verification.alignment import (
    SURE,
    Alignment,
    Lone,
    align,
    changed_fields,
    describe_change,
    describe_record,
    digest_of,
    equal_prefix,
    has_own_time,
    nth_with_nth,
    paired,
)
from connectors.verification.log_reader import Cursor, LogReader, Transform, is_same
from connectors.verification.ranges import RangePlan, RangeResult
from connectors.verification.report import NAMED_DIFFERENCES, Difference, DifferenceKind, ExplainedRange, RangeReason

#: Records of each log that are aligned at once: first, and at most.
_FIRST_WINDOW: Final = 64
_LARGEST_WINDOW: Final = 4096
_WIDER: Final = 4
#: How often a range is searched for where the other log continues: each time reads the rest of it again.
_MOST_SEARCHES: Final = 16
#: What changed and what was cleaned look alike in a compacted log, unless this much is the same.
_SURELY_CHANGED: Final = 3

#: Opens a reader of a side, "source" or "target", from an offset to another.
Open = Callable[[str, int, int], LogReader]


class Comparison:
    """Compares one range."""

    def __init__(self, plan: RangePlan, open_reader: Open, transform: Transform | None = None) -> None:
        self._plan = plan
        self._open = open_reader
        self._transform = transform
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

    @property
    def read_bytes(self) -> int:
        """Source bytes read so far."""
        return self._source.reader.bytes

    async def run(self) -> RangeResult:
        """Compare, and return what was found. Raises what the readers raise."""
        result = self.result
        try:
            await self._walk()
            await self._finish()
        finally:
            await self._source.reader.close()
            await self._target.reader.close()
        result.bytes, result.filtered = self._source.bytes, self._source.filtered
        if result.filtered:
            self._explain("source", self._plan.begin, self._source.position - 1, RangeReason.FILTERED, result.filtered)
        result.differences.sort(key=_place)
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
                    continue
            if not await source.fill() or not await target.fill():
                return
            count = self._compare()
            result.records += count
            source.take(count)
            target.take(count)
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
            found = nth_with_nth(min(len(ours), len(theirs)))
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
        try:
            while await cursor.fill():
                for one in cursor.records[cursor.at :]:
                    last.append(digest_of(one, self._is_timed))
                    offsets.append(one.offset)
                    if tuple(last) in wanted:
                        return offsets[0]
                cursor.at = len(cursor.records)
        finally:
            await cursor.reader.close()
        return None

    def _without_not_copied(self, found: Alignment, ours: Sequence[Any]) -> Alignment:
        """Leave source records out behind which the target has nothing, and that the flow may not have copied yet."""
        mine, other = found.taken
        lone = list(found.ours)
        while lone and lone[-1][0] == mine - 1 and ours[mine - 1].offset >= self._plan.due and self._target.is_over:
            lone.pop()
            mine -= 1
        return Alignment((mine, other), lone, found.theirs, found.blocks)

    def _keep(self, found: Alignment, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
        for index, block, first, end in found.ours:
            self._hold(self._ours, ours[index], _between(theirs, first, end, self._target.position), block)
        for index, block, first, end in found.theirs:
            self._hold(self._theirs, theirs[index], _between(ours, first, end, self._source.position), block)
        self._blocks += found.blocks
        mine, other = found.taken
        self.result.records += mine - len(found.ours)
        self._source.take(mine)
        self._target.take(other)

    def _hold(self, held: list[Lone], record: Any, between: tuple[int, int], block: int) -> None:
        """``between``: the other log's ``other_after`` and ``other_offset`` of :class:`Lone`."""
        if not self.result.records and not self._blocks:
            self._begins_lone = True
        held.append(Lone(record, between[1], between[0], self._blocks + block))
        self._held_bytes += size_of(record)

    async def _finish(self) -> None:
        """Take what one log has left, and explain all lone records."""
        source, target, plan = self._source, self._target, self._plan
        while await target.fill():
            for one in target.records[target.at :]:
                self._hold(self._theirs, one, (source.position, plan.end), 0)
            target.take(len(target.records) - target.at)
            if self._held_bytes > plan.held_bytes:
                await self._settle()
        while await source.fill():
            due = [one for one in source.records[source.at :] if one.offset < plan.due]
            for one in due:
                self._hold(self._ours, one, (target.position, plan.target_end), 0)
            source.take(len(due))
            if not source.is_between_batches:  # the flow has still to copy the others
                self._explain("source", source.records[source.at].offset, plan.end - 1, RangeReason.NOT_COPIED)
                break
            if self._held_bytes > plan.held_bytes:
                await self._settle()
        else:
            source.position = plan.end if not plan.is_last else max(source.position, min(plan.due, plan.end))
        await self._settle()
        self.result.verified_to = max(source.position, plan.begin)
        self.result.target_to = plan.target_end
        self._explain_deleted()

    def _explain_deleted(self) -> None:
        for side, reader, reason in (
            ("source", self._source.reader, RangeReason.RETENTION_SOURCE),
            ("target", self._target.reader, RangeReason.RETENTION_TARGET),
        ):
            for first, end in reader.deleted:
                self._explain(side, first, min(end, reader.end) - 1, reason)

    async def _settle(self) -> None:
        """Explain the lone records so far."""
        if not self._ours and not self._theirs:
            return
        ours, theirs, self._ours, self._theirs, self._held_bytes = self._ours, self._theirs, [], [], 0
        ours, theirs = self._without_explained(ours, theirs)
        ours, theirs = self._moved(ours, theirs)
        compacted = any(self._plan.is_compacted)
        taken_ours, taken_theirs = set(), set()
        for mine, other in paired(ours, theirs, _SURELY_CHANGED if compacted else 1):
            fields = changed_fields(mine.record, other.record)
            what = describe_change(mine.record, other.record, fields)
            self._differs(DifferenceKind.CHANGED, mine, other, what, fields)
            taken_ours.add(id(mine))
            taken_theirs.add(id(other))
        ours = [one for one in ours if id(one) not in taken_ours]
        theirs = [one for one in theirs if id(one) not in taken_theirs]
        if theirs:
            theirs = await self._doubled(theirs)
        if compacted and (ours or theirs):
            ours, theirs = await self._compacted(ours, theirs)
        theirs = self._explained(theirs, self._of_others(theirs), "target", RangeReason.NOT_OF_FLOW)
        for one in ours:
            self._differs(DifferenceKind.MISSING, one, None, describe_record(one.record))
        for one in theirs:
            self._differs(DifferenceKind.EXTRA, None, one, describe_record(one.record))

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
        self._explain(side, some[0].record.offset, some[-1].record.offset, reason, len(some))
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
        try:
            while await cursor.fill():
                for one in cursor.records[cursor.at :]:
                    if (digest := digest_of(one, self._is_timed)) in wanted:
                        found.setdefault(digest, one.offset)
                cursor.at = len(cursor.records)
        finally:
            await cursor.reader.close()
        left = []
        for one in theirs:
            offset = found.get(digest_of(one.record, self._is_timed))
            if offset is None:
                left.append(one)
            else:
                self._differs(DifferenceKind.DOUBLED, offset, one, f"copied again: {describe_record(one.record)}")
        return left

    def _of_others(self, theirs: list[Lone]) -> list[Lone]:
        """Return the records that neither the source has nor the map knows as copies."""
        copies = self._plan.copies
        if copies is None:
            return []
        begins = [first for first, _ in copies]

        def is_of_others(offset: int) -> bool:
            at = bisect_right(begins, offset) - 1
            return at < 0 or offset >= copies[at][1]

        return [one for one in theirs if is_of_others(one.record.offset)]

    async def _compacted(self, ours: list[Lone], theirs: list[Lone]) -> tuple[list[Lone], list[Lone]]:
        """Explain what a cleaner may have removed from the other log: a record with a later one of its key, and a
        tombstone whose key is gone, with all that was before it."""
        wanted = {one.record.key for one in (*ours, *theirs)}
        of_source, of_target = await self._last_of("source", wanted), await self._last_of("target", wanted)
        is_source_cleaned, is_target_cleaned = self._plan.is_compacted
        left: tuple[list[Lone], list[Lone]] = ([], [])
        for lone, own, other, is_cleaned, side, kept in (
            (ours, of_source, of_target, is_target_cleaned, "source", left[0]),
            (theirs, of_target, of_source, is_source_cleaned, "target", left[1]),
        ):
            gone = []
            for one in lone:
                last = other.get(one.record.key)
                is_superseded = last is not None and last[0] >= one.other_offset
                is_buried = last is None and own.get(one.record.key, (0, False))[1]
                if is_cleaned and (is_superseded or is_buried):
                    gone.append(one.record.offset)
                else:
                    kept.append(one)
            if gone:
                self._explain(side, gone[0], gone[-1], RangeReason.COMPACTED, len(gone))
        return left

    async def _last_of(self, side: str, wanted: set[bytes | None]) -> dict[bytes | None, tuple[int, bool]]:
        """Return the offset of the last record of each key, and whether it is a tombstone, up to the log's end as it is
        now: what was written meanwhile lets a cleaner remove what was there before."""
        plan = self._plan
        begin, end = (plan.begin, plan.end) if side == "source" else (plan.target_begin, plan.target_end)
        found: dict[bytes | None, tuple[int, bool]] = {}
        cursor = Cursor(self._open(side, begin, end), self._transform if side == "source" else None)
        try:
            await cursor.reader.extend()
            while await cursor.fill():
                for one in cursor.records[cursor.at :]:
                    if one.key in wanted:
                        found[one.key] = one.offset, one.value is None
                cursor.at = len(cursor.records)
        finally:
            await cursor.reader.close()
        return found

    def _differs(
        self, kind: DifferenceKind, mine: Lone | int | None, other: Lone | None, what: str, fields: tuple[str, ...] = ()
    ) -> None:
        self.result.differences_total += 1
        if len(self.result.differences) >= NAMED_DIFFERENCES:
            return
        source_offset = mine.record.offset if isinstance(mine, Lone) else mine
        target_offset = None if other is None else other.record.offset
        plan = self._plan
        self.result.differences.append(
            Difference(kind, plan.topic, plan.partition, source_offset, target_offset, what, fields)
        )

    def _explain(self, side: str, first: int, last: int, reason: RangeReason, records: int = -1) -> None:
        if first <= last:
            plan = self._plan
            self.result.explained.append(ExplainedRange(plan.topic, plan.partition, first, last, reason, side, records))


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
