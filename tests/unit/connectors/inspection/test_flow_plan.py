"""What a run would change, and what it would leave."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.kafka.authorization import AclBinding
from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log.topic_admin import ConfigSource, TopicConfig, TopicConfigs
from connectors.config.connector_configs import source_settings
from connectors.filters import DefaultConfigPropertyFilter
from connectors.formats.position import Position
from connectors.inspection import flow_plan
from connectors.inspection.flow_plan import Drift, DriftKind, FlowPlan, InternalTopics, Planned, look_at_flow
from connectors.topic_sync.acl_plan import WantedAcls, plan_access
from connectors.topic_sync.cluster_changes import AlterConfig, CreateTopic
from connectors.topic_sync.remote_topics import Naming, TopicPlan

COMPACTED = TopicConfig("compact", ConfigSource.TOPIC)
PROPS = {"name": "n", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
WORKER = {"offset.storage.topic": "offsets"}
SETTINGS = source_settings({**PROPS, "topics": ".*", "replication.factor": "2"}, WORKER)


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


OLD, NEW = UUID(int=1), UUID(int=2)
ALL = DefaultConfigPropertyFilter(("min.insync.replicas",), source_defaults=False)
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


def topic(name: str, partitions: int = 1, replicas: int = 1, topic_id: UUID | None = None) -> TopicMetadata:
    row = PartitionMetadata(0, 0, tuple(range(replicas)), 0)
    return TopicMetadata(name, topic_id, 0, dict.fromkeys(range(partitions), row))


def planned_topics(source: TopicMetadata, target: TopicMetadata) -> TopicPlan:
    return TopicPlan((source,), Naming({source.name: target.name}), {target.name: target}, (), ())


def position(source: str, target: str, source_id: UUID = OLD, target_id: UUID = OLD) -> Position:
    return Position(source, 0, source_id, 1, 0, target, 0, target_id, 1, "", -1, -1, 0, True)


Names = Collection[str]


def left(
    source: Names, target: Names, current: Mapping[str, str], *positions: Position, going: Names = (), **props: str
) -> set[tuple[str, str]]:
    everything = PROPS | {key.replace("_", "."): value for key, value in props.items()}
    settings = source_settings(everything, WORKER)
    found = flow_plan.topics_left(settings, source, target, current, positions, going)
    return {(one.kind.value, one.resource) for one in found}


def test_counts_of_partitions_and_replicas() -> None:
    grown = planned_topics(topic("t", 2), topic("us.t", 3, replicas=2))
    extra = Drift(DriftKind.EXTRA_PARTITIONS, "eu", "us.t", expected="2", found="3")
    assert list(flow_plan.partitions_left("eu", grown)) == [extra]
    assert not list(flow_plan.partitions_left("eu", planned_topics(topic("t", 3), topic("us.t", 2))))
    (factor,) = flow_plan.replicas_left("eu", grown, 3)
    assert (factor.kind, factor.expected, factor.found) == (DriftKind.REPLICATION_FACTOR, "3", "2")
    assert not list(flow_plan.replicas_left("eu", grown, 2))
    assert not list(flow_plan.replicas_left("eu", grown, -1))


def test_settings_that_are_not_kept_in_step() -> None:
    def configs(own: ConfigSource, **values: str) -> dict[str, TopicConfig]:
        return {key.replace("_", "."): TopicConfig(value, own) for key, value in values.items()}

    source = configs(ConfigSource.TOPIC, retention_ms="5") | configs(ConfigSource.DEFAULT, min_insync_replicas="1")
    target = configs(ConfigSource.TOPIC, retention_ms="7", min_insync_replicas="2", of_later_brokers="x")
    target |= configs(ConfigSource.DEFAULT, segment_ms="9")
    by_hand = {("min.insync.replicas", "1", "2"), ("of.later.brokers", None, "x")}

    def found(*, synced: bool) -> set[tuple[str, str | None, str | None]]:
        rows = flow_plan.configs_left("eu", "us.t", source, target, ALL, synced=synced)
        return {(one.key, one.expected, one.found) for one in rows}

    assert found(synced=True) == by_hand
    assert found(synced=False) == {*by_hand, ("retention.ms", "5", "7")}


def test_remote_topics_without_a_source_topic_that_is_mirrored() -> None:
    target = ["us.t", "us.gone", "us.left-out", "us.going", "us.heartbeats", "ap.x", "own", "us.checkpoints.internal"]
    current = {"t": "us.t", "heartbeats": "us.heartbeats"}
    found = left(["t", "left-out", "heartbeats"], target, current, going=["us.going"])
    assert found == {("without-source", "us.gone"), ("not-mirrored", "us.left-out")}


def test_what_another_connector_fills_is_not_without_a_source_topic() -> None:
    query = "SELECT IF(value IS NULL, concat(topic, '.gone'), topic) AS topic FROM records"
    routes = {"transform_sql": query, "transform_other_topics": "${topic}.gone"}
    there = ["us.t", "us.t.gone", "us.x.gone"]
    assert left(["t"], there, {"t": "us.t"}, **routes) == {("without-source", "us.x.gone")}


def test_where_names_tell_nothing_what_was_copied_does() -> None:
    copied = [position("t", "t"), position("gone", "gone"), position("lost", "not-there")]
    found = left(["t"], ["t", "own", "gone"], {"t": "t"}, *copied, replication_policy_class=IDENTITY)
    assert found == {("without-source", "gone")}


def test_a_remote_topic_that_another_one_stands_in_for() -> None:
    found = left(["t"], ["us.t", "us.t.00000001"], {"t": "us.t.00000001"}, position("t", "us.t.00000001"))
    assert found == {("replaced", "us.t")}


def test_topics_that_are_not_those_that_were_copied() -> None:
    settings = source_settings(PROPS, WORKER)
    source, target = {"t": topic("t", topic_id=NEW)}, {"us.t": topic("us.t", topic_id=OLD)}
    (one,) = flow_plan.recreated_left(settings, source, target, [position("t", "us.t"), position("gone", "us.gone")])
    assert (one.kind, one.cluster, one.resource) == (DriftKind.RECREATED, "us", "t")


def test_rules_of_others_for_remote_topics() -> None:
    def rule(name: str, principal: str = "User:ann", pattern: str = "LITERAL") -> AclBinding:
        return AclBinding("TOPIC", name, pattern, principal, "*", "READ", "ALLOW")

    wanted, ours, by_hand = rule("us.t"), rule("us.t", "User:old"), rule("us.t", "User:bob")
    covers, own = rule("us.", pattern="PREFIXED"), rule("own")
    access = plan_access(WantedAcls({wanted}), [wanted, ours, by_hand, covers, own], {ours})
    found = [(one.resource, one.found) for one in flow_plan.acls_left("eu", access, ["us.t"])]
    assert found == [("us. (prefix)", "ALLOW User:ann READ from *"), ("us.t", "ALLOW User:bob READ from *")]
