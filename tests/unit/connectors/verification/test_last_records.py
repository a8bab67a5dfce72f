"""A model of a flow between compacted topics: whatever cleaners did, planted damage is named, and nothing else is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from connectors.verification import alignment, comparison
from connectors.verification.comparison import Comparison
from connectors.verification.log_reader import LogReader
from connectors.verification.ranges import NO_MAP, RangePlan, RangeResult
from connectors.verification.report import DifferenceKind, UndecidedReason
from tests.unit.connectors.verification.logs import NOW_MS, FakeReader, Log, Rec, compare, log_of

Entry = tuple[int, Rec]
#: Source offset, target offset and length.
Runs = tuple[tuple[int, int, int], ...]
#: What a difference is to be: its kind, source and target offset, fields.
Expected = tuple[str, int | None, int | None, tuple[str, ...]]

KINDS = ("nothing", "missing", "value", "headers", "timestamp", "key", "order", "doubled", "extra")


@dataclass
class Flow:
    """Both logs of one partition. ``origin``: source offset by target offset, of copies; ``read``: the first source
    offset that is not copied yet; ``frozen``: keys of which nothing is written any more; ``is_late``: the source's
    cleaner removes what is not copied yet, tombstones too; ``aborted``: source offsets of records that the flow copies
    nevertheless, None if it reads only committed ones."""

    chance: random.Random
    keys: int
    is_compacted: tuple[bool, bool]
    source: list[Entry] = field(default_factory=list)
    target: list[Entry] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0, 0])
    origin: dict[int, int] = field(default_factory=dict)
    read: int = 0
    number: int = 0
    frozen: set[bytes] = field(default_factory=set)
    repeats: bool = True
    is_late: bool = False
    aborted: set[int] | None = None
    #: First offsets of tombstones that no cleaner removes yet: the comparison takes less than delete.retention.ms.
    young: tuple[int, int] = (1 << 40, 1 << 40)

    def step(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(6)):
            self._produce()
        kind = chance.randrange(5)
        if kind <= 1:
            self._copy(chance.choice((1, 5, 50)))
        elif kind == 2 and self.is_compacted[0]:
            to = self.ends[0] if self.is_late else self.read
            self.source = self._cleaned(self.source, min(to, self.young[0]), to, self.aborted or set())
        elif kind == 3 and self.is_compacted[1]:
            self.target = self._cleaned(self.target, self.young[1], self.ends[1], set())
        elif chance.random() < 0.1:
            self._write(1, self._record()._replace(value=b"another producer", timestamp_ms=NOW_MS * 2))

    def _record(self) -> Rec:
        chance, self.number = self.chance, self.number + 1
        old = [one for _, one in self.source if one.key not in self.frozen]
        if self.repeats and chance.random() < 0.03 and old:
            return chance.choice(old)  # written once more, with its timestamp
        keys = [key for key in (b"k%d" % at for at in range(self.keys)) if key not in self.frozen]
        value = None if chance.random() < 0.2 else b"v%d" % self.number
        headers = (("n", b"%d" % self.number),) if chance.random() < 0.6 else ()
        return Rec(chance.choice(keys), value, NOW_MS + self.number // 2, headers)

    def _write(self, side: int, record: Rec) -> int:
        # Markers of transactions, and aborted records, take offsets too.
        offset = self.ends[side] + (self.chance.randrange(4) if self.chance.random() < 0.2 else 0)
        (self.target if side else self.source).append((offset, record))
        self.ends[side] = offset + 1
        return offset

    def _produce(self) -> None:
        record = self._record()
        is_new = record not in (one for _, one in self.source)
        offset = self._write(0, record)
        if self.aborted is not None and is_new and self.chance.random() < 0.1:
            self.aborted.add(offset)
            self.ends[0] += 1  # the marker

    def _copy(self, count: int) -> None:
        for offset, record in [one for one in self.source if one[0] >= self.read][:count]:
            self.origin[self._write(1, record)] = offset
            self.read = offset + 1

    def _cleaned(self, log: Log, tombstones_to: int, most: int, aborted: set[int]) -> list[Entry]:
        """Clean up to some place, at ``most``: all that is superseded there, or the first of it, and all that is
        ``aborted``. A tombstone goes when nothing of its key is left before it."""
        chance = self.chance
        to = min(chance.randrange(log[-1][0] + 2), most) if log else 0
        log = [one for one in log if one[0] >= to or one[0] not in aborted or one[1].key in self.frozen]
        # It goes from the log's begin: if it ends early, of each key the earliest are gone.
        cleaned_to = chance.choice((to, to, chance.randrange(to + 1)))
        last = {one.key: offset for offset, one in log if offset < to}
        takes_tombstones = chance.random() < 0.5
        found: list[Entry] = []
        left: set[bytes | None] = set()
        for offset, one in log:
            if offset < to:
                is_last = last[one.key] == offset
                is_gone = takes_tombstones and one.key not in self.frozen and offset < tombstones_to
                if one.value is None:
                    # Not before what it deletes.
                    is_gone = one.key not in left and (not is_last or is_gone)
                else:
                    is_gone = not is_last and offset < cleaned_to
                if is_gone:
                    continue
            found.append((offset, one))
            left.add(one.key)
        return found

    # -- damage ----------------------------------------------------------------------------------------------

    def damage(self, kind: str, due: int) -> Expected | None:
        """Damage the copy where a comparison by last records can see it; None if there is no such place."""
        last = {one.key: offset for offset, one in self.target}
        ours = {one.key: (offset, one) for offset, one in self.source}
        seen = [
            at
            for at, (offset, one) in enumerate(self.target)
            if last[one.key] == offset
            and one.key in ours
            and ours[one.key] == (self.origin.get(offset), one)
            # What is behind the last copy may be not copied yet.
            and (due >= 0 or any(self._is_copy(other) for other in self.target[at + 1 :]))
        ]
        self.chance.shuffle(seen)
        for at in seen:
            found = self._damaged(kind, at, set(seen), ours)
            if found is not None:
                return found
        return None

    def _is_twice(self, record: Rec) -> bool:
        return [other for _, other in self.source].count(record) > 1

    def _is_copy(self, entry: Entry) -> bool:
        return (self.origin.get(entry[0]), entry[1]) in self.source

    def _damaged(self, kind: str, at: int, seen: set[int], ours: dict[bytes | None, Entry]) -> Expected | None:
        offset, one = self.target[at]
        assert one.key is not None
        place = self.origin[offset]
        older = [other for _, other in self.target[:at] if other.key == one.key]
        if one in older or self._is_twice(one):
            return None  # either may be the one that is there
        if any(other.value == b"another producer" for other in older):
            return None  # which may be why the target's cleaner removed the copy
        if kind in ("missing", "key"):
            if one.value is None and (kind == "key" or not older):
                return None  # as if a cleaner had removed it
            if any(_is_alike(one, other) for other in older):
                return None  # the older one looks like an altered copy
        self.frozen.add(one.key)
        if kind == "missing":
            del self.target[at]
            return kind, place, None, ()
        if kind == "order":
            if at + 1 not in seen or self.target[at + 1][1].key == one.key or self._is_twice(self.target[at + 1][1]):
                self.frozen.clear()
                return None
            following, other = self.target[at + 1]
            self.frozen.add(other.key or b"")
            self.target[at : at + 2] = [(offset, other), (following, one)]
            return kind, place, following, ()
        if kind == "doubled":
            # An older one of a key again, behind its last.
            if (
                not older
                or at + 1 >= len(self.target)
                or older[-1] == one
                or older[-1] not in dict(self.source).values()
                or self.target[at + 1][0] == offset + 1
                or self._is_twice(older[-1])
            ):
                self.frozen.clear()
                return None
            self.target.insert(at + 1, (offset + 1, older[-1]))
            self.origin[offset + 1] = place  # a copy to the map
            first = next(source for source, record in self.source if record == older[-1])
            return kind, first, offset + 1, ()
        altered = {
            "value": one._replace(value=b"other"),
            "headers": one._replace(headers=(("n", b"other"),)),
            "timestamp": one._replace(timestamp_ms=NOW_MS - 7),
            "key": one._replace(key=b"other"),
        }[kind]
        self.target[at] = (offset, altered)
        return "changed", place, offset, (kind,)


def _is_alike(one: Rec, other: Rec) -> bool:
    return (
        one.timestamp_ms == other.timestamp_ms
        or (one.value is not None and one.value == other.value)
        or (one.value == other.value and (one.timestamp_ms == other.timestamp_ms or one.headers == other.headers))
    )


def play(seed: int, patch: pytest.MonkeyPatch) -> tuple[str, Flow, RangeResult, Expected | None]:
    chance = random.Random(seed)
    # Without a position, what is not copied yet follows from what is behind the last copy; it has to be aligned well.
    has_position = chance.random() < 0.8
    for module, name, value in (
        (comparison, "_FIRST_WINDOW", chance.choice((4, 64))),
        (comparison, "_LARGEST_WINDOW", chance.choice((16, 4096)) if has_position else 4096),
        (comparison, "SURE", sure := chance.choice((3, 8))),
        (alignment, "SURE", sure),
    ):
        patch.setattr(module, name, value)
    flow = Flow(chance, chance.choice((3, 12, 60)), chance.choice(((True, True),) * 4 + ((True, False), (False, True))))
    flow.repeats = has_position
    flow.is_late, flow.aborted = has_position and chance.random() < 0.5, set() if chance.random() < 0.3 else None
    for _ in range(chance.choice((5, 40, 80))):
        flow.step()
    kind = chance.choice(KINDS)
    due = flow.read if has_position or kind == "order" else -1
    expected: Expected | None = None
    if kind == "extra" and flow.target:
        at = chance.randrange(len(flow.target))
        before = flow.target[at - 1][0] if at else -1
        if flow.target[at][0] > before + 1:
            flow.target.insert(at, (before + 1, Rec(b"other", b"other", NOW_MS)))
            expected = (kind, None, before + 1, ())
            # The map knows it as a copy, of what the source has if that is so of either neighbour.
            beside = [flow.origin[one] for one in (before, flow.target[at + 1][0]) if one in flow.origin]
            there = dict(flow.source)
            flow.origin[before + 1] = next((one for one in beside if one in there), min(beside, default=0))
    elif kind != "nothing":
        expected = flow.damage(kind, due)
    end, target_end = flow.ends
    flow.young = flow.read, target_end
    states = [(list(flow.source), list(flow.target))]
    for _ in range(6):
        if chance.random() < 0.5:
            flow.step()
        states.append((list(flow.source), list(flow.target)))
    plan = RangePlan(
        *("t", 0, "us.t", 0, 0, end, 0, target_end),
        due=due,
        is_compacted=flow.is_compacted,
        is_last=True,
        copies=tuple((offset, offset + 1) for offset in sorted(flow.origin)),
        map_begin=min(flow.origin, default=-1),
        runs=tuple((flow.origin[offset], offset, 1) for offset in sorted(flow.origin)),
        is_committed=flow.aborted is None,
        # One that moved is found if what is held at once has it from both logs.
        held_bytes=1 << 24 if kind == "order" or not has_position else chance.choice((3000, 20_000, 1 << 24)),
    )
    sizes = {"source": chance.choice((1, 4, 30)), "target": chance.choice((1, 4, 30))}
    opened = 0

    def open_reader(side: str, begin: int, behind: int) -> LogReader:
        nonlocal opened
        state, opened = states[min(opened // 2, len(states) - 1)], opened + 1
        return FakeReader(state[side == "target"], begin, behind, sizes[side], 0)

    return kind, flow, asyncio.run(Comparison(plan, open_reader).run()), expected


def check(seeds: range) -> dict[str, int]:
    """Return how many damages of each kind were found."""
    counts = dict.fromkeys((*KINDS, "undecided"), 0)
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            kind, flow, result, expected = play(seed, patch)
        undecided = [(one.kind.value, one.source_offset, one.target_offset, one.fields) for one in result.undecided]
        assert len(undecided) == result.undecided_total, seed
        counts["undecided"] += bool(undecided)
        if expected in undecided and (kind == "extra" or flow.is_late or flow.aborted is not None):
            continue
        if not flow.is_late and flow.aborted is None:  # what others wrote before the flow began is undecided
            assert {one.undecided for one in result.undecided} <= {UndecidedReason.BEFORE_MAP}, seed
        found = [(one.kind.value, one.source_offset, one.target_offset, one.fields) for one in result.differences]
        assert len(found) == result.differences_total, seed
        if expected is None:
            assert found == [], (seed, kind)
        elif kind == "order":
            assert found and {one[0] for one in found} == {DifferenceKind.ORDER}, (seed, kind, expected, found)
            assert len(found) <= 2, (seed, found)
        elif kind == "doubled" and found and found[0][0] in ("missing", "extra", "order"):
            # A cleaner has removed one meanwhile: the target's the last one, or the source's the one copied again.
            assert len(found) == 1, (seed, found)
        else:
            assert found == [expected], (seed, kind)
        counts[kind] += expected is not None or kind == "nothing"
    return counts


def test_damage_is_named_whatever_the_cleaners_did() -> None:
    counts = check(range(600))
    assert min(counts.values()) >= 10, counts


def test_a_tombstone_behind_what_is_compared_explains_a_key_that_is_gone() -> None:
    """Of a flow without a position. It was copied, and then removed with all before it."""
    deleted = log_of([Rec(b"a", b"1", NOW_MS), Rec(b"b", b"2", NOW_MS), Rec(b"a", None, NOW_MS)])
    for ours, count in ((deleted, 0), (deleted[:2], 1)):
        found = compare(ours, deleted[1:2], due=-1, is_compacted=(True, True), target_end=3, copies=((0, 3),))
        assert found.differences_total == count


def test_a_tombstone_that_is_not_copied_explains_nothing() -> None:
    """Of another key, or behind a record that the target would have, so the flow has not copied it."""
    one, two, three = (Rec(key, b"1", NOW_MS) for key in (b"a", b"b", b"c"))
    gone = one._replace(value=None)
    for behind, count in (([gone], 0), ([two._replace(value=None)], 1), ([three, gone], 1), ([three, gone, three], 0)):
        ours, theirs = log_of([one, two, *behind]), log_of([one, two])[1:]
        found = compare(ours, theirs, due=-1, is_compacted=(True, True), target_end=2, copies=((0, 3),))
        assert [(each.kind, each.source_offset) for each in found.differences] == [("missing", 0)] * count


def test_an_order_differs_although_the_keys_have_later_records() -> None:
    """Unless a record is there twice: a cleaner may have removed the last."""
    one, two, three = (Rec(key, key, NOW_MS) for key in (b"a", b"b", b"c"))
    later = [Rec(b"a", b"9", NOW_MS), Rec(b"b", b"8", NOW_MS)]
    for ours, theirs, count in (
        ([one, two, three], [two, one, three], 1),
        ([one, two, one, three], [two, one, three], 0),
        ([one, two, three], [one, two, one, three], 0),
    ):
        end, copies = len(ours), ((0, len(theirs)),)
        found = compare(log_of(ours + later), log_of(theirs), due=end, is_compacted=(True, True), copies=copies)
        assert found.differences_total == count, found


LIVE, DELETED = Rec(b"a", b"1", NOW_MS), Rec(b"a", None, NOW_MS)
B, C, D = (Rec(key, key, NOW_MS) for key in (b"b", b"c", b"d"))
BOTH = (True, True)


def outcome(ours: Sequence[Entry], theirs: Sequence[Entry], runs: Runs, **more: Any) -> tuple[str, str]:
    """Return the kinds of what differs, and of what is undecided. ``runs`` are all copies."""
    copies = tuple((target, target + length) for _, target, length in runs)
    known = {"is_compacted": BOTH, "copies": copies, "runs": runs, "map_begin": copies[0][0] if copies else -1}
    end = {"end": 10, "target_end": 10, "due": 10}
    found = compare(ours, theirs, **{**end, **known, **more})
    assert (len(found.differences), len(found.undecided)) == (found.differences_total, found.undecided_total)
    return " ".join(one.kind for one in found.differences), " ".join(one.kind for one in found.undecided)


@pytest.mark.parametrize(
    ("runs", "place", "last", "expected"),
    [
        # The source's offset 2 was not copied: a tombstone may have been there.
        (((0, 0, 2), (3, 2, 7)), 1, 9, ("", "extra")),
        # All was copied, the tombstone too, and the target has lost it.
        (((0, 0, 10),), 1, 8, ("extra", "")),
        # What was not copied lies before the record.
        (((1, 0, 9),), 0, 9, ("extra", "")),
    ],
)
def test_a_key_that_the_source_lost_is_undecided_if_its_tombstone_may_not_have_been_copied(
    runs: Runs, place: int, last: int, expected: tuple[str, str]
) -> None:
    """The source has removed its offset 1, which was copied to ``place``; ``last`` was copied to 8."""
    assert outcome([(last, C)], [(place, LIVE), (8, C)], runs) == expected


def test_a_copy_of_what_the_source_still_has_is_decided() -> None:
    """Its key was altered: the source's record has another one, which is replaced later."""
    runs = ((0, 0, 2), (3, 2, 7))
    assert outcome([(1, B), (9, B)], [(1, LIVE), (8, B)], runs) == ("extra", "")


@pytest.mark.parametrize(("is_committed", "expected"), [(False, ("", "missing")), (True, ("missing", ""))])
def test_a_missing_key_may_be_of_an_aborted_tombstone(is_committed: bool, expected: tuple[str, str]) -> None:
    """The source's offset 1 was copied and is gone in both logs, and 2 is the transaction's marker."""
    runs = ((0, 0, 2), (3, 2, 7))
    found = outcome([(0, LIVE), (9, C)], [(8, C)], runs, is_committed=is_committed)
    assert found == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "runs"),
    [
        # All is copied, so there was no marker.
        ([(0, LIVE), (9, C)], [(9, C)], ((0, 0, 10),)),
        # The source has all that was copied.
        ([(0, LIVE), (1, B), (9, C)], [(1, B), (8, C)], ((0, 0, 2), (3, 2, 7))),
        # The target has the copy of what the source removed.
        ([(0, LIVE), (9, B)], [(1, B), (8, B)], ((0, 0, 2), (3, 2, 7))),
        # What is there instead of the copy was removed by no cleaner.
        ([(0, LIVE), (9, C)], [(0, B), (8, C)], ((0, 0, 2), (3, 2, 7))),
    ],
)
def test_a_missing_key_differs_without_an_aborted_tombstone(ours: list[Entry], theirs: list[Entry], runs: Runs) -> None:
    assert "missing" in outcome(ours, theirs, runs, is_committed=False)[0]


def test_an_equal_record_of_an_aborted_transaction_may_be_what_moved() -> None:
    runs = ((0, 0, 3), (4, 3, 6))
    ours, theirs = [(0, LIVE), (1, B), (9, C)], [(1, B), (2, LIVE), (8, C)]
    assert outcome(ours, theirs, runs, is_committed=False) == ("", "order")
    assert outcome(ours, theirs, ((0, 0, 9),), is_committed=False)[0] == "order"


def test_what_the_target_has_before_the_map_is_undecided() -> None:
    """Unless it is the altered copy of what the source has, or of an older record. Without a map that is all."""
    runs = ((0, 2, 8),)
    assert outcome([(0, B)], [(0, LIVE), (2, B)], runs) == ("", "extra")
    assert outcome([(0, B)], [(0, B._replace(value=b"other"))], runs) == ("changed", "")
    newer = LIVE._replace(value=b"2", timestamp_ms=NOW_MS + 1)
    assert outcome([(0, LIVE), (1, newer), (9, B)], [(0, LIVE), (8, B)], (), map_begin=NO_MAP) == ("missing", "")
    assert outcome([(0, B)], [(0, B), (1, LIVE)], (), map_begin=NO_MAP) == ("", "extra")


@pytest.mark.long
def test_damage_is_named_in_many_more_schedules() -> None:
    check(range(600, 20_000))
