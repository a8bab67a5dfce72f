"""How far a flow is behind, from offsets and sizes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.flow_progress import PartitionLag, by_topic, furthest, lag_of, together


def lag(position: int, start: int, end: int, size: int = 1000) -> PartitionLag:
    return lag_of("orders", 0, "us.orders", position, start, end, size)


def test_all_that_is_copied_leaves_nothing() -> None:
    assert lag(100, 0, 100) == PartitionLag("orders", 0, "us.orders", 100, 100, 0)
    assert together([lag(100, 0, 100)]) == together([lag(0, 0, 0, 0)])


def test_what_waits_and_what_is_gone() -> None:
    one = lag(20, 27, 60)
    assert (one.records, one.lost, one.bytes, one.ms) == (33, 7, 1000, -1)
    assert lag(50, 0, 100).bytes == 500
    assert lag(50, 0, 100, -1).bytes == -1
    assert (lag(50, 60, 60).records, lag(50, 60, 60).lost) == (0, 10)


def test_a_source_that_has_less_than_was_copied_is_not_behind() -> None:
    assert (lag(100, 0, 60).records, lag(100, 0, 60).lost) == (0, 0)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(-1, 10_000))
def test_as_counted_one_by_one(position: int, start: int, length: int, size: int) -> None:
    end = start + length
    one = lag(position, start, end, size)
    assert one.records == sum(offset >= position for offset in range(start, end))
    assert one.lost == sum(offset < start for offset in range(position, min(start, end)))
    assert -1 <= one.bytes <= max(size, 0)


def test_sums_and_who_is_furthest() -> None:
    most = replace(lag(0, 0, 90), topic="b", ms=5)
    least = replace(lag(80, 0, 90), topic="a", ms=70)
    idle = replace(lag(90, 0, 90), topic="a", partition=1)
    whole = together([least, most, idle])
    assert (whole.partitions, whole.records, whole.ms) == (3, 100, 70)
    assert furthest([least, idle, most], 5) == [most, least]
    assert furthest([least, idle, most], 1) == [most]
    assert [(topic, one.records) for topic, one in by_topic([most, least, idle]).items()] == [("a", 10), ("b", 90)]
