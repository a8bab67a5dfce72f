"""Records written to a source in several shapes, and read from it and from its copy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord
from aiokafka.structs import TopicPartition as KafkaPartition

from connect.embedded.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.mirror import Mirror


async def read_all(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[ConsumerRecord]:
    """All records of a topic as a consumer sees them, by partition and offset; none if it is missing."""
    count = await partition_count(bootstrap, topic)
    if not count:
        return []
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation_level, enable_auto_commit=False
    ) as consumer:
        partitions = [KafkaPartition(topic, index) for index in range(count)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records = list[ConsumerRecord]()
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return sorted(records, key=lambda record: (record.partition, record.offset))


async def partition_count(bootstrap: str, topic: str) -> int:
    """0 where there is no such topic."""
    async with cluster_at(bootstrap) as known:
        found = (await known.metadata({topic})).topics.get(topic)
        return len(found.partitions) if found else 0


def await_records(mirror: Mirror, bootstrap: str, topic: str, count: int, deadline_s: float) -> None:
    """Wait until a topic has so many records, and no more, while the mirror runs."""

    def are_there() -> bool:
        with suppress(KafkaError):  # a broker that is busy is asked again
            return len(asyncio.run(read_all(bootstrap, topic))) == count
        return False

    mirror.wait_until(are_there, f"{topic} has {count} records", deadline_s)


async def until_records(
    mirror: Mirror, bootstrap: str, topic: str, least: int, deadline_s: float = 200.0
) -> list[ConsumerRecord]:
    """Wait until a topic has so many records while the mirror runs; all that it has then."""
    found = list[ConsumerRecord]()

    async def are_there() -> bool:
        with suppress(KafkaError):  # a broker that is busy is asked again
            found[:] = await read_all(bootstrap, topic)
        return len(found) >= least

    await mirror.until(are_there, f"{topic} has {least} records", deadline_s)
    return found


async def send(bootstrap: str, topic: str, values: Iterable[bytes], partitions: Sequence[int] = (0,)) -> None:
    """Write records with these values, without keys, to ``partitions`` in turn."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=partitions[number % len(partitions)])
        await producer.flush()


async def write(cluster: KafkaCluster, topic: str, count: int, partitions: int = 2, **producer) -> None:
    """``count`` records a partition, with keys, headers, nulls and timestamps of their own."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5, **producer) as client:
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
