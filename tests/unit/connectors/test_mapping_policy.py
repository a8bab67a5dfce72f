"""Names by a table of rules: there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import ConfigError, PermanentError
from connectors.mapping_policy import MappingReplicationPolicy, make_mapping_policy
from connectors.policies import MAPPING_POLICY_CLASS, make_policy
from connectors.policy import is_cycle


def policy(mapping: str, unmatched: str = "prefix") -> MappingReplicationPolicy:
    return make_mapping_policy(
        {
            "replication.policy.mapping": mapping,
            "replication.policy.mapping.unmatched": unmatched,
            "source.cluster.alias": "us",
        }
    )


@pytest.mark.parametrize(
    ("mapping", "topic", "remote"),
    [
        ("orders.(.*) -> eu.$1.orders", "orders.new", "eu.new.orders"),
        ("orders.(.*) -> eu.$1.orders", "ordersXnew", "us.ordersXnew"),
        ("orders.(.*) -> eu.$1.orders", "my.orders.new", "us.my.orders.new"),
        ("([a-z]+)-(\\d{2}) -> $2.${1}", "ab-07", "07.ab"),
        ("a.(.*) -> x.$1, (.*).b -> y.$1", "a.b", "x.b"),
        ("a.(.*) -> x.$1, (.*).b -> y.$1", "c.b", "y.c"),
        ("(.*) -> $source.$1.$source", "t", "us.t.us"),
        ("((?:a|b)[()]*) -> $1.x", "a", "a.x"),
        ("plain -> other", "plain", "other"),
        ("(.*) -> x.$1", "heartbeats", "us.heartbeats"),
    ],
)
def test_names_lead_there_and_back(mapping: str, topic: str, remote: str) -> None:
    found = policy(mapping)
    assert found.format_remote_topic("us", topic) == remote
    assert (found.topic_source(remote), found.upstream_topic(remote)) == ("us", topic)


def test_what_no_rule_matches() -> None:
    keeps, prefixes = policy("a -> b", "keep"), policy("a -> b")
    assert keeps.format_remote_topic("us", "t") == "t"
    assert (keeps.topic_source("t"), keeps.upstream_topic("t")) == ("us", "t")
    assert (prefixes.topic_source("t"), prefixes.upstream_topic("t")) == (None, None)
    assert prefixes.topic_source("eu.t") == "eu"


def test_a_name_that_would_read_as_anothers_is_refused() -> None:
    with pytest.raises(PermanentError, match="its remote name b would read as that of a"):
        policy("a -> b", "keep").format_remote_topic("us", "b")
    with pytest.raises(PermanentError, match="topic a-b is not mirrored"):
        policy("(a.*)-(b?) -> $1$2").format_remote_topic("us", "a-b")


def test_cycles_are_seen_where_the_name_tells_the_source() -> None:
    tells = policy("(.*) -> $source.$1.copy")
    assert is_cycle(tells, "eu.orders.copy", "eu")
    assert is_cycle(tells, "ap.eu.orders.copy.copy", "eu")
    assert not is_cycle(tells, "orders", "eu")
    assert tells.original_topic("ap.eu.orders.copy.copy") == "orders"
    assert not is_cycle(policy("(.*) -> $1.copy"), "orders.copy", "eu")


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ("", "is needed by this"),
        ("a", "is no rule"),
        ("(.*) -> x", "does not use group 1"),
        ("(.*) -> $2$1", "uses $2, and has 1 groups"),
        ("(.* -> $1", "not closed"),
        ("a*(.*) -> $1", "outside of a group"),
        ("((a)b) -> $1", "may hold no other"),
        ("(?:a) -> $1", "nor flags"),
        ("([) -> $1", "not closed"),
        ("(*) -> $1", "nothing to repeat"),
        ("(.*) -> $1!", "which no topic's name may have"),
    ],
)
def test_rules_that_cannot_be_used(mapping: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(mapping)
    assert why in str(caught.value)
    assert caught.value.key == "replication.policy.mapping"


@given(st.lists(st.text("ab.-", min_size=1, max_size=5), unique=True), st.sampled_from(["keep", "prefix"]))
def test_no_two_topics_ever_share_a_remote_one(topics: list[str], unmatched: str) -> None:
    found = policy("a(.*)-(b*) -> $2.$1, (.*).b -> b$1, (a+) -> $1$1", unmatched)
    remote: dict[str, str] = {}
    for topic in topics:
        try:
            name = found.format_remote_topic("us", topic)
        except PermanentError:
            continue
        assert remote.setdefault(name, topic) == topic
        if unmatched == "keep" or found.topic_source(name) == "us":
            assert found.upstream_topic(name) == topic


def test_it_is_chosen_by_its_class() -> None:
    props = {"replication.policy.class": MAPPING_POLICY_CLASS, "replication.policy.mapping": "a -> b"}
    assert make_policy(props).format_remote_topic("us", "a") == "b"


@pytest.mark.parametrize(
    ("prefix", "remote"),
    [
        ("orders.", "eu.us."),
        ("orders.new", "eu.us.new"),
        ("other", "us.other"),
        ("ord", None),
        ("odd.x", None),
        ("", None),
    ],
)
def test_prefixes_are_told_where_the_rules_tell_them(prefix: str, remote: str | None) -> None:
    mapped = policy("orders.(.*) -> eu.$source.$1, odd.(.*).y -> z.$1")
    assert mapped.format_remote_prefix("us", prefix) == remote


@given(
    st.sampled_from(("a.(.*) -> x.$1, b(.*) -> $1", "(.*) -> $source-$1", "a.b -> c, a.(.*) -> d.$1")),
    st.sampled_from(("prefix", "keep")),
    st.text("ab.", max_size=4),
    st.text("ab.x", max_size=4),
)
def test_what_a_prefix_becomes_all_its_topics_begin_with(mapping: str, unmatched: str, prefix: str, rest: str) -> None:
    mapped = policy(mapping, unmatched)
    remote = mapped.format_remote_prefix("us", prefix)
    try:
        name = mapped.format_remote_topic("us", prefix + rest)
    except PermanentError:
        return  # it is not mirrored
    assert remote is None or name.startswith(remote)
