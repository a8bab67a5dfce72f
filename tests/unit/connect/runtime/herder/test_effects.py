"""What effects reach beside group and config topic."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.core.herder.events import StartTask
from connect.core.herder_api import ElsewhereError, NotLeader, Sign
from connect.core.model import TargetState, TaskId
from connect.runtime.herder.effects_and_fencing import EffectHandler, TaskOutdated
from connect.runtime.herder.loggers import Loggers
from tests.kit import virtual_time
from tests.kit.virtual_time import in_virtual_time


def made(**given: object) -> EffectHandler:
    """With nothing around it but what is given."""
    names = ("config", "core", "driver", "config_store", "statuses", "restarts", "fence", "internal", "loggers")
    parts: dict[str, Any] = {**dict.fromkeys(names), **given}
    return EffectHandler(**parts, worker_id="one:8083", now_ms=lambda: 0, changed=lambda: None)


def test_a_level_that_nobody_knows_is_left_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """It stands in the config topic, where every worker of the group reads it."""
    effect_handler = made(loggers=Loggers(lambda: 0))
    effect_handler.set_level("connect", "NONSENSE")
    assert "invalid log level 'NONSENSE'" in caplog.text


class Leaderless:
    """A group that agrees on another leader while older tasks are to be fenced off, and the task that waits for it:
    each attempt is refused with the next of ``refusals``."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = list(refusals)
        self.asked: list[str] = []
        #: Whom a request goes to: nobody known, another worker, ourselves.
        self.leaders = [None, "http://gone/", "http://new/", "http://new/", "us", "us", "us"]

    def signer(self) -> None:
        return None

    @property
    def is_leader(self) -> bool:
        return self.leaders[0] == "us"

    @property
    def leader_url(self) -> str | None:
        leader = self.leaders.pop(0)
        if leader is None:
            self.asked.append("nobody")
        return leader

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        self._ask(leader_url)

    async def fence(self, name: str) -> None:
        self._ask("ourselves")

    def _ask(self, whom: str) -> None:
        self.asked.append(whom)
        if self.refusals:
            raise self.refusals.pop(0)

    def before(self) -> Any:
        """What the start of a task awaits."""
        found: list[Any] = []
        self.snapshot = SimpleNamespace(
            connector_config=lambda name: {},
            task_config=lambda task: {},
            task_generation=lambda name: 1,
            task_count=lambda name: 1,
        )
        effect_handler = made(config=SimpleNamespace(exactly_once_enabled=True), core=self, fence=self, internal=self)
        effect_handler.worker = cast(Any, SimpleNamespace(start_task=lambda spec, _: found.append(spec.before)))
        effect_handler.start_task(StartTask(TaskId("c", 0), TargetState.STARTED))
        return found[0]


def test_older_tasks_are_fenced_off_by_whoever_comes_to_lead() -> None:
    group = Leaderless(RetriableError("no answer"), RetriableError("a round is under way"), NotLeader("not we", None))
    virtual_time.run(group.before()())
    assert group.asked == ["nobody", "http://gone/", "http://new/", "http://new/", "ourselves"]


@pytest.mark.parametrize("refusal", [RetriableError("no answer"), NotLeader("not we", None)], ids=repr)
def test_a_group_that_finds_no_leader_fails_the_task(refusal: Exception) -> None:
    group = Leaderless(*[refusal] * 1000)
    group.leaders = ["http://gone/"] * 1000
    with pytest.raises((RetriableError, ElsewhereError)):
        virtual_time.run(group.before()())
    assert 60 < len(group.asked) < 80


@in_virtual_time
async def test_a_leader_that_has_gone_silent_is_waited_for_until_another_leads() -> None:
    """Its answer may take long where it is busy, and what it was sent twice it would write twice."""

    class Silent:
        async def post_task_configs(self, leader_url: str, connector: str, configs: Any, sign: Sign | None) -> None:
            await asyncio.sleep(200)

    core = SimpleNamespace(signer=lambda: None)
    core.leader_url = "http://gone/"
    effect_handler = made(core=core, internal=Silent())
    sending = asyncio.create_task(effect_handler.send_task_configs("http://gone/", "c", [{}]))
    await asyncio.sleep(60)
    assert not sending.done()
    core.leader_url = None
    await asyncio.sleep(60)
    assert not sending.done()
    core.leader_url = "http://new/"
    async with asyncio.timeout(2):
        with pytest.raises(RetriableError, match="no longer leads"):
            await sending
    core.leader_url = "http://gone/"
    await effect_handler.send_task_configs("http://gone/", "c", [{}])


@pytest.mark.parametrize("generation", [1, 2])
def test_a_task_waits_until_the_config_topic_can_be_read_and_learns_whether_it_is_still_ours(generation: int) -> None:
    class Store:
        left = 3

        async def read_to_end(self, timeout_s: float) -> None:
            self.left -= 1
            if self.left:
                raise RetriableError("topic configs has no leader")

    async def turn() -> None: ...

    task, store = TaskId("c", 0), Store()
    core = SimpleNamespace(
        snapshot=SimpleNamespace(task_generation=lambda name: 1), assignment=SimpleNamespace(tasks=[task])
    )
    config, driver = SimpleNamespace(sync_timeout_ms=3000), SimpleNamespace(turn=turn)
    effect_handler = made(config=config, core=core, driver=driver, config_store=store)
    with nullcontext() if generation == 1 else pytest.raises(TaskOutdated):
        virtual_time.run(effect_handler._check_newest(task, generation))
    assert store.left == 0
