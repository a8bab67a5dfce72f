"""Remote topics: their names, their settings, and the plan of both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log.topic_admin import ConfigSource, TopicConfig
from connectors.config.connector_configs import source_settings
from connectors.filters import DefaultConfigPropertyFilter
from connectors.formats.position import Position
from connectors.topic_sync import remote_topics
from connectors.topic_sync.cluster_changes import AddPartitions, AlterConfig, CreateTopic
from connectors.topic_sync.remote_topics import (
    absent,
    alterations,
    configs_of_new,
    creations,
    growths,
    name_topics,
    plan_topics,
    unknown_keys,
    wanted_configs,
)

ALL = DefaultConfigPropertyFilter((), source_defaults=False)
COMPACT = {"cleanup.policy": TopicConfig("compact", ConfigSource.TOPIC)}


def topic(name: str, partitions: int) -> TopicMetadata:
    return TopicMetadata(name, None, 0, {index: PartitionMetadata(0, 0, (0,), 0) for index in range(partitions)})


def remote(name: str) -> str:
    return f"us.{name}"


def alone(name: str) -> tuple[str]:
    return (remote(name),)


def test_what_is_missing_is_made_and_what_is_short_grows() -> None:
    topics = [topic("a", 3), topic("b", 2), topic("c", 1)]
    naming = name_topics(alone, ["a", "b", "c"])
    target = {"us.b": topic("us.b", 1), "us.c": topic("us.c", 4)}
    new = absent(naming, topics, target)
    made = CreateTopic("us.a", "a", 3, -1, {"cleanup.policy": "compact"})
    assert creations(naming, new, {"a": COMPACT}, ALL, -1) == [made]
    assert growths(naming, topics, target) == [AddPartitions("us.b", "b", 1, 2)]


def test_nothing_is_made_without_its_settings() -> None:
    naming = name_topics(alone, ["a"])
    assert creations(naming, [topic("a", 1)], {}, ALL, 1) == []


def test_a_name_that_kafka_does_not_allow_is_said_and_the_others_go_on() -> None:
    longest = "x" * 246
    naming = name_topics(alone, ["a", longest, longest + "y"])
    assert naming.remote == {"a": "us.a", longest: "us." + longest}
    assert "has 250 characters, and Kafka allows 249" in naming.problems[longest + "y"]
    assert "is not valid in Kafka" in name_topics(lambda name: ("a b",), ["a"]).problems["a"]


def test_two_topics_never_share_a_remote_one() -> None:
    def lower(name: str) -> tuple[str]:
        return (name.lower(),)

    fresh = name_topics(lower, ["A", "a", "b"])
    assert fresh.remote == {"b": "b"}
    assert "topics A and a would share the remote topic a" in fresh.problems["A"]
    # One that is copied already goes on.
    assert name_topics(lower, ["A", "a", "b"], frozenset({"A"})).remote == {"A": "a", "b": "b"}
    assert name_topics(lower, ["A", "a", "b"], frozenset({"A", "a"})).remote == {"b": "b"}


def test_what_is_filled_is_not_what_others_fill_from_another_topic() -> None:
    """Two connectors share out orders; orders.errors is a topic of the source as well."""

    def usual(topic: str) -> tuple[str, str]:
        return f"us.{topic}", f"us.{topic}.errors"

    def errors(topic: str) -> tuple[str, str]:
        return usual(topic)[::-1]

    topics = ["bills", "orders", "orders.errors"]
    for names in (usual, errors):
        fresh = name_topics(names, topics)
        assert fresh.remote == {"bills": names("bills")[0]}
        assert fresh.undecided == {topic: names(topic)[0] for topic in topics[1:]}
        for topic in topics[1:]:
            assert "orders and orders.errors would share the remote topic us.orders.errors" in fresh.problems[topic]
            held = name_topics(names, topics, {topic})
            assert held.remote == {"bills": names("bills")[0], topic: names(topic)[0]}
            assert not held.undecided
        assert name_topics(names, topics, set(topics)).remote == {"bills": names("bills")[0]}


def test_what_others_fill_from_several_topics_is_theirs_to_say() -> None:
    naming = name_topics(lambda topic: (f"us.{topic}", "us.audit"), ["a", "b"])
    assert naming.remote == {"a": "us.a", "b": "us.b"}


@given(st.dictionaries(st.text("ab", min_size=1, max_size=2), st.tuples(st.integers(1, 4), st.integers(0, 4))))
def test_once_applied_nothing_is_left_to_do(counts: dict[str, tuple[int, int]]) -> None:
    topics = [topic(name, wanted) for name, (wanted, _) in counts.items()]
    naming = name_topics(alone, list(counts))
    target = {remote(name): topic(remote(name), has) for name, (_, has) in counts.items() if has}
    made = creations(naming, absent(naming, topics, target), dict.fromkeys(counts, COMPACT), ALL, 1)
    target |= {change.topic: topic(change.topic, change.partitions) for change in made}
    target |= {change.topic: topic(change.topic, change.want) for change in growths(naming, topics, target)}
    assert absent(naming, topics, target) == []
    assert growths(naming, topics, target) == []
    for name, (wanted, has) in counts.items():
        assert len(target[remote(name)].partitions) == max(wanted, has)


PROPS = {"name": "errors", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
QUERY = "SELECT IF(value LIKE '%x%', 'errors', topic) AS topic FROM records"
ROUTES = {"transform.sql": QUERY, "transform.topic": "errors", "transform.other.topics": "${topic}"}
SETTINGS = source_settings({**PROPS, **ROUTES, "topics": ".*"}, {"offset.storage.topic": "offsets"})


class Cluster:
    def __init__(self, *topics: str) -> None:
        self.topics = {name: TopicMetadata(name, None, 0, {0: PartitionMetadata(0, 0, (0,), 0)}) for name in topics}

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self.topics)


async def names(monkeypatch: pytest.MonkeyPatch, stored: dict[str, str], copied: frozenset[str]) -> dict[str, str]:
    async def read_positions(*_: object) -> dict[Any, Position]:
        assert not copied, "who copies knows"
        return {one: Position(one, 0, None, 5, 0, to, 0, None, 5, "", -1, -1, 0) for one, to in stored.items()}

    monkeypatch.setattr(remote_topics, "read_positions", read_positions)
    source: Any = Cluster("orders", "bills", "heartbeats")
    target: Any = Cluster("us.errors")
    configs: Any = None
    return dict((await plan_topics(SETTINGS, source, target, configs, copied)).naming.remote)


async def test_after_a_restart_who_had_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await names(monkeypatch, {}, frozenset()) == {}
    assert await names(monkeypatch, {}, frozenset({"orders"})) == {"orders": "us.errors"}
    both = {"orders": "us.errors", "bills": "us.bills"}
    assert await names(monkeypatch, both, frozenset()) == {"orders": "us.errors"}
    assert await names(monkeypatch, {"orders": "us.errors", "bills": "us.errors"}, frozenset()) == {}


TARGET_DEFAULTS = DefaultConfigPropertyFilter(("min.insync.replicas", "unclean.*"), source_defaults=False)
SOURCE_DEFAULTS = DefaultConfigPropertyFilter(("min.insync.replicas", "unclean.*"), source_defaults=True)
SOURCE = {
    "cleanup.policy": TopicConfig("compact", ConfigSource.TOPIC),
    "retention.ms": TopicConfig("9", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    "segment.ms": TopicConfig("7", ConfigSource.DYNAMIC_BROKER),
    "segment.bytes": TopicConfig("5", ConfigSource.STATIC_BROKER),
    "flush.ms": TopicConfig("3", ConfigSource.DEFAULT),
    "min.insync.replicas": TopicConfig("2", ConfigSource.TOPIC),
    "unclean.leader.election.enable": TopicConfig("true", ConfigSource.TOPIC),
    "secret": TopicConfig(None, ConfigSource.TOPIC, sensitive=True),
    "fixed": TopicConfig("1", ConfigSource.TOPIC, read_only=True),
}
SET = {"cleanup.policy": "compact", "retention.ms": "9", "segment.ms": "7"}


@pytest.mark.parametrize(
    ("properties", "new", "wanted"),
    [
        (TARGET_DEFAULTS, SET, {**SET, "flush.ms": None}),
        (SOURCE_DEFAULTS, {**SET, "flush.ms": "3"}, {**SET, "flush.ms": "3"}),
    ],
)
def test_javas_rule(
    properties: DefaultConfigPropertyFilter, new: dict[str, str], wanted: dict[str, str | None]
) -> None:
    assert configs_of_new(SOURCE, properties) == new
    assert wanted_configs(SOURCE, properties) == wanted


def test_only_what_differs_is_altered() -> None:
    target = {
        "cleanup.policy": TopicConfig("delete", ConfigSource.DEFAULT),
        "retention.ms": TopicConfig("9", ConfigSource.TOPIC),
        "segment.ms": TopicConfig("7", ConfigSource.DEFAULT),
        "flush.ms": TopicConfig("4", ConfigSource.TOPIC),
    }
    assert alterations("us.a", SOURCE, target, TARGET_DEFAULTS) == [
        AlterConfig("us.a", "cleanup.policy", "delete", "compact"),
        AlterConfig("us.a", "flush.ms", "4", None),
        # The same value, but it would not stay where the target's default changes.
        AlterConfig("us.a", "segment.ms", "7", "7"),
    ]


def test_where_the_target_may_not_be_seen_all_is_sent() -> None:
    found = alterations("us.a", SOURCE, None, TARGET_DEFAULTS)
    assert {change.key: change.after for change in found} == wanted_configs(SOURCE, TARGET_DEFAULTS)


def test_a_key_that_the_target_does_not_know_is_left_out_and_named() -> None:
    target = {key: config for key, config in SOURCE.items() if key != "retention.ms"}
    assert unknown_keys(SOURCE, target, TARGET_DEFAULTS) == ["retention.ms"]
    assert "retention.ms" not in {change.key for change in alterations("t", SOURCE, target, TARGET_DEFAULTS)}


SETTING = st.builds(TopicConfig, st.sampled_from("12"), st.sampled_from(ConfigSource))
CONFIGS = st.dictionaries(st.sampled_from("abc"), SETTING)


@given(CONFIGS, CONFIGS, st.booleans())
def test_once_the_settings_are_altered_nothing_is_left_to_do(
    source: dict[str, TopicConfig], target: dict[str, TopicConfig], source_defaults: bool
) -> None:
    properties = DefaultConfigPropertyFilter((), source_defaults=source_defaults)
    for change in alterations("t", source, target, properties):
        own = ConfigSource.DEFAULT if change.after is None else ConfigSource.TOPIC
        target[change.key] = TopicConfig(change.after or "0", own)
    assert alterations("t", source, target, properties) == []
