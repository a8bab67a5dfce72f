"""Names of topics, against what Kafka 4.3's own policies answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.policy import ReplicationPolicy
from connect.core.errors import ConfigError
from connectors.policy import (
    IDENTITY_POLICY_CLASS,
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    is_cycle,
    make_policy,
)

DEFAULT = DefaultReplicationPolicy()
IDENTITY = IdentityReplicationPolicy(source_alias="us")
UNDERSCORE = DefaultReplicationPolicy("_")
aliases = st.text("abc-", min_size=1, max_size=4)
names = st.text("abc.-_", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("policy", "topic", "source", "upstream", "original"),
    [
        (DEFAULT, "us.orders", "us", "orders", "orders"),
        (DEFAULT, "eu.us.orders", "eu", "us.orders", "orders"),
        (DEFAULT, "orders", None, None, "orders"),
        (DEFAULT, "orders.", None, None, "orders."),
        (DEFAULT, "orders..", None, None, "orders.."),
        (DEFAULT, ".orders", "", "orders", "orders"),
        (DEFAULT, "us..orders", "us", ".orders", "orders"),
        (DEFAULT, ".", None, None, "."),
        (UNDERSCORE, "us_orders.x", "us", "orders.x", "orders.x"),
        (DefaultReplicationPolicy("__"), "us___orders", "us", "_orders", "_orders"),
        (IDENTITY, "orders", "us", "orders", "orders"),
        (IDENTITY, "eu.orders", "us", "eu.orders", "eu.orders"),
        (IDENTITY, "heartbeats", None, None, "heartbeats"),
        (IDENTITY, "us.heartbeats", "us", "heartbeats", "heartbeats"),
        (IDENTITY, "my-heartbeats", None, None, "my-heartbeats"),
        (IdentityReplicationPolicy(), "orders", None, "orders", "orders"),
    ],
)
def test_what_a_name_tells(
    policy: ReplicationPolicy, topic: str, source: str | None, upstream: str | None, original: str
) -> None:
    assert policy.topic_source(topic) == source
    assert policy.upstream_topic(topic) == upstream
    assert policy.original_topic(topic) == original


@pytest.mark.parametrize(
    ("policy", "topic", "remote"),
    [
        (DEFAULT, "orders", "us.orders"),
        (UNDERSCORE, "orders", "us_orders"),
        (IDENTITY, "orders", "orders"),
        (IDENTITY, "heartbeats", "us.heartbeats"),
        (IDENTITY, "x.heartbeats", "us.x.heartbeats"),
    ],
)
def test_remote_names(policy: ReplicationPolicy, topic: str, remote: str) -> None:
    assert policy.format_remote_topic("us", topic) == remote


def test_internal_names_follow_the_separator_unless_that_is_switched_off_beside_one() -> None:
    off = {"replication.policy.internal.topic.separator.enabled": "false"}
    dotted = make_policy({"replication.policy.separator": "_", **off})
    assert DEFAULT.offset_syncs_topic("eu") == "mm2-offset-syncs.eu.internal"
    assert DEFAULT.checkpoints_topic("us") == "us.checkpoints.internal"
    assert UNDERSCORE.offset_syncs_topic("eu") == "mm2-offset-syncs_eu_internal"
    assert UNDERSCORE.checkpoints_topic("us") == "us_checkpoints_internal"
    assert dotted.offset_syncs_topic("eu") == "mm2-offset-syncs.eu.internal"
    assert dotted.format_remote_topic("us", "orders") == "us_orders"
    assert make_policy(off).checkpoints_topic("us") == "us.checkpoints.internal"


@pytest.mark.parametrize(
    ("policy", "topic", "internal"),
    [
        (DEFAULT, "__consumer_offsets", True),
        (DEFAULT, ".hidden", True),
        (DEFAULT, "mm2-offset-syncs.eu.internal", True),
        (DEFAULT, "mm2-offsets.us.internal", True),
        (DEFAULT, "mm2-offset-map.us.internal", True),
        (DEFAULT, "us.checkpoints.internal", True),
        (DEFAULT, "my.internal", False),
        (DEFAULT, "my-internal", False),
        (DEFAULT, "us.mm2-offsets.x.internal", False),
        (DEFAULT, "orders", False),
        (UNDERSCORE, "mm2-offset-syncs_eu_internal", True),
        (UNDERSCORE, "us_checkpoints_internal", True),
        (UNDERSCORE, "us.checkpoints.internal", False),
        # Java says no to these with another separator, and would mirror a worker's own topics.
        (UNDERSCORE, "mm2-offsets.us.internal", True),
        (UNDERSCORE, "mm2-offset-map.us.internal", True),
        (IDENTITY, "mm2-configs.us.internal", True),
        (IDENTITY, "orders", False),
    ],
)
def test_internal_topics(policy: ReplicationPolicy, topic: str, internal: bool) -> None:
    assert policy.is_internal_topic(topic) is internal


@pytest.mark.parametrize(
    ("policy", "topic", "heartbeats"),
    [
        (DEFAULT, "heartbeats", True),
        (DEFAULT, "eu.us.heartbeats", True),
        (DEFAULT, "my-heartbeats", False),
        (DEFAULT, "heartbeats.x", False),
        (IDENTITY, "us.heartbeats", True),
        (IDENTITY, "orders", False),
    ],
)
def test_heartbeats_topics(policy: ReplicationPolicy, topic: str, heartbeats: bool) -> None:
    assert policy.is_heartbeats_topic(topic) is heartbeats


@pytest.mark.parametrize(
    ("policy", "topic", "cycle"),
    [
        (DEFAULT, "eu.orders", True),
        (DEFAULT, "us.eu.orders", True),
        (DEFAULT, "eu.us.orders", True),
        (DEFAULT, "us.orders", False),
        (DEFAULT, "orders", False),
        (DEFAULT, "eu.", False),
        (IDENTITY, "eu.orders", False),
        (IDENTITY, "eu.heartbeats", True),
        (IdentityReplicationPolicy(source_alias="eu"), "orders", True),
    ],
)
def test_cycles(policy: ReplicationPolicy, topic: str, cycle: bool) -> None:
    assert is_cycle(policy, topic, "eu") is cycle


@given(st.sampled_from([".", "_", "__"]), st.lists(aliases, min_size=1, max_size=4), st.text("abc-", min_size=1))
def test_a_mirrored_name_leads_back_hop_by_hop(separator: str, hops: list[str], topic: str) -> None:
    policy = DefaultReplicationPolicy(separator)
    name = topic
    for alias in hops:
        upstream, name = name, policy.format_remote_topic(alias, name)
        assert (policy.topic_source(name), policy.upstream_topic(name)) == (alias, upstream)
    assert policy.original_topic(name) == topic
    assert all(is_cycle(policy, name, alias) for alias in hops)
    assert not is_cycle(policy, name, "elsewhere")


@given(names)
def test_cycles_end_whatever_the_name(topic: str) -> None:
    for policy in (DEFAULT, IDENTITY, UNDERSCORE):
        assert is_cycle(policy, topic, "elsewhere") is False


class Growing(DefaultReplicationPolicy):
    """Of other people: each name has one more before it."""

    def topic_source(self, topic: str) -> str | None:
        return "us"

    def upstream_topic(self, topic: str) -> str | None:
        return f"more.{topic}"


class Swapping(Growing):
    def upstream_topic(self, topic: str) -> str | None:
        return topic[::-1]


@pytest.mark.parametrize("policy", [Growing(), Swapping()])
def test_cycles_end_whatever_a_policy_answers(policy: ReplicationPolicy) -> None:
    assert not is_cycle(policy, "orders", "eu")
    assert is_cycle(policy, "orders", "us")


@pytest.mark.parametrize("name", [IDENTITY_POLICY_CLASS, "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy"])
def test_names_that_are_kept_need_no_separator(name: str) -> None:
    props = {"replication.policy.class": name, "replication.policy.separator": "", "source.cluster.alias": "us"}
    policy = make_policy(props)
    assert (policy.format_remote_topic("us", "orders"), policy.topic_source("orders")) == ("orders", "us")
    assert policy.offset_syncs_topic("eu") == "mm2-offset-syncseuinternal"
    assert policy.checkpoints_topic("us") == "uscheckpointsinternal"
    assert policy.is_internal_topic("uscheckpointsinternal")
    # Java takes such names apart character by character, and so knows no heartbeats.
    assert policy.format_remote_topic("us", "heartbeats") == "usheartbeats"
    assert (policy.topic_source("usheartbeats"), policy.upstream_topic("usheartbeats")) == ("u", "sheartbeats")
    assert not policy.is_heartbeats_topic("heartbeats")


@pytest.mark.parametrize(
    "props",
    [
        {"replication.policy.class": "my.Policy"},
        {"replication.policy.separator": ""},
        {"replication.policy.separator": "/"},
        {"source.cluster.alias": "us east", "target.cluster.alias": "eu"},
        {"target.cluster.alias": "eü"},
    ],
)
def test_what_cannot_be_a_policy(props: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(props)
    assert caught.value.key in props
