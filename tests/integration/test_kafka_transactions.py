"""The fence against real brokers: what a predecessor may still have under way is refused behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.log.active_producers import describe_producers
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import ProducerIdentity, Superseded, add_partitions, claim, fence, init_producer_id
from connect.wire import records
from tests.kit.batches import produced
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.topics import until_led

pytestmark = pytest.mark.integration

NONE = 0
NOT_LEADER = 6
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47


@pytest.fixture
async def cluster(us: KafkaCluster) -> AsyncIterator[Cluster]:
    async with cluster_at(us.bootstrap, "us") as cluster:
        yield cluster


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    name = f"fenced-{uuid4()}"
    admin = Admin(cluster.settings)
    assert await admin.create_topics([NewTopic(name, 3, 1)]) == {name: None}
    await admin.close()
    await until_led(cluster, {name: 3})
    return name


async def produce(cluster: Cluster, topic: str, partition: int, who: ProducerIdentity, sequence: int) -> int:
    """Write one record outside any transaction; the error code that answers it, once the leader has taken office."""
    batch = records.build([records.Record(0, 1, b"k", b"v", [])], 0, who.producer_id, who.epoch, sequence)
    code, _ = await produced(cluster, topic, partition, bytes(batch), again=[NOT_LEADER])
    return code


async def test_zombie_is_refused_on_every_partition(cluster: Cluster, topic: str) -> None:
    txn = f"task-{uuid4()}"
    zombie = await init_producer_id(cluster, txn)
    assert await produce(cluster, topic, 0, zombie, 0) == NONE
    successor = await fence(cluster, txn, [(topic, 0), (topic, 1), (topic, 2)])
    assert successor.producer_id == zombie.producer_id
    assert successor.epoch > zombie.epoch
    # Partitions 1 and 2 were never written: the marker alone tells their leader.
    codes = [await produce(cluster, topic, partition, zombie, 1 - bool(partition)) for partition in range(3)]
    assert codes == [INVALID_PRODUCER_EPOCH] * 3


async def test_without_a_fence_the_zombie_gets_in(cluster: Cluster, topic: str) -> None:
    """Why the fence is needed: a new epoch alone stops nothing."""
    txn = f"task-{uuid4()}"
    zombie = await init_producer_id(cluster, txn)
    await init_producer_id(cluster, txn)
    assert await produce(cluster, topic, 0, zombie, 0) == NONE


async def test_first_sequence_behind_the_marker_is_zero(cluster: Cluster, topic: str) -> None:
    who = await fence(cluster, f"task-{uuid4()}", [(topic, 0)])
    assert await produce(cluster, topic, 0, who, 3) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produce(cluster, topic, 0, who, 0) == NONE
    # A partition outside the fence takes any: that is what pipelining there must not rely on.
    assert await produce(cluster, topic, 1, who, 3) == NONE


async def test_fence_aborts_an_open_transaction(cluster: Cluster, topic: str) -> None:
    txn = f"task-{uuid4()}"
    before = await init_producer_id(cluster, txn)
    await add_partitions(cluster, txn, before, [(topic, 0)])
    await fence(cluster, txn, [(topic, 0)])
    with pytest.raises(Superseded, match="another process has taken it over"):
        await add_partitions(cluster, txn, before, [(topic, 0)])


async def test_of_two_that_fence_at_once_one_holds_the_id(cluster: Cluster, topic: str) -> None:
    txn, partitions = f"task-{uuid4()}", [(topic, 0), (topic, 1)]
    outcomes = await asyncio.gather(*(fence(cluster, txn, partitions) for _ in range(2)), return_exceptions=True)
    holders = [one for one in outcomes if isinstance(one, ProducerIdentity)]
    assert holders
    assert all(isinstance(one, ProducerIdentity | Superseded) for one in outcomes)
    codes = {holder: await produce(cluster, topic, 0, holder, 0) for holder in sorted(holders)}
    assert codes.pop(max(holders)) == NONE
    assert set(codes.values()) <= {INVALID_PRODUCER_EPOCH}


async def spend_epochs(cluster: Cluster, txn: str, until: int) -> None:
    """Claim ``txn`` until its epoch is ``until`` or a few more, many claims under way at a time."""
    request = InitProducerIdRequest(
        transactional_id=txn, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    connection = await cluster.coordinator(txn, "transaction")
    version = connection.version_of(request)
    body, epoch = request.encode(version=version), 0
    while epoch < until:
        claims = min(50, until - epoch)
        answers = [connection.send(request.API_KEY, version, [body]) for _ in range(claims)]
        last = InitProducerIdResponse.decode(bytes((await asyncio.gather(*answers))[-1]), version=version)
        assert last.error_code == NONE
        epoch = last.producer_epoch


@pytest.mark.long
async def test_the_fence_holds_where_epochs_run_out(cluster: Cluster, topic: str) -> None:
    """After 32766 epochs the coordinator hands out another producer id, which the old id's markers say nothing of."""
    txn, partitions = f"task-{uuid4()}", [(topic, 0), (topic, 1)]
    await init_producer_id(cluster, txn)
    await spend_epochs(cluster, txn, 32700)
    who = await claim(cluster, txn)
    while who.epoch < 32763:
        who = await claim(cluster, txn)
    ids = {who.producer_id}
    for _ in range(3):
        zombie = who
        assert await produce(cluster, topic, 0, zombie, 0) == NONE
        who = await fence(cluster, txn, partitions)
        ids.add(who.producer_id)
        assert [await produce(cluster, topic, partition, zombie, 1 - partition) for partition in (0, 1)] == [
            INVALID_PRODUCER_EPOCH
        ] * 2
        assert await produce(cluster, topic, 1, who, 3) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(ids) == 2


async def test_describe_producers(cluster: Cluster, topic: str) -> None:
    who = await fence(cluster, f"task-{uuid4()}", [(topic, 0), (topic, 1)])
    for sequence in range(3):
        assert await produce(cluster, topic, 0, who, sequence) == NONE
    states = await describe_producers(cluster, [(topic, 0), (topic, 1), (topic, 2)])
    assert states[topic, 0] == {who.producer_id: (who.epoch, 2)}
    assert states[topic, 1] == {who.producer_id: (who.epoch - 1, -1)}  # the marker's epoch, nothing written
    assert states[topic, 2] == {}
