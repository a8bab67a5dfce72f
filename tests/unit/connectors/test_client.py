"""What names of topics tell a client of where they came from."""

from __future__ import annotations

import pytest

from connect.core.errors import ConfigError
from connectors.client import MirrorClient, all_sources, hops
from connectors.policy import IDENTITY_POLICY_CLASS, make_policy

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
