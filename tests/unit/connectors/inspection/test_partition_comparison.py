"""The record-by-record comparison, against a naive twin and by examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.inspection.partition_comparison import (
    ABBREVIATED_CHARS,
    ComparedSide,
    IdAudit,
    Partition,
    PartitionComparison,
    abbreviate,
)


@dataclass(frozen=True)
class Rec:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records(count: int, start: int = 0) -> list[Rec]:
    return [Rec(start + i, 1000 + i, b"k%d" % i, b"v%d" % i, (("h", b"%d" % i),)) for i in range(count)]


def batched(items: Sequence[Rec], size: int) -> Iterator[Sequence[Rec]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def compared(source: Sequence[Rec], target: Sequence[Rec], piece: int = 3) -> PartitionComparison:
    """A whole comparison, fed alternately in pieces."""
    comparison = PartitionComparison(Partition("orders", 3), Partition("us.orders", 3))
    for ours, theirs in zip_longest(batched(source, piece), batched(target, piece), fillvalue=()):
        comparison.feed(ComparedSide.SOURCE, ours)
        comparison.feed(ComparedSide.TARGET, theirs)
    comparison.end(ComparedSide.SOURCE)
    comparison.end(ComparedSide.TARGET)
    assert comparison.complete
    return comparison


def test_equal_logs_with_other_offsets_are_equal() -> None:
    comparison = compared(records(10), records(10, start=50))
    assert comparison.difference is None
    assert comparison.records == 10
    assert comparison.backlog(ComparedSide.SOURCE) == comparison.backlog(ComparedSide.TARGET) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("key", b"x"), ("key", None), ("value", b""), ("timestamp", 1), ("headers", ()), ("headers", (("h", None),))],
)
def test_the_first_differing_field_is_named(field: str, value: object) -> None:
    target = records(10, start=50)
    target[4] = replace(target[4], **{field: value})  # type: ignore[arg-type]
    difference = compared(records(10), target).difference
    assert difference is not None
    assert (difference.field, difference.source_offset, difference.target_offset) == (field, 4, 54)
    assert str(difference).startswith(f"orders-3 at offset 4 and us.orders-3 at offset 54 differ in {field}: ")


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("missing", [0, 1, 2, 3]),
        ("extra", [0, 1, 2, 3, 4, 5, 0]),
        ("duplicate", [0, 1, 2, 3, 4, 5, 5]),
        ("duplicate", [0, 1, 1, 2, 3, 4, 5]),
        ("gap", [0, 1, 3, 4, 5]),
        ("order", [0, 2, 1, 3, 4, 5]),
    ],
)
def test_displaced_records_are_told_from_changed_ones(kind: str, order: list[int]) -> None:
    source = records(6)
    target = [replace(source[i], offset=at) for at, i in enumerate(order)]
    difference = compared(source, target, piece=100).difference
    assert difference is not None
    assert difference.field == kind


def test_a_field_that_is_left_out_is_not_compared() -> None:
    comparison = PartitionComparison(Partition("a", 0), Partition("b", 0), fields=("key", "value", "headers"))
    comparison.feed(ComparedSide.SOURCE, records(3))
    comparison.feed(ComparedSide.TARGET, [replace(record, timestamp=7) for record in records(3)])
    assert comparison.difference is None


def test_ids_are_counted_on_behind_a_difference() -> None:
    comparison = PartitionComparison(Partition("a", 0), Partition("b", 0), record_id=lambda record: record.timestamp)
    source = [Rec(i, i, None, b"v") for i in range(10)]
    comparison.feed(ComparedSide.SOURCE, source)
    comparison.feed(ComparedSide.TARGET, [source[i] for i in (0, 1, 3, 4, 5, 5, 8, 7, 9)])
    assert comparison.difference is not None
    assert not comparison.complete
    comparison.end(ComparedSide.SOURCE)
    comparison.end(ComparedSide.TARGET)
    counts = comparison.ids(ComparedSide.TARGET)
    assert counts is not None
    assert (counts.missing, counts.duplicated, counts.disordered, counts.last_id) == (2, 1, 1, 9)


@given(
    source=st.lists(st.integers(0, 3), max_size=30),
    target=st.lists(st.integers(0, 3), max_size=30),
    pieces=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_the_verdict_is_that_of_a_plain_comparison(
    source: list[int], target: list[int], pieces: tuple[int, int]
) -> None:
    ours = [Rec(i, 0, None, b"%d" % value) for i, value in enumerate(source)]
    theirs = [Rec(i, 0, None, b"%d" % value) for i, value in enumerate(target)]
    comparison = PartitionComparison(Partition("a", 0), Partition("b", 0))
    for ours_piece, theirs_piece in zip_longest(batched(ours, pieces[0]), batched(theirs, pieces[1]), fillvalue=()):
        comparison.feed(ComparedSide.SOURCE, ours_piece)
        comparison.feed(ComparedSide.TARGET, theirs_piece)
    comparison.end(ComparedSide.SOURCE)
    comparison.end(ComparedSide.TARGET)
    equal = 0
    while equal < min(len(source), len(target)) and source[equal] == target[equal]:
        equal += 1
    assert comparison.records == equal
    assert (comparison.difference is None) == (source == target)


@given(st.lists(st.integers(0, 30), max_size=60))
def test_id_counts_are_those_of_a_set(ids: list[int]) -> None:
    audit = IdAudit()
    for each in ids:
        audit.see(each)
    counts = audit.counts()
    highest = max(ids, default=-1)
    assert counts.last_id == highest
    assert counts.missing == len(set(range(highest + 1)) - set(ids))
    assert counts.duplicated == len(ids) - len(set(ids))
    seen: set[int] = set()
    disordered = 0
    for each in ids:
        disordered += each not in seen and each < max(seen, default=-1)
        seen.add(each)
    assert counts.disordered == disordered


@given(st.one_of(st.none(), st.binary(max_size=500), st.text(max_size=300).map(str.encode)))
def test_abbreviations_are_short_and_whole_values_stay_whole(value: bytes | None) -> None:
    shown = abbreviate(value)
    assert len(shown) <= ABBREVIATED_CHARS
    if value is not None and len(value) < 15:
        assert not shown.endswith("B")


def test_long_values_tell_their_size() -> None:
    assert abbreviate(b"a" * 5000).endswith("...5000B")
    assert abbreviate(b"\x00\xff") == repr(b"\x00\xff")
    assert abbreviate("é".encode()) == "'é'"
