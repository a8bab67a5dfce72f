"""Compare compacted logs by the last record of each key.

A cleaner never moves or changes a record. It removes one only if a later one of its key is in the log, or if it has no
key, or is a tombstone before which nothing of its key is left. So, whatever the cleaners of two logs with the same
history did, and when:

1. The last records of a key are the same in both logs, or one log has none and the other's last is a tombstone.
2. The last records of the keys are in the same order in both logs.

The proof: of all that was copied, the last record of a key has no later one that lets a cleaner remove it. If it is a
tombstone and gone, nothing of its key is left. And no record passes another. What was written behind the compared
ends is a later record too: it excuses the log that lacks the last one before it. Without a position of the flow, what
is copied ends for us at the last copy that is left. A tombstone of the key behind it may have been copied too, and be
gone. It was not if a record before it would be left at the target, and is not.

A key that breaks rule 1 is one difference, because all else of that key may be a cleaner's work. Of two last records
that are not the same, the one that lies further on is what the other log lacks: the earlier one was removed because of
it. At the same place one is the altered copy of the other; if they have nothing else in common, the source's is
missing, and the target's is an older one. The keys that obey rule 1 tell which lies further on.

An alignment finds the keys to look at, for a key whose records all have partners obeys rule 1. These keys are what is
held in memory. If they are too many, all keys are looked at, a part of them (by hash) with each pass over both logs.

Rule 2 of a key that has more behind the compared ends needs one thing else, that its last record is in each log once.
A cleaner goes from a log's begin, so of two equal records the earlier one goes first, and one alone is the last.

What a cleaner of the source has removed may have been the proof of a difference, or that there is none; such a key is
undecided (``removed.py``).

What this does not see: a record that is not its key's last, a tombstone that is gone with all before it, and a last
record that follows itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from connect.core.errors import PermanentError
from connectors.verification.alignment import (
    Lone,
    changed_fields,
    describe_change,
    describe_record,
    digest_of,
    resemblance,
)
from connectors.verification.log_reader import Cursor, LogReader
from connectors.verification.ranges import Findings, RangePlan, of_others
from connectors.verification.removed import Key, KeyLasts, Last, Removed
from connectors.verification.report import NAMED_DIFFERENCES, DifferenceKind, RangeReason, UndecidedReason

#: Keys of the records behind one in doubt that are asked where it lies.
_WITNESSES: Final = 32
#: Keys behind the last copy that are asked whether what follows was copied.
_UNCOPIED_KEYS: Final = 1000
#: Memory of a key that is looked at later, and of its last records, without the key itself.
_SUSPECT_BYTES: Final = 150
_KEY_BYTES: Final = 600
_MOST_BITS: Final = 32
#: Besides its key, what a record and its altered copy have in common: the value or the timestamp.
_ALIKE: Final = 3
#: With another key: the value.
_ALIKE_WITHOUT_KEY: Final = 2

_NEVER: Final = 2**63


@dataclass(slots=True)
class _KeySeen:
    """What a log has of a key in doubt: its last ``record``, the keys ``behind`` it, and offsets of both last ones."""

    record: Any = None
    behind: list[Key] = field(default_factory=list)
    offsets: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))


_Fault = tuple[Key, KeyLasts]


class _Moved(NamedTuple):
    """A record that is in both logs without a partner; ``witness``: the key of the next record that has one."""

    key: Key
    source_offset: int
    target_offset: int
    witness: Key


class LastRecords:
    """Judges the keys of one range. ``open_cursor``: opens a side, "source" or "target", from the range's begin on;
    ``open_reader``: from an offset to another, without the flow's transforms."""

    def __init__(
        self,
        plan: RangePlan,
        open_cursor: Callable[[str], Cursor],
        open_reader: Callable[[str, int, int], LogReader],
        found: Findings,
        *,
        is_transformed: bool,
    ) -> None:
        self._plan, self._open, self._open_reader, self._found = plan, open_cursor, open_reader, found
        # A transform may drop, or give another key to, what the source's cleaner removed a record for.
        self._is_extra_told = not (is_transformed and plan.is_compacted[0])
        self._is_transformed = is_transformed
        #: Source records from here on are not copied, if that is known.
        self._uncopied_from = _NEVER
        #: None: too many, so all are.
        self._suspects: set[Key] | None = set()
        self._left: set[Key] = set()
        self._held_bytes = 0
        self._moved: list[_Moved] = []
        self._lone: tuple[list[int], list[int]] = ([], [])
        #: Of the source and the target, how many records are in a difference.
        self._faulty = [0, 0]
        self._is_of_others = of_others(plan)
        self._source_end = plan.end

    def leave(self, lone: Iterable[Lone]) -> None:
        """Say nothing of the keys of records that retention or a gap explains. Raises PermanentError."""
        self._left.update(one.record.key for one in lone)
        if len(self._left) * _SUSPECT_BYTES > self._plan.held_bytes:
            raise PermanentError(
                f"{self._plan.source}: retention or a gap has removed records of {len(self._left)} keys while a "
                "cleaner works, more than its memory holds; give it more with --memory"
            )

    def suspect(self, ours: Sequence[Lone], theirs: Sequence[Lone]) -> None:
        """Take records without a partner, in order."""
        for lone, place in zip((ours, theirs), self._lone, strict=True):
            if lone:
                count = place[2] if place else 0
                first = place[0] if place else lone[0].record.offset
                place[:] = [first, lone[-1].record.offset, count + len(lone)]
        by_digest = {digest_of(one.record, False): one for one in theirs}
        for mine in ours:
            other = by_digest.get(digest_of(mine.record, False))
            if other is not None and len(self._moved) < NAMED_DIFFERENCES:
                earlier = mine if other.record.offset >= mine.other_offset else other
                self._moved.append(_Moved(mine.record.key, mine.record.offset, other.record.offset, earlier.next_key))
        if self._suspects is not None:
            for one in (*ours, *theirs):
                if one.record.key not in self._suspects:
                    self._suspects.add(one.record.key)
                    self._held_bytes += _SUSPECT_BYTES + len(one.record.key or b"")
            if self._held_bytes > self._plan.held_bytes:
                self._suspects = None

    async def judge(self, source_end: int) -> None:
        """Report what breaks the rules, and explain the rest; ``source_end`` is behind what is compared there."""
        if not any(self._lone):
            return
        self._source_end = source_end
        if self._plan.due < 0 and not self._is_transformed:
            self._uncopied_from = await self._first_uncopied()
        total, undecided, offsets = 0, 0, list[int]()
        faults, foreign, doubtful = list[_Fault](), list[_Fault](), list[_Fault]()
        reasons: dict[Key, UndecidedReason] = {}
        removed, parts = Removed(self._plan, self._open_reader), [(0, 0)]
        while parts:
            found = list[_Fault]()
            for key, one in (await self._lasts(self._suspects, parts)).items():
                if key in self._left or not self._is_fault(one):
                    continue
                if one.target is not None and self._is_foreign(one):
                    foreign.append((key, one))
                    if one.target.offset >= self._plan.map_begin:
                        offsets.append(one.target.offset)
                    elif not one.is_later[0]:
                        reasons[key] = UndecidedReason.BEFORE_MAP
                        doubtful.append((key, one))
                        undecided += 1
                    continue
                found.append((key, one))
            doubts = await removed.doubts(found, is_extra_told=self._is_extra_told)
            reasons |= doubts
            doubtful += [fault for fault in found if fault[0] in doubts]
            faults += [fault for fault in found if fault[0] not in doubts]
            undecided, total = undecided + len(doubts), total + len(found) - len(doubts)
            faults, foreign, doubtful = (
                nsmallest(NAMED_DIFFERENCES, some, key=_place) for some in (faults, foreign, doubtful)
            )
            reasons = {key: reasons[key] for key, _ in doubtful}
        unnamed = total - len(faults), undecided - len(doubtful)
        self._found.count(*unnamed)
        if faults or foreign:
            await self._name(dict(faults), dict(foreign))
        if doubtful:
            await self._name_undecided(dict(doubtful), reasons)
        await self._find_order(removed)
        if offsets:
            self._found.explain("target", min(offsets), max(offsets), RangeReason.NOT_OF_FLOW, len(offsets))
        for side, lone, faulty, others in zip(
            ("source", "target"), self._lone, self._faulty, (0, len(offsets)), strict=True
        ):
            if lone and (count := lone[2] - faulty - others - sum(unnamed)) > 0:
                self._found.explain(side, lone[0], lone[1], RangeReason.COMPACTED, count)

    def _is_fault(self, one: KeyLasts) -> bool:
        """Whether a key breaks rule 1, however its last records lie."""
        source, target = one.source, one.target
        if one.is_same or (source is None and target is None):
            return False
        is_source_cleaned, is_target_cleaned = self._plan.is_compacted
        if target is None:
            assert source is not None
            is_excused = source.is_tombstone or one.is_later[1] or (one.is_deleted_later and self._plan.due < 0)
            return not (is_target_cleaned and is_excused)
        if source is None:
            return self._is_extra_told and not (one.is_later[0] or (is_source_cleaned and target.is_tombstone))
        return not (is_target_cleaned and one.is_later[1])

    def _is_foreign(self, one: KeyLasts) -> bool:
        """Whether the target's last record is none that the map knows, and not the source's altered. What lies before
        the map may be a copy."""
        assert one.target is not None
        if one.source is not None and one.source.is_like(one.target):
            return False
        return self._is_of_others(one.target.offset) or one.target.offset < self._plan.map_begin

    async def _lasts(
        self, keys: Collection[Key] | None, parts: list[tuple[int, int]] | None = None
    ) -> dict[Key, KeyLasts]:
        """Return the last records of the keys whose hash is in the last of ``parts`` (a number of bits, and these),
        which is taken off. If they are too many they are halved, and the other half is added to ``parts``."""
        bits, value = parts.pop() if parts else (0, 0)
        most_bytes, held_bytes = 2 * self._plan.held_bytes, 0
        found: dict[Key, KeyLasts] = {}
        for is_target, side, end in ((0, "source", self._source_end), (1, "target", self._plan.target_end)):
            gaps = self._plan.target_gaps if is_target else self._plan.gaps
            cursor = self._open(side)
            async with aclosing(cursor.reader):
                await cursor.reader.extend()
                while await cursor.fill():
                    for record in cursor.take_all():
                        key = record.key
                        if key is None or (keys is not None and key not in keys):
                            continue
                        if bits and hash(key) & ((1 << bits) - 1) != value:
                            continue
                        if gaps and _is_in(gaps, record.offset):
                            continue
                        one = found.get(key)
                        if one is None:
                            one = found[key] = KeyLasts()
                            held_bytes += _KEY_BYTES + len(key)
                        if record.offset >= end:
                            one.is_later = (one.is_later[0], True) if is_target else (True, one.is_later[1])
                            is_perhaps_copied = not is_target and record.offset < self._uncopied_from
                            one.is_deleted_later |= is_perhaps_copied and record.value is None
                        elif is_target:
                            one.target = Last.of(record, True)
                        else:
                            one.source = Last.of(record, False)
                    while parts is not None and held_bytes > most_bytes and bits < _MOST_BITS:
                        parts.append((bits + 1, value | 1 << bits))
                        bits += 1
                        found = {key: one for key, one in found.items() if hash(key) & ((1 << bits) - 1) == value}
                        held_bytes = sum(_KEY_BYTES + len(key or b"") for key in found)
        return found

    async def _first_uncopied(self) -> int:
        """Return the offset of the first source record behind the compared end that the target would have if it was
        copied: the last of its key, with a value, and no record of others at the target lets a cleaner remove it."""
        places: dict[Key, tuple[int, bool]] = {}
        cursor = self._open("source")
        async with aclosing(cursor.reader):
            await cursor.reader.extend()
            while await cursor.fill():
                for record in cursor.take_all():
                    key = record.key
                    if record.offset < self._source_end or key is None or _is_in(self._plan.gaps, record.offset):
                        continue
                    if key in places or len(places) < _UNCOPIED_KEYS:
                        places[key] = record.offset, record.value is not None
        known = await self._lasts(places)
        return min(
            (
                offset
                for key, (offset, is_live) in places.items()
                if is_live and (one := known.get(key)) is not None and _is_ours(one)
            ),
            default=_NEVER,
        )

    async def _look(self, faults: dict[Key, KeyLasts], is_target: bool) -> dict[Key, _KeySeen]:
        """Return what one log has of the keys in doubt."""
        found = {key: _KeySeen() for key in faults}
        end = self._plan.target_end if is_target else self._source_end
        waiting: list[_KeySeen] = []
        cursor = self._open("target" if is_target else "source")
        async with aclosing(cursor.reader):
            while await cursor.fill():
                for record in cursor.take_all():
                    if record.offset >= end:
                        break
                    if waiting:
                        for each in waiting:
                            each.behind.append(record.key)
                        waiting = [each for each in waiting if len(each.behind) < _WITNESSES]
                    seen = found.get(record.key)
                    if seen is None:
                        continue
                    one, this = faults[record.key], Last.of(record, is_target)
                    for last, offsets in zip((one.source, one.target), seen.offsets, strict=True):
                        if last is not None and last.is_same(this):
                            offsets.append(record.offset)
                    own = one.target if is_target else one.source
                    if own is not None and own.offset == record.offset:
                        seen.record = record
                        waiting.append(seen)
        return found

    async def _name(self, faults: dict[Key, KeyLasts], foreign: dict[Key, KeyLasts]) -> None:
        """Report the faults as what they are, and of what is ``foreign`` to the map what the source has too."""
        both = {**faults, **foreign}
        here, there = await self._look(both, False), await self._look(both, True)
        behind = {key for seen in (here, there) for one in seen.values() for key in one.behind}
        known = await self._lasts(behind)
        missing, extra = list[Key](), list[Key]()

        def place(mine: Key, other: Key) -> int:
            """Return whether the target's last record of a key lies further on (1) than the source's of one, or before
            it (-1), or at the same place (0)."""
            one, two = both[mine].source, both[other].target
            assert one is not None and two is not None
            for key in (*here[mine].behind, *there[other].behind):
                witness = known.get(key)
                if witness is None or not witness.is_same or key in (mine, other):
                    continue
                assert witness.source is not None and witness.target is not None
                is_behind = witness.source.offset > one.offset
                if is_behind != (witness.target.offset > two.offset):
                    return 1 if is_behind else -1
            return 0

        for key, one in both.items():
            mine, other = here[key], there[key]
            if (one.source and mine.record is None) or (one.target and other.record is None):
                continue  # a cleaner has removed it meanwhile, so there is a later one
            has_ours, has_theirs = other.offsets[0], mine.offsets[1]
            if key in foreign:
                if len(other.offsets[1]) > len(has_theirs) > 0:
                    extra.append(key)
                elif one.source and not has_ours and (self._is_old(one, mine) or place(key, key) < 0):
                    missing.append(key)
                continue
            if one.source is None or one.target is None:
                (missing if one.target is None else extra).append(key)
                continue
            if has_ours and has_theirs and len(other.offsets[1]) <= len(has_theirs):
                what = f"at another place: {describe_record(mine.record)}"
                self._differs(DifferenceKind.ORDER, one.source.offset, has_ours[-1], what)
                continue
            where = 1 if has_ours else place(key, key) or (-1 if has_theirs else 0)
            fields = changed_fields(mine.record, other.record)
            if where > 0:
                if self._is_extra_told and not one.is_later[0]:
                    extra.append(key)
            elif where == 0 and (resemblance(mine.record, other.record) >= _ALIKE or len(fields) == 1):
                self._changed(mine.record, other.record)
            elif where < 0 or not one.is_later[0]:  # else it may be the copy of what the source has behind its end
                missing.append(key)
        for key in missing:
            mine = here[key]
            renamed = next(
                (
                    one
                    for one in extra
                    if resemblance(mine.record, there[one].record) >= _ALIKE_WITHOUT_KEY and place(key, one) == 0
                ),
                None,
            )
            if renamed is not None:
                extra.remove(renamed)
                self._changed(mine.record, there[renamed].record)
            else:
                self._differs(DifferenceKind.MISSING, mine.record.offset, None, describe_record(mine.record))
        for key in extra:
            record, known_to = there[key].record, here[key].offsets[1]
            if known_to:
                what = f"copied again: {describe_record(record)}"
                self._differs(DifferenceKind.DOUBLED, known_to[0], record.offset, what)
            elif self._is_of_others(record.offset):
                self._found.explain("target", record.offset, record.offset, RangeReason.NOT_OF_FLOW, 1)
            else:
                self._differs(DifferenceKind.EXTRA, None, record.offset, describe_record(record))

    async def _name_undecided(self, doubtful: dict[Key, KeyLasts], reasons: Mapping[Key, UndecidedReason]) -> None:
        here, there = await self._look(doubtful, False), await self._look(doubtful, True)
        for key, one in doubtful.items():
            if one.target is None:
                if mine := here[key].record:
                    self._faulty[0] += 1
                    what = describe_record(mine)
                    self._found.differs(DifferenceKind.MISSING, mine.offset, None, what, undecided=reasons[key])
            elif (other := there[key].record) and not self._is_old(one, here[key]):
                self._faulty[1] += 1
                what = describe_record(other)
                self._found.differs(DifferenceKind.EXTRA, None, other.offset, what, undecided=reasons[key])

    def _is_old(self, one: KeyLasts, mine: _KeySeen) -> bool:
        """Whether the target's last record is a copy before the map, of an older one that the source still has."""
        return one.target is not None and one.target.offset < self._plan.map_begin and len(mine.offsets[1]) > 0

    def _changed(self, mine: Any, other: Any) -> None:
        fields = changed_fields(mine, other)
        what = describe_change(mine, other, fields)
        self._differs(DifferenceKind.CHANGED, mine.offset, other.offset, what, fields)

    async def _find_order(self, removed: Removed) -> None:
        """Report what breaks rule 2: a last record without a partner in either log, and another one that it passed."""
        if not self._moved:
            return
        known = await self._lasts({key for one in self._moved for key in (one.key, one.witness)})
        places = {
            key: (one.source.offset, one.target.offset)
            for key, one in known.items()
            if one.source and one.target and one.is_same
        }
        # With a later one it may be an earlier record of the same contents: a cleaner has removed the last.
        doubtful = {key: known[key] for key in places if any(known[key].is_later)}
        if doubtful:
            for seen in (await self._look(doubtful, False), await self._look(doubtful, True)):
                for key in (key for key, one in seen.items() if len(one.offsets[0]) > 1):
                    places.pop(key, None)
        moved = {one.key for one in self._moved if places.get(one.key) == (one.source_offset, one.target_offset)}
        asked = moved | {one.witness for one in self._moved if one.key in moved}
        passed = _out_of_order(sorted((*places[key], key) for key in asked if key in places))
        doubts = await removed.doubts(((key, known[key]) for *_, key in passed), is_extra_told=True)
        for source, target, key in passed:
            what = f"at another place: the last record of key {key!r}"
            if key in doubts:
                self._found.differs(DifferenceKind.ORDER, source, target, what, undecided=doubts[key])
            else:
                self._differs(DifferenceKind.ORDER, source, target, what)

    def _differs(
        self, kind: DifferenceKind, source: int | None, target: int | None, what: str, fields: tuple[str, ...] = ()
    ) -> None:
        self._faulty[0] += source is not None and kind is not DifferenceKind.DOUBLED
        self._faulty[1] += target is not None
        self._found.differs(kind, source, target, what, fields)


def _is_ours(one: KeyLasts) -> bool:
    """Whether the target has of a key what the source has up to the compared end, and nothing behind it."""
    return not one.is_later[1] and (one.is_same or one.source is one.target is None)


def _is_in(ranges: Iterable[tuple[int, int]], offset: int) -> bool:
    return any(first <= offset <= last for first, last in ranges)


def _place(fault: _Fault) -> tuple[int, int]:
    source, target = fault[1].source, fault[1].target
    return _NEVER if source is None else source.offset, -1 if target is None else target.offset


def _out_of_order(places: Sequence[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
    """Return the fewest of ``places``, which ascend by their first offset, without which the second ones ascend too.

    >>> _out_of_order([(1, 1, "a"), (2, 9, "b"), (3, 3, "c"), (4, 4, "d")])
    [(2, 9, 'b')]
    """
    ends: list[int] = []  # for each length, the least second offset that a row of that length ends with
    lengths = []
    for _, target, _ in places:
        length = bisect_left(ends, target)
        ends[length : length + 1] = [target]
        lengths.append(length)
    found, wanted, before = [], len(ends) - 1, 2**63
    for place, length in zip(reversed(places), reversed(lengths), strict=True):
        if length == wanted and place[1] < before:
            wanted, before = wanted - 1, place[1]
        else:
            found.append(place)
    return found[::-1]
