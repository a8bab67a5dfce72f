"""The fault run's plan, and what a run must have done before it may say that all is well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.fault_plan import WEATHER, Kind, Side, plan, wanted
from tests.kit.faults import FaultResult, RunReport, unproven
from tests.kit.pipe import Direction

EVERY = {(kind, side) for kind in Kind for side in Side}


@given(st.integers(0, 2**32))
def test_every_kind_comes_at_each_side_first_and_in_each_direction_then(seed: int) -> None:
    faults = plan(seed, 28)
    assert {(fault.kind, fault.side) for fault in faults[:14]} == EVERY
    assert {(fault.kind, fault.side) for fault in faults[14:]} == EVERY
    both_ways = {(fault.kind, fault.side, fault.direction) for fault in faults}
    for kind, side in EVERY - {(Kind.UNANSWERED, side) for side in Side}:
        assert {(kind, side, direction) for direction in Direction} <= both_ways
    assert all(fault.direction is Direction.ANSWERS for fault in faults if fault.kind is Kind.UNANSWERED)
    assert not any(fault.copying for fault in faults if fault.kind in WEATHER)
    assert [fault.number for fault in faults] == list(range(1, 29))
    assert plan(seed, 60)[:28] == faults


def test_plans_differ_by_seed() -> None:
    assert len({tuple(plan(seed, 14)) for seed in range(50)}) == 50


def test_a_fault_says_what_it_does() -> None:
    for fault in plan(1, 28):
        assert fault.kind.value in str(fault)
        assert f"to the {fault.side.value}" in str(fault)


def a_report(*, in_flight_bytes: int = 5, settled: int = 1, rounds: int = 14) -> RunReport:
    played = [
        FaultResult(fault.number, str(fault), fault.kind.name, fault.side.name, 0.0, in_flight_bytes, settled=settled)
        for fault in plan(1, rounds)
    ]
    return RunReport(1, played)


def test_a_run_that_met_bytes_everywhere_and_had_to_ask_proves_something() -> None:
    assert unproven(a_report(), list(wanted(plan(1, 28)))) == []


@pytest.mark.parametrize(
    ("report", "missing"),
    [
        (a_report(rounds=13), "met no bytes"),
        (a_report(in_flight_bytes=0), "met no bytes"),
        (a_report(settled=0), "left a batch in doubt"),
    ],
)
def test_a_run_that_made_no_difference_proves_nothing(report: RunReport, missing: str) -> None:
    found = unproven(report, list(wanted(plan(1, 28))))
    assert found
    assert all(missing in one for one in found)
