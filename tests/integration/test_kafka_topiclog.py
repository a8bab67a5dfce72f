"""Compacted topics on a real cluster: made right or refused, and read to their end whatever the end is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from uuid import uuid4

import pytest

from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.core.model import NewTopic
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic, read_to_end
from connect.kafka.log.producer import OutRecord, TransactionalWriter, partition_of
from connect.kafka.log.topic_admin import Admin, TopicExists
from connect.kafka.log.transactions import add_partitions, end_transaction, init_producer_id
from tests.kit.clients import cluster_and_admin
from tests.kit.topics import until_led

pytestmark = pytest.mark.integration


class Client:
    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.cluster, self.admin = cluster, admin
        self.topic = f"log-{uuid4()}"

    async def made(self, partitions: int = 3) -> str:
        await ensure_compacted_topic(self.admin, NewTopic(self.topic, partitions, 1))
        return self.topic

    async def write(self, *pairs: tuple[bytes, bytes | None]) -> None:
        writer = TransactionalWriter(self.cluster, f"writer-{uuid4()}")
        await writer.write([OutRecord(self.topic, key, value) for key, value in pairs])

    async def read(self, *, read_committed: bool = True, timeout_s: float = 30.0) -> list[LogRecord]:
        found: list[LogRecord] = []
        ends = await read_to_end(
            self.cluster, self.topic, found.append, read_committed=read_committed, timeout_s=timeout_s
        )
        assert all(one.offset < ends[one.partition] for one in found)
        return found


@pytest.fixture
async def client(us: KafkaCluster) -> AsyncIterator[Client]:
    async with cluster_and_admin(us.bootstrap, "us") as clients:
        yield Client(*clients)


async def test_records_come_in_the_order_of_their_partition(client: Client) -> None:
    await client.made()
    pairs = [(b"key-%d" % (at % 10), b"%d" % at) for at in range(200)]
    await client.write(*pairs[:100])
    await client.write(*pairs[100:], (b"gone", None))
    records = await client.read()
    assert len(records) == 201
    for key in {key for key, _ in pairs}:
        mine = [record for record in records if record.key == key]
        assert [record.value for record in mine] == [value for other, value in pairs if other == key]
        assert {record.partition for record in mine} == {partition_of(key, 3)}
    assert [record.value for record in records if record.key == b"gone"] == [None]


async def test_only_the_partitions_asked_for(client: Client) -> None:
    await client.made()
    await client.write(*((b"key-%d" % at, b"") for at in range(50)))
    found: list[LogRecord] = []
    await read_to_end(client.cluster, client.topic, found.append, partitions={1}, read_committed=True)
    assert {record.partition for record in found} == {1}
    assert len(found) == sum(partition_of(b"key-%d" % at, 3) == 1 for at in range(50))


async def test_an_empty_topic_ends_at_once(client: Client) -> None:
    await client.made()
    assert await client.read() == []


async def test_a_log_that_ends_in_markers_only(client: Client) -> None:
    """The end is an offset that no record has."""
    topic = await client.made(1)
    await client.write((b"k", b"v"))
    transactional_id = f"aborted-{uuid4()}"
    who = await init_producer_id(client.cluster, transactional_id)
    await add_partitions(client.cluster, transactional_id, who, [(topic, 0)])
    await end_transaction(client.cluster, transactional_id, who, commit=False)
    assert [record.value for record in await client.read()] == [b"v"]


async def test_an_open_transaction_is_waited_for(client: Client) -> None:
    topic = await client.made(1)
    slow = TransactionalWriter(client.cluster, f"slow-{uuid4()}")
    written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    commits = asyncio.Event()

    async def commit_later(first: Mapping[tuple[str, int], int]) -> bool:
        written.set_result(first[topic, 0])
        await commits.wait()
        return True

    writing = asyncio.ensure_future(slow.write([OutRecord(topic, b"k", b"late")], commit_later))
    # Not always 0: while the topic's leader is not ready a write is tried again, behind the marker of the one before.
    since = await written
    with pytest.raises(
        RetriableError,
        match=rf"nothing came for 0\.6 s; a transaction .* is open in {topic}-0 since offset {since}; kafka-",
    ):
        await client.read(timeout_s=0.6)
    assert len(await client.read(read_committed=False)) == 1
    reading = asyncio.ensure_future(client.read())
    commits.set()
    await writing
    assert [record.value for record in await reading] == [b"late"]


async def test_made_topics_are_compacted(client: Client) -> None:
    topic = await client.made(2)
    await client.made(2)  # it is there: nothing to do, nothing wrong
    configs: dict[str, str | None] = {}
    async with asyncio.timeout(120):
        while not configs:  # of a broker that has not heard of it
            configs = (await client.admin.describe_topic_configs([topic]))[topic]
    assert configs["cleanup.policy"] == "compact"
    await until_led(client.cluster, {topic: 2})
    assert len((await client.admin.describe_topics([topic]))[topic].partitions) == 2


async def test_a_topic_that_is_not_compacted_is_refused(client: Client) -> None:
    await client.admin.create_topics([NewTopic(client.topic, 1, 1)])
    await until_led(client.cluster, {client.topic: 1})
    with pytest.raises(ConfigError, match=r"has cleanup\.policy=delete and would lose what is stored in it"):
        await client.made()


async def test_too_few_brokers_for_the_replication_factor(client: Client) -> None:
    with pytest.raises(PermanentError, match=r"cannot create topic .*INVALID_REPLICATION_FACTOR"):
        await ensure_compacted_topic(client.admin, NewTopic(client.topic, 1, 3), timeout_s=0.5)


async def test_outcomes_of_administration_are_by_topic(client: Client) -> None:
    admin, topic = client.admin, client.topic
    first = await admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "1234"}), NewTopic("bad/name", 1, 1)])
    assert first[topic] is None
    assert "INVALID_TOPIC" in str(first["bad/name"])
    assert isinstance((await admin.create_topics([NewTopic(topic, 2, 1)]))[topic], TopicExists)
    await until_led(client.cluster, {topic: 2})
    assert (await admin.describe_topic_configs([topic]))[topic]["retention.ms"] == "1234"
    assert topic in await admin.describe_topics([topic])
    grown = await admin.create_partitions({topic: 4, "nowhere": 2})
    assert grown[topic] is None
    assert isinstance(grown["nowhere"], RetriableError)
    assert "INVALID_PARTITIONS" in str((await admin.create_partitions({topic: 1}))[topic])
    assert await admin.delete_topics([topic]) == {topic: None}
    assert await admin.create_topics([]) == {}
