"""Which topics entries get when they are taken over, with both clusters in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, PartitionMetadata, TopicMetadata
from connect.kafka.log.topic_admin import Admin
from connectors.dataplane import log_divergence
from connectors.formats.gap import Gap, GapKind
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions import partition_pairs, position_checks
from connectors.source.positions.gap_policy import is_gone, judged
from connectors.source.positions.partition_pairs import Entry, Pairing, PartitionPair
from connectors.source.positions.position_checks import refuse_deleted_topics
from connectors.source.positions.stored_positions import Start

OLD, NEW, THERE = UUID(int=1), UUID("1c9bd204-0000-4000-8000-000000000000"), UUID(int=3)


def topic(name: str, topic_id: UUID, partitions: int = 2) -> TopicMetadata:
    return TopicMetadata(name, topic_id, 0, {one: PartitionMetadata(1, 0, (1,), 0) for one in range(partitions)})


class Brokers:
    """Of one cluster, and its administrator. They report topics that are ``late`` from the second request on."""

    def __init__(self, *topics: TopicMetadata) -> None:
        self.known = {one.name: one for one in topics}
        self.late: dict[str, TopicMetadata] = {}

    async def metadata(self, names: Collection[str]) -> Any:
        found = {name: one for name, one in self.known.items() if name in names}
        self.known |= {name: self.late.pop(name) for name in names if name in self.late}
        return SimpleNamespace(topics=found)

    async def describe_topic_configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        return {name: {"cleanup.policy": "compact,delete" if "compacted" in name else "delete"} for name in names}


class Both:
    def __init__(self) -> None:
        self.source = Brokers(topic("orders", NEW), topic("clicks", NEW))
        self.target = Brokers(topic("us.orders", THERE), topic("us.clicks", THERE))
        clusters = cast(Cluster, self.source), cast(Cluster, self.target)
        self.pairing = Pairing("us.{}".format, clusters, cast(Admin, self.target))

    async def renew(self, *entries: Entry) -> None:
        """As at the begin of a take-over."""
        starts = {entry.pair.source: Start(entry.position, 99, False) for entry in entries}
        await self.take_over(entries, starts)

    async def take_over(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> None:
        await self.pairing.renew(entries)
        await refuse_deleted_topics(cast(Cluster, self.source), cast(Cluster, self.target), entries, starts)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are asked twice before a topic is given up."""
    monkeypatch.setattr(log_divergence, "DELETED_AFTER_S", 0)
    monkeypatch.setattr(log_divergence, "_ASK_AGAIN_S", 0)

    async def known(cluster: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
        return await log_divergence.known_topics(cluster, names, 0)

    async def compacted(_: Cluster, names: Collection[str]) -> set[str]:
        return {name for name in names if name.startswith("compacted")}

    monkeypatch.setattr(position_checks, "known_topics", known)
    monkeypatch.setattr(partition_pairs, "perhaps_compacted", compacted)


def recovering(name: str, kind: GapKind, partition: int = 0) -> Entry:
    """Behind a topic made anew."""
    source, target = TopicPartition(name, partition), TopicPartition(f"us.{name}", partition)
    entry = Entry(PartitionPair(source, OLD, target, THERE))
    entry.position = Position(*source, OLD, 100, 3, *target, THERE, 50, "mm2-0", 5, 1, 8)
    entry.stop("for a reason", gap=Gap(kind))
    entry.resume_past_gap()
    return entry


async def test_topics_that_a_broker_has_not_heard_of_are_waited_for() -> None:
    both = Both()
    entry, other = recovering("orders", GapKind.TARGET_RECREATED), recovering("clicks", GapKind.TARGET_RECREATED)
    both.source.known["orders"] = topic("orders", OLD)
    both.target.late = {"us.orders": topic("us.orders", NEW)}
    del both.target.known["us.orders"]
    await both.renew(entry, other)
    assert entry.pair.target_topic_id == NEW
    assert (entry.state, other.state) == ("target-recreated", "source-recreated")


async def test_a_source_that_was_recreated_unnoticed_is_taken_over_under_its_new_id() -> None:
    """Under the old id a slice would find the gap again."""
    both, (entry,) = Both(), [recovering("orders", GapKind.SOURCE_RECREATED)]
    entry.become("running")
    await both.renew(entry)
    assert entry.state == "source-recreated"
    assert entry.pair.source_topic_id == NEW


@pytest.mark.parametrize("side", ["source", "target"])
async def test_the_topic_that_is_gone_is_the_one_that_is_told(side: str) -> None:
    both = Both()
    name = "orders" if side == "source" else "us.orders"
    both.source.known["orders"] = topic("orders", OLD)
    del (both.source if side == "source" else both.target).known[name]
    entry = recovering("orders", GapKind.SOURCE_RECREATED)
    await both.renew(entry)
    assert entry.state == f"{side}-deleted"
    assert entry.reason.startswith(f"{side} topic {name} ")
    assert is_gone(entry), "it is looked at again"


async def test_a_source_topic_without_the_partition_has_lost_it() -> None:
    both = Both()
    both.source.known["orders"] = topic("orders", NEW, 1)
    entry = recovering("orders", GapKind.SOURCE_RECREATED, 1)
    await both.renew(entry)
    assert entry.state == "source-deleted"


def waiting_for(position: Position | None) -> tuple[Entry, dict[TopicPartition, Start]]:
    """Since its task began, so that only the store knows of it."""
    source, target = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
    entry = Entry(PartitionPair(source, NEW, target, THERE))
    entry.wait("target us.orders-0 has no leader")
    return entry, {source: Start(position, 99 if position else None, False)}


@pytest.mark.parametrize("side", ["source", "target"])
async def test_one_that_waited_and_whose_topic_is_gone_is_known_again_when_it_is_back(side: str) -> None:
    """As where a broker that is lost for good takes a topic with it, which is deleted and made anew."""
    both = Both()
    both.source.known["orders"] = topic("orders", OLD)
    del (both.source if side == "source" else both.target).known["orders" if side == "source" else "us.orders"]
    entry, starts = waiting_for(Position("orders", 0, OLD, 100, 3, "us.orders", 0, OLD, 50, "mm2-0", 5, 1, 8))
    await both.take_over([entry], starts)
    assert entry.state == f"{side}-deleted"
    assert "up to source offset 99" in entry.reason
    assert is_gone(entry)
    assert judged(entry, topic("orders" if side == "source" else "us.orders", NEW)) is not None
    assert not entry.is_dirty


@pytest.mark.parametrize("side", ["source", "target"])
async def test_one_of_which_nothing_was_copied_waits_for_its_topic(side: str) -> None:
    both = Both()
    del (both.source if side == "source" else both.target).known["orders" if side == "source" else "us.orders"]
    entry, starts = waiting_for(None)
    await both.take_over([entry], starts)
    assert entry.is_waiting


async def test_a_position_in_a_remote_topic_that_the_removed_policy_made_continues_in_the_usual_one() -> None:
    """``new-remote-topic`` of earlier versions: the position names a topic that nothing is copied to any more."""
    both, source, target = Both(), TopicPartition("orders", 0), TopicPartition("us.orders", 0)
    (entry,) = [Entry(pair) for pair in await both.pairing.pairs([source])]
    position = Position(*source, NEW, 100, 3, "us.orders.1c9bd204", 0, UUID(int=7), 50, "mm2-0", 5, 1, 8)
    await both.take_over([entry], {source: Start(position, 99, False)})
    assert not entry.is_stopped
    assert entry.pair.target == target


async def test_a_successor_cannot_count_what_arrived_of_a_topic_that_is_cleaned_or_transformed() -> None:
    both = Both()
    both.source.known["compacted"] = topic("compacted", NEW)
    both.target.known["us.compacted"] = topic("us.compacted", THERE)
    partitions = [TopicPartition("orders", 0), TopicPartition("compacted", 0)]
    pairs = await both.pairing.pairs(partitions)
    assert [(pair.is_countable, pair.is_target_compacted) for pair in pairs] == [(True, False), (False, True)]
    clusters = cast(Cluster, both.source), cast(Cluster, both.target)
    transforming = Pairing("us.{}".format, clusters, cast(Admin, both.target), is_countable=False)
    assert [pair.is_countable for pair in await transforming.pairs(partitions)] == [False, False]
