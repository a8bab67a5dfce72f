"""The judge of sequence numbers against a naive twin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.kit import marked
from tests.kit.sequences import SequenceTracker


def test_a_whole_log_has_no_fault() -> None:
    tracker = SequenceTracker()
    tracker.take(range(5))
    tracker.take([5])
    tracker.take([])
    assert (tracker.next_sequence, tracker.records, tracker.gaps, tracker.first_fault) == (6, 6, 0, "")


def test_each_fault_is_counted_once_and_the_first_is_named() -> None:
    tracker = SequenceTracker()
    tracker.take([0, 1, 4, 5], "eu.orders-0 from offset 9")
    tracker.take([3, 3, 1])
    assert (tracker.gaps, tracker.disorder, tracker.duplicates) == (1, 1, 2)
    assert tracker.first_fault == "eu.orders-0 from offset 9: 4 follows 1"
    assert tracker.missing == [(2, 3)]


def test_a_run_within_a_batch_that_skips_is_not_taken_for_whole() -> None:
    tracker = SequenceTracker()
    tracker.take([0, 2, 1, 3])
    assert (tracker.gaps, tracker.disorder) == (0, 1)


@given(st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=8))
def test_agrees_with_a_set(batches: list[list[int]]) -> None:
    tracker = SequenceTracker()
    seen: set[int] = set()
    duplicates = disorder = 0
    for batch in batches:
        tracker.take(batch)
        for sequence in batch:
            duplicates += sequence in seen
            disorder += sequence not in seen and bool(seen) and sequence < max(seen)
            seen.add(sequence)
    top = max(seen) + 1 if seen else 0
    assert (tracker.duplicates, tracker.disorder) == (duplicates, disorder)
    assert tracker.gaps == top - len(seen)
    assert tracker.next_sequence == top
    assert tracker.records == top - tracker.gaps + duplicates


@given(st.integers(0, 2**40), st.integers(8, 3000))
def test_a_marked_record_knows_itself_and_any_change_of_it(sequence: int, size_bytes: int) -> None:
    key, value, headers = marked.make(3, sequence, size_bytes, 1234)
    assert marked.KEY.unpack(key) == (3, sequence)
    assert len(value) == size_bytes
    assert marked.damage(sequence, value, 1234, headers) == ""
    assert marked.damage(sequence, value, 1235, headers)
    assert marked.damage(sequence, value[:-1] + b"!", 1234, headers)
    assert marked.damage(sequence, None, 1234, headers)
    assert marked.damage(sequence, value, 1234, [("other", b"")])
