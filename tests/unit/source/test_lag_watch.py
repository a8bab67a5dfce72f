"""What the watch of a worker reads, and what it leaves to tasks that tell it themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.api.source import TaskReport
from connectors.dataplane.plan import TopicPartition
from connectors.lag import FlowLag, lag_of
from connectors.settings import source_settings
from connectors.source import lag_watch
from connectors.source.host import MirrorHost
from connectors.source.lag_watch import LagWatch

PROPS = {"name": "us-eu", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
A, B, C = (TopicPartition(name, 0) for name in "abc")


class Worker:
    """Three tasks of a partition each, and what the watch reads of the store; ``now_s`` is its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = ["RUNNING", "RUNNING", "PAUSED"]
        self.host = SimpleNamespace(running={}, seen={}, group_id="group")
        self.stored: list[list[TopicPartition]] = []
        self.now_s = 1000.0
        self.watched: Any = SimpleNamespace(
            settings=source_settings(PROPS, {"offset.storage.topic": "offsets"}),
            parts=SimpleNamespace(store=None),
            reader=self,
            stored={},
            stored_s=float("-inf"),
        )
        self.watch = LagWatch(cast(MirrorHost, self.host), dict)

        async def no_states(*_: object) -> dict[TopicPartition, Any]:
            return {}

        monkeypatch.setattr(lag_watch, "read_states", no_states)
        monkeypatch.setattr(lag_watch, "time", SimpleNamespace(monotonic=lambda: self.now_s, time_ns=lambda: 0))

    async def stored_(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self.stored.append(list(partitions))
        return dict.fromkeys(partitions, 5)

    async def of(self, positions: Mapping[TopicPartition, int], _: int) -> FlowLag:
        return FlowLag(tuple(lag_of(*one, "x", at, 0, 9, 1) for one, at in positions.items()))

    def runs(self, index: int, state: str, *told: TopicPartition) -> None:
        views = [
            SimpleNamespace(source_topic=one.topic, source_partition=one.partition, next_source_offset=7)
            for one in told
        ]
        self.host.running["us-eu", index] = SimpleNamespace(state=state, view=lambda _: views)

    async def look(self) -> tuple[dict[TopicPartition, int], list[int]]:
        """Positions by which lags are known, and the tasks that rest."""
        reports = [
            TaskReport(index, state, "", {"task.assigned.partitions": str(one)})
            for index, (state, one) in enumerate(zip(self.states, (A, B, C), strict=True))
        ]
        await self.watch._look_at("us-eu", self.watched, reports)
        seen = self.host.seen["us-eu"]
        return {one: lag.position for one, lag in seen.lags.items()}, [one.task for one in seen.resting]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker(monkeypatch)
    worker.watched.reader = SimpleNamespace(stored=worker.stored_, of=worker.of)
    return worker


async def test_nothing_is_read_of_tasks_that_start(worker: Worker) -> None:
    assert await worker.look() == ({C: 5}, [2])
    worker.runs(0, "starting")
    worker.now_s += 59
    assert await worker.look() == ({C: 5}, [2])
    assert worker.stored == [[C]]
    worker.runs(0, "running", A)
    worker.runs(1, "running", B)
    assert await worker.look() == ({A: 7, B: 7, C: 5}, [2])
    assert worker.stored == [[C]]


async def test_a_start_that_takes_long_is_not_waited_for(worker: Worker) -> None:
    worker.states = ["RUNNING", "RUNNING", "RUNNING"]
    assert await worker.look() == ({}, [])
    assert not worker.stored
    worker.now_s += 61
    assert await worker.look() == ({A: 5, B: 5, C: 5}, [0, 1, 2])


async def test_what_a_running_task_does_not_tell_is_read(worker: Worker) -> None:
    worker.runs(0, "running")
    worker.runs(1, "recovering", B)
    assert await worker.look() == ({A: 5, B: 7, C: 5}, [2])
