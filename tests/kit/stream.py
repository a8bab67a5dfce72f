"""Numbers written to a source without end and read at the target while they are copied, with who copies them."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Partition

from connect.kafka.log.active_producers import describe_producers
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at

DEADLINE_S: Final = 300.0
_PAUSE_S: Final = 0.01


class Stream:
    """Writes numbers to partitions of one cluster without end, and reads their copies on another."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, alias: str) -> None:
        self.us, self.eu, self.alias = us, eu, alias
        self.written: dict[Partition, int] = {}
        self.copied: dict[Partition, list[int]] = {}
        #: When something of a partition was read, on the monotonic clock.
        self.seen_s: dict[Partition, list[float]] = {}
        #: For how long at most nothing was written: nothing can be copied then.
        self.longest_pause_s = 0.0
        self._stopped = asyncio.Event()
        self._settling: asyncio.Event | None = None

    def begin(self, topic: str, partitions: int) -> list[Partition]:
        """Write to these as well from now on."""
        begun = [Partition(topic, index) for index in range(partitions)]
        self.written.update(dict.fromkeys(begun, 0))
        return begun

    async def end(self, *topics: str) -> None:
        for partition in [one for one in self.written if one.topic in topics]:
            del self.written[partition]
        self._settling = asyncio.Event()
        async with asyncio.timeout(DEADLINE_S):
            await self._settling.wait()

    def stop(self) -> None:
        self._stopped.set()

    async def write(self) -> None:
        # Partitions that are added are seen within a second.
        settings = {"bootstrap_servers": self.us.bootstrap, "enable_idempotence": True, "metadata_max_age_ms": 1000}
        async with AIOKafkaProducer(**settings) as producer:
            wrote_s = time.monotonic()
            while not self._stopped.is_set():
                for partition, number in list(self.written.items()):
                    if partition.partition not in await producer.partitions_for(partition.topic):
                        continue  # it was added, and the producer has not seen it yet
                    self.written[partition] = number + 1
                    await producer.send(partition.topic, b"%d" % number, partition=partition.partition)
                if self._settling is not None:
                    await producer.flush()
                    self._settling.set()
                    self._settling = None
                await asyncio.sleep(_PAUSE_S)
                wrote_s, before_s = time.monotonic(), wrote_s
                self.longest_pause_s = max(self.longest_pause_s, wrote_s - before_s)

    async def read(self, partitions: list[Partition]) -> None:
        remote = {Partition(f"{self.alias}.{one.topic}", one.partition): one for one in partitions}
        async with AIOKafkaConsumer(bootstrap_servers=self.eu.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(list(remote))
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                    source = remote[partition]
                    self.copied.setdefault(source, []).extend(int(record.value or b"") for record in records)
                    self.seen_s.setdefault(source, []).append(time.monotonic())

    async def until_copied(self, partitions: list[Partition], least: int = 1) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while any(len(self.copied.get(one, ())) < least for one in partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def longest_gap_s(seen_s: list[float], since_s: float) -> float:
    later = [at_s for at_s in seen_s if at_s >= since_s]
    return max(after - before for before, after in pairwise(later))


async def appear(stream: Stream, topics: list[str]) -> None:
    remote = {f"{stream.alias}.{topic}" for topic in topics}
    async with cluster_at(stream.eu.bootstrap) as cluster, asyncio.timeout(DEADLINE_S):
        while True:
            found = (await cluster.metadata(remote)).topics
            if all(name in found and found[name].partitions for name in remote):
                return
            await asyncio.sleep(0.1)


async def producers_of(stream: Stream, partitions: list[Partition]) -> dict[tuple[str, int], dict[int, int]]:
    """Who writes the copies of these: producer ids and their epochs."""
    copies = [(f"{stream.alias}.{one.topic}", one.partition) for one in partitions]
    async with cluster_at(stream.eu.bootstrap) as cluster:
        found = await describe_producers(cluster, copies)
    return {one: {producer: epoch for producer, (epoch, _) in states.items()} for one, states in found.items()}
