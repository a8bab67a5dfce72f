"""The kill run's plan and its reading of the log."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.resumed import resumed
from tests.kit.rounds import HOLDING, KILLED, Moment, Path, plan


@given(st.integers(0, 2**32))
def test_a_plan_of_twenty_has_every_victim_and_every_path(seed: int) -> None:
    rounds = plan(seed, kills=20, stops=4)
    killed = [planned for planned in rounds if not planned.stop]
    assert Counter(planned.victim for planned in killed) == dict.fromkeys(KILLED, 5)
    assert Counter(planned.path for planned in rounds) == dict.fromkeys(Path, 6)
    assert {planned.path for planned in rounds if planned.stop} == set(Path)
    assert [planned.number for planned in rounds] == list(range(1, 25))
    for victim in KILLED:
        assert {planned.path for planned in killed if planned.victim is victim} == set(Path)
    assert plan(seed, kills=20, stops=4) == rounds


@given(st.integers(0, 2**32))
def test_a_frozen_broker_is_thawed_when_asked_for_nothing_else_can_happen(seed: int) -> None:
    for planned in plan(seed, kills=20, stops=4):
        assert (planned.release is Moment.ASKED) == (planned.path not in HOLDING)


def test_plans_differ_by_seed() -> None:
    assert len({tuple(plan(seed, 20, 4)) for seed in range(50)}) == 50


@pytest.mark.parametrize(
    ("rest", "surplus", "fallback"),
    [
        ("surplus 120 records, verified", 120, False),
        ("surplus_records=7 verdict=verified", 7, False),
        ("surplus=0", 0, False),
        ("at-least-once fallback, the last record is not in the source", 0, True),
        ("surplus 3 records, not verified: at least once", 3, True),
    ],
)
def test_resumed_lines_are_understood(rest: str, surplus: int, fallback: bool) -> None:
    lines = [
        "2026-01-01 00:00:00 INFO the flow us->eu begins",
        f"2026-01-01 00:00:00 INFO connectors.source.resume: resumed us->eu my-orders-3: {rest}",
    ]
    (found,) = resumed(lines)
    assert (found.flow, found.partition) == ("us->eu", "my-orders-3")
    assert (found.surplus_records, found.at_least_once) == (surplus, fallback)
