"""The comparison of a range without a broker: damage of each kind is found and named, and nothing else is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from connect.core.errors import PermanentError
from connectors.verification.log_reader import decoded
from connectors.verification.report import Difference, DifferenceKind, RangeReason, UndecidedReason
from tests.unit.connectors.verification.logs import NOW_MS, Deleted, Log, Rec, batch_of, compare, log_of, some_records

CODECS = (0, 1, 2, 3, 4)


Named = tuple[str, int | None, int | None, tuple[str, ...]]


def named(one: Difference) -> Named:
    return one.kind, one.source_offset, one.target_offset, one.fields


def plant(kind: str, at: int, theirs: list[Rec], chance: random.Random) -> None:
    one = theirs[at]
    if kind == "missing":
        del theirs[at]
    elif kind == "doubled":
        theirs.insert(at, one)
    elif kind == "order":
        theirs[at : at + 2] = reversed(theirs[at : at + 2])
    else:
        altered: dict[str, dict[str, Any]] = {
            "key": {"key": b"other"},
            "value": {"value": chance.randbytes(9)},
            "headers": {"headers": (("n", b""),)},
            "timestamp": {"timestamp_ms": one.timestamp_ms + 1},
        }
        theirs[at] = one._replace(**altered[kind])


KINDS = ("missing", "doubled", "order", "key", "value", "headers", "timestamp")


@pytest.mark.parametrize("seed", range(20))
def test_every_planted_damage_is_named_and_none_is_invented(seed: int) -> None:
    chance = random.Random(seed)
    records = some_records(3000, chance)
    theirs = list(records)
    # From the end on, so that earlier places stay.
    places = sorted(chance.sample(range(5, 2900, 20), 7), reverse=True)
    kinds = chance.sample(KINDS, 7)
    for at, kind in zip(places, kinds, strict=True):
        plant(kind, at, theirs, chance)
    sizes = chance.choice((1, 7, 100)), chance.choice((1, 7, 100))
    found = compare(log_of(records), log_of(theirs), chance.choice(CODECS), sizes)
    assert found.differences_total == len(found.differences) == 7
    for kind, at in zip(reversed(kinds), reversed(places), strict=True):
        match = [one for one in found.differences if at in (one.source_offset, (one.source_offset or 0) - 1)]
        assert len(match) == 1, (kind, at, found.differences)
        name, _, _, fields = named(match[0])
        assert (name, fields) == ((kind, ()) if kind in KINDS[:3] else ("changed", (kind,)))
    of_source = (DifferenceKind.MISSING, DifferenceKind.CHANGED, DifferenceKind.ORDER)
    lost = sum(one.kind in of_source for one in found.differences)
    assert found.records == 3000 - lost


def test_equal_batches_are_not_decoded_and_others_are() -> None:
    log = log_of(some_records(100))
    same = compare(log, log_of(some_records(100), 500), target_begin=500, target_end=600, sizes=(10, 10))
    assert (same.records, same.differences_total, same.same_bytes) == (100, 0, same.bytes)
    cut = compare(log, log, sizes=(10, 9))
    assert (cut.records, cut.differences_total, cut.same_bytes) == (100, 0, 0)


def test_what_may_not_be_copied_yet_is_no_difference() -> None:
    records = some_records(100)
    found = compare(log_of(records), log_of(records[:60]), due=50)
    assert (found.differences_total, found.verified_to, found.records) == (0, 60, 60)
    assert [(one.first, one.last, one.reason) for one in found.explained] == [(60, 99, RangeReason.NOT_COPIED)]
    assert compare(log_of(records), log_of(records[:60]), due=70).differences_total == 10


def test_much_that_is_not_copied_yet_is_no_difference_beside_much_that_others_wrote() -> None:
    """More of both than can be aligned."""
    records, foreign = some_records(9000), [Rec(None, b"foreign %d" % at, NOW_MS) for at in range(9000)]
    theirs = log_of([*records[:100], *foreign])
    found = compare(log_of(records), theirs, sizes=(100, 100), due=100, copies=((0, 100),))
    assert (found.differences, found.verified_to, found.records) == ([], 100, 100)
    reasons = {(one.side, one.reason, one.first, one.last) for one in found.explained}
    assert ("source", RangeReason.NOT_COPIED, 100, 8999) in reasons


def test_damage_just_before_what_is_not_copied_yet_is_found() -> None:
    records = some_records(60)
    theirs = [*records[:49], records[49]._replace(value=b"other")]
    found = compare(log_of(records), log_of(theirs), due=50)
    assert [named(one) for one in found.differences] == [("changed", 49, 49, ("value",))]
    assert found.verified_to == 50


def test_records_of_others_are_known_by_the_map() -> None:
    records = some_records(40)
    foreign = Rec(None, b"foreign", NOW_MS)
    theirs = [*records[:20], foreign, *records[20:]]
    found = compare(log_of(records), log_of(theirs), copies=((0, 20), (21, 41)))
    assert found.differences_total == 0
    assert [(one.first, one.reason) for one in found.explained] == [(20, RangeReason.NOT_OF_FLOW)]
    assert [named(one) for one in compare(log_of(records), log_of(theirs)).differences] == [("extra", None, 20, ())]


def test_what_lies_before_the_map_is_undecided_and_damage_there_is_named() -> None:
    """Of all that the source does not have, only the map says whether others wrote it."""
    records, foreign = some_records(20), Rec(b"x", b"x", 5)
    changed = records[3]._replace(value=b"other")
    theirs = [foreign, *records[:3], changed, *records[4:8], records[2], *records[8:], foreign]
    found = compare(log_of(records), log_of(theirs), copies=((0, 99),), map_begin=12)
    differ = {(one.kind.value, one.target_offset) for one in found.differences}
    assert differ == {("changed", 4), ("doubled", 9), ("extra", 22)}
    assert [(one.kind, one.target_offset) for one in found.undecided] == [("extra", 0)]
    assert (found.undecided_total, found.undecided[0].undecided) == (1, UndecidedReason.BEFORE_MAP)


def test_a_gap_and_deleted_beginnings_are_explained() -> None:
    records = some_records(100)
    log = log_of(records)
    assert compare(log, [*log[:30], *log[40:]], gaps=((30, 39),)).differences_total == 0
    found = compare(log, log[30:], may_begin_later=(False, True))
    assert [(one.first, one.last, one.reason) for one in found.explained] == [(0, 29, RangeReason.RETENTION_TARGET)]
    assert found.differences_total == 0
    found = compare(log[30:], log, may_begin_later=(True, False))
    assert [(one.first, one.last, one.reason) for one in found.explained] == [(0, 29, RangeReason.RETENTION_SOURCE)]
    assert compare(log, log[30:]).differences_total == 30


@pytest.mark.parametrize("deleted", [[(0, 100)], [(0, 170)], [(20, 40), (60, 90)], [(0, 9000)], [(50, 12_000)]])
@pytest.mark.parametrize("side", [0, 1])
def test_what_retention_deletes_meanwhile_is_explained(side: int, deleted: Deleted) -> None:
    """It may delete more than can be aligned, in several steps, and more than the range."""
    log = log_of(some_records(100 if deleted[-1][1] < 200 else 10_000))
    gone: list[Deleted] = [(), ()]
    gone[side] = deleted
    found = compare(log, log, sizes=(100, 100), deleted=(gone[0], gone[1]))
    assert found.differences == []
    reasons = (RangeReason.RETENTION_SOURCE, RangeReason.RETENTION_TARGET)
    assert {one.reason for one in found.explained} == {reasons[side]}
    assert found.records == sum(not any(first <= at < end for first, end in deleted) for at, _ in log)


def test_retention_elsewhere_does_not_explain_a_missing_record() -> None:
    log = log_of(some_records(100))
    found = compare(log, [*log[:50], *log[51:]], deleted=([(0, 10)], [(0, 10)]))
    assert [named(one) for one in found.differences] == [("missing", 50, None, ())]


def test_more_than_can_be_aligned_is_named_as_what_it_is() -> None:
    records = some_records(12_000)
    log = log_of(records)
    found = compare(log, [*log[:1000], *log[7000:]], sizes=(100, 100))
    assert {(one.kind, one.what[:9]) for one in found.differences} == {("missing", "key 'k100")} | {
        ("missing", f"key 'k10{at}") for at in range(1, 10)
    }
    assert (found.differences_total, found.records) == (6000, 6000)
    found = compare(log, log_of([*records[:7000], *records[1000:]]), sizes=(100, 100))
    assert {one.kind for one in found.differences} == {"doubled"}
    assert (found.differences_total, found.records) == (6000, 12_000)
    foreign = [Rec(None, b"foreign %d" % at, NOW_MS) for at in range(6000)]
    theirs = log_of([*records[:1000], *foreign, *records[1000:]])
    found = compare(log, theirs, sizes=(100, 100), copies=((0, 1000), (7000, 18_000)))
    assert (found.differences, found.records) == ([], 12_000)


def test_a_topic_that_began_to_set_timestamps_itself_is_equal() -> None:
    log = log_of(some_records(60))
    missing = [one for one in log if one[0] != 15]
    theirs = [(at, one._replace(timestamp_ms=NOW_MS * 2, has_own_time=True) if at > 30 else one) for at, one in missing]
    found = compare(log, theirs)
    assert [named(one) for one in found.differences] == [("missing", 15, None, ())]


@pytest.mark.parametrize("seed", range(10))
def test_compacted_logs_are_compared_by_the_last_value_of_each_key(seed: int) -> None:
    """Each side is cleaned by itself, up to another place, and has lost tombstones."""
    chance = random.Random(seed)
    records = []
    for at in range(2000):
        key = b"k%d" % chance.randrange(80)
        records.append(Rec(key, None if chance.random() < 0.1 else chance.randbytes(12), NOW_MS + at))
    log = log_of(records)
    ours, theirs = (cleaned(log, chance.randrange(2000)) for _ in range(2))
    both = {"is_compacted": (True, True), "target_end": 2000, "end": 2000, "due": 2000}
    assert compare(ours, theirs, **both).differences == []  # type: ignore[arg-type]
    last = {one.key: offset for offset, one in log}
    offset = chance.choice([at for at, one in theirs if last[one.key] == at and one.value is not None])
    damaged = [(at, one._replace(value=b"other") if at == offset else one) for at, one in theirs]
    found = compare(ours, damaged, **both)  # type: ignore[arg-type]
    assert [named(one) for one in found.differences] == [("changed", offset, offset, ("value",))]
    missing = [one for one in theirs if one[0] != offset]
    found = compare(ours, missing, **both)  # type: ignore[arg-type]
    assert [(one.kind, one.source_offset) for one in found.differences] == [("missing", offset)]


def cleaned(log: Log, to: int) -> list[tuple[int, Rec]]:
    """Return what a cleaner leaves of the log: up to an offset only the last record of each key, and no tombstone."""
    last = {one.key: offset for offset, one in log if offset < to}
    return [(offset, one) for offset, one in log if offset >= to or (last[one.key] == offset and one.value is not None)]


def test_a_cleaner_that_works_meanwhile_is_explained() -> None:
    """A record that came after the end was read lets it remove an earlier one."""
    log = log_of([Rec(b"k%d" % (at % 9), b"%d" % at, NOW_MS + at) for at in range(12)])
    theirs = [one for one in log if one[0] != 1]
    found = compare(log, theirs, is_compacted=(True, True), end=9, target_end=9, due=9)
    assert found.differences == []
    assert [(one.first, one.reason) for one in found.explained] == [(1, RangeReason.COMPACTED)]


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_decompression_bomb_is_refused(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = batch_of(log_of([Rec(None, b"0" * 200_000, NOW_MS)]), codec)
    monkeypatch.setattr("connect.wire.records.MOST_BYTES", 100_000)
    with pytest.raises(PermanentError, match=r"a log: the batch at offset 0 cannot be read: .*exceeds"):
        decoded(bomb, "a log")
