"""Which topics are mirrored."""

from __future__ import annotations

import pytest

from connect.core.errors import ConfigError
from connectors.filters import DefaultTopicFilter, compile_pattern_list, should_mirror
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy

DEFAULT_EXCLUDE = (r"mm2.*\.internal", r".*\.replica", "__.*")
EVERYTHING = DefaultTopicFilter((".*",), DEFAULT_EXCLUDE)


@pytest.mark.parametrize(
    ("topics", "exclude", "topic", "selected"),
    [
        ((".*",), (), "orders", True),
        ((), (), "orders", False),
        (("orders", "pay.*"), (), "payments", True),
        (("orders", "pay.*"), (), "orders2", False),
        (("orders.*",), (".*2",), "orders2", False),
        (("orders.*",), (".*2",), "orders3", True),
        # The list is joined as it is: the comma that split a group works as an alternative.
        (("(orders", "payments)-eu"), (), "payments-eu", True),
        (("(?i)orders", "payments"), (), "PAYMENTS", True),
        ((".*",), DEFAULT_EXCLUDE, "my.replica", False),
        ((".*",), DEFAULT_EXCLUDE, "my.internal", True),
    ],
)
def test_lists_of_patterns(topics: tuple[str, ...], exclude: tuple[str, ...], topic: str, selected: bool) -> None:
    assert DefaultTopicFilter(topics, exclude).should_replicate_topic(topic) is selected


def test_a_list_that_is_no_pattern_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"topics\.exclude is not a usable list of patterns \(a\{2\|3\}\)") as caught:
        compile_pattern_list("topics.exclude", ["a{2", "3}"])
    assert caught.value.key == "topics.exclude"


@pytest.mark.parametrize(
    ("topic", "heartbeats", "mirrored"),
    [
        ("orders", True, True),
        ("us.orders", True, True),
        ("eu.orders", True, False),
        ("us.eu.orders", True, False),
        ("__consumer_offsets", True, False),
        (".hidden", True, False),
        ("mm2-offset-syncs.eu.internal", True, False),
        ("us.checkpoints.internal", True, False),
        ("my.internal", True, True),
    ],
)
def test_the_three_rules(topic: str, heartbeats: bool, mirrored: bool) -> None:
    policy = DefaultReplicationPolicy()
    for topic_filter in (EVERYTHING, DefaultTopicFilter((".*",), ())):
        decision = should_mirror(
            topic, topic_filter=topic_filter, policy=policy, target_alias="eu", heartbeats_replication=heartbeats
        )
        assert decision is mirrored


@pytest.mark.parametrize(
    ("topic", "mirrored"),
    [
        ("orders", True),
        ("us_orders", True),
        ("eu_orders", False),
        ("us_eu_orders", False),
        # With this separator it is a name like any other.
        ("eu.orders", True),
        ("us_checkpoints_internal", False),
        ("mm2-offset-syncs_eu_internal", False),
        ("eu_heartbeats", False),
        ("us_heartbeats", True),
    ],
)
def test_they_hold_with_another_separator(topic: str, mirrored: bool) -> None:
    decision = should_mirror(
        topic,
        topic_filter=EVERYTHING,
        policy=DefaultReplicationPolicy("_"),
        target_alias="eu",
        heartbeats_replication=True,
    )
    assert decision is mirrored


@pytest.mark.parametrize(
    ("topic", "wanted", "mirrored"),
    [
        ("heartbeats", True, True),
        ("heartbeats", False, False),
        ("ap.heartbeats", True, True),
        ("eu.heartbeats", True, False),
    ],
)
def test_heartbeats_pass_a_filter_that_does_not_name_them(topic: str, wanted: bool, mirrored: bool) -> None:
    for policy in (DefaultReplicationPolicy(), IdentityReplicationPolicy(source_alias="us")):
        decision = should_mirror(
            topic,
            topic_filter=DefaultTopicFilter(("orders",), ()),
            policy=policy,
            target_alias="eu",
            heartbeats_replication=wanted,
        )
        assert decision is mirrored
