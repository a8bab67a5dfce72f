"""Which remote topics are to go, and which never."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.policy import ReplicationPolicy
from connect.api.transformations import named_steps
from connectors.changes import DeleteTopic
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy
from connectors.positions import UnknownFormat
from connectors.remote_names import RemoteNames, renaming_steps
from connectors.source.deletions import Copy, candidates, copied_by, is_copied_cluster, plan_deletions
from connectors.source.gone_records import decode_gone, decode_gone_key, encode_gone, encode_gone_key
from connectors.topic_routes import TopicRoutes

DEFAULT = DefaultReplicationPolicy()
ID, OTHER_ID = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("policy", "target", "found"),
    [
        (DEFAULT, ["us.a", "us.b", "ap.b", "b"], {"b": "us.b"}),
        (DEFAULT, ["us.heartbeats", "us.checkpoints.internal", "mm2-offsets.us.internal", "us.__x"], {}),
        (DEFAULT, ["us.skipped"], {}),
        (IdentityReplicationPolicy(source_alias="us"), ["a", "b", "heartbeats", "us.heartbeats"], {"b": "b"}),
    ],
)
def test_candidates(policy: ReplicationPolicy, target: list[str], found: dict[str, str]) -> None:
    def takes(topic: str) -> bool:
        return topic != "skipped" and not policy.is_internal_topic(topic)

    assert candidates(RemoteNames("us", policy), takes, {"a"}, target) == found


def test_of_renamed_topics_tells_what_was_copied() -> None:
    router = {
        "transforms": "r", "transforms.r.type": "RegexRouter", "transforms.r.regex": "us.(.*)",
        "transforms.r.replacement": "$1",
    }  # fmt: skip
    names = RemoteNames("us", DEFAULT, renaming_steps(named_steps(router)))
    copied = [("b", "b"), ("a", "a"), ("c", "us.c"), ("d", "d"), ("heartbeats", "heartbeats")]
    there = ["a", "b", "us.b", "us.c", "heartbeats"]
    assert candidates(names, lambda _: True, {"a"}, there, copied) == {"b": "b"}
    assert candidates(names, lambda _: True, {"a"}, there) == {}


def test_nothing_is_gone_where_nothing_is_left() -> None:
    assert candidates(RemoteNames("us", DEFAULT), lambda topic: topic != "other", {"other"}, ["us.a"]) == {}


@pytest.mark.parametrize(
    ("copied", "listed", "is_it"),
    [
        ([("a", ID), ("gone", OTHER_ID)], {"a": ID, "new": OTHER_ID}, True),
        ([("a", ID), ("heartbeats", OTHER_ID)], {"heartbeats": OTHER_ID}, True),
        # Rebuilt: made anew under the same names.
        ([("a", ID), ("heartbeats", ID)], {"a": OTHER_ID, "heartbeats": OTHER_ID}, False),
        ([("a", ID)], {"heartbeats": OTHER_ID}, False),
        ([("a", None)], {"a": OTHER_ID}, False),
        ([], {"a": ID}, False),
        # No ids at the source.
        ([("a", None), ("gone", None)], {"a": None}, True),
        ([("a", None), ("heartbeats", None)], {"heartbeats": None}, False),
        ([("a", ID)], {}, False),
    ],
)
def test_a_cluster_that_was_rebuilt_is_told_by_its_topics(
    copied: list[tuple[str, UUID | None]], listed: dict[str, UUID | None], is_it: bool
) -> None:
    assert is_copied_cluster(DEFAULT, copied, listed) == is_it


def test_what_a_topic_that_is_there_is_sent_to_stays() -> None:
    there = ["us.a", "us.a.errors", "us.b.errors"]
    routed = RemoteNames("us", DEFAULT, routes=TopicRoutes(others=("${topic}.errors",)), by_query=True)
    assert candidates(RemoteNames("us", DEFAULT), lambda _: True, {"a"}, there).keys() == {"a.errors", "b.errors"}
    assert candidates(routed, lambda _: True, {"a"}, there) == {"b.errors": "us.b.errors"}


@pytest.mark.parametrize(
    ("copies", "is_ours"),
    [
        ([Copy("one", "gone", "us.gone", ID)], True),
        ([Copy("one", "gone", "us.gone", None)], False),
        ([Copy("one", "gone", "us.gone", OTHER_ID)], False),
        ([Copy("other", "gone", "us.gone", ID)], False),
        ([Copy("one", "gone", "us.gone", ID), Copy("other", "gone", "us.gone", ID)], True),
        ([Copy("one", "gone", "us.gone", ID), Copy("other", "gone too", "us.gone", ID)], True),
        ([Copy("one", "gone", "us.gone", ID), Copy("other", "a", "us.gone", OTHER_ID)], True),
        ([Copy("one", "gone", "us.gone", ID), Copy("other", "a", "us.gone", ID)], False),
        ([Copy("one", "gone", "us.gone", ID), Copy("other", "a", "us.gone", None)], False),
        ([Copy("one", "gone", "us.gone", ID), Copy("one", "a", "us.gone", ID)], False),
    ],
)
def test_only_what_we_alone_have_filled_is_ours(copies: list[Copy], is_ours: bool) -> None:
    found = copied_by("one", {"gone": "us.gone"}, copies, {"a"}, {"us.gone": ID})
    assert found == ({"gone": "us.gone"} if is_ours else {})


@pytest.mark.parametrize(
    ("policy", "remote"), [(DEFAULT, "us.orders"), (IdentityReplicationPolicy(source_alias="us"), "orders")]
)
def test_remote_topics_that_the_removed_policy_made_are_never_deleted(policy: ReplicationPolicy, remote: str) -> None:
    """``new-remote-topic`` of earlier versions: whether the flow's position still names one or the usual topic, and
    whether its source topic is there or was deleted."""
    former = f"{remote}.1c9bd204"
    ids: dict[str, UUID | None] = {remote: ID, former: OTHER_ID}
    for source in ({"a", "orders"}, {"a"}):
        for copy in (Copy("one", "orders", former, OTHER_ID), Copy("one", "orders", remote, ID)):
            names = RemoteNames("us", policy)
            maybe = candidates(names, lambda _: True, source, [remote, former], [copy[1:3]])
            assert former not in copied_by("one", maybe, [copy], source, ids).values()


topics = st.sampled_from("abcd")


@given(st.sets(topics), st.dictionaries(topics, st.integers(0, 50)), st.integers(50, 100), st.integers(0, 60))
def test_only_what_is_gone_since_that_long_is_due(
    gone: set[str], since_ms: dict[str, int], now_ms: int, delay_ms: int
) -> None:
    plan = plan_deletions({topic: f"us.{topic}" for topic in gone}, since_ms, now_ms, delay_ms)
    assert plan.newly == gone - since_ms.keys()
    assert plan.settled == since_ms.keys() - gone
    due = plan.due(now_ms)
    assert {change.source_topic for change in due} == {
        topic for topic in gone if now_ms - since_ms.get(topic, now_ms) >= delay_ms
    }
    assert all(
        change == DeleteTopic(f"us.{(t := change.source_topic)}", t, change.due_ms - delay_ms, change.due_ms)
        for change in due
    )


@given(st.text(max_size=5), st.text(max_size=5), st.integers(0, 2**63 - 1))
def test_records(connector: str, topic: str, since_ms: int) -> None:
    assert decode_gone_key(encode_gone_key(connector, topic)) == (connector, topic)
    assert decode_gone(encode_gone(since_ms)) == since_ms


def test_a_record_of_a_later_version_is_refused() -> None:
    with pytest.raises(UnknownFormat):
        decode_gone(b"\x02" + encode_gone(5)[1:])
