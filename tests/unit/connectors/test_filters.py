"""Which topics are mirrored."""

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
    ("separator", "topic", "mirrored"),
    [
        (".", "orders", True),
        (".", "us.orders", True),
        (".", "eu.orders", False),
        (".", "us.eu.orders", False),
        (".", "__consumer_offsets", False),
        (".", ".hidden", False),
        (".", "mm2-offset-syncs.eu.internal", False),
        (".", "us.checkpoints.internal", False),
        (".", "my.internal", True),
        ("_", "us_orders", True),
        ("_", "eu_orders", False),
        ("_", "us_eu_orders", False),
        ("_", "eu.orders", True),  # a name like any other
        ("_", "us_checkpoints_internal", False),
        ("_", "mm2-offset-syncs_eu_internal", False),
        ("_", "eu_heartbeats", False),
        ("_", "us_heartbeats", True),
    ],
)
def test_the_three_rules(separator: str, topic: str, mirrored: bool) -> None:
    policy = DefaultReplicationPolicy(separator)
    for topic_filter in (EVERYTHING, DefaultTopicFilter((".*",), ())):
        decision = should_mirror(
            topic, topic_filter=topic_filter, policy=policy, target_alias="eu", heartbeats_replication=True
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
