"""How much is asked of a connection at once: as much as it moves in five seconds, in as many requests as are of use."""

from __future__ import annotations

from collections import deque

import pytest

from connectors.dataplane.leader_connections import Pace, Turns

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


def answers(turns: Turns, trip_s: float, service_s: float, count: int, now_s: float = 0.0) -> float:
    """A broker that is ``trip_s`` away takes ``service_s`` for each request, and always has as many as it may.

    Returns the time behind ``count`` answers.
    """
    sent_s = [now_s] * turns.limit
    free_s = 0.0
    for _ in range(count):
        begun_s = sent_s.pop(0)
        free_s = max(free_s, begun_s + trip_s / 2) + service_s
        now_s = free_s + trip_s / 2
        turns.answered(begun_s, now_s, len(sent_s) + 1, MIB)
        sent_s += [now_s] * (turns.limit - len(sent_s))
    return now_s


@pytest.mark.parametrize(
    ("trip_s", "service_s", "least", "most"),
    [
        pytest.param(0.001, 0.004, 3, 9, id="replicated"),
        pytest.param(0.0001, 0.0001, 64, 64, id="fast"),
        pytest.param(0.1, 0.004, 24, 34, id="distant"),
        pytest.param(0.1, 0.0005, 64, 64, id="distant and fast"),
        pytest.param(0.0, 0.5, 2, 4, id="slow"),
    ],
)
def test_requests_under_way_fill_the_trip_and_a_moment(trip_s: float, service_s: float, least: int, most: int) -> None:
    turns = Turns(64)
    answers(turns, trip_s, service_s, 500)
    assert least <= turns.limit <= most


def test_a_request_costs_what_it_takes_divided_by_what_is_under_way() -> None:
    turns = Turns(64)
    answers(turns, 0.001, 0.004, 500)
    assert turns.request_s == pytest.approx(0.004, rel=0.2)


def test_a_broker_that_becomes_slower_for_good_is_given_no_less_than_a_slow_one() -> None:
    turns = Turns(64)
    now_s = answers(turns, 0.0001, 0.0001, 1000)
    assert turns.limit == 64
    now_s = answers(turns, 0.03, 0.002, 200, now_s)
    assert turns.limit == 2
    answers(turns, 0.03, 0.002, 2000, now_s)
    assert turns.limit >= 15


def test_few_requests_say_nothing_of_how_many_there_may_be() -> None:
    turns = Turns(64)
    for second in range(100):
        turns.answered(second, second + 0.001, 1, MIB)
    assert turns.limit == 8


def test_small_requests_among_large_ones_on_a_slow_link_say_nothing() -> None:
    """A link of 6 MB/s at 200 ms: 600 KB take 100 ms longer than 5 KB though neither waits for another."""
    turns = Turns(64)
    waiting: deque[tuple[float, int]] = deque()
    now_s = free_s = 0.0
    for number in range(1000):
        while len(waiting) < turns.limit:
            size = 5_000 if (number + len(waiting)) % 10 == 0 else 600_000
            waiting.append((now_s, size))
        sent_s, size = waiting.popleft()
        free_s = max(free_s, sent_s) + size / 6e6
        now_s = max(now_s, free_s + 0.2)
        turns.answered(sent_s, now_s, len(waiting) + 1, size)
    assert turns.limit >= 3, "as much as the link holds"


@pytest.mark.parametrize(
    ("trip_s", "service_s", "least", "most"),
    [
        pytest.param(0.001, 0.010, 1, 1, id="replicated"),
        pytest.param(0.1, 0.010, 8, 14, id="distant"),
        pytest.param(0.1, 0.0005, 64, 64, id="distant and fast"),
    ],
)
def test_without_a_backlog_no_request_waits_for_another(trip_s: float, service_s: float, least: int, most: int) -> None:
    turns, seen = Turns(64), list[int]()
    now_s = free_s = 0.0
    sent_s = deque([now_s] * turns.unqueued)
    for _ in range(3000):
        begun_s = sent_s.popleft()
        free_s = max(free_s, begun_s + trip_s / 2) + service_s
        now_s = free_s + trip_s / 2
        turns.answered(begun_s, now_s, len(sent_s) + 1, MIB)
        sent_s.extend([now_s] * (turns.unqueued - len(sent_s)))
        seen.append(turns.unqueued)
    usual = sorted(seen[1000:])[1000]
    assert least <= usual <= most
