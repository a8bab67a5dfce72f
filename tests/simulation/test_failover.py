"""A thousand schedules of a failover and its undo, and what they find if a guard is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from connectors.failover import clusters_and_lease, execute, failback_and_undo
from tests.kit.virtual_time import run
from tests.simulation.failover_world import World, play, simulate

SCHEDULES: Final = 300


def found_in(
    seeds: int, monkeypatch: pytest.MonkeyPatch, *, ends_at_first: bool = False
) -> tuple[dict[int, list[str]], int, int]:
    """Faults by seed, and how many groups were moved and taken back."""
    faults, moves, undone = {}, 0, 0
    for seed in range(seeds):
        world = World(seed)
        with monkeypatch.context() as patched:
            simulate(patched, world)
            run(play(world))
        if world.faults_found:
            faults[seed] = world.faults_found
            if ends_at_first:
                break
        moves, undone = moves + world.moves, undone + world.undone
    return faults, moves, undone


@pytest.mark.parametrize("schedules", [SCHEDULES, pytest.param(1000, marks=pytest.mark.long)])
def test_no_newer_commit_is_changed_and_no_record_is_skipped(schedules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, moves, undone = found_in(schedules, monkeypatch)
    assert faults == {}
    assert moves > 0.8 * schedules and undone > schedules / 20, f"it is about something: {moves}, {undone}"


async def nothing(*_: Any) -> Any:
    return []


def never(*_: Any) -> str:
    return ""


MUTANTS: Final[Mapping[str, tuple[Any, str, Any]]] = {
    "without the compare-and-set": (execute.GroupMover, "_why_not", nothing),
    "without the claim of the writers": (clusters_and_lease, "gather_limited", nothing),
    "with an undo by partition": (failback_and_undo, "why_kept", never),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_that_is_left_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    faults, _, _ = found_in(1000, monkeypatch, ends_at_first=True)
    assert faults
