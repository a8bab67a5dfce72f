"""The meter of latency against a copier that is right, one that loses a record, and one that doubles it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.latency import Meter
from connect.embedded.brokers import KafkaCluster
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

_PARTITIONS = 2
_RATE_PER_S = 100
_RAMP_S, _SECONDS = 0.5, 1.0
_SPECIAL = 7


@pytest.mark.parametrize(
    ("copies", "error"), [(1, ""), (0, "1 of {count} records did not arrive"), (2, "1 of {count} records arrived more")]
)
async def test_meter_counts_every_record_once(us: KafkaCluster, eu: KafkaCluster, copies: int, error: str) -> None:
    topic = f"latency-{uuid.uuid4().hex[:8]}"
    await make_topics(us.bootstrap, {topic: _PARTITIONS})
    await make_topics(eu.bootstrap, {f"us.{topic}": _PARTITIONS})
    meter = Meter(us.bootstrap, eu.bootstrap, topic, _PARTITIONS, _RATE_PER_S, _RAMP_S, _SECONDS, deadline_s=5)
    copying = asyncio.create_task(_copy(us, eu, topic, copies), name="copy")
    try:
        said = await meter.run()
    finally:
        copying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await copying
    count = len(meter._seen) + (copies == 0)
    assert said["error"].startswith(error.format(count=count))
    if not error:
        found = said["found"]
        assert found["records"] == count - _RAMP_S * _RATE_PER_S, "those of the ramp do not count"
        assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["most_ms"]


async def _copy(us: KafkaCluster, eu: KafkaCluster, topic: str, copies: int) -> None:
    async with (
        AIOKafkaConsumer(bootstrap_servers=us.bootstrap, auto_offset_reset="earliest") as consumer,
        AIOKafkaProducer(bootstrap_servers=eu.bootstrap) as producer,
    ):
        consumer.assign([TopicPartition(topic, index) for index in range(_PARTITIONS)])
        async for record in consumer:
            assert record.value is not None
            for _ in range(copies if record.value.startswith(b"%d " % _SPECIAL) else 1):
                await producer.send(f"us.{topic}", record.value, partition=record.partition)
