"""Which rules a flow wants on its target: Java's, the full set, and nothing beyond what the source allows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.policy import ReplicationPolicy
from connect.core.errors import PermanentError
from connect.kafka.authorization import AclBinding, refuses_writers
from connectors.config.definitions import RESOURCES
from connectors.failover import drain
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy
from connectors.topic_sync.acl_plan import Names, WantedAcls, full_rules, topic_rules
from connectors.transforms.target_names import RemoteNames

TOPICS = ("orders", "orders.eu", "audit", "heartbeats", "or")
PRINCIPALS = ("User:ann", "User:bob", "User:*")


class Reversed(DefaultReplicationPolicy):
    """Remote names share no prefix with each other that their topics share."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{topic[::-1]}.{source_alias}"


class Picky(DefaultReplicationPolicy):
    """Has no name for one topic."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        if topic == "orders":
            raise PermanentError("no name for it")
        return super().format_remote_topic(source_alias, topic)


class Careless(Reversed):
    """Says of its prefixes what does not hold."""

    def format_remote_prefix(self, source_alias: str, prefix: str) -> str | None:
        return prefix[::-1]


POLICIES: dict[str, ReplicationPolicy] = {
    "default": DefaultReplicationPolicy(),
    "identity": IdentityReplicationPolicy(source_alias="us"),
    "reversed": Reversed(),
    "careless": Careless(),
}
PICKY: ReplicationPolicy = Picky()


def rule(text: str) -> AclBinding:
    """``ALLOW READ User:bob TOPIC LITERAL orders``"""
    permission, operation, principal, kind, pattern, name = text.split()
    return AclBinding(kind, name, pattern, principal, "*", operation, permission)


def names(policy: str = "default", mirrored: tuple[str, ...] = TOPICS) -> Names:
    names = RemoteNames("us", POLICIES[policy])
    return Names(names, lambda topic: topic in (*mirrored, "*"), lambda group: group != "secret")


def full(*rules: AclBinding, policy: str = "default", mirrored: tuple[str, ...] = TOPICS, **more: Any) -> WantedAcls:
    rest: Any = {"writes": False, "made": (), **more}
    return full_rules(rules, names(policy, mirrored), resources=RESOURCES, mirrored=mirrored, **rest)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("ALLOW READ User:bob TOPIC LITERAL orders", "ALLOW READ User:bob TOPIC LITERAL us.orders"),
        ("ALLOW ALL User:bob TOPIC LITERAL orders", "ALLOW READ User:bob TOPIC LITERAL us.orders"),
        ("ALLOW DESCRIBE User:bob TOPIC LITERAL orders", "ALLOW DESCRIBE User:bob TOPIC LITERAL us.orders"),
        ("DENY ALL User:bob TOPIC LITERAL orders", "DENY ALL User:bob TOPIC LITERAL us.orders"),
        ("DENY WRITE User:bob TOPIC LITERAL orders", "DENY WRITE User:bob TOPIC LITERAL us.orders"),
        ("ALLOW READ User:bob TOPIC LITERAL *", "ALLOW READ User:bob TOPIC LITERAL us.*"),
        ("ALLOW WRITE User:bob TOPIC LITERAL orders", None),
        ("ALLOW READ User:bob TOPIC LITERAL other", None),
        ("ALLOW READ User:bob TOPIC PREFIXED or", None),
        ("ALLOW READ User:bob GROUP LITERAL app", None),
    ],
)
def test_javas_rule(source: str, target: str | None) -> None:
    assert topic_rules([rule(source)], names()).rules == ({rule(target)} if target else set())


@pytest.mark.parametrize(
    ("policy", "source", "target"),
    [
        ("default", "ALLOW READ User:bob TOPIC PREFIXED or", "ALLOW READ User:bob TOPIC PREFIXED us.or"),
        ("default", "ALLOW READ User:bob TOPIC LITERAL *", "ALLOW READ User:bob TOPIC PREFIXED us."),
        ("default", "DENY ALL User:* TOPIC PREFIXED audit", "DENY ALL User:* TOPIC PREFIXED us.audit"),
        ("default", "ALLOW WRITE User:bob TOPIC PREFIXED or", None),
        ("default", "ALLOW READ User:bob TOPIC PREFIXED x", None),
        ("identity", "ALLOW READ User:bob TOPIC PREFIXED or", "ALLOW READ User:bob TOPIC PREFIXED or"),
        ("identity", "ALLOW READ User:bob TOPIC LITERAL *", "ALLOW READ User:bob TOPIC LITERAL *"),
        ("reversed", "ALLOW READ User:bob TOPIC PREFIXED or", None),
        ("reversed", "ALLOW READ User:bob TOPIC LITERAL audit", "ALLOW READ User:bob TOPIC LITERAL tidua.us"),
        ("reversed", "DENY READ User:bob TOPIC PREFIXED aud", "DENY READ User:bob TOPIC LITERAL tidua.us"),
        ("default", "ALLOW READ User:bob GROUP PREFIXED app", "ALLOW READ User:bob GROUP PREFIXED app"),
        ("default", "ALLOW READ User:bob GROUP LITERAL secret", None),
        ("default", "DENY READ User:bob GROUP PREFIXED secret", "DENY READ User:bob GROUP PREFIXED secret"),
        (
            "default",
            "ALLOW WRITE User:bob TRANSACTIONAL_ID PREFIXED app",
            "ALLOW WRITE User:bob TRANSACTIONAL_ID PREFIXED app",
        ),
        (
            "default",
            "ALLOW IDEMPOTENT_WRITE User:bob CLUSTER LITERAL kafka-cluster",
            "ALLOW IDEMPOTENT_WRITE User:bob CLUSTER LITERAL kafka-cluster",
        ),
        ("default", "ALLOW DESCRIBE User:bob DELEGATION_TOKEN LITERAL token", None),
        ("default", "ALLOW CODE_99 User:bob TOPIC LITERAL orders", None),
    ],
)
def test_the_full_rule(policy: str, source: str, target: str | None) -> None:
    wanted = full(rule(source), policy=policy)
    assert wanted.rules == ({rule(target)} if target else set())
    assert bool(wanted.left_out) == (target is None)


DENY_ALL = "DENY ALL User:* TOPIC LITERAL or"


@pytest.mark.parametrize("policy", ["default", "identity"])
@pytest.mark.parametrize("writes", [False, True])
def test_what_a_failover_refuses_at_the_source_is_refused_there_alone(policy: str, writes: bool) -> None:
    refusals = drain.rules(["orders", "audit"])
    assert not topic_rules(refusals, names(policy)).rules
    wanted = full(*refusals, policy=policy, writes=writes)
    assert not wanted.rules and wanted.left_out.keys() == set(refusals)
    for other in ("DENY WRITE User:* TOPIC PREFIXED or", "DENY WRITE User:* TOPIC LITERAL *", DENY_ALL):
        assert full(rule(other), policy=policy, writes=writes).rules, "others that forbid are carried"


def test_a_type_that_is_not_named_is_left_out() -> None:
    group = rule("ALLOW READ User:bob GROUP LITERAL app")
    wanted = full_rules([group], names(), resources={"topic"}, writes=False, mirrored=TOPICS)
    assert not wanted.rules and "sync.acls.resources" in wanted.left_out[group]


def test_the_right_to_write_where_it_is_asked_for() -> None:
    source = [rule(f"ALLOW {operation} User:bob TOPIC LITERAL orders") for operation in ("WRITE", "ALL")]
    assert full(*source, writes=True).rules == {replace(one, resource_name="us.orders") for one in source}


def test_a_rule_that_came_back_is_not_sent_again() -> None:
    group = rule("ALLOW READ User:bob GROUP LITERAL app")
    wanted = full_rules([group], names(), resources=RESOURCES, writes=False, mirrored=(), mirrored_back={group})
    assert not wanted.rules


def test_a_prefix_without_topics_is_not_made_but_kept() -> None:
    wanted = full(rule("ALLOW READ User:bob TOPIC PREFIXED or"), mirrored=())
    assert not wanted.rules and wanted.kept == {rule("ALLOW READ User:bob TOPIC PREFIXED us.or")}


def test_a_topic_without_a_remote_name_is_left_out() -> None:
    literal = rule("ALLOW READ User:bob TOPIC LITERAL orders")
    deny = rule("DENY READ User:bob TOPIC PREFIXED or")
    picky = replace(names(), names=RemoteNames("us", PICKY))
    assert not topic_rules([literal], picky).rules
    wanted = full_rules([literal, deny], picky, resources=RESOURCES, writes=False, mirrored=TOPICS)
    assert {one.resource_name for one in wanted.rules} == {"us.orders.eu", "us.or"} and literal in wanted.left_out


def test_a_topic_that_is_left_out_stays_forbidden_under_a_prefix_that_allows() -> None:
    all_users = rule("ALLOW READ User:* TOPIC PREFIXED or")
    eve, copy = rule("DENY READ User:eve TOPIC LITERAL orders"), rule("DENY READ User:eve TOPIC LITERAL us.orders")
    wanted = full(all_users, eve, mirrored=("or",))
    assert wanted.rules == {rule("ALLOW READ User:* TOPIC PREFIXED us.or"), copy} and not wanted.left_out
    assert not full(all_users, mirrored=("or",), made=(copy,)).kept, "it goes with the source's"
    under_another = full(rule("ALLOW READ User:* TOPIC PREFIXED aud"), eve, mirrored=("audit",))
    assert copy not in under_another.rules and copy in under_another.kept and eve in under_another.left_out


def test_a_pattern_that_forbids_is_made_under_one_that_allows_though_all_of_its_topics_are_left_out() -> None:
    source = (rule("ALLOW READ User:* TOPIC PREFIXED or"), rule("DENY READ User:eve TOPIC PREFIXED orders"))
    assert rule("DENY READ User:eve TOPIC PREFIXED us.orders") in full(*source, mirrored=("or",)).rules


def test_where_names_may_be_the_targets_own_nothing_is_forbidden_anew() -> None:
    eve = rule("DENY READ User:eve TOPIC LITERAL orders")
    wanted = full(rule("ALLOW READ User:* TOPIC PREFIXED or"), eve, policy="identity", mirrored=("or",))
    assert eve not in wanted.rules and eve in wanted.kept and eve in wanted.left_out


def test_what_came_from_the_target_is_not_forbidden_there_anew() -> None:
    """Its copy of a copy would be sent back and forth, with a longer name each time."""
    source = [rule("ALLOW READ User:* TOPIC LITERAL *"), rule("DENY READ User:eve TOPIC LITERAL eu.audit")]
    back = replace(names("default", ("or",)), target_alias="eu")
    wanted = full_rules(source, back, resources=RESOURCES, writes=False, mirrored=("or",))
    assert wanted.rules == {rule("ALLOW READ User:* TOPIC PREFIXED us.")}


def test_what_forbids_topic_by_topic_stays_on_copies_whose_topic_is_gone() -> None:
    allow, deny = rule("ALLOW READ User:* TOPIC LITERAL audit"), rule("DENY READ User:eve TOPIC PREFIXED aud")
    made = tuple(full(allow, deny, policy="reversed").rules)
    copy = rule("DENY READ User:eve TOPIC LITERAL tidua.us")
    assert copy in made
    rest: Any = {"resources": RESOURCES, "writes": False, "mirrored": ("orders",), "made": made}
    gone = full_rules([allow, deny], names("reversed"), **rest)
    assert copy in gone.kept
    other = rule("DENY READ User:eve TOPIC PREFIXED or")
    assert copy not in full(allow, other, policy="reversed", made=made).kept, "audit is there, and not what it forbids"


@pytest.mark.parametrize("mirrored", [("or",), ("or", "orders")])
def test_rules_stay_on_remote_topics_that_the_removed_policy_made(mirrored: tuple[str, ...]) -> None:
    """``new-remote-topic`` of earlier versions: the rules stay while the source has theirs."""
    source = [rule("DENY READ User:eve TOPIC LITERAL orders"), rule("ALLOW READ User:bob TOPIC LITERAL orders")]
    former = {replace(one, resource_name="us.orders.1c9bd204") for one in source[: len(mirrored)]}
    stranger = replace(source[1], resource_name="us.orders.eu")
    wanted = full(*source, mirrored=mirrored, made=(*former, stranger))
    assert former <= wanted.kept and stranger not in wanted.kept
    assert not full(mirrored=mirrored, made=tuple(former)).kept
    lookalike = full(*source, mirrored=("orders", "orders.1c9bd204"), made=tuple(former))
    assert not former & lookalike.kept, "a source topic of that name has rules of its own"


def test_a_group_that_is_left_out_stays_forbidden_under_a_pattern_that_allows() -> None:
    allow, eve = rule("ALLOW READ User:* GROUP PREFIXED se"), rule("DENY READ User:eve GROUP LITERAL secret")
    assert full(allow, eve).rules == {allow, eve}


def allows(rules: set[AclBinding], principal: str, topic: str, operation: str) -> bool:
    """An authorizer, as simple as one can be."""

    def fits(one: AclBinding) -> bool:
        is_named = one.resource_name in (topic, "*")
        return topic.startswith(one.resource_name) if one.pattern_type == "PREFIXED" else is_named

    whose, what = (principal, "User:*"), (operation, "ALL")
    fitting = [one for one in rules if one.principal in whose and one.operation in what and fits(one)]
    return bool(fitting) and not any(one.is_deny for one in fitting)


any_rule = st.builds(
    AclBinding,
    st.just("TOPIC"),
    st.sampled_from((*TOPICS, "*", "orders.", "o", "a")),
    st.sampled_from(("LITERAL", "PREFIXED")),
    st.sampled_from(PRINCIPALS),
    st.just("*"),
    st.sampled_from(("READ", "WRITE", "ALL", "DESCRIBE")),
    st.sampled_from(("ALLOW", "DENY")),
)


@given(
    st.sets(any_rule, max_size=8), st.sampled_from(sorted(POLICIES)), st.booleans(), st.sets(st.sampled_from(TOPICS))
)
def test_the_target_allows_nothing_that_the_source_does_not(
    source: set[AclBinding], policy: str, writes: bool, mirrored: set[str]
) -> None:
    topics = tuple(sorted(mirrored))
    remotes = {topic: POLICIES[policy].format_remote_topic("us", topic) for topic in topics}
    wanted = full_rules(source, names(policy, topics), resources=RESOURCES, writes=writes, mirrored=topics)
    source = {one for one in source if not refuses_writers(one)}  # it is of the source alone
    if policy == "default":
        before = {topic: f"us.{topic}" for topic in TOPICS if topic not in mirrored}
        for (topic, copy), principal in product(before.items(), ("User:ann", "User:bob")):
            assert not allows(wanted.rules, principal, copy, "READ") or allows(source, principal, topic, "READ")
    for topic, remote in remotes.items():
        for principal in ("User:ann", "User:bob"):
            for operation in ("READ", "WRITE", "DESCRIBE"):
                if allows(wanted.rules, principal, remote, operation):
                    assert allows(source, principal, topic, operation)
                elif policy == "default" and writes:
                    assert not allows(source, principal, topic, operation), "and with these, all that it does"
