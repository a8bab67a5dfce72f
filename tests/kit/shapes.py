"""Every shape that a batch may have, and what a target refuses: topics, their settings, what is put into them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from connect.core import status_and_offset_topics
from connect.embedded.brokers import KafkaCluster
from connect.wire.records import Record
from tests.kit.batches import Topics, topics_of
from tests.kit.clients import stock_admin
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

NOW_MS: Final = int(time.time() * 1000)
HOUR_MS: Final = 3_600_000
#: So old no record gets in a run, however long that takes, but for those that are meant to be.
DAY_MS: Final = 24 * HOUR_MS
ZSTD: Final = 4
HUGE_RECORDS: Final = 70_000
START_INSIDE: Final = 42_000
#: Of the transactions below.
COMMITTED: Final = 32
_NEVER: Final = {"min.cleanable.dirty.ratio": "1.0", "min.compaction.lag.ms": "604800000"}

#: Remote topics that have settings of their own before the mirror comes.
TARGETS: Final[dict[str, dict[str, str]]] = {
    "split": {"max.message.bytes": "20000"},
    "lowered": {"max.message.bytes": "500000"},
    "gzipped": {"compression.type": "gzip"},
    "inflated": {"compression.type": "uncompressed", "max.message.bytes": "30000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "stamped-twice": {"message.timestamp.type": "LogAppendTime"},
    "huge-inside": {"max.message.bytes": "50000"},
    "poison-key": {"cleanup.policy": "compact", **_NEVER},
    "poison-time": {"message.timestamp.before.max.ms": str(DAY_MS)},
    "poison-size": {"max.message.bytes": "5000"},
}
#: Below: what a target that is told no more than that holds in the end, each record of the source.
DENSE: Final = ("split", "lowered", "gzipped", "inflated", "stamped", "stamped-twice", "plain", "huge")
#: Its target stamps records itself.
SOURCES: Final[dict[str, dict[str, str]]] = {
    **{name: {} for name in (*DENSE, "transactions", "huge-inside")},
    **{name: {} for name in ("poison-key", "poison-time", "poison-size")},
    "stamped-twice": {"message.timestamp.type": "LogAppendTime"},
}
#: What is said of each that is refused, behind the name of the partition.
POISON: Final = {
    "poison-key": "refuses the record at source offset 13 and 1 others in the batch of source offsets 10 to 19: "
    "INVALID_RECORD (87)",
    "poison-time": "refuses the record at source offset 13 and 1 others in the batch of source offsets 10 to 19: "
    "INVALID_TIMESTAMP (32)",
    "poison-size": "refuses the record at source offset 13 in the batch of source offset 13: MESSAGE_TOO_LARGE (10)",
}


def some(
    count: int, *, first: int = 0, value_bytes: int = 40, seed: int = 0, timestamp_ms: int = NOW_MS
) -> list[Record]:
    chance = random.Random(f"{seed} {first}")
    return [
        Record(
            index,
            timestamp_ms + index,
            b"key %d" % index,
            b"%d " % index + chance.randbytes(value_bytes),
            [("n", b"%d" % index)],
        )
        for index in range(first, first + count)
    ]


def soft(count: int) -> list[Record]:
    return [Record(i, NOW_MS + i, b"k", b"%06d" % i + b"0" * 1000, []) for i in range(count)]


async def put_all(topics: Topics) -> None:
    """Every shape but those that have to come later."""
    for first in (0, 60, 120):
        await topics.put("split", some(60, first=first, value_bytes=1000), codec=ZSTD)
    await topics.put("lowered", some(40, value_bytes=1000))
    for first in range(0, 200, 50):
        await topics.put("gzipped", some(50, first=first), codec=first // 50)
        await topics.put("stamped", some(50, first=first), codec=first // 50)
        await topics.put("stamped-twice", some(50, first=first))
        await topics.put("plain", soft(50))
    await topics.put("inflated", soft(100), codec=ZSTD)
    await topics.put("inflated", some(20), codec=ZSTD)
    await put_huge(topics, "huge")
    await put_poison(topics)


async def put_huge(topics: Topics, topic: str) -> None:
    """One batch of 70,000 records and a small one; a mirror begins inside of that of ``huge-inside``."""
    await topics.put(topic, [Record(i, NOW_MS + i, None, b"%d" % i, []) for i in range(HUGE_RECORDS)], codec=ZSTD)
    await topics.put(topic, some(10, first=HUGE_RECORDS))


async def put_poison(topics: Topics) -> None:
    """A good batch, one with records that are refused, and good ones again."""
    kinds: dict[str, Callable[[Record], Record]] = {
        "poison-key": lambda record: record._replace(key=None),
        "poison-time": lambda record: record._replace(timestamp_ms=NOW_MS - 2 * DAY_MS),
        "poison-size": lambda record: record._replace(value=random.Random(record.offset).randbytes(6000)),
    }
    for topic, spoil in kinds.items():
        await topics.put(topic, some(10))
        batch = some(10, first=10)
        batch[3], batch[9] = spoil(batch[3]), spoil(batch[9])
        await topics.put(topic, batch, codec=ZSTD)
        for first in range(20, 40, 5):
            await topics.put(topic, some(5, first=first))
        await topics.put(topic, [spoil(record) for record in some(3, first=40)])
        await topics.put(topic, some(10, first=43))


async def put_lowered(source: str, target: str, alias: str) -> None:
    """Larger batches than before, after the target was told to take smaller ones."""
    await asyncio.to_thread(configure, target, f"{alias}.lowered", {"max.message.bytes": "10000"})
    async with topics_of(source) as topics:
        for first in (40, 80, 120):
            await topics.put("lowered", some(40, first=first, value_bytes=1000))


async def put_transactions(bootstrap: str, pause_s: float) -> None:
    """Two producers whose transactions lie in one another, over several fetches, with ``pause_s`` between records."""
    one = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="shapes-one")
    two = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="shapes-two")
    await asyncio.gather(one.start(), two.start())
    try:
        for number in range(3):
            await one.begin_transaction()
            await two.begin_transaction()
            for index in range(8):
                for producer, name in ((one, "one"), (two, "two")):
                    value = f"{name} {number} {index}".encode()
                    await producer.send_and_wait("transactions", value, partition=0)
                await asyncio.sleep(pause_s)
            await (one.abort_transaction() if number % 2 else one.commit_transaction())
            await (two.commit_transaction() if number % 3 else two.abort_transaction())
    finally:
        await asyncio.gather(one.stop(), two.stop())


async def make_targets(eu: KafkaCluster, alias: str) -> None:
    """The remote topics, and a stored offset inside the batch of one."""
    for topic, configs in TARGETS.items():
        await make_topics(eu.bootstrap, {f"{alias}.{topic}": 1}, configs)
    stored = f"mm2-offsets.{alias}.internal"
    await make_topics(eu.bootstrap, {stored: 5}, {"cleanup.policy": "compact"})
    async with AIOKafkaProducer(bootstrap_servers=eu.bootstrap) as producer:
        key = status_and_offset_topics.mirror_key("MirrorSourceConnector", alias, "huge-inside", 0)
        await producer.send_and_wait(stored, status_and_offset_topics.mirror_value(START_INSIDE - 1), key=key)


def plain(record: Any, own_time: bool) -> tuple[Any, ...]:
    return record.key, record.value, tuple(record.headers), None if own_time else record.timestamp


def configure(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    """Returns once the broker goes by it, to which the controller tells it a moment later."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)

    def is_reported() -> bool:
        found = admin.describe_configs([resource], config_filter="all").get("topic", {}).get(topic, {})
        return configs.items() <= {name: entry["value"] for name, entry in found.items()}.items()

    with stock_admin(bootstrap) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)])
        wait_until(is_reported, 120.0, f"{topic} has {configs}")
