"""What a plan says of remote topics that a run would make."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log.topic_admin import ConfigSource, TopicConfig, TopicConfigs
from connectors.config.connector_configs import source_settings
from connectors.inspection import flow_plan
from connectors.inspection.flow_plan import FlowPlan, InternalTopics, Planned, look_at_flow
from connectors.topic_sync.cluster_changes import AlterConfig, CreateTopic

COMPACTED = TopicConfig("compact", ConfigSource.TOPIC)
SETTINGS = source_settings(
    {
        "name": "n",
        "connector.class": "MirrorSourceConnector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        "topics": ".*",
        "replication.factor": "2",
    },
    {"offset.storage.topic": "offsets"},
)


class Cluster:
    def __init__(self, *topics: str) -> None:
        row = PartitionMetadata(0, 0, (0,), 0)
        self.topics = {name: TopicMetadata(name, UUID(int=1), 0, {0: row, 1: row}) for name in topics}

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self.topics)


class Configs:
    """Nothing is to be altered."""

    hidden_sources: Mapping[str, Exception]
    hidden_targets: Mapping[str, Exception]

    def __init__(self, *_: object) -> None:
        self.hidden_sources, self.hidden_targets = {}, {}

    async def of_source(self, topics: list[str]) -> dict[str, TopicConfigs]:
        if "hidden" in topics:
            self.hidden_sources = {"hidden": RetriableError("not shown")}
        return {name: {"cleanup.policy": COMPACTED} for name in topics if name != "hidden"}

    async def plan(self, _: object) -> list[AlterConfig]:
        return []


@pytest.fixture(autouse=True)
def configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_plan, "ConfigSync", Configs)


async def plan(source: Cluster, target: Cluster) -> FlowPlan:
    parts: Any = SimpleNamespace(clusters=SimpleNamespace(source=source, target=target), store=target, admin=None)
    return (await look_at_flow(SETTINGS, parts, None, InternalTopics([]))).plan


async def test_a_missing_remote_topic_is_planned_with_its_settings() -> None:
    planned = await plan(Cluster("orders", "bills"), Cluster("us.bills"))
    assert planned.changes == (Planned("eu", CreateTopic("us.orders", "orders", 2, 2, {"cleanup.policy": "compact"})),)


async def test_without_its_settings_none_is_made_and_the_plan_says_so() -> None:
    planned = await plan(Cluster("hidden"), Cluster())
    assert (planned.changes, planned.unknown) == ((), ("not shown",))
