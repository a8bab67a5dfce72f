"""A flow that Java's MirrorMaker 2 and ours can both be started on, and what its topics hold."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

CONNECTOR = "MirrorSourceConnector"


def _unique_alias() -> str:
    """Internal topics and the worker's group are named after the source's alias: a new one shares nothing."""
    return f"us{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Flow:
    """Two topics under an alias of their own: one written to all the time, and one begun by hand."""

    source: str
    target: str
    partitions: int = 3
    alias: str = field(default_factory=_unique_alias)
    topic: str = "orders"

    @property
    def source_topic(self) -> str:
        return f"{self.topic}-{self.alias}"

    @property
    def target_topic(self) -> str:
        return f"{self.alias}.{self.source_topic}"

    @property
    def begun_topic(self) -> str:
        return f"begun-{self.alias}"

    @property
    def begun_target_topic(self) -> str:
        return f"{self.alias}.{self.begun_topic}"

    @property
    def offsets_topic(self) -> str:
        return f"mm2-offsets.{self.alias}.internal"

    def properties(self) -> Mapping[str, str]:
        """A file that both programs read alike."""
        return {
            "clusters": f"{self.alias}, eu",
            f"{self.alias}.bootstrap.servers": self.source,
            "eu.bootstrap.servers": self.target,
            f"{self.alias}->eu.enabled": "true",
            f"{self.alias}->eu.topics": f"{self.source_topic}, {self.begun_topic}",
            "emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "tasks.max": "2",
        }


async def mirrored(bootstrap: str, topic: str, partitions: int, records: int, deadline_s: float) -> None:
    """Waits until the topic holds so many records. Raises TimeoutError, which names it."""
    wanted = [TopicPartition(topic, index) for index in range(partitions)]
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, metadata_max_age_ms=1000) as consumer:
        try:
            async with asyncio.timeout(deadline_s):
                while await _held(consumer, wanted) < records:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise TimeoutError(f"{topic} did not get {records} records within {deadline_s:.0f} s") from None


async def _held(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> int:
    """The sum of the ends; 0 while the topic is not there, or a busy broker does not answer in time."""
    try:
        if partitions[0].topic not in await consumer.topics():
            return 0
        return sum((await consumer.end_offsets(partitions)).values())
    except KafkaError:
        return 0
