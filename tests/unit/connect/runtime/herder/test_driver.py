"""How effects are performed: in order, nothing of what is no longer ours, and nobody waits for an answer in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.core.herder import events
from connect.core.herder.events import Effect, Event
from connect.core.model import TargetState, TaskId
from connect.kafka import concurrency
from connect.runtime.herder.driver import HerderDriver, WorkerFailed
from connect.runtime.herder.rebalance_stages import Stages
from tests.kit.virtual_time import in_virtual_time

START = events.StartConnector("lines", TargetState.STARTED)
TASK = TaskId("lines", 0)
OF_LINES: list[Event] = [
    events.ScheduleAutoRestart("lines", 0),
    events.ScheduleAutoRestart(TASK, None),
    events.ConnectorFailed("lines"),
    events.TaskConfigsWanted("lines"),
    events.ScheduleAutoRestart("other", 0),
]


class Herder:
    """Answers each event as ``answers`` says by its class, and remembers what it was told."""

    def __init__(self, answers: dict[type, list[Effect]]) -> None:
        self.heard: list[Event] = []
        self._answers = answers
        self.is_stopping = False
        self.snapshot: Any = None

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        if not isinstance(event, events.Tick):
            self.heard.append(event)
        if isinstance(event, events.Stopping):
            self.is_stopping = True
            return [events.Leave("stopping")]
        return self._answers.get(type(event), [])

    def next_deadline_ms(self) -> None:
        return None


class Effects:
    """Remembers what was done, and is the worker and the group as well."""

    def __init__(self, hold: asyncio.Event | None = None) -> None:
        self.done: list[str] = []
        self._hold = hold

    def start_connector(self, effect: events.StartConnector) -> None:
        self.done.append(f"start {effect.name}")

    async def stop_work(self, connectors: tuple[str, ...], tasks: tuple[object, ...]) -> None:
        self.done.append("stopping")
        if self._hold is not None:
            await self._hold.wait()
        self.done.append("stopped")

    def shut_down(self, within_s: float) -> None:
        self.done.append(f"wind up within {within_s:g} s")

    def stepped(self) -> None: ...

    async def leave(self, reason: str) -> None:
        self.done.append("left")


def driven(herder: Herder, effect_handler: Effects) -> HerderDriver:
    driver = HerderDriver(
        cast(Any, herder), cast(Any, None), Stages(lambda: 0), lambda: 0, name="group g", last_grace_s=4.0
    )
    driver.connect(cast(Any, effect_handler), cast(Any, effect_handler), cast(Any, effect_handler))
    driver.start()
    return driver


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not seen():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def stopping(*effects: Effect) -> tuple[HerderDriver, Herder, Effects, asyncio.Event]:
    """In a round with these effects, of which the stop ends with the event."""
    hold = asyncio.Event()
    effect_handler, herder = Effects(hold), Herder({events.RebalanceBegun: list(effects)})
    driver = driven(herder, effect_handler)
    driver.rebalance_begun()
    await until(lambda: "stopping" in effect_handler.done)
    return driver, herder, effect_handler, hold


async def test_work_winds_up_at_once_when_the_lease_is_lost_whatever_is_waited_for() -> None:
    driver, herder, effect_handler, hold = await stopping(events.StopWork(("old",), ()), START)
    driver.put(events.TaskConfigsWanted("lines"))
    driver.lease_lost()
    assert effect_handler.done == ["stopping", "wind up within 4 s"]
    hold.set()
    await driver.turn()
    assert "start lines" not in effect_handler.done, "it was no longer ours when its turn came"
    assert [type(event) for event in herder.heard] == [
        events.RebalanceBegun,
        events.LeaseLost,
        events.TaskConfigsWanted,
    ], "what was lost is heard of first"
    await driver.stop()
    assert effect_handler.done[-1] == "left"


async def test_what_stopped_work_has_told_is_no_news_of_what_is_started_in_its_place() -> None:
    driver, herder, effect_handler, hold = await stopping(events.StopWork(("lines",), (TASK,)), START)
    for event in OF_LINES:
        driver.put(event)
    hold.set()
    await driver.turn()
    assert effect_handler.done == ["stopping", "stopped", "start lines"]
    assert herder.heard == [events.RebalanceBegun(), events.ScheduleAutoRestart("other", 0)]
    for event in OF_LINES:
        driver.put(event)
    await driver.turn()
    assert herder.heard[2:] == OF_LINES, "what the new ones tell is heard of"
    await driver.stop()


async def test_others_have_their_turn_while_a_round_gives_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_TURN_S", 0.0)
    effect_handler, turns = Effects(), 0
    driver = driven(Herder({events.RebalanceBegun: [START] * 1000}), effect_handler)

    async def other() -> None:
        nonlocal turns
        while len(effect_handler.done) < 1000:
            turns += bool(effect_handler.done)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    driver.rebalance_begun()
    await beside
    assert turns > 900
    await driver.stop()


async def test_nobody_waits_for_a_worker_that_has_failed() -> None:
    effect_handler = Effects()
    driver = driven(Herder({}), effect_handler)
    waiting = asyncio.create_task(driver.request(events.DeleteConnector("lines")))
    await driver.turn()
    assert not waiting.done()
    driver.fail(WorkerFailed("the topic is gone"))
    with pytest.raises(RetriableError, match="shutting down"):
        await waiting
    with pytest.raises(RetriableError, match="shutting down"):
        await driver.request(events.DeleteConnector("lines"))
    with pytest.raises(RetriableError, match="shutting down"):
        await driver.turn()
    assert effect_handler.done == ["wind up within 4 s"], "what it ran is no longer anybody's"
    with pytest.raises(WorkerFailed, match="the topic is gone"):
        await driver.ended
    await driver.stop()


async def test_who_waits_no_longer_withdraws_the_request() -> None:
    herder = Herder({})
    driver = driven(herder, Effects())
    waiting = asyncio.create_task(driver.request(events.DeleteConnector("lines")))
    await driver.turn()
    waiting.cancel()
    await asyncio.wait({waiting})
    await driver.turn()
    assert herder.heard == [events.Request(1, events.DeleteConnector("lines")), events.RequestWithdrawn(1)]
    await driver.stop()


async def test_a_request_that_is_withdrawn_before_the_herder_sees_it_never_begins() -> None:
    driver, herder, _, hold = await stopping(events.StopWork(("lines",), ()))
    waiting = asyncio.create_task(driver.request(events.DeleteConnector("lines")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    hold.set()
    await driver.turn()
    assert herder.heard == [events.RebalanceBegun()]
    await driver.stop()


@in_virtual_time
async def test_a_request_of_the_worker_itself_is_withdrawn_after_90_s() -> None:
    """Begun after minutes away from the group, it could start a connector that a failover has stopped."""
    herder = Herder({})
    driver = driven(herder, Effects())
    with pytest.raises(RetriableError, match="timed out"):
        await driver.request(events.PutConnector("lines", {}, TargetState.STARTED, True, "source"))
    await driver.turn()
    assert herder.heard[1:] == [events.RequestWithdrawn(1)]
    await driver.stop()


async def test_a_herder_that_raises_ends_the_worker_and_says_so() -> None:
    class Broken(Herder):
        def step(self, event: Event, now_ms: int) -> list[Effect]:
            raise ZeroDivisionError("x")

    driver = driven(Broken({}), Effects())
    driver.rebalance_begun()
    with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
        await driver.ended
    await driver.stop()


@in_virtual_time
async def test_connectors_that_do_not_say_their_tasks_are_in_nobodys_way() -> None:
    """Seventeen, and sixteen are asked at once."""

    class Worker(Effects):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []

        async def task_configs(self, name: str, present: object) -> list[dict[str, str]]:
            self.asked.append(name)
            if name != "last":
                await asyncio.Event().wait()
            return [{"a": "b"}]

    herder = Herder({events.RebalanceBegun: [events.ComputeTaskConfigs(0, name) for name in (*"a" * 16, "last")]})
    herder.snapshot = SimpleNamespace(all_task_configs=lambda name: [])
    effect_handler = Worker()
    driver = driven(herder, effect_handler)
    driver.rebalance_begun()
    await asyncio.sleep(5)
    assert "last" not in effect_handler.asked
    await asyncio.sleep(10)
    assert [event for event in herder.heard if isinstance(event, events.TaskConfigsComputed)] == [
        events.TaskConfigsComputed(0, "last", ({"a": "b"},))
    ]
    await driver.stop()
