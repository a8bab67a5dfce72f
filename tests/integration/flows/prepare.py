"""What the sources of the shared mirror hold before it starts."""

from __future__ import annotations

from typing import Final

from aiokafka import AIOKafkaProducer

from connect.core import status_and_offset_topics
from connect.embedded.brokers import KafkaCluster
from tests.kit.copies import read_all, write, write_transactions
from tests.kit.members import until
from tests.kit.shared_mirror import SHAPES
from tests.kit.topics import make_topics

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CONNECTOR: Final = "MirrorSourceConnector"


async def write_offset(cluster: KafkaCluster, topic: str, partition: int, last_copied: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send_and_wait(
            f"mm2-offsets.{SHAPES}.internal",
            status_and_offset_topics.mirror_value(last_copied),
            key=status_and_offset_topics.mirror_key(CONNECTOR, SHAPES, topic, partition),
        )


async def prepare_shapes(us: KafkaCluster, eu: KafkaCluster) -> None:
    await make_topics(us.bootstrap, {f"shape-{codec}": 2 for codec in CODECS})
    await make_topics(
        us.bootstrap, {"shape-txn": 1, "shape-map": 1, "shape-inside": 1, "other": 1, "mm2-x.internal": 1}
    )
    await make_topics(us.bootstrap, {"shape-append": 2}, {"message.timestamp.type": "LogAppendTime"})
    await make_topics(
        us.bootstrap,
        {"shape-compacted": 1},
        {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
    )
    await make_topics(eu.bootstrap, {f"mm2-offsets.{SHAPES}.internal": 25}, {"cleanup.policy": "compact"})
    for codec in CODECS:
        await write(us, f"shape-{codec}", 500, compression_type=None if codec == "none" else codec)
    await write(us, "shape-append", 200)
    await write(us, "shape-inside", 300, partitions=1)
    await write_transactions(us, "shape-txn")
    await write_transactions(us, "shape-map")
    await write_offset(eu, "shape-inside", 0, 122)
    await compacted(us, "shape-compacted")


async def compacted(cluster: KafkaCluster, topic: str) -> None:
    """Write until the cleaner has been at work: a segment is cleaned once a later write has closed it."""

    async def has_gaps() -> bool:
        await write(cluster, topic, 300, partitions=1)
        records = await read_all(cluster.bootstrap, topic)
        return bool(records[-1].offset - records[0].offset + 1 - len(records) > 300)

    await until(has_gaps, f"{topic} is compacted")
