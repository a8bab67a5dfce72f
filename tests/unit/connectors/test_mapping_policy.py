"""Names by a table of rules: there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import ConfigError, PermanentError
from connectors.policy import (
    LONGEST_NAME,
    MAPPING_POLICY_CLASS,
    MappingReplicationPolicy,
    is_cycle,
    make_mapping_policy,
    make_policy,
)

STRIPPING = [
    "legacy.(.*) -> $1",
    "(.*).v1 -> $1",
    "(.*)-(.*) -> $2-$1",
    "a.(.*) -> b.$1, b.(.*) -> a.$1",
    "team-a -> team-b, team-b -> team-a",
    "abc(.*) -> $source$1",
    "x.y.(.*) -> y$1",
    "x.yz.(.*) -> $1",
]


def policy(mapping: str, unmatched: str = "prefix", source: str = "us") -> MappingReplicationPolicy:
    props = {"mapping": mapping, "mapping.unmatched": unmatched}
    own = {f"replication.policy.{key}": value for key, value in props.items()}
    return make_mapping_policy({**own, "source.cluster.alias": source})


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
    with pytest.raises(PermanentError, match="its remote name b would be read as that of a"):
        policy("a -> b", "keep").format_remote_topic("us", "b")
    with pytest.raises(PermanentError, match="topic a-b is not mirrored"):
        policy("(a.*)-(b?) -> $1$2").format_remote_topic("us", "a-b")
    with pytest.raises(PermanentError, match="its remote name abc would not lead back to it"):
        policy("abc- -> other, (.*)-(.*) -> $1$2").format_remote_topic("us", "a-bc")
    with pytest.raises(PermanentError, match="its remote name myheartbeats would not lead back to it"):
        policy("beats -> myheartbeats").format_remote_topic("us", "beats")


@pytest.mark.parametrize(
    ("mapping", "topic"), [("(.*)-(.*) -> $2-$1", "a-b-c"), ("(.*).(.*) -> $source.$2.$1", "orders.a.b")]
)
def test_a_topic_that_its_rule_would_read_as_another_is_refused(mapping: str, topic: str) -> None:
    with pytest.raises(PermanentError, match=f"topic {topic} is not mirrored"):
        policy(mapping).format_remote_topic("us", topic)


def test_cycles_are_seen_where_the_name_tells_the_source() -> None:
    tells = policy("(.*) -> $source.$1.copy")
    assert is_cycle(tells, "eu.orders.copy", "eu")
    assert is_cycle(tells, "ap.eu.orders.copy.copy", "eu")
    assert not is_cycle(tells, "orders", "eu")
    assert tells.original_topic("ap.eu.orders.copy.copy") == "orders"
    assert not is_cycle(policy("(.*) -> $1.copy"), "orders.copy", "eu")


@pytest.mark.parametrize("unmatched", ["prefix", "keep"])
@pytest.mark.parametrize("mapping", STRIPPING)
@pytest.mark.parametrize("topic", ["orders", "a.orders", "b.orders", "my-orders", "team-a", "x.v1", "", "abcd", "yes"])
def test_looking_for_cycles_ends_whatever_the_rules(mapping: str, unmatched: str, topic: str) -> None:
    found = policy(mapping, unmatched)
    assert not is_cycle(found, topic, "elsewhere")
    assert len(found.original_topic(topic)) <= LONGEST_NAME + len("legacy.")


@pytest.mark.parametrize(
    ("mapping", "topic", "passed"),
    [
        ("us.(.*) -> from-us.$1", "from-us.orders", "us"),
        ("us.(.*) -> from-us.$1", "from-us.ap.orders", "ap"),
        ("us.(.*) -> from-us.$1", "from-us.ap.orders", "us"),
        ("us.(.*) -> from-us.$1, ap.(.*) -> from-ap.$1", "from-us.from-ap.orders", "ap"),
        ("team.(.*) -> $source.x.$1, us.(.*) -> from-us.$1", "from-us.ap.x.orders", "ap"),
        ("(.*)-(.*) -> $2-$1", "x-us.y", "us"),
        ("legacy.(.*) -> $1", "ap.us.orders", "us"),
        ("ap.(.*) -> ap.$1", "ap.us.orders", "us"),
        ("legacy.ap.(.*) -> ap.$1", "ap.us.orders", "us"),
    ],
)
def test_behind_a_hop_that_no_name_tells_the_names_are_asked(mapping: str, topic: str, passed: str) -> None:
    assert is_cycle(policy(mapping, source="eu"), topic, passed)


@pytest.mark.parametrize(
    ("mapping", "unmatched"),
    [
        ("us.(.*) -> $1", "prefix"),
        ("us.legacy.(.*) -> $1", "prefix"),
        ("us.orders(.*) -> orders$1", "prefix"),
        ("us.(.*) -> $1", "keep"),
    ],
)
def test_a_rule_that_strips_an_alias_makes_no_topic_one_of_its_cluster(mapping: str, unmatched: str) -> None:
    assert not is_cycle(policy(mapping, unmatched, source="eu"), "orders", "us")


def test_where_topics_that_no_rule_matches_are_kept_an_alias_in_a_name_tells_nothing() -> None:
    assert not is_cycle(policy("us.(.*) -> from-us.$1", "keep", source="eu"), "from-us.orders", "us")


def test_names_behind_a_hop_lead_to_where_a_topic_began() -> None:
    assert policy("us.(.*) -> from-us.$1", source="eu").original_topic("from-us.ap.orders") == "orders"


def test_a_hop_by_a_rule_that_fits_every_name_is_the_last() -> None:
    stripped = policy("legacy.(.*) -> $1")
    assert (stripped.topic_source("orders"), stripped.upstream_topic("orders")) == ("us", "legacy.orders")
    assert stripped.original_topic("orders") == "legacy.orders"
    assert is_cycle(stripped, "orders", "us")
    assert is_cycle(stripped, "eu.orders", "eu")
    assert policy("team-a -> team-b, team-b -> team-a").original_topic("team-a") == "team-b"


@pytest.mark.parametrize(
    ("mapping", "topic", "remote", "refused"),
    [
        ("legacy.(.*) -> $1", "clicks", "us.clicks", "legacy.us.clicks"),
        ("(.*).v1 -> $1", "clicks", "us.clicks", "us.clicks.v1"),
        ("x(.*) -> u$1", "clicks", "us.clicks", "xs.clicks"),
        ("a -> us.b", "a", "us.b", "b"),
        ("a.(.*) -> us.$1", "a.b", "us.b", "b"),
        ("x.(.*) -> $1, (.*) -> $source-$1", "clicks", "us-clicks", "x.us-clicks"),
    ],
)
def test_what_the_alias_tells_goes_before_a_rule(mapping: str, topic: str, remote: str, refused: str) -> None:
    found = policy(mapping)
    assert found.format_remote_topic("us", topic) == remote
    assert (found.topic_source(remote), found.upstream_topic(remote)) == ("us", topic)
    said = f"topic {refused} is not mirrored: .* {remote} would be read .* of {topic}[.]"
    with pytest.raises(PermanentError, match=said):
        found.format_remote_topic("us", refused)


@pytest.mark.parametrize("topic", ["heartbeats", "eu.heartbeats", "my-heartbeats"])
@pytest.mark.parametrize("unmatched", ["prefix", "keep"])
def test_heartbeats_have_the_alias_before_their_names(unmatched: str, topic: str) -> None:
    found = policy("plain -> other, (x.*) -> y.$1", unmatched)
    assert found.format_remote_topic("us", topic) == f"us.{topic}"
    assert (found.topic_source(f"us.{topic}"), found.upstream_topic(f"us.{topic}")) == ("us", topic)


def test_no_rule_gives_a_topic_the_name_of_heartbeats() -> None:
    with pytest.raises(PermanentError, match=r"its remote name us\.heartbeats would be read as that of heartbeats"):
        policy("beats -> us.heartbeats").format_remote_topic("us", "beats")


@pytest.mark.parametrize("separator", ["-", "_"])
def test_an_alias_that_is_known_ends_where_it_ends(separator: str) -> None:
    mapping = f"(.*) -> $source{separator}$1"
    there, back = policy(mapping), policy(mapping, source="eu")
    topic = f"my{separator}orders"
    name = there.format_remote_topic("us", topic)
    assert (there.topic_source(name), there.upstream_topic(name)) == ("us", topic)
    assert is_cycle(back, name, "us")
    assert not is_cycle(back, topic, "us")
    assert is_cycle(back, back.format_remote_topic("eu", name), "us")


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ("", "is required by this"),
        ("a", "is not a rule"),
        ("(.*) -> x", "does not use group 1"),
        ("(.*) -> $2$1", "uses $2, but has only 1 groups"),
        ("(.* -> $1", "unclosed"),
        ("a*(.*) -> $1", "outside a group"),
        ("((a)b) -> $1", "must not contain other groups"),
        ("(?:a) -> $1", "flags or a name"),
        ("([) -> $1", "unclosed"),
        ("(*) -> $1", "nothing to repeat"),
        ("(.*) -> $1!", "which is not allowed in a topic's name"),
    ],
)
def test_rules_that_cannot_be_used(mapping: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(mapping)
    assert why in str(caught.value)
    assert caught.value.key == "replication.policy.mapping"


@given(
    st.lists(st.text("ab.-", min_size=1, max_size=5), unique=True),
    st.sampled_from(["keep", "prefix"]),
    st.sampled_from(
        [
            "a(.*)-(b*) -> $2.$1, (.*).b -> b$1, (a+) -> $1$1",
            "(.*).(.*) -> $source.$2.$1, (.*)-(.*) -> $1$2",
            "(.*?)-(.*) -> $2$1, (.*).(.*).(.*) -> $2.$3-$1",
            "(.*)-(.*) -> $2-$1",
            "a.(.*) -> $1",
            "(.*).b -> $1, b.(.*) -> $source-$1",
            "b(.*) -> a$1, (.*)-a -> $1.$source",
        ]
    ),
    st.sampled_from(["us", "a", "a-b"]),
)
def test_no_two_topics_ever_share_a_remote_one(topics: list[str], unmatched: str, mapping: str, alias: str) -> None:
    found = policy(mapping, unmatched, alias)
    remote: dict[str, str] = {}
    for topic in topics:
        try:
            name = found.format_remote_topic(alias, topic)
        except PermanentError:
            continue
        assert remote.setdefault(name, topic) == topic
        if unmatched == "keep" or found.topic_source(name) == alias:
            assert found.upstream_topic(name) == topic


def test_it_is_chosen_by_its_class() -> None:
    props = {"replication.policy.class": MAPPING_POLICY_CLASS, "replication.policy.mapping": "a -> b"}
    assert make_policy(props).format_remote_topic("us", "a") == "b"


@pytest.mark.parametrize(
    ("prefix", "remote"),
    [
        *(("orders.", "eu.us."), ("orders.new", "eu.us.new"), ("other", "us.other")),
        *((prefix, None) for prefix in ("ord", "odd.x", "")),
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
