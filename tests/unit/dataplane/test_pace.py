"""How much is asked of a connection at once: as much as it moves in five seconds."""

from __future__ import annotations

from connectors.dataplane.pace import Pace

KIB, MIB = 1024, 1024 * 1024


def moved(pace: Pace, size: int, bytes_per_s: float, now_s: float = 0.0) -> float:
    """Move ``size`` bytes at a rate on an idle connection; return the time behind it."""
    pace.begin(now_s)
    now_s += size / bytes_per_s
    pace.moved(size, now_s, is_idle=True)
    return now_s


def test_a_fast_connection_has_all_it_may() -> None:
    pace = Pace(256 * KIB, 16 * MIB)
    assert pace.limit_bytes == 256 * KIB
    moved(pace, 256 * KIB, 100 * MIB)
    assert pace.limit_bytes == 16 * MIB


def test_a_slow_connection_has_what_it_moves_in_five_seconds() -> None:
    pace = Pace(256 * KIB, 16 * MIB)
    now_s = 0.0
    for _ in range(20):
        now_s = moved(pace, pace.limit_bytes, 500_000, now_s)
    assert pace.limit_bytes == 2_500_000


def test_the_rate_falls_with_the_connection_and_rises_at_once() -> None:
    pace = Pace(256 * KIB, 16 * MIB)
    now_s = moved(pace, MIB, 100 * MIB)
    for _ in range(10):
        now_s = moved(pace, MIB, 100_000, now_s)
    assert pace.limit_bytes < MIB
    moved(pace, MIB, 100 * MIB, now_s)
    assert pace.limit_bytes == 16 * MIB


def test_answers_that_come_together_are_one_sample() -> None:
    pace = Pace(1, 100 * MIB)
    pace.begin(0.0)
    for size in (100_000, 100_000, 100_000):
        pace.moved(size, 0.001, is_idle=False)
    assert pace.limit_bytes == 1
    pace.moved(100_000, 1.0, is_idle=False)
    assert pace.limit_bytes == 2_000_000


def test_the_least_is_never_above_the_most() -> None:
    assert Pace(256 * KIB, 10).limit_bytes == 10
