"""What a mirror copies before damage is planted: topics of every codec, transactional and compacted ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from tests.kit.topics import make_topics

SOURCE, TARGET = "us", "eu"
PARTITIONS: Final = 2
#: Compacted, and never by the broker's own cleaner.
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",
    "min.compaction.lag.ms": "604800000",
}
_SEGMENT: Final = {"segment.bytes": "1073741824"}
_KEYS: Final = 500
_ABORTED_EVERY: Final = 4
_SLOT_RECORDS: Final = 6
#: With the marker of their transaction.
SLOT_OFFSETS: Final = _SLOT_RECORDS + 1
_POOL_BYTES: Final = 1 << 16
_VALUE_BYTES: Final = 1000
_STARTED_MS: Final = int(time.time() * 1000)


@dataclass(frozen=True)
class Topic:
    """One source topic: how its producer writes. ``lone``: every record is a batch of its own."""

    name: str
    codec: str | None = None
    transactional: bool = False
    compacted: bool = False
    lone: bool = False

    @property
    def remote(self) -> str:
        return f"{SOURCE}.{self.name}"


TOPICS: Final = (
    Topic("plain"),
    Topic("zipped", "gzip"),
    Topic("quick", "snappy"),
    Topic("fast", "lz4"),
    Topic("dense", "zstd"),
    Topic("ledger", "lz4", transactional=True),
    Topic("latest", compacted=True),
    Topic("latest-dense", "zstd", compacted=True),
    Topic("drops", lone=True),
)


@dataclass
class Written:
    counts: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, topic: str, partition: int, count: int) -> None:
        self.counts[topic, partition] = self.counts.get((topic, partition), 0) + count


class Content:
    """Records by chance: null keys, tombstones, headers that repeat or are empty, timestamps that go back."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"content {seed}")
        self._pool = self._chance.randbytes(_POOL_BYTES // 2).hex().encode()
        self._number = 0

    def some(self, topic: Topic, count: int) -> Iterator[dict[str, Any]]:
        chance = self._chance
        for _ in range(count):
            self._number += 1
            number, at = self._number, chance.randrange(_POOL_BYTES - _VALUE_BYTES)
            value = b"%d " % number + self._pool[at : at + (20 if topic.lone else _VALUE_BYTES)]
            key: bytes | None = b"key %d" % number
            if topic.compacted:
                key = b"key %d" % chance.randrange(_KEYS)
            elif chance.random() < 0.1:
                key = None
            headers: list[tuple[str, bytes]] = []
            if chance.random() < 0.7:
                headers = [("n", b"%d" % number), ("n", b""), ("\u00e4", "\u00fc".encode())]
            yield {
                "key": key,
                "value": None if key is not None and chance.random() < 0.05 else value,
                "headers": headers,
                "timestamp_ms": _STARTED_MS + number - (5000 if chance.random() < 0.02 else 0),
            }


async def make(bootstrap: str, topics: Sequence[Topic]) -> None:
    for topic in topics:
        await make_topics(bootstrap, {topic.name: PARTITIONS}, _SEGMENT | (COMPACTED if topic.compacted else {}))


async def fill(bootstrap: str, topics: Sequence[Topic], content: Content, megabytes: float, written: Written) -> None:
    large = [topic for topic in topics if not topic.lone]
    share = max(int(megabytes * 1_000_000 / len(large) / PARTITIONS / _VALUE_BYTES), 20)
    for topic in topics:
        for partition in range(PARTITIONS):
            count = min(share, 300) if topic.lone else share
            if topic.transactional:
                await _transactions(bootstrap, topic, partition, content, count, written)
            else:
                await _plain(bootstrap, topic, partition, content, count)
                written.add(topic.name, partition, count)


async def _plain(bootstrap: str, topic: Topic, partition: int, content: Content, count: int) -> None:
    async with producer(bootstrap, compression_type=topic.codec, linger_ms=5) as client:
        sent = []
        for one in content.some(topic, count):
            if topic.lone:
                await client.send_and_wait(topic.name, partition=partition, **one)
            else:
                sent.append(await client.send(topic.name, partition=partition, **one))
        await asyncio.gather(*sent)


async def _transactions(
    bootstrap: str, topic: Topic, partition: int, content: Content, count: int, written: Written
) -> None:
    """Ten transactions or so, every fourth aborted, and one aborted one of a single record."""
    name = f"{topic.name}-{partition}"
    async with producer(bootstrap, compression_type=topic.codec, linger_ms=5, transactional_id=name) as client:
        left, number = count, 0
        while left > 0:
            part, number = min(left, max(count // 10, 5)), number + 1
            await client.begin_transaction()
            for one in content.some(topic, part):
                await client.send(topic.name, partition=partition, **one)
            if number % _ABORTED_EVERY == 2:
                await client.abort_transaction()
                await client.begin_transaction()
                for one in content.some(topic, 1):
                    await client.send(topic.name, partition=partition, **one)
                await client.flush()
                await client.abort_transaction()
            else:
                await client.commit_transaction()
                written.add(topic.name, partition, part)
                left -= part


async def put_slots(bootstrap: str, topics: Sequence[Topic], content: Content) -> None:
    """Leave an aborted transaction by another producer in every target partition, each record a batch of its own."""
    async with producer(bootstrap, transactional_id="slots") as client:
        await client.begin_transaction()
        for topic in topics:
            for partition in range(PARTITIONS):
                for one in content.some(topic, _SLOT_RECORDS):
                    await client.send_and_wait(topic.remote, partition=partition, **one)
        await client.abort_transaction()


@asynccontextmanager
async def producer(bootstrap: str, **options: Any) -> AsyncIterator[Any]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=120_000, **options) as client:
        yield client


def properties(us: str, eu: str, topics: Sequence[Topic], more: Mapping[str, str]) -> dict[str, str]:
    """Return what the mirror's file says of this flow."""
    return {
        "clusters": f"{SOURCE}, {TARGET}",
        f"{SOURCE}.bootstrap.servers": us,
        f"{TARGET}.bootstrap.servers": eu,
        f"{SOURCE}->{TARGET}.enabled": "true",
        f"{SOURCE}->{TARGET}.topics": ", ".join(topic.name for topic in topics),
        f"{SOURCE}->{TARGET}.consumer.isolation.level": "read_committed",
        f"{SOURCE}->{TARGET}.tasks.max": "2",
        **more,
    }
