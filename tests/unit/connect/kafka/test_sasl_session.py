"""When a session has to be proven anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.framing_and_sasl import due_after_ms


@pytest.mark.parametrize(
    ("lifetime_ms", "share", "due_ms"),
    [
        (3_600_000, 0.85, 3_060_000),
        (3_600_000, 0.95, 3_420_000),
        (60_000, 0.95, 50_000),  # a long poll before it must be over
        (3_000, 0.85, 1_500),
        (1_500, 0.85, 1_100),  # no broker takes two within a second
    ],
)
def test_it_leaves_time_for_what_is_under_way(lifetime_ms: int, share: float, due_ms: float) -> None:
    assert due_after_ms(lifetime_ms, share) == due_ms


@given(st.integers(1_300, 10**9), st.floats(0.85, 0.95))
def test_it_is_before_the_end(lifetime_ms: int, share: float) -> None:
    assert due_after_ms(lifetime_ms, share) < lifetime_ms
