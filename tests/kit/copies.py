"""Records written to a source in several shapes, and read from it and from its copy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as KafkaPartition

from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.security.connection_settings import connection_settings

_DEADLINE_S: Final = 200.0


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + _DEADLINE_S
    while not await condition():
        assert loop.time() < end, f"waited {_DEADLINE_S:g} s in vain until {what}"
        await asyncio.sleep(0.2)


async def read(cluster: KafkaCluster, topic: str, isolation_level: str = "read_committed"):
    """All records of a topic as a consumer sees them, by partition and offset; none if it is missing."""
    count = await partition_count(cluster, topic)
    if not count:
        return []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level=isolation_level, enable_auto_commit=False
    )
    await consumer.start()
    try:
        partitions = [KafkaPartition(topic, index) for index in range(count)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records = []
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


async def partition_count(cluster: KafkaCluster, topic: str) -> int:
    """0 where there is no such topic."""
    settings = connection_settings({"bootstrap.servers": cluster.bootstrap}, client_id="test", where="test")
    known = Cluster(settings)
    try:
        found = (await known.metadata({topic})).topics.get(topic)
        return len(found.partitions) if found else 0
    finally:
        await known.close()


async def write(cluster: KafkaCluster, topic: str, count: int, partitions: int = 2, **producer) -> None:
    """``count`` records a partition, with keys, headers, nulls and timestamps of their own."""
    client = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5, **producer)
    await client.start()
    try:
        now_ms = int(time.time() * 1000)
        sent = [
            await client.send(
                topic,
                f"value {index} of {topic}".encode() if index % 7 else None,
                # Some keys come once only, so that compaction leaves gaps and not just a later start.
                key=(f"{now_ms} {index}" if index % 11 == 0 else f"key {index % 50}").encode(),
                partition=index % partitions,
                timestamp_ms=now_ms + index,
                headers=[("n", b"%d" % index), ("n", b""), ("ä", "ü".encode())] if index % 3 else [],
            )
            for index in range(count * partitions)
        ]
        await asyncio.gather(*sent)
    finally:
        await client.stop()


async def write_transactions(cluster: KafkaCluster, topic: str) -> None:
    """Committed, aborted and committed again, by the same producer and beside another one."""
    one = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-one")
    two = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-two")
    await asyncio.gather(one.start(), two.start())
    try:
        for number in range(12):
            await two.begin_transaction()
            await one.begin_transaction()
            for producer, name in ((one, b"one"), (two, b"two"), (one, b"one again")):
                await producer.send_and_wait(topic, b"%s %d" % (name, number), partition=0)
            await (one.abort_transaction() if number % 3 == 1 else one.commit_transaction())
            await (two.abort_transaction() if number % 4 == 2 else two.commit_transaction())
    finally:
        await asyncio.gather(one.stop(), two.stop())
