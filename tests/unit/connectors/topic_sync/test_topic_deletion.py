"""Which remote topics are to go, and which never."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.policy import ReplicationPolicy
from connect.api.transformations import named_steps
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.topic_admin import Admin
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.position import LaterFormat, Position
from connectors.formats.types import TopicPartition
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy
from connectors.topic_sync import topic_deletion
from connectors.topic_sync.cluster_changes import DeleteTopic
from connectors.topic_sync.topic_deletion import GONE, Copy, TopicDeletion, deletable, is_copied_cluster, plan_deletions
from connectors.transforms.smt_chain import TopicRoutes
from connectors.transforms.target_names import RemoteNames, renaming_steps

DEFAULT, IDENTITY = DefaultReplicationPolicy(), IdentityReplicationPolicy(source_alias="us")
ID, OTHER_ID = UUID(int=1), UUID(int=2)


def copies(*pairs: tuple[str, str], connector: str = "one") -> list[Copy]:
    """Of topics into remote topics with the same id."""
    return [Copy(connector, topic, ID, remote, ID) for topic, remote in pairs]


def found(names: RemoteNames, copied: list[Copy], source: set[str], target: Iterable[str]) -> dict[str, str]:
    """What may be deleted of topics of ``target``, which all have one id."""

    def takes(topic: str) -> bool:
        return topic != "skipped"

    return deletable("one", names, takes, copied, source, dict.fromkeys(target, ID))


@pytest.mark.parametrize(
    ("policy", "copied", "expected"),
    [
        (DEFAULT, [("a", "us.a"), ("b", "us.b"), ("c", "us.c")], {"b": "us.b"}),
        (DEFAULT, [("b", "ap.b"), ("skipped", "us.skipped"), ("heartbeats", "us.heartbeats")], {}),
        (IDENTITY, [("a", "a"), ("b", "b"), ("heartbeats", "heartbeats")], {"b": "b"}),
    ],
)
def test_what_was_copied_from_a_topic_that_is_not_listed(
    policy: ReplicationPolicy, copied: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    there = {remote for _, remote in copied} - {"us.c"}
    assert found(RemoteNames("us", policy), copies(*copied), {"a"}, there) == expected


def test_of_renamed_topics_positions_tell() -> None:
    router = {
        "transforms": "r", "transforms.r.type": "RegexRouter", "transforms.r.regex": "us.(.*)",
        "transforms.r.replacement": "$1",
    }  # fmt: skip
    names = RemoteNames("us", DEFAULT, renaming_steps(named_steps(router)))
    copied = copies(("b", "b"), ("a", "a"), ("c", "us.c"), ("d", "d"), ("heartbeats", "heartbeats"))
    assert found(names, copied, {"a"}, ["a", "b", "us.b", "us.c", "heartbeats"]) == {"b": "b"}


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


def test_what_records_of_a_listed_topic_are_sent_to_stays() -> None:
    there = ["us.a", "us.a.errors", "us.b.errors"]
    copied = copies(("a.errors", "us.a.errors"), ("b.errors", "us.b.errors"))
    routed = RemoteNames("us", DEFAULT, routes=TopicRoutes(others=("${topic}.errors",)), by_query=True)
    assert found(RemoteNames("us", DEFAULT), copied, {"a"}, there).keys() == {"a.errors", "b.errors"}
    assert found(routed, copied, {"a"}, there) == {"b.errors": "us.b.errors"}


@pytest.mark.parametrize(
    ("copied", "is_ours"),
    [
        ([("one", "gone", ID)], True),
        ([("one", "gone", None)], False),
        ([("one", "gone", OTHER_ID)], False),
        ([("other", "gone", ID)], False),
        ([("one", "gone", ID), ("other", "gone", ID)], True),
        ([("one", "gone", ID), ("other", "gone too", ID)], True),
        ([("one", "gone", ID), ("other", "a", OTHER_ID)], True),
        ([("one", "gone", ID), ("other", "a", ID)], False),
        ([("one", "gone", ID), ("other", "a", None)], False),
        ([("one", "gone", ID), ("one", "a", ID)], False),
    ],
)
def test_only_what_we_alone_have_filled_is_ours(copied: list[tuple[str, str, UUID | None]], is_ours: bool) -> None:
    all_copies = [Copy(connector, topic, ID, "us.gone", remote_id) for connector, topic, remote_id in copied]
    assert found(RemoteNames("us", DEFAULT), all_copies, {"a"}, ["us.gone"]) == ({"gone": "us.gone"} if is_ours else {})


@pytest.mark.parametrize(("policy", "remote"), [(DEFAULT, "us.orders"), (IDENTITY, "orders")])
@pytest.mark.parametrize("source", [{"a", "orders"}, {"a"}])
def test_topics_of_the_removed_policy_are_not_deleted(policy: ReplicationPolicy, remote: str, source: set[str]) -> None:
    """``new-remote-topic`` of earlier versions: whether the flow's position still names one or the usual topic."""
    former = f"{remote}.1c9bd204"
    for copy in copies(("orders", former), ("orders", remote)):
        assert former not in found(RemoteNames("us", policy), [copy], source, [remote, former]).values()


class Clusters:
    """The source's and the target's topics, and how often stored positions were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.target = {"a", "b"}, {"us.a", "us.b"}
        self.copied = {"a", "b"}
        self.reads = 0
        self.is_hidden = False
        monkeypatch.setattr(topic_deletion, "read_all_positions", self._positions)
        settings = cast(MirrorSourceSettings, SimpleNamespace(
            flow="us->eu", name="one", source_alias="us", map_topic="map", offsets_topic_partitions=1,
            offsets_topic_replication_factor=1, names=RemoteNames("us", DEFAULT), should_mirror=lambda _: True,
        ))  # fmt: skip
        sides = (self._cluster(lambda: self.source), self._cluster(lambda: self.target))
        self.deletion = TopicDeletion(settings, 0, *sides, cast(Admin, None))

    def _cluster(self, there: Callable[[], set[str]]) -> Cluster:
        async def metadata(names: Collection[str] | None) -> SimpleNamespace:
            known = {name: TopicMetadata(name, ID, 0, {}) for name in there()}
            if names is not None:
                code = 29 if self.is_hidden else 3
                known = {name: known.get(name, TopicMetadata(name, None, code, {})) for name in names}
            return SimpleNamespace(topics=known)

        return cast(Cluster, SimpleNamespace(metadata=metadata))

    async def _positions(self, *_: object) -> dict[tuple[str, TopicPartition], Position]:
        self.reads += 1
        return {
            ("one", TopicPartition(one, 0)): Position(one, 0, ID, 5, 0, f"us.{one}", 0, ID, 5, "", -1, -1, 0, True)
            for one in self.copied
        }

    async def gone(self) -> dict[str, str]:
        """By a look of one that runs."""
        return await self.deletion._gone((await self.deletion._target.metadata(None)).topics)


async def test_stored_positions_are_read_at_first_and_while_a_topic_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    for _ in range(3):
        assert await clusters.gone() == {}
    assert clusters.reads == 1
    clusters.source = {"a"}
    for _ in range(2):
        assert await clusters.gone() == {"b": "us.b"}
    clusters.source = {"a", "b"}
    assert await clusters.gone() == {}
    assert clusters.reads == 3


async def test_a_topic_no_look_has_seen_is_missed_once_the_connector_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made, copied and deleted between two looks."""
    clusters = Clusters(monkeypatch)
    clusters.copied = {"a"}
    assert await clusters.gone() == {}
    clusters.copied = {"a", "brief"}
    clusters.target.add("us.brief")
    assert await clusters.gone() == {}
    clusters.deletion.expect({"brief"})
    assert await clusters.gone() == {"brief": "us.brief"}


async def test_a_topic_that_is_missing_at_the_first_look_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.source, clusters.is_hidden = {"a"}, True
    assert await clusters.gone() == {}, "a broker that refuses to tell does not say that it does not exist"
    clusters.is_hidden = False
    assert await clusters.gone() == {"b": "us.b"}


async def test_an_empty_list_deletes_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clusters = Clusters(monkeypatch)
    clusters.source = set()
    assert await clusters.gone() == {}
    assert "no remote topic is deleted" in caplog.text


topics = st.sampled_from("abcd")


@given(st.sets(topics), st.dictionaries(topics, st.integers(0, 50)), st.integers(50, 100), st.integers(0, 60))
def test_what_is_gone_for_so_long_is_due(gone: set[str], since_ms: dict[str, int], now_ms: int, delay_ms: int) -> None:
    plan = plan_deletions({topic: f"us.{topic}" for topic in gone}, since_ms, now_ms, delay_ms)
    assert plan.newly == gone - since_ms.keys()
    assert plan.settled == since_ms.keys() - gone
    due = plan.due(now_ms)
    settled = {topic for topic in gone if now_ms - since_ms.get(topic, now_ms) >= delay_ms}
    assert {change.source_topic for change in due} == settled
    for one in due:
        topic = one.source_topic
        assert one == DeleteTopic(f"us.{topic}", topic, one.due_ms - delay_ms, one.due_ms)


@given(st.text(max_size=5), st.text(max_size=5), st.integers(0, 2**63 - 1))
def test_records(connector: str, topic: str, since_ms: int) -> None:
    assert GONE.decode_key(GONE.encode_key(connector, topic)) == (connector, topic)
    assert GONE.decode_value(GONE.encode_value(since_ms)) == since_ms


def test_a_record_of_a_later_version_is_refused() -> None:
    with pytest.raises(LaterFormat):
        GONE.decode_value(b"\x02" + GONE.encode_value(5)[1:])
