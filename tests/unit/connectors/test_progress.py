"""How far behind a partition is, from a look at its source and from what its task tells since."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.flow_progress import LagSnapshot, PartitionLag, PartitionView, Resting, lag_of
from connectors.formats.types import FlowName, TopicPartition

SOURCE = TopicPartition("orders", 0)
VIEW = PartitionView("orders", 0, "us.orders", 0, "running", 0, 0, {}, 60, 100, 40, 5_000)
RESTING = Resting(0, SOURCE, "us.orders", "paused")


def seen(lag: PartitionLag) -> LagSnapshot:
    return LagSnapshot(FlowName("us", "eu"), 1_000, {SOURCE: lag}, (RESTING,))


def test_what_stood_still_grows_older_and_what_moved_is_as_old_as_what_was_copied_last() -> None:
    looked = seen(replace(lag_of("orders", 0, "us.orders", 60, 0, 90, 900), ms=7_000))
    unmoved = looked.lag_of(VIEW, 3_000)
    assert unmoved is not None
    assert (unmoved.records, unmoved.bytes, unmoved.ms) == (40, 400, 9_000)
    moved = looked.lag_of(replace(VIEW, next_source_offset=80), 3_000)
    assert moved is not None
    assert (moved.records, moved.bytes, moved.ms) == (20, 200, 5_000)


def test_a_stopped_partition_is_behind_the_end_that_was_seen() -> None:
    looked = seen(replace(lag_of("orders", 0, "us.orders", 60, 70, 500, 4_300), ms=1))
    lag = looked.lag_of(replace(VIEW, state="source-gap"), 1_000)
    assert lag is not None
    assert (lag.end, lag.records, lag.lost) == (500, 430, 10)


def test_a_partition_whose_task_does_not_run_is_as_it_was_seen() -> None:
    looked = seen(replace(lag_of("orders", 0, "us.orders", 60, 0, 90, 900), ms=7_000))
    lag = looked.resting_lag(RESTING, 2_500)
    assert lag is not None
    assert (lag.records, lag.bytes, lag.ms) == (30, 300, 8_500)
    assert looked.resting_lag(replace(RESTING, source=TopicPartition("new", 0)), 2_500) is None


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_at_rest_nothing_is_behind(position: int, seen_end: int, more: int) -> None:
    end = seen_end + more
    looked = seen(lag_of("orders", 0, "us.orders", min(position, seen_end), 0, seen_end, 900))
    lag = looked.lag_of(replace(VIEW, next_source_offset=end, source_end_offset=end), 2_000)
    assert lag is not None
    assert (lag.records, lag.bytes, lag.ms) == (0, 0, 0)
