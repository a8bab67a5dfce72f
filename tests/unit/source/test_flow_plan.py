"""What a plan says of source topics that were deleted and made again while nobody copied them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core import offsetlog
from connect.core.errors import RetriableError
from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.topic_configs import ConfigSource, TopicConfig, TopicConfigs
from connectors.changes import AlterConfig, CreateTopic
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.settings import MirrorSourceSettings, source_settings
from connectors.source import flow_plan, topic_plan
from connectors.source.flow_plan import FlowPlan, InternalTopics, Planned, plan_flow
from connectors.source.renamed import name_of_new
from connectors.source.stored_starts import Stored

OLD, NEW = UUID(int=1), UUID("1c9bd204-0000-4000-8000-000000000000")
OF_ITS_OWN = "us.orders.1c9bd204"
COMPACTED = TopicConfig("compact", ConfigSource.TOPIC)


def settings(policy: str = "new-remote-topic") -> MirrorSourceSettings:
    return source_settings(
        {
            "name": "n",
            "connector.class": "MirrorSourceConnector",
            "source.cluster.alias": "us",
            "target.cluster.alias": "eu",
            "topics": ".*",
            "replication.factor": "2",
            "on.topic.recreated": policy,
        },
        {"offset.storage.topic": "offsets"},
    )


def topic(name: str, topic_id: UUID = OLD) -> TopicMetadata:
    row = PartitionMetadata(0, 0, (0,), 0)
    return TopicMetadata(name, topic_id, 0, {0: row, 1: row})


class Cluster:
    def __init__(self, *topics: TopicMetadata) -> None:
        self.topics = {topic.name: topic for topic in topics}

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self.topics)


class Configs:
    """Nothing is to be altered."""

    hidden_sources: Mapping[str, Exception]
    hidden_targets: Mapping[str, Exception]

    def __init__(self, *_: object) -> None:
        self.hidden_sources, self.hidden_targets = {}, {}

    async def of_source(self, topics: Mapping[str, str] | list[str]) -> dict[str, TopicConfigs]:
        if "hidden" in topics:
            self.hidden_sources = {"hidden": RetriableError("not shown")}
        return {name: {"cleanup.policy": COMPACTED} for name in topics if name != "hidden"}

    async def plan(self, _: object) -> list[AlterConfig]:
        return []


class Flow:
    """``orders`` is copied up to offset 4 of its first partition, from the topic with the old id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *source: TopicMetadata) -> None:
        self.source, self.target = Cluster(*source), Cluster(*(topic(f"us.{one.name}") for one in source))
        self.told: list[Mapping[str, str]] = []
        self.stored: Exception | int = 4
        self.copied = [one.name for one in source]
        monkeypatch.setattr(flow_plan, "ConfigSync", Configs)
        monkeypatch.setattr(topic_plan, "read_positions", self._positions)
        monkeypatch.setattr(topic_plan, "read_stored", self._read)

    async def _positions(self, *_: object) -> dict[TopicPartition, Position]:
        return {
            TopicPartition(name, 0): Position(name, 0, OLD, 5, 0, f"us.{name}", 0, OLD, 5, "", -1, -1, 0, True)
            for name in self.copied
        }

    async def _read(self, of: MirrorSourceSettings, _: object) -> Stored:
        if isinstance(self.stored, Exception):
            raise self.stored
        state = offsetlog.SourceOffsets()
        for name in self.copied:
            key = offsetlog.mirror_key(of.name, of.source_alias, name, 0)
            offsetlog.apply(state, key, offsetlog.mirror_value(self.stored))
        return Stored(state, set())

    async def plan(self, of: MirrorSourceSettings | None = None) -> FlowPlan:
        parts: Any = SimpleNamespace(
            clusters=SimpleNamespace(source=self.source, target=self.target), store=self.target, admin=None
        )
        return await plan_flow(of or settings(), parts, self._access, InternalTopics([]))

    def _access(self, coming: Mapping[str, str]) -> None:
        self.told.append(coming)


async def test_a_remote_topic_of_its_own_is_planned_as_the_task_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, topic("orders", NEW), topic("bills"))
    assert name_of_new("us.orders", NEW) == OF_ITS_OWN
    assert (await flow.plan()).changes == (
        Planned("eu", CreateTopic(OF_ITS_OWN, "orders", 2, 2, {"cleanup.policy": "compact"})),
    )
    assert flow.told == [{"orders": OF_ITS_OWN}], "its access rules are planned too"


async def test_once_it_is_there_nothing_is_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, topic("orders", NEW))
    flow.target.topics[OF_ITS_OWN] = topic(OF_ITS_OWN)
    assert (await flow.plan()).changes == ()


@pytest.mark.parametrize("policy", ["fail", "restart"])
async def test_other_policies_make_none(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    flow = Flow(monkeypatch, topic("orders", NEW))
    assert (await flow.plan(settings(policy))).changes == ()


async def test_an_altered_offset_lets_the_old_remote_topic_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, topic("orders", NEW))
    flow.stored = 2
    assert (await flow.plan()).changes == ()


async def test_what_was_never_copied_was_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, topic("orders", NEW))
    flow.copied = []
    assert (await flow.plan()).changes == ()


async def test_without_its_settings_none_is_made_and_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = await Flow(monkeypatch, topic("hidden", NEW)).plan()
    assert (plan.changes, plan.unknown) == ((), ("not shown",))


async def test_offsets_that_cannot_be_read_are_said_beside_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, topic("orders", NEW), topic("bills"))
    del flow.target.topics["us.bills"]
    flow.stored = RetriableError("nobody answers")
    plan = await flow.plan()
    assert [one.change.topic for one in plan.changes if isinstance(one.change, CreateTopic)] == ["us.bills"]
    assert plan.unknown == ("nobody answers",)
