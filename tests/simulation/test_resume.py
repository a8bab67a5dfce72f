"""Successors of one partition: 0 lost, reordered or unannounced twice, and whether each rule is needed for that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.resume import Fingerprint, TargetScan
from connectors.formats.types import ProducerIdAndEpoch
from connectors.source.positions import stored_positions
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.stored_positions import Predecessors
from tests.simulation.conftest import seeds
from tests.simulation.resume_world import play

_AT_ONCE = 50
_MOST_SEEDS = 40


@pytest.fixture(autouse=True)
def _quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(100)


@pytest.mark.parametrize("first", seeds(100, 300, _AT_ONCE))
def test_nothing_is_lost_reordered_or_doubled_unannounced(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        play(seed)


def test_a_seed_plays_the_same_twice() -> None:
    once, again = play(7), play(7)
    assert (once.story, once.target.history) == (again.story, again.target.history)


def test_the_model_reaches_what_it_is_for() -> None:
    """Else it proves nothing: runs that were resumed exactly, that fell back, that stopped."""
    worlds = [play(seed) for seed in range(80)]
    stories = "".join(line for world in worlds for line in world.story)
    assert sum(bool(world.announced) for world in worlds) > 5
    assert "fallback=''" in stories
    assert "is_fenced=False" in stories or "transactional_id=''" in stories
    assert sum(bool(world.stopped) for world in worlds) < len(worlds) / 5
    assert any("was claimed" in line for world in worlds for line in world.story)


def _no_second_look(patch: pytest.MonkeyPatch) -> None:
    fence_predecessors = Predecessors.fence_predecessors

    async def mutated(self: Predecessors, starts: Any, read: Any, claim: Any) -> Any:
        async def as_before(partitions: Collection[Any]) -> Any:
            return {one: starts[one] for one in partitions}

        return await fence_predecessors(self, starts, as_before, claim)

    patch.setattr(Predecessors, "fence_predecessors", mutated)


def _nobody_names_itself(patch: pytest.MonkeyPatch) -> None:
    fence_predecessors = Predecessors.fence_predecessors

    async def mutated(self: Predecessors, starts: Any, read: Any, claim: Any) -> Any:
        async def nothing(*_: object) -> None: ...

        return await fence_predecessors(self, starts, read, nothing)

    patch.setattr(Predecessors, "fence_predecessors", mutated)


def _store_not_fenced(patch: pytest.MonkeyPatch) -> None:
    async def mutated(self: Predecessors, name: str) -> None: ...

    patch.setattr(Predecessors, "_claim", mutated)


def _no_marker_awaited(patch: pytest.MonkeyPatch) -> None:
    """A leader that is behind is taken at its word."""
    scan = TargetScan.take

    def taken(self: TargetScan, fetched: memoryview, position: int) -> int:
        following = scan(self, fetched, position)
        self.is_over = True
        return following

    patch.setattr(TargetScan, "take", taken)


def _holes_are_passed(patch: pytest.MonkeyPatch) -> None:
    take = TargetScan._take

    def mutated(self: TargetScan, header: Any, batch: memoryview) -> None:
        self.end = max(self.end, header.base_offset)
        take(self, header, batch)

    patch.setattr(TargetScan, "_take", mutated)


def _nothing_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fingerprint, "equals", lambda *_, **__: True)


def _renumbered_while_in_doubt(patch: pytest.MonkeyPatch) -> None:
    split_or_skip = PartitionCopier.split_or_skip

    def mutated(self: PartitionCopier) -> None:
        for outgoing in self._queue:
            outgoing.is_doubtful = False
        split_or_skip(self)

    patch.setattr(PartitionCopier, "split_or_skip", mutated)


def _another_log_is_scanned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TargetScan, "_is_last_stored", lambda *_: True)


def _epoch_is_not_raised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerIdAndEpoch, "raised", lambda _: None)


def _late_records_are_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "late_records", lambda *_: 0)


def _first_batch_is_not_alone(patch: pytest.MonkeyPatch) -> None:
    init = PartitionCopier.__init__

    def mutated(self: PartitionCopier, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        self.pipelined = True

    patch.setattr(PartitionCopier, "__init__", mutated)


def _first_positions_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stored_positions, "is_unowned", lambda _: False)


#: Each with a seed near which it shows; ``make measure ARGS="resume_model --mutants N"`` looks for others.
MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], int]] = [
    (_no_second_look, 800),
    (_nobody_names_itself, 100),
    (_store_not_fenced, 60),
    (_first_positions_are_not_checked, 0),
    (_no_marker_awaited, 0),
    (_holes_are_passed, 530),
    (_nothing_is_compared, 0),
    (_renumbered_while_in_doubt, 1430),
    (_another_log_is_scanned, 1830),
    (_epoch_is_not_raised, 630),
    (_late_records_are_not_announced, 1490),
    (_first_batch_is_not_alone, 0),
]


@pytest.mark.parametrize(("mutant", "near"), MUTANTS)
def test_without_a_rule_the_judge_finds_a_counterexample(
    mutant: Callable[[pytest.MonkeyPatch], None], near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        _play_from(near)


def _play_from(first: int) -> None:
    for seed in range(first, first + _MOST_SEEDS):
        play(seed)
