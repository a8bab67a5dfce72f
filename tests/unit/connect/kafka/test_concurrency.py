"""Tasks end with their scope; pauses between attempts grow, and their log is short."""

from __future__ import annotations

import asyncio
import logging

import pytest

from connect.kafka import concurrency
from connect.kafka.concurrency import Backoff, Scope, in_turns, together
from tests.kit.virtual_time import VirtualLoop, in_virtual_time, run


async def test_a_closed_scope_has_no_task_and_starts_none() -> None:
    scope = Scope("worker")
    ran: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ran.append(number)

    tasks = [scope.spawn(work(number), f"work {number}") for number in range(3)]
    await asyncio.sleep(0)
    await scope.close()
    assert [task.cancelled() for task in tasks] == [True] * 3
    assert sorted(ran) == [0, 1, 2]
    assert not scope.tasks
    with pytest.raises(RuntimeError, match="worker: late was not started"):
        scope.spawn(work(3), "late")
    await scope.close()
    assert len(ran) == 3


async def test_a_task_may_close_its_own_scope() -> None:
    scope = Scope("worker")
    other = scope.spawn(asyncio.Event().wait(), "other")
    own = scope.spawn(scope.close(), "own")
    async with asyncio.timeout(60):
        await own
    assert other.cancelled()


async def test_a_clean_up_that_goes_on_is_not_cancelled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes many times the limit in all, and each of its steps less, also where a scope of its own ends in it."""
    monkeypatch.setattr(concurrency, "_STUCK_S", 0.1)
    scope, steps = Scope("worker"), list[int]()

    async def slow(within: Scope | None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for step in range(10):
                await asyncio.sleep(0.03)
                steps.append(step)
            if within is not None:
                await within.close()

    inner = Scope("slice")
    tasks = [inner.spawn(slow(None), "inner"), scope.spawn(slow(inner), "outer")]
    await asyncio.sleep(0)
    await scope.close()
    assert steps == [*range(10)] * 2
    assert all(task.cancelled() for task in tasks)
    assert caplog.messages == ["worker: slow to stop: outer", "slice: slow to stop: inner"]


async def test_what_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(concurrency, "_STUCK_S", 0.01)
    scope, may_end = Scope("worker"), asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    task = scope.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await scope.close()
    may_end.set()
    await task
    assert caplog.messages == ["worker: slow to stop: stubborn", "worker: still running after a cancel: stubborn"]


async def test_a_close_waits_while_tasks_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each task ends later than the one before it by less than the limit, all of them by more."""
    monkeypatch.setattr(concurrency, "_STUCK_S", 0.2)
    scope = Scope("worker")

    async def slow(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.08 * number)

    tasks = [scope.spawn(slow(number), f"slow {number}") for number in range(1, 7)]
    await asyncio.sleep(0)
    await scope.close()
    assert all(task.cancelled() for task in tasks)
    assert not caplog.messages


async def test_the_first_error_ends_the_others_before_it_is_raised() -> None:
    ended = []

    async def fails() -> None:
        raise ValueError("first")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="first"):
        await together("both", [waits(), fails()])
    assert ended == [True]


@in_virtual_time
async def test_a_turn_over_many_items_ends_by_time() -> None:
    loop, others = asyncio.get_running_loop(), list[float]()
    assert isinstance(loop, VirtualLoop)

    async def other() -> None:
        while True:
            others.append(loop.time())
            await asyncio.sleep(0)

    async with Scope("test") as scope:
        scope.spawn(other(), "other")
        async for cost_s in in_turns([0.0] * 1000 + [0.05, 0.0, 0.001, 0.0005, 0.0005, 0.0, 0.0]):
            loop.pass_time(cost_s)
    assert [round(at_s, 4) for at_s in others] == [0.05, 0.052]


log = logging.getLogger(__name__)


async def pauses(backoff: Backoff, count: int, cause: str = "it is away") -> list[float]:
    clock = asyncio.get_running_loop().time
    taken = []
    for _ in range(count):
        before_s = clock()
        await backoff.after(RuntimeError(cause))
        taken.append((clock() - before_s) * 1000)
    return taken


def test_pauses_double_up_to_the_last() -> None:
    async def main() -> list[float]:
        backoff = Backoff(log, "asking", 100, 1_000)
        taken = await pauses(backoff, 6)
        backoff.over()
        return taken + await pauses(backoff, 1)

    for taken, expected in zip(run(main()), [100, 200, 400, 800, 1_000, 1_000, 100], strict=True):
        assert expected * 0.79 < taken < expected * 1.21


def test_what_passes_in_a_moment_is_not_said_and_what_lasts_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        backoff = Backoff(log, "asking", 1_000, 1_000)
        await pauses(backoff, 40)
        await pauses(backoff, 2, "the disk is full")
        backoff.over()
        await pauses(backoff, 2, "it starts")
        backoff.over()

    with caplog.at_level(logging.INFO, __name__):
        run(main())
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == __name__]
    assert said == [
        ("WARNING", "asking: it is away; retrying"),
        ("WARNING", "asking: the disk is full; retrying"),
        ("INFO", "asking: no longer fails"),
    ]
