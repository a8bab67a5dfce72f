"""Rounds of fencing: shared by the tasks of a generation, and by no others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.herder import events
from connect.core.herder_api import BadRequest, NotFound, NotLeader, RequestConflict
from connect.runtime.herder.effects_and_fencing import ZombieFence


class Group:
    """A leader's herder, its config topic and its driver in one."""

    def __init__(self) -> None:
        self.is_leader, self.leader_url = True, "http://leader/"
        self.generation, self.count, self.before, self.pending = 3, 2, None, True
        self.reading = asyncio.Event()
        self.reading.set()
        self.reads = 0
        self.checked: list[events.CheckFence] = []
        self.written: list[events.PutTaskCount] = []
        self.snapshot = SimpleNamespace(
            connector_config=lambda name: {"name": name} if name != "unknown" else None,
            pending_fencing=lambda name: self.pending,
            task_generation=lambda name: self.generation,
            task_count=lambda name: self.count,
            task_count_record=lambda name: self.before,
        )

    async def read_to_end(self, timeout_s: float) -> None:
        self.reads += 1
        await self.reading.wait()

    async def request(self, operation: events.CheckFence | events.PutTaskCount) -> None:
        if isinstance(operation, events.PutTaskCount):
            self.written.append(operation)
            return
        self.checked.append(operation)
        if not self.is_leader:
            raise NotLeader("Only the leader", self.leader_url)


def fence_of(group: Group) -> ZombieFence:
    any_ = cast(Any, group)
    return ZombieFence("g", any_, any_, any_, cast(Any, None), lambda props: props["name"] != "sink")


async def test_tasks_of_a_generation_share_a_round_and_newer_ones_begin_another() -> None:
    group = Group()
    fence = fence_of(group)
    group.reading.clear()
    older = [asyncio.create_task(fence.fence("lines")) for _ in range(2)]
    await asyncio.sleep(0)
    group.generation = 4
    newer = asyncio.create_task(fence.fence("lines"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    group.reading.set()
    await asyncio.gather(*older, newer)
    assert group.reads == 2
    assert {put.generation for put in group.written} == {4}


async def test_what_is_fenced_off_already_is_not_again() -> None:
    group = Group()
    group.pending = False
    await fence_of(group).fence("lines")
    assert group.written == []


async def test_tasks_that_were_reconfigured_meanwhile_are_a_conflict() -> None:
    group = Group()

    async def changed_later(timeout_s: float) -> None:
        return

    group.read_to_end = changed_later  # type: ignore[method-assign]
    generations = iter((3, 3, 4))
    group.snapshot.task_generation = lambda name: next(generations)
    with pytest.raises(RequestConflict, match="reconfigured"):
        await fence_of(group).fence("lines")
    assert group.written == []


async def test_older_tasks_are_fenced_with_the_newest_config(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    group.before = cast(Any, 2)
    fence = fence_of(group)
    fenced: list[object] = []

    async def fence_tasks(name: str, config: object, tasks: int) -> None:
        fenced.append(config)

    async def read(timeout_s: float) -> None:
        group.snapshot.connector_config = lambda name: {"name": name, "newer": "yes"}

    monkeypatch.setattr(fence, "_fence_tasks", fence_tasks)
    group.read_to_end = read  # type: ignore[method-assign]
    await fence.fence("lines")
    assert fenced == [{"name": "lines", "newer": "yes"}]


async def test_without_tasks_to_fence_the_newest_are_counted() -> None:
    group = Group()
    stored = group.request

    async def changed_before(operation: events.CheckFence | events.PutTaskCount) -> None:
        if isinstance(operation, events.PutTaskCount) and operation.generation == 3:
            group.generation = 4
            raise RequestConflict("a new set of task configs was generated")
        await stored(operation)

    group.request = changed_before  # type: ignore[method-assign]
    await fence_of(group).fence("lines")
    assert group.written == [events.PutTaskCount("lines", 2, 4)]


@pytest.mark.parametrize(
    ("name", "leads", "refusal"), [("unknown", True, NotFound), ("sink", True, BadRequest), ("lines", False, NotLeader)]
)
async def test_who_is_refused(name: str, leads: bool, refusal: type[Exception]) -> None:
    group = Group()
    group.is_leader = leads
    with pytest.raises(refusal):
        await fence_of(group).fence(name)
    assert group.reads == 0
