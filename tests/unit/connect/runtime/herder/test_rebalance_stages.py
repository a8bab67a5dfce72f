"""What a worker says it is doing, in Java's sentences."""

from __future__ import annotations

import pytest

from connect.runtime.herder.rebalance_stages import Rebalances, Stages


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.now_ms += 1000
        return self.now_ms


def test_what_is_done_and_what_was_done_last() -> None:
    stages = Stages(Clock())
    assert stages.sentence() is None
    with stages.doing("starting the connector"):
        assert stages.sentence() == (
            "The worker is currently starting the connector, which began at 2023-11-14T22:13:21.000Z."
        )
    assert stages.sentence() == (
        "The last operation the worker completed was starting the connector, which began at 2023-11-14T22:13:21.000Z "
        "and completed at 2023-11-14T22:13:22.000Z."
    )


def test_a_stage_within_another_hides_it_until_it_ends_however_it_ends() -> None:
    stages = Stages(Clock())

    def fail() -> None:
        with stages.doing("reading to the end of the config topic"):
            assert "reading to the end" in str(stages.sentence())
            raise ValueError("x")

    with stages.doing("ensuring membership in the cluster"):
        with pytest.raises(ValueError, match="x"):
            fail()
        assert "currently ensuring membership" in str(stages.sentence())


def test_rebalances_are_counted_and_timed_from_their_begin() -> None:
    rounds = Rebalances()
    for now_ms in (1000, 1500):
        rounds.begin(now_ms)
    for now_ms in (3000, 4000):
        rounds.end(now_ms)
    assert (rounds.completed, rounds.began_ms, rounds.ended_ms) == (2, None, 4000)
    assert (rounds.took_ms.recorded, rounds.took_ms.most(4000)) == (1, 2000)
