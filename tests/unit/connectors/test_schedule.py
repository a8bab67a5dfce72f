"""Jobs at their intervals, when asked, one at a time; what fails is said and comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from connect.core.errors import RetriableError
from connectors.connector_base import Schedule
from tests.kit import virtual_time
from tests.kit.virtual_time import in_virtual_time


class Played:
    """When each job ran, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.running = 0

    def job(self, name: str, takes_s: float = 0, fails: int = 0) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            times = self.times.setdefault(name, [])
            times.append(asyncio.get_running_loop().time())
            self.running += 1
            assert self.running == 1
            try:
                await asyncio.sleep(takes_s)
                if len(times) <= fails:
                    raise RetriableError("no broker answers")
            finally:
                self.running -= 1

        return run


@in_virtual_time
async def test_each_comes_at_its_interval_and_never_two_at_once() -> None:
    played = Played()
    schedule = Schedule("us->eu", 60)
    schedule.add("topics", played.job("topics", takes_s=4), 10)
    schedule.add("rights", played.job("rights", takes_s=4), 10)
    schedule.begin()
    await asyncio.sleep(29)
    await schedule.stop()
    assert played.times == {"topics": [10, 20], "rights": [14, 24]}


@in_virtual_time
async def test_one_that_is_asked_for_comes_at_once_and_keeps_its_turns() -> None:
    played = Played()
    schedule = Schedule("us->eu", 60)
    schedule.add("topics", played.job("topics"), 10)
    schedule.add("only asked", played.job("only asked"), None)
    schedule.begin()
    await asyncio.sleep(3)
    for _ in range(3):
        schedule.hurry("topics")
    schedule.hurry("only asked")
    await asyncio.sleep(8)
    await schedule.stop()
    assert played.times == {"topics": [3, 10], "only asked": [3]}


@in_virtual_time
async def test_turns_that_were_missed_are_not_made_up_for() -> None:
    played = Played()
    schedule = Schedule("us->eu", 60)
    schedule.add("topics", played.job("topics", takes_s=25), 10)
    schedule.begin()
    await asyncio.sleep(70)
    await schedule.stop()
    assert played.times == {"topics": [10, 35, 60]}


def test_jobs_whose_parts_have_limits_of_their_own_take_the_time_that_they_need() -> None:
    played = Played()

    async def play() -> bool:
        schedule = Schedule("us->eu", None)
        schedule.add("groups", played.job("groups", takes_s=1000), None)
        return await schedule.run_once("groups")

    assert virtual_time.run(play())


def test_what_fails_or_hangs_is_said_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    played = Played()

    async def play() -> list[bool]:
        schedule = Schedule("us->eu", 5)
        schedule.add("topics", played.job("topics", fails=1), 10)
        schedule.add("hangs", played.job("hangs", takes_s=100), None)
        ran = [await schedule.run_once("topics"), await schedule.run_once("topics"), await schedule.run_once("hangs")]
        await schedule.stop()
        return ran

    assert virtual_time.run(play()) == [False, True, False]
    assert caplog.messages == [
        "us->eu: topics failed: no broker answers",
        "us->eu: hangs took longer than 5 s (admin.timeout.ms)",
    ]
