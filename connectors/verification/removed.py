"""Find the keys of a compacted log of which nothing says any more whether they differ, because the source's cleaner has
removed what would say it.

Two histories leave a flow's copy as damage would:

* The flow was behind: the source's cleaner removed a tombstone, and what it deletes, before the flow read it. The
  target has a record that the source has not.
* The flow reads uncommitted records: it copied those of a transaction that was aborted, and the source's cleaner
  removed them later. The target has such a record, or a tombstone among them let its cleaner remove another one.

Each leaves a trace behind the record in doubt: a source offset that the flow did not copy, of a tombstone that was
gone, or of the marker of the transaction, which no flow copies. Today nothing is left there, or an abort marker is. And
a record that the source had and has not is gone at its own source offset. Without these traces neither history is
possible, so the record differs.

The source's offsets without a record, and the offset map, show the traces. What lies before the runs that are known may
be any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from connectors.verification.alignment import digest_of, has_own_time, timestamp_of
from connectors.verification.log_reader import LogReader, decoded, is_abort
from connectors.verification.ranges import MOST_RUNS, RangePlan
from connectors.verification.report import UndecidedReason

Key = bytes | None
_NEVER: Final = 2**63


class Last(NamedTuple):
    """The last record of a key in one log. ``time_ms`` is None if the target's log has set it."""

    offset: int
    digest: int
    time_ms: int | None
    is_tombstone: bool

    @classmethod
    def of(cls, record: Any, is_target: bool) -> Last:
        time_ms = None if is_target and has_own_time(record) else timestamp_of(record)
        return cls(record.offset, digest_of(record, False), time_ms, record.value is None)

    def is_same(self, other: Last) -> bool:
        return self.digest == other.digest and self._is_of_time(other)

    def is_like(self, other: Last) -> bool:
        return self.digest == other.digest or self._is_of_time(other)

    def _is_of_time(self, other: Last) -> bool:
        return self.time_ms is None or other.time_ms is None or self.time_ms == other.time_ms


@dataclass(slots=True)
class KeyLasts:
    """The last records of one key; ``is_later``: whether source and target have more of it behind the compared ends,
    ``is_deleted_later``: whether the source has a tombstone there that may have been copied."""

    source: Last | None = None
    target: Last | None = None
    is_later: tuple[bool, bool] = (False, False)
    is_deleted_later: bool = False

    @property
    def is_same(self) -> bool:
        return self.source is not None and self.target is not None and self.source.is_same(self.target)


class Removed:
    """What the cleaners of one range have removed. ``open_reader``: opens a side from an offset to another."""

    def __init__(self, plan: RangePlan, open_reader: Callable[[str, int, int], LogReader]) -> None:
        self._plan, self._open = plan, open_reader
        self._known_from = plan.runs[0][0] if plan.runs else _NEVER
        #: The last source offset without a record that the flow did not copy, and the last abort marker.
        self._uncopied = self._aborted = -1
        #: The last source offset before one of these whose record was copied, and is in neither log.
        self._gone_in_both = -1
        self._is_read = False

    async def doubts(
        self, faults: Iterable[tuple[Key, KeyLasts]], *, is_extra_told: bool
    ) -> dict[Key, UndecidedReason]:
        """Return which of the keys in doubt no log decides, and why. Raises what the readers raise."""
        faults = list(faults)
        if not faults or not self._plan.is_compacted[0]:
            return {}
        if not self._is_read:
            await self._read()
            self._is_read = True
        extra, missing = dict[Key, int | None](), dict[Key, int | None]()
        reasons: dict[Key, UndecidedReason] = {}
        for key, one in faults:
            if one.target is None:
                if one.source is not None and self._gone_in_both > one.source.offset:
                    missing[key], reasons[key] = self._copy_of(one.source.offset), UndecidedReason.ABORTED
            elif is_extra_told:
                place = self._copy_of(one.target.offset, back=True)
                if (reason := self._reason(one.source, place)) is not None:
                    extra[key], reasons[key] = place, reason
        # A record that still lies where the other log has its counterpart was removed by no cleaner.
        gone = await self._without_record("source", extra) | await self._without_record("target", missing)
        return {key: reason for key, reason in reasons.items() if key in gone}

    def _reason(self, source: Last | None, place: int | None) -> UndecidedReason | None:
        """Return why nothing says that a record of the target differs. ``source``: the source's last one of the key;
        ``place``: where the source had this one, None if it is not known."""
        after = -1 if place is None else place
        is_aborted = not self._plan.is_committed and max(self._uncopied, self._aborted) > after
        if source is not None:  # which a tombstone would have removed too
            return UndecidedReason.ABORTED if is_aborted and source.offset < after else None
        if self._uncopied > after:
            return UndecidedReason.EITHER if is_aborted else UndecidedReason.TOMBSTONE
        return UndecidedReason.ABORTED if is_aborted else None

    def _copy_of(self, offset: int, *, back: bool = False) -> int | None:
        """Return the target offset of a source offset, with ``back`` the other way; None if no known run says it."""
        here, there = (1, 0) if back else (0, 1)
        at = bisect_right(self._plan.runs, offset, key=itemgetter(here)) - 1
        if at < 0:
            return None
        run = self._plan.runs[at]
        return run[there] + offset - run[here] if offset < run[here] + run[2] else None

    async def _without_record(self, side: str, places: Mapping[Key, int | None]) -> set[Key]:
        """Return the keys at whose places a log has no record, and those whose places are not known."""
        known = sorted((place, key or b"") for key, place in places.items() if place is not None)
        found = {key for key, place in places.items() if place is None}
        if known:
            async for first, end in self._holes(side, known[0][0], known[-1][0] + 1):
                found.update(key for _, key in known[bisect_left(known, (first, b"")) : bisect_left(known, (end, b""))])
        return found

    async def _read(self) -> None:
        """Look for the traces."""
        #: Source and target offset, -1 if that is not known, and length of what was copied and is gone at the source.
        copied: deque[tuple[int, int, int]] = deque(maxlen=MOST_RUNS)
        runs, at = self._plan.runs, 0
        # Behind the compared end too: the tombstone of a record that is copied may be there.
        async for begin, end in self._holes("source", self._plan.begin, self._plan.end, to_end=True):
            first = begin
            if first < self._known_from:
                first = min(end, self._known_from)
                copied.append((begin, -1, first - begin))
                self._uncopied = first - 1
            while first < end:
                while at < len(runs) and runs[at][0] + runs[at][2] <= first:
                    at += 1
                if at < len(runs) and runs[at][0] <= first:
                    source, target, length = runs[at]
                    until = min(end, source + length)
                    copied.append((first, target + first - source, until - first))
                else:
                    until = min(end, runs[at][0]) if at < len(runs) else end
                    self._uncopied = until - 1
                first = until
        if not self._plan.is_committed and self._plan.is_compacted[1]:
            await self._read_target(copied, max(self._uncopied, self._aborted))

    async def _read_target(self, copied: deque[tuple[int, int, int]], before: int) -> None:
        """Find the last source offset ``before`` another one whose copy is gone too."""
        if len(copied) == MOST_RUNS:  # earlier ones are not known
            self._gone_in_both = min(copied[0][0], before) - 1
        for first, target, length in copied:
            if target < 0:
                self._gone_in_both = max(self._gone_in_both, min(first + length, before) - 1)
        places = deque(one for one in copied if one[1] >= 0)
        async for first, end in self._holes("target", self._plan.target_begin, self._plan.target_end):
            while places and places[0][1] < end:
                source, target, length = places[0]
                begin, until = max(first, target), min(end, target + length)
                last = min(source + until - target, before) - 1
                if begin < until and last >= source + begin - target:
                    self._gone_in_both = max(self._gone_in_both, last)
                if target + length > end:
                    break
                places.popleft()

    async def _holes(self, side: str, begin: int, end: int, *, to_end: bool = False) -> AsyncIterator[tuple[int, int]]:
        """Yield the ranges (first offset, end) of a log that have no record, and see its abort markers."""
        reader, expected = self._open(side, begin, end), begin
        reader.is_whole = True
        async with aclosing(reader):
            if to_end:
                await reader.extend()
                end = reader.end
            while (batch := await reader.next()) is not None:
                if side == "source" and batch.is_control and is_abort(batch, reader.where):
                    self._aborted = max(self._aborted, batch.last)
                if batch.records == batch.last - batch.first + 1:
                    present: Iterable[int] = (batch.first,)
                else:
                    present = (record.offset for record in decoded(batch, reader.where))
                for offset in present:
                    if expected < min(offset, end):
                        yield expected, min(offset, end)
                    expected = max(expected, offset + 1)
                if batch.records == batch.last - batch.first + 1:
                    expected = max(expected, batch.last + 1)
        if expected < end:
            yield expected, end
