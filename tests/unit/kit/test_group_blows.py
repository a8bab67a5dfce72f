"""The judges of a group run: who made records of another's task, and which numbers never came."""

from __future__ import annotations

import pytest

from tests.kit.group_faults import strays_of
from tests.kit.number_watch import Stamp, missing


def made(workers: str) -> list[Stamp]:
    """One record a second, by each of these workers in turn."""
    return [Stamp(second, second, second, worker) for second, worker in enumerate(workers)]


@pytest.mark.parametrize(
    ("workers", "times"),
    [
        ("", []),
        ("aaabbb", []),
        ("aaabbbaaa", []),  # it got the task back
        ("bbbabbb", [3]),
        ("aabbabbbaa", [4]),
        ("bbaabbabb", [2, 3, 6]),
        ("bbacc", []),  # the task moved by way of it
    ],
)
def test_records_amid_those_of_another_worker_are_strays(workers: str, times: list[float]) -> None:
    assert [stray.made_s for stray in strays_of(made(workers), "a")] == times


def test_records_are_put_in_order_by_when_they_were_made() -> None:
    assert [stray.made_s for stray in strays_of(reversed(made("bbab")), "a")] == [2]


@pytest.mark.parametrize(("numbers", "count"), [([0, 1, 2], 0), ([0, 1, 1, 0, 2], 0), ([0, 3, 1], 1), ([2], 2)])
def test_a_number_that_never_came_is_missing_though_others_came_twice(numbers: list[int], count: int) -> None:
    assert missing(numbers) == count
