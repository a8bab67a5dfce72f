"""When partitions that wait are taken over again, with what both clusters tell in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions import position_checks
from connectors.source.positions.partition_pairs import Entry, PartitionPair
from connectors.source.positions.position_checks import UnavailablePartitions
from connectors.source.positions.stored_positions import Start
from tests.kit.answers import answers

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
OLD, NEW, THERE = UUID(int=1), UUID(int=2), UUID(int=3)
NO_LEADER, LED = -1, 1


class Brokers:
    """Of both clusters: which of the topics they have, with the leader of their partition. Counts what it is asked."""

    def __init__(self) -> None:
        self.leaders = {"orders": LED, "us.orders": LED}
        self.gone: set[str] = set()
        self.asked = 0

    async def metadata(self, names: Collection[str]) -> ClusterMetadata:
        self.asked += 1
        return ClusterMetadata("c", 1, {}, {name: self._topic(name) for name in names})

    def _topic(self, name: str) -> TopicMetadata:
        if name in self.gone:
            return TopicMetadata(name, None, 3, {})
        return TopicMetadata(name, NEW, 0, {0: PartitionMetadata(self.leaders[name], 0, (1,), 0)})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_checks, "_LOOK_AGAIN_S", 0.0)
    for name in ("min_insync_replicas", "unknown_ends"):
        monkeypatch.setattr(position_checks, name, answers({}))


def one_that_waits(brokers: Brokers) -> Callable[[], Awaitable[bool]]:
    entry = Entry(PartitionPair(SOURCE, NEW, TARGET, THERE))
    entry.wait("for a reason")
    position = Position(*SOURCE, OLD, 100, 3, *TARGET, THERE, 50, "mm2-0", 5, 1, 8)
    waiting = UnavailablePartitions(cast(Cluster, brokers), cast(Cluster, brokers))
    waiting.keep([entry], {SOURCE: Start(position, 99, False)})
    return lambda: waiting.is_back([entry])


@pytest.mark.parametrize("name", ["orders", "us.orders"])
async def test_a_topic_that_a_cluster_does_not_have_is_not_waited_for(name: str) -> None:
    brokers = Brokers()
    brokers.gone = {name}
    assert await one_that_waits(brokers)()


@pytest.mark.parametrize("name", ["orders", "us.orders"])
async def test_a_leader_is_waited_for(name: str) -> None:
    brokers = Brokers()
    brokers.leaders[name] = NO_LEADER
    is_back = one_that_waits(brokers)
    assert [await is_back() for _ in range(3)] == [False] * 3
    brokers.leaders[name] = LED
    assert await is_back()


async def test_both_clusters_are_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_checks, "_LOOK_AGAIN_S", 3600.0)
    brokers = Brokers()
    assert not await one_that_waits(brokers)()
    assert brokers.asked == 0
