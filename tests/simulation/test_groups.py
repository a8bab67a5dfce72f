"""Whole groups under crashes, freezes and cuts, and what the judge sees; ``python -m tests.simulation --seed N``."""

import pytest

from connect.core.config_topic import commit_record, task_records
from connect.core.herder import rebalance, running_work, task_configs
from connect.core.herder.events import LeaseLost
from connect.core.herder.herder import Herder
from connect.core.herder.state import HerderMode
from tests.simulation.conftest import seeds
from tests.simulation.judge import Judge, Violation
from tests.simulation.play import Play
from tests.simulation.process import Process

_AT_ONCE = 60


@pytest.mark.parametrize("first", seeds(360, 1_200, _AT_ONCE))
def test_groups_keep_their_promises(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        Play(seed).run()


def test_a_seed_plays_the_same_twice() -> None:
    once, again = Play(8), Play(8)
    once.run()
    again.run()
    assert len(once.world.story) > 20
    assert once.world.story == again.world.story


def _is_broken(by: str, most: int = 400) -> bool:
    """Whether the judge says this of one of the first seeds."""
    for seed in range(most):
        try:
            Play(seed).run()
        except Violation as violation:
            if by in str(violation).splitlines()[0]:
                return True
    return False


def test_the_judge_sees_work_that_outlives_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The herder is not told."""
    monkeypatch.setattr(Judge, "between", lambda judge: None)
    step = Herder.step
    monkeypatch.setattr(Herder, "step", lambda h, event, ms: [] if isinstance(event, LeaseLost) else step(h, event, ms))
    assert _is_broken("outlived its lease")


def test_the_judge_sees_work_that_starts_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was frozen while it joined, holding nothing, takes what it is given."""
    lost = rebalance.lost
    monkeypatch.setattr(
        rebalance,
        "lost",
        lambda s, reason: (
            None if s.mode is HerderMode.JOINING and not (s.held and s.held.freeze()) else lost(s, reason)
        ),
    )
    assert _is_broken("without a lease")


def test_the_judge_sees_two_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes on although the group has dropped us: neither driver nor herder ends it."""
    monkeypatch.setattr(Judge, "between", lambda judge: None)
    monkeypatch.setattr(Process, "_give_up", Process.put)
    monkeypatch.setattr(running_work, "stop_all", lambda s: s.held is not None and s.held.clear())
    assert _is_broken("owners at once")


def test_the_judge_sees_work_that_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_work, "revoke", lambda s, revoked: None)
    assert _is_broken("never calm")


def test_the_judge_sees_tasks_that_run_on_with_an_old_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_work, "reconfigure", lambda s, connector: None)
    assert _is_broken("never calm")


def test_the_judge_sees_tasks_committed_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        task_configs,
        "steps",
        lambda connector, configs: ((commit_record(connector, len(configs)),), task_records(connector, configs)),
    )
    assert _is_broken("never calm: the tasks of")


def test_the_judge_sees_acknowledged_configs_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is acknowledged before it is there."""
    asked = Play._ask

    def ask(self, operation, written, hops=2, url=None):
        for each in written:
            each.acknowledged, each.end_ms = True, self.world.now_ms
        asked(self, operation, written, hops, url)

    monkeypatch.setattr(Play, "_ask", ask)
    assert _is_broken("was acknowledged")
