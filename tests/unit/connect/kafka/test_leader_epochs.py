"""Leader epochs never go back: what a deposed leader answers counts for nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataResponse

from connect.kafka import cluster as module
from connect.kafka import concurrency
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.log.active_producers import ActiveProducer, active_producers
from connect.kafka.log.offsets import LATEST, epoch_ends, list_offset
from connect.kafka.security.connection_settings import ConnectionSettings

ORDERS = "orders", 0
FIRST, SECOND = UUID(int=1), UUID(int=2)
FENCED_LEADER_EPOCH = 74
NOT_LEADER = 6


def answer(leader: int, epoch: int, topic_id: UUID = FIRST) -> MetadataResponse:
    of = MetadataResponse.MetadataResponseTopic
    partition = of.MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1, 2]
    )
    topic = of(error_code=0, name="orders", topic_id=topic_id, partitions=[partition])
    return MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[topic])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(ConnectionSettings((("localhost", 9092),), "test"))


def leader(metadata: ClusterMetadata) -> tuple[int | None, int]:
    return metadata.leader(*ORDERS), metadata.leader_epoch(*ORDERS)


async def test_metadata_of_an_older_leader_epoch_names_no_leader(cluster: Cluster) -> None:
    assert leader(await cluster._take(answer(1, 5))) == (1, 5)
    assert leader(await cluster._take(answer(2, 6))) == (2, 6)
    assert leader(await cluster._take(answer(1, 5))) == (None, 5)
    assert leader(await cluster._take(answer(2, 6))) == (2, 6)


async def test_an_epoch_that_was_read_counts_as_one_that_metadata_named(cluster: Cluster) -> None:
    cluster.leader_epochs.saw("orders", FIRST, 0, 6)
    cluster.leader_epochs.saw("orders", FIRST, 0, 3)
    assert leader(await cluster._take(answer(1, 5))) == (None, 5)
    assert leader(await cluster._take(answer(2, 6))) == (2, 6)


async def test_epochs_start_again_with_another_topic_id(cluster: Cluster) -> None:
    await cluster._take(answer(1, 5))
    assert leader(await cluster._take(answer(2, 0, SECOND))) == (2, 0)


async def test_a_topic_without_an_id_may_be_another_one(cluster: Cluster) -> None:
    await cluster._take(answer(1, 5, UUID(int=0)))
    assert leader(await cluster._take(answer(2, 0, UUID(int=0)))) == (2, 0)


async def test_a_leader_of_an_older_epoch_that_stays_is_reported_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the cluster was restored from a snapshot."""
    now_s = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    cluster.leader_epochs.saw("orders", FIRST, 0, 9)
    for _ in range(4):
        await cluster._take(answer(1, 5))
        now_s += 30.0
    (line,) = caplog.messages
    assert "orders-0 has had a leader of epoch 5 for 60 s after epoch 9, so" in line
    assert "reset the stored source offsets" in line


async def test_a_full_listing_forgets_topics_that_it_lacks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(_: object, **__: object) -> MetadataResponse:
        listed = answer(1, 5)
        listed.brokers = [SimpleNamespace(node_id=1, host="b", port=9092, rack=None)]
        return listed

    async def any_connection() -> Any:
        return SimpleNamespace(call=call)

    monkeypatch.setattr(cluster, "any_connection", any_connection)
    for name in ("orders", "deleted"):
        cluster.leader_epochs.saw(name, FIRST, 0, 6)
    await cluster.metadata({"orders"})
    assert cluster.leader_epochs._seen.keys() == {"orders", "deleted"}
    await cluster.metadata(None)
    assert cluster.leader_epochs._seen.keys() == {"orders"}


class Moving:
    """A cluster whose broker 1 led in epoch 5 and is deposed; metadata knows of epoch 6 and broker 2 a moment later.

    Broker 1 describes producers all the same, with less than broker 2 has.
    """

    name = "eu"

    def __init__(self) -> None:
        self.asked = 0
        self.epochs: list[int] = []

    async def topics(self, _: object) -> ClusterMetadata:
        self.asked += 1
        known = Cluster(ConnectionSettings((("localhost", 9092),), "test"))
        return await known._take(answer(1, 5) if self.asked == 1 else answer(2, 6))

    metadata = topics

    async def connection(self, node: int) -> Any:
        return SimpleNamespace(call=lambda request: self._call(node, request))

    async def _call(self, node: int, request: Any) -> Any:
        kind = type(request).__name__
        code = 0
        if kind != "DescribeProducersRequest":
            self.epochs.append(request.topics[0].partitions[0].current_leader_epoch)
            code = 0 if node == 2 else NOT_LEADER
        state = SimpleNamespace(producer_id=7, producer_epoch=1, last_sequence=3 * node, current_txn_start_offset=-1)
        row = SimpleNamespace(
            partition_index=0, partition=0, error_code=code, active_producers=[state], offset=9, leader_epoch=5,
            end_offset=9,
        )  # fmt: skip
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", topic="orders", partitions=[row])])


async def test_a_former_leader_is_not_believed_about_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_PAUSE_S", 0.0)
    moving = Moving()
    assert await active_producers(cast(Cluster, moving), [ORDERS]) == {ORDERS: {7: ActiveProducer(1, 6, -1)}}
    assert moving.epochs == [5, 6]


async def test_offsets_and_ends_of_epochs_are_asked_under_the_leaders_epoch() -> None:
    moving = Moving()
    moving.asked = 1
    await list_offset(cast(Cluster, moving), ORDERS, LATEST)
    await epoch_ends(cast(Cluster, moving), {ORDERS: 5})
    assert moving.epochs == [6, 6]
