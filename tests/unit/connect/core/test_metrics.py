"""Counts and times over a moving window, as Kafka's ``SampledStat`` has them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from connect.core.metrics import SAMPLES, WINDOW_MS, Windowed


def test_nothing_recorded_is_no_number_and_no_rate() -> None:
    empty = Windowed()
    assert math.isnan(empty.mean(0))
    assert math.isnan(empty.most(0))
    assert math.isnan(empty.least(0))
    assert empty.rate(0) == 0.0
    empty.record(1, 0)
    assert math.isnan(empty.mean(SAMPLES * WINDOW_MS)), "it is over"


@given(st.lists(st.tuples(st.integers(0, 5_000), st.floats(-1e6, 1e6)), min_size=1, max_size=60))
def test_it_agrees_with_all_values_kept(recorded: list[tuple[int, float]]) -> None:
    """Against a twin that keeps every value with the time at which its sample began."""
    one, kept, began_ms, now_ms = Windowed(), list[tuple[int, float]](), -WINDOW_MS, 0
    for wait_ms, value in recorded:
        now_ms += wait_ms
        one.record(value, now_ms)
        began_ms = now_ms if now_ms - began_ms >= WINDOW_MS else began_ms
        kept.append((began_ms, value))
    values = [value for began, value in kept if now_ms - began < SAMPLES * WINDOW_MS]
    assert one.most(now_ms) == max(values)
    assert one.least(now_ms) == min(values)
    assert math.isclose(one.mean(now_ms), sum(values) / len(values), abs_tol=1e-6)
