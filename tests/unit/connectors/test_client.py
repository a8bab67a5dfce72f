"""What names of topics tell a client of where they came from."""

import pytest

from connect.core.errors import ConfigError
from connectors.client import MirrorClient, all_sources, hops
from connectors.policy import IDENTITY_POLICY_CLASS, make_policy
from tests.kit.answers import put

DEFAULT = make_policy({})
IDENTITY = make_policy({"replication.policy.class": IDENTITY_POLICY_CLASS, "source.cluster.alias": "us"})


@pytest.mark.parametrize(
    ("topic", "alias", "count"),
    [
        ("heartbeats", "us", -1),
        ("us.heartbeats", "us", 1),
        ("s2.s1.heartbeats", "s2", 1),
        ("s2.s1.heartbeats", "s1", 2),
        ("s2.s1.heartbeats", "s3", -1),
        ("s1.s2.s1.heartbeats", "s3", -1),
        ("s1.t", "s2", -1),
        ("s1t", "s1", -1),
        ("s3.s2.s1.t", "s1", 3),
    ],
)
def test_hops_are_counted_by_the_name(topic: str, alias: str, count: int) -> None:
    assert hops(DEFAULT, topic, alias) == count


def test_all_sources_of_a_topic() -> None:
    assert all_sources(DEFAULT, "s2.s1.heartbeats") == ["s2", "s1"]
    assert all_sources(DEFAULT, "heartbeats") == []
    assert all_sources(DEFAULT, "s1.s2.s1.t") == ["s1", "s2"]
    assert all_sources(IDENTITY, "orders") == ["us"]


async def test_a_client_needs_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        MirrorClient({})


TOPICS = (
    *("t1", "heartbeats", "s1.t4", "s1.heartbeats", "s1.s2.heartbeats", "s3.s4.s5.t6", "s3.s4.s5.heartbeats"),
    *("s1.checkpoints.internal", "s2.s1.checkpoints.internal", "mm2-offset-syncs.s1.internal"),
)
SEPARATED = ("t1", "s1.t4", "heartbeats", "s1__t4", "s1__s2__t5", "s3__s4__s5__t6", "s1__checkpoints__internal")
HEARTBEATS = {topic for topic in TOPICS if topic.endswith("heartbeats")}
SEPARATOR = {"replication.policy.separator": "__"}
KEPT = {"replication.policy.class": IDENTITY_POLICY_CLASS, "source.cluster.alias": "us"}


@pytest.mark.parametrize(
    ("policy", "topics", "remote"),
    [
        ({}, TOPICS, {"s1.t4", "s3.s4.s5.t6", *HEARTBEATS} - {"heartbeats"}),
        (SEPARATOR, SEPARATED, {"s1__t4", "s1__s2__t5", "s3__s4__s5__t6"}),
        # Every topic may have come from there, but the cluster's own heartbeats.
        (KEPT, TOPICS, {topic for topic in TOPICS if "internal" not in topic} - {"heartbeats"}),
    ],
    ids=["usual", "separator", "identity"],
)
async def test_javas_remote_topics(
    monkeypatch: pytest.MonkeyPatch, policy: dict[str, str], topics: tuple[str, ...], remote: set[str]
) -> None:
    put(monkeypatch, MirrorClient, _topics=topics)
    async with MirrorClient({"bootstrap.servers": "127.0.0.1:1", **policy}) as client:
        assert await client.remote_topics() == remote
        of_s1 = {topic for topic in remote if topic.startswith("s1") and (policy is not KEPT or topic in HEARTBEATS)}
        assert await client.remote_topics("s1") == of_s1


@pytest.mark.parametrize("policy", [{}, KEPT], ids=["usual", "identity"])
async def test_what_javas_client_says_of_clusters(monkeypatch: pytest.MonkeyPatch, policy: dict[str, str]) -> None:
    put(monkeypatch, MirrorClient, _topics=TOPICS)
    async with MirrorClient({"bootstrap.servers": "127.0.0.1:1", **policy}) as client:
        assert await client.heartbeat_topics() == HEARTBEATS
        assert await client.checkpoint_topics() == {"s1.checkpoints.internal", "s2.s1.checkpoints.internal"}
        assert await client.upstream_clusters() == {"s1", "s2", "s3", "s4", "s5"}
        assert [await client.replication_hops(f"s{n}") for n in range(1, 7)] == [1, 2, 1, 2, 3, -1]
