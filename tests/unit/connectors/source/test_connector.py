"""What MirrorSource's connector says its tasks are, and when it looks again; the rest needs real clusters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connect.kafka.cluster import ClusterMetadata, PartitionMetadata, TopicMetadata
from connectors.config.connector_configs import source_settings
from connectors.source import connector as module
from connectors.source.connector import MirrorSourceConnector
from connectors.topic_sync.cluster_changes import CreateTopic
from connectors.topic_sync.remote_topics import Naming, TopicPlan
from tests.kit import virtual_time

NAME = "MirrorSourceConnector"
NAMES = {"name": NAME, "connector.class": f"org.apache.kafka.connect.mirror.{NAME}"}
PROPS = {**NAMES, "source.cluster.alias": "us", "target.cluster.alias": "eu", "topics": "orders.*"}
WORKER = {"offset.storage.topic": "mm2-offsets.us.internal"}
CLUSTER: Any = None
PRESENT = [
    {**PROPS, "topics": ".*", "task.assigned.partitions": "orders-0,orders-2,clicks-0", "task.index": "0"},
    {**PROPS, "topics": ".*", "task.assigned.partitions": "orders-1,clicks-1", "task.index": "1"},
    {**PROPS, "topics": ".*", "task.assigned.partitions": "orders-3", "task.index": "2"},
]


def unstarted() -> MirrorSourceConnector:
    settings = source_settings(PROPS, {"offset.storage.topic": "mm2-offsets.us.internal"})
    return MirrorSourceConnector(settings, PROPS, CLUSTER, CLUSTER, CLUSTER)


def test_before_the_first_look_tasks_keep_what_topics_still_takes() -> None:
    reported = unstarted().task_configs(2, PRESENT)
    assert [config["task.assigned.partitions"] for config in reported] == ["orders-0,orders-2", "orders-1,orders-3"]
    assert {config["topics"] for config in reported} == {"orders.*"}, "with what the connector is told now"


def test_without_tasks_there_is_nothing_to_keep() -> None:
    assert unstarted().task_configs(2) == []


def topic(name: str) -> TopicMetadata:
    return TopicMetadata(name, None, 0, {0: PartitionMetadata(0, 0, (0,), 0)})


class SlowToShow:
    """A target whose metadata has a new topic after 40 s, and a source with one topic."""

    def __init__(self, name: str, after_s: float) -> None:
        self._topic, self._after_s = topic(name), after_s

    async def metadata(self, _: object) -> ClusterMetadata:
        shown = asyncio.get_running_loop().time() >= self._after_s
        return ClusterMetadata(None, 0, {}, {self._topic.name: self._topic} if shown else {})


@virtual_time.in_virtual_time
async def test_a_topic_that_the_target_shows_late_is_copied_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = SlowToShow("orders", 0)
    target: Any = SlowToShow("us.orders", 40)
    create = CreateTopic("us.orders", "orders", 1, 1)

    async def plan_topics(*_: object) -> TopicPlan:
        there = (await target.metadata(None)).topics
        return TopicPlan((topic("orders"),), Naming({"orders": "us.orders"}), there, () if there else (create,), ())

    async def make_topics(_: object, creations: tuple[CreateTopic, ...], __: object) -> tuple[CreateTopic, ...]:
        return creations

    async def nothing(*_: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(module, "plan_topics", plan_topics)
    monkeypatch.setattr(module, "make_topics", make_topics)
    monkeypatch.setattr(module, "add_partitions", nothing)
    monkeypatch.setattr(module, "refuse_old_clusters", nothing)
    asked_again = asyncio.Event()
    context: Any = type("Context", (), {"request_task_reconfiguration": lambda _: asked_again.set()})()
    settings = source_settings({**PROPS, "sync.topic.configs.enabled": "false"}, WORKER)
    connector = MirrorSourceConnector(settings, PROPS, source, target, CLUSTER)
    await connector.start(context)
    assert connector.task_configs(1) == []
    async with asyncio.timeout(60):  # the next refresh is due after ten minutes
        await asked_again.wait()
    assert [config["task.assigned.partitions"] for config in connector.task_configs(1)] == ["orders-0"]
    await connector.stop()


class Counting:
    """A source of one topic, which counts how often all topics are asked for."""

    def __init__(self, partitions: int) -> None:
        rows = dict.fromkeys(range(partitions), PartitionMetadata(0, 0, (0,), 0))
        self.topic = TopicMetadata("orders", None, 0, rows)
        self.asked = 0

    async def metadata(self, topics: object) -> ClusterMetadata:
        self.asked += topics is None
        return ClusterMetadata(None, 0, {}, {"orders": self.topic})


@pytest.mark.parametrize(("partitions", "looks"), [(1000, 12), (20_000, 2)])
@virtual_time.in_virtual_time
async def test_looks_at_many_partitions_are_rarer(monkeypatch: pytest.MonkeyPatch, partitions: int, looks: int) -> None:
    source: Any = Counting(partitions)

    async def plan_topics(*_: object) -> TopicPlan:
        there = {"us.orders": source.topic}
        return TopicPlan((source.topic,), Naming({"orders": "us.orders"}), there, (), ())

    async def nothing(*_: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(module, "plan_topics", plan_topics)
    monkeypatch.setattr(module, "make_topics", nothing)
    monkeypatch.setattr(module, "add_partitions", nothing)
    monkeypatch.setattr(module, "refuse_old_clusters", nothing)
    settings = source_settings({**PROPS, "sync.topic.configs.enabled": "false"}, WORKER)
    connector = MirrorSourceConnector(settings, PROPS, source, source, CLUSTER)
    await connector.start(CLUSTER)
    await asyncio.sleep(62)
    await connector.stop()
    assert abs(source.asked - looks) <= 1
