"""What topics are called on the target where transforms rename them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.transformations import named_steps
from connect.core.errors import ConfigError, PermanentError
from connectors.formats.types import Ways
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, make_mapping_policy
from connectors.transforms.smt_chain import TopicRoutes
from connectors.transforms.target_names import RemoteNames, renaming_steps

ROUTER = {"type": "RegexRouter", "regex": r"us\.(.*)", "replacement": "$1"}
SHORT = {f"transforms.short.{key}": value for key, value in ROUTER.items()}
DAYS = {
    "transforms.days.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.days.regex": r"orders\..*",
    "transforms.days.replacement": "orders",
}


def names(transforms: str, props: dict[str, str]) -> RemoteNames:
    steps = named_steps({**props, "transforms": transforms})
    return RemoteNames("us", DefaultReplicationPolicy(), renaming_steps(steps))


def test_transforms_see_the_policys_name_one_behind_the_other() -> None:
    found = names("short, lean, days", {**SHORT, **DAYS, "transforms.lean.type": "DropHeaders"})
    assert found.ways("orders.eu") == Ways("us.orders.eu")
    assert (found.of("orders.eu"), found.of("bills")) == ("orders", "bills")
    assert not found.are_the_policys
    # Before the alias is gone the other matches nothing.
    assert names("days, short", {**SHORT, **DAYS}).of("orders.eu") == "orders.eu"


def test_a_predicate_may_look_at_the_topic_alone() -> None:
    hearts = {"predicates.hearts.type": "TopicNameMatches", "predicates.hearts.pattern": ".*heartbeats"}
    by_topic = {"transforms.short.predicate": "hearts", **hearts}
    but = names("short", {**SHORT, **by_topic, "transforms.short.negate": "true"})
    assert (but.of("orders"), but.of("heartbeats")) == ("orders", "us.heartbeats")
    for_each = names("short", {**SHORT, **by_topic, "predicates.hearts.type": "RecordIsTombstone"})
    assert for_each.are_the_policys, "which is refused elsewhere"


@pytest.mark.parametrize("topic", ["__consumer_offsets", "mm2-offsets.us.internal", "us.checkpoints.internal"])
def test_the_name_of_an_internal_topic_is_none(topic: str) -> None:
    to = {**SHORT, "transforms.short.replacement": topic}
    with pytest.raises(PermanentError, match=re.escape(f"{topic}, which is the name of an internal topic")):
        names("short", to).of("orders")
    same = RemoteNames("us", IdentityReplicationPolicy())
    assert same.of(topic) == topic, "that is for the topic filter to say"


def test_settings_that_are_wrong_are_told_with_their_key() -> None:
    with pytest.raises(ConfigError, match=r"RegexRouter cannot be used") as refused:
        names("short", {**SHORT, "transforms.short.replacement": "$2"})
    assert refused.value.key == "transforms.short.type"


@given(st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True))
def test_as_java_does(topic: str) -> None:
    assert names("short", SHORT).of(topic) == topic
    assert names("", {}).of(topic) == f"us.{topic}"


def routed(own: str, *others: str, by_query: bool = False, renaming: str = "") -> RemoteNames:
    return replace(names(renaming, SHORT), routes=TopicRoutes(own, others), by_query=by_query)


def test_of_several_topics_one_is_filled() -> None:
    errors = routed("${topic}.errors", "${topic}", by_query=True, renaming="short")
    assert errors.of("orders") == "orders.errors" and not errors.are_the_policys
    assert errors.ways("orders") == Ways("us.orders.errors", asked=("orders.errors", "orders"))
    by_transforms = routed("${topic}", "${topic}.errors", "audit", renaming="short")
    assert by_transforms.ways("orders") == Ways("us.orders", named=("orders", "orders.errors", "audit"))
    assert routed("${topic}", by_query=True).ways("orders") == Ways("us.orders", asked=("orders",))
    assert names("", {}).ways("orders") == Ways("us.orders")


@pytest.mark.parametrize(
    ("own", "others", "topic"), [("${topic}", "errors", "errors"), ("orders", "${topic}", "orders")]
)
def test_what_others_fill_we_do_not(own: str, others: str, topic: str) -> None:
    found = routed(own, others, by_query=True)
    names = tuple(f"us.{one.replace('${topic}', 'bills')}" for one in (own, others))
    assert found.all_of("bills") == names
    with pytest.raises(PermanentError, match=f"both name its remote topic us.{topic}, so it would be written twice"):
        found.of(topic)


def test_topics_of_which_one_has_no_name_are_not_mirrored() -> None:
    rules = {"replication.policy.mapping": "orders -> b", "replication.policy.mapping.unmatched": "keep"}
    policy = make_mapping_policy({**rules, "source.cluster.alias": "us"})
    with pytest.raises(PermanentError, match="would be read as that of"):
        RemoteNames("us", policy, routes=TopicRoutes("orders", ("b",))).of("orders")
