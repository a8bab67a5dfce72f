"""Which failover the status names as the cause that a flow is stopped."""

from __future__ import annotations

from connectors.failover.journal import FailoverRun, GroupBefore, RunState, last_move

MOVED = {"billing": (GroupBefore("billing", "us.orders", 0, None, "", 120),)}


def run_of(name: str, updated_ms: int, state: RunState, *, moves: bool) -> FailoverRun:
    return FailoverRun(name, "us", "eu", "", "", updated_ms, state, MOVED if moves else {})


def test_a_failover_that_found_all_groups_in_place_stops_a_flow_too() -> None:
    done = run_of("1", 1, RunState.DONE, moves=False)
    assert last_move([done]) is done


def test_an_undo_takes_back_what_changed_nothing_since() -> None:
    first, again = run_of("1", 3, RunState.UNDONE, moves=True), run_of("2", 2, RunState.DONE, moves=False)
    assert last_move([first, again]) is None


def test_a_move_before_the_one_that_was_undone_still_counts() -> None:
    first, undone = run_of("1", 1, RunState.DONE, moves=True), run_of("2", 2, RunState.UNDONE, moves=True)
    assert last_move([first, undone]) is first
