"""Which topics entries get when they are taken over, with both clusters in memory."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError, RetriableError, SecurityError
from connect.kafka.admin import Admin, NewTopic
from connect.kafka.cluster import Cluster, NotAuthorized, PartitionMetadata, TopicMetadata
from connectors.dataplane import lost
from connectors.dataplane.plan import TopicPartition
from connectors.gaps import Gap, GapKind, OnTopicRecreated
from connectors.positions import Position
from connectors.source import pairs
from connectors.source.ledger import Entry, Pair
from connectors.source.pairs import NewTopics, Pairing
from connectors.source.returned import is_gone, judged
from connectors.source.store import Start

OLD, NEW, THERE = UUID(int=1), UUID("1c9bd204-0000-4000-8000-000000000000"), UUID(int=3)


def topic(name: str, topic_id: UUID, partitions: int = 2) -> TopicMetadata:
    return TopicMetadata(name, topic_id, 0, {one: PartitionMetadata(1, 0, (1,), 0) for one in range(partitions)})


class Brokers:
    """Of one cluster, and its administrator. What is ``late`` they tell of when they are asked once more."""

    def __init__(self, *topics: TopicMetadata) -> None:
        self.known = {one.name: one for one in topics}
        self.late: dict[str, TopicMetadata] = {}
        self.refuses: dict[str, Exception] = {}
        self.made: list[str] = []

    async def metadata(self, names: Collection[str]) -> Any:
        found = {name: one for name, one in self.known.items() if name in names}
        self.known |= {name: self.late.pop(name) for name in names if name in self.late}
        return SimpleNamespace(topics=found)

    async def describe_topic_configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        return {}

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Exception | None]:
        outcomes: dict[str, Exception | None] = {}
        for one in topics:
            outcomes[one.name] = next((self.refuses[word] for word in self.refuses if word in one.name), None)
            if outcomes[one.name] is None:
                self.known[one.name] = topic(one.name, UUID(int=99), one.partitions)
                self.made.append(one.name)
        return outcomes


class Lagging(Brokers):
    """Answers about remote topics of their own come in turn from brokers that have, or have not, heard of them."""

    def __init__(self, *topics: TopicMetadata) -> None:
        super().__init__(*topics)
        self.lags: list[bool] = []
        self.never_shown = ""

    async def metadata(self, names: Collection[str]) -> Any:
        found = await super().metadata(names)
        own = {name for name in names if name.count(".") > 1}
        hidden = own if own and self.lags and self.lags.pop(0) else {self.never_shown}
        found.topics = {name: one for name, one in found.topics.items() if name not in hidden}
        return found


class Both:
    def __init__(self, policy: OnTopicRecreated = OnTopicRecreated.RESTART) -> None:
        self.source = Brokers(topic("orders", NEW), topic("clicks", NEW))
        self.target = Lagging(topic("us.orders", THERE), topic("us.clicks", THERE))
        self.pairing = Pairing(
            "us->eu",
            "us.{}".format,
            (cast(Cluster, self.source), cast(Cluster, self.target)),
            cast(Admin, self.target),
            policy,
            NewTopics(),
        )

    async def renew(self, *entries: Entry) -> list[Entry]:
        starts = {entry.pair.source: Start(entry.position, 99, False) for entry in entries}
        return await self.pairing.renew(entries, starts)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are asked twice before a topic is given up."""
    monkeypatch.setattr(lost, "GONE_AFTER_S", 0)
    monkeypatch.setattr(lost, "_ASK_AGAIN_S", 0)

    async def known(cluster: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
        return await lost.known_topics(cluster, names, 0)

    async def describe(_: object, topics: Collection[str]) -> Mapping[str, Any]:
        return {name: {} for name in topics}

    monkeypatch.setattr(pairs, "known_topics", known)
    monkeypatch.setattr(pairs, "describe", describe)


def healing(name: str, kind: GapKind, partition: int = 0) -> Entry:
    """Behind a topic made anew."""
    source, target = TopicPartition(name, partition), TopicPartition(f"us.{name}", partition)
    entry = Entry(Pair(source, OLD, target, THERE))
    entry.position = Position(*source, OLD, 100, 3, *target, THERE, 50, "mm2-0", 5, 1, 8)
    entry.stop("for a reason", gap=Gap(kind))
    entry.heal()
    return entry


async def test_a_target_that_a_broker_has_not_heard_of_is_not_a_source_that_is_gone() -> None:
    both = Both()
    entry, other = healing("orders", GapKind.TARGET_RECREATED), healing("clicks", GapKind.TARGET_RECREATED)
    both.target.late = {"us.orders": topic("us.orders", NEW)}
    del both.target.known["us.orders"]
    assert await both.renew(entry, other) == [entry, other]
    assert entry.pair.target_topic_id == NEW


async def test_what_the_target_has_no_partition_for_waits_and_the_others_go_on() -> None:
    both = Both()
    both.target.known["us.orders"] = topic("us.orders", NEW, 1)
    entry, other = healing("orders", GapKind.TARGET_RECREATED, 1), healing("orders", GapKind.TARGET_RECREATED)
    assert await both.renew(entry, other) == [other]
    assert entry.is_waiting
    assert entry.reason == "a cluster does not know orders-1, or target us.orders-1, now"
    with pytest.raises(RetriableError, match=r"us\.orders-1"):
        await both.renew(entry)
    both.target.known["us.orders"] = topic("us.orders", NEW, 2)
    assert await both.renew(entry) == [entry]
    assert entry.pair.target_topic_id == NEW


@pytest.mark.parametrize("side", ["source", "target"])
async def test_the_topic_that_is_gone_is_the_one_that_is_told(side: str) -> None:
    both = Both()
    name = "orders" if side == "source" else "us.orders"
    del (both.source if side == "source" else both.target).known[name]
    entry, other = healing("orders", GapKind.SOURCE_RECREATED), healing("clicks", GapKind.SOURCE_RECREATED)
    assert await both.renew(entry, other) == [other]
    assert entry.state == f"{side}-deleted"
    assert entry.reason.startswith(f"{side} topic {name} ")
    assert is_gone(entry), "it is looked at again"


async def test_a_source_topic_without_the_partition_has_lost_it() -> None:
    both = Both()
    both.source.known["orders"] = topic("orders", NEW, 1)
    entry = healing("orders", GapKind.SOURCE_RECREATED, 1)
    assert await both.renew(entry) == []
    assert entry.state == "source-deleted"


async def test_a_remote_topic_that_is_refused_holds_up_its_own_partitions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    both.target.refuses = {"orders": PermanentError("cannot create topic us.orders.1c9bd204: POLICY_VIOLATION")}
    entry, other = healing("orders", GapKind.SOURCE_RECREATED), healing("clicks", GapKind.SOURCE_RECREATED)
    for _ in range(2):
        assert await both.renew(entry, other) == [other]
        assert (entry.is_waiting, entry.reason) == (True, "cannot create topic us.orders.1c9bd204: POLICY_VIOLATION")
        assert other.pair.target.topic == "us.clicks.1c9bd204"
    assert caplog.text.count("POLICY_VIOLATION") == 1
    both.target.refuses = {}
    assert await both.renew(entry, other) == [entry, other]
    assert entry.pair.target.topic == "us.orders.1c9bd204"


async def test_a_topic_made_anew_beside_a_remote_topic_that_is_gone_gets_its_own() -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    del both.target.known["us.orders"]
    entry = healing("orders", GapKind.SOURCE_RECREATED)
    assert await both.renew(entry) == [entry]
    assert entry.pair.target.topic == "us.orders.1c9bd204"


async def test_without_the_right_to_make_topics_it_is_over() -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    both.target.refuses = {"orders": SecurityError("grant CREATE")}
    with pytest.raises(SecurityError, match="grant CREATE"):
        await both.renew(healing("orders", GapKind.SOURCE_RECREATED), healing("clicks", GapKind.SOURCE_RECREATED))


async def test_nothing_of_a_topic_made_anew_goes_where_the_one_before_went() -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    entry, other = healing("orders", GapKind.SOURCE_RECREATED), healing("clicks", GapKind.TARGET_RECREATED)
    other.position = replace(cast(Position, other.position), source_topic_id=NEW)
    both.target.lags = [True, False, True]
    with pytest.raises(RetriableError, match=r"does not show orders-0, or target us\.orders\.1c9bd204-0, yet"):
        await both.renew(entry)
    both.target.lags = [True, False, True]
    assert await both.renew(entry, other) == [other]
    assert entry.is_waiting
    assert await both.renew(entry, other) == [entry, other]
    assert entry.pair.target.topic == "us.orders.1c9bd204"


async def test_no_remote_topic_is_made_for_a_topic_that_is_gone() -> None:
    """A broker of the source that lags tells of the one from before."""
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    entry, other = healing("orders", GapKind.SOURCE_RECREATED), healing("clicks", GapKind.SOURCE_RECREATED)
    answers = iter([topic("orders", NEW), topic("orders", NEW), topic("orders", OLD)])
    told = both.source.metadata

    async def metadata(names: Collection[str]) -> Any:
        both.source.known["orders"] = next(answers, topic("orders", NEW))
        return await told(names)

    both.source.metadata = metadata  # type: ignore[method-assign]
    assert await both.renew(entry, other) == [other]
    assert both.target.made == ["us.clicks.1c9bd204"]
    assert entry.is_waiting
    assert await both.renew(entry, other) == [entry, other]
    assert entry.pair.target.topic == "us.orders.1c9bd204"


@pytest.mark.parametrize("others", [0, 1])
async def test_who_has_a_remote_topic_of_its_own_goes_on_nowhere_else(others: int) -> None:
    """A task that begins asks a broker that lags."""
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    own = topic("us.orders.1c9bd204", UUID(int=7))
    both.target.known[own.name] = own
    entry = begun_in(own)
    more = [healing("clicks", GapKind.TARGET_RECREATED)] * others
    for one in more:
        one.position = replace(cast(Position, one.position), source_topic_id=NEW)
    both.target.lags = [True]
    if others:
        assert await both.renew(entry, *more) == more
        assert entry.is_waiting
    else:
        with pytest.raises(RetriableError, match=r"us\.orders\.1c9bd204-0"):
            await both.renew(entry)
    assert await both.renew(entry, *more) == [entry, *more]
    assert (entry.pair.target.topic, entry.pair.target_topic_id) == (own.name, own.topic_id)


async def test_a_remote_topic_of_its_own_that_is_gone_is_told() -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    entry = begun_in(topic("us.orders.1c9bd204", UUID(int=7)))
    assert await both.renew(entry) == []
    assert (entry.state, entry.pair.target.topic) == ("target-deleted", "us.orders.1c9bd204")


async def test_a_remote_topic_that_is_never_shown_holds_up_its_own_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    monkeypatch.setattr(pairs, "_APPEAR_TIMEOUT_S", 0)
    monkeypatch.setattr(pairs, "_LOOK_S", 0)
    both.target.never_shown = "us.orders.1c9bd204"
    entry, other = healing("orders", GapKind.SOURCE_RECREATED), healing("clicks", GapKind.SOURCE_RECREATED)
    assert await both.renew(entry, other) == [other]
    assert entry.is_waiting


def waiting_for(position: Position | None) -> tuple[Entry, dict[TopicPartition, Start]]:
    """Since its task began, so that only the store knows of it."""
    source, target = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
    entry = Entry(Pair(source, NEW, target, THERE))
    entry.wait("target us.orders-0 has no leader")
    return entry, {source: Start(position, 99 if position else None, False)}


@pytest.mark.parametrize("side", ["source", "target"])
async def test_one_that_waited_and_whose_topic_is_gone_is_known_again_when_it_is_back(side: str) -> None:
    """As where a broker that is lost for good takes a topic with it, which is deleted and made anew."""
    both = Both()
    del (both.source if side == "source" else both.target).known["orders" if side == "source" else "us.orders"]
    entry, starts = waiting_for(Position("orders", 0, OLD, 100, 3, "us.orders", 0, OLD, 50, "mm2-0", 5, 1, 8))
    assert await both.pairing.renew([entry], starts) == []
    assert entry.state == f"{side}-deleted"
    assert "up to source offset 99" in entry.reason
    assert is_gone(entry)
    assert judged(entry, topic("orders" if side == "source" else "us.orders", NEW)) is not None
    assert not entry.is_dirty


@pytest.mark.parametrize("side", ["source", "target"])
async def test_one_of_which_nothing_was_copied_waits_for_its_topic(side: str) -> None:
    both = Both()
    del (both.source if side == "source" else both.target).known["orders" if side == "source" else "us.orders"]
    (entry, starts), other = waiting_for(None), healing("clicks", GapKind.TARGET_RECREATED)
    starts[other.pair.source] = Start(other.position, 99, False)
    assert await both.pairing.renew([entry, other], starts) == [other]
    assert entry.is_waiting


@pytest.mark.parametrize("committed", [41, None])
async def test_somebody_who_has_decided_gets_the_remote_topic_of_its_own_made_again(committed: int | None) -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    entry = begun_in(topic("us.orders.1c9bd204", UUID(int=7)))
    position, entry.position = entry.position, None
    starts = {entry.pair.source: Start(position, committed, True)}
    assert await both.pairing.renew([entry], starts) == [entry]
    assert both.target.made == ["us.orders.1c9bd204"]
    assert entry.pair.target.topic == "us.orders.1c9bd204"


async def test_a_remote_topic_that_may_not_be_seen_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(OnTopicRecreated.NEW_REMOTE_TOPIC)
    own = "us.orders.1c9bd204"
    told = both.target.metadata

    async def metadata(names: Collection[str]) -> Any:
        found = await told(names)
        return SimpleNamespace(topics=found.topics | ({own: TopicMetadata(own, None, 29, {})} if own in names else {}))

    async def topics(names: Collection[str]) -> Any:
        raise NotAuthorized(f"grant DESCRIBE on topic {', '.join(names)}")

    monkeypatch.setattr(both.target, "metadata", metadata)
    monkeypatch.setattr(both.target, "topics", topics, raising=False)
    with pytest.raises(SecurityError, match=rf"DESCRIBE on topic {own}"):
        await both.renew(healing("orders", GapKind.SOURCE_RECREATED))


def begun_in(own: TopicMetadata) -> Entry:
    """Paired with the old remote topic, while its position speaks of one of its own."""
    source, target = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
    entry = Entry(Pair(source, NEW, target, THERE))
    entry.position = Position(*source, NEW, 100, 3, own.name, 0, own.topic_id, 50, "mm2-0", 5, 1, 8)
    return entry
