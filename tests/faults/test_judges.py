"""Writer and checker against real brokers: what is whole is found whole, and every fault that is made is found."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from connect.embedded.brokers import KafkaCluster
from tests.kit import marked
from tests.kit.checker import Checker, PartitionReport, Report, TopicPair
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = pytest.mark.integration

DEADLINE_S = 180.0
#: Not older than a broker's retention.
NOW_MS = int(time.time() * 1000)


async def test_the_writers_logs_are_whole_and_as_long_as_it_says(us: KafkaCluster) -> None:
    name = f"written-{uuid.uuid4().hex[:8]}"
    loads = [Load(f"{name}-{codec}", 2, codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
    await make_topics(us.bootstrap, {load.topic: load.partitions for load in loads})
    pairs = [TopicPair(load.topic, load.topic, load.partitions) for load in loads]
    async with Checker(us.bootstrap, us.bootstrap, pairs) as checker:
        with Writer(us.bootstrap, loads, records_per_s=50_000, seed=1) as writer:
            wait_until(
                lambda: all(count >= 100 for counts in writer.acknowledged().values() for count in counts.values()),
                DEADLINE_S,
                "every partition has a hundred records",
            )
            paused = writer.pause()
            report = await checker.check()
            assert report.is_exact, report.summary()
            assert _records(report) == paused
            writer.resume()
            stopped = writer.stop()
        report = await checker.check()
    assert report.is_exact, report.summary()
    assert _records(report) == stopped


def _records(report: Report) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for part in report.partitions:
        found.setdefault(part.source, {})[part.partition] = part.source_records
    return found


async def _compare(us: KafkaCluster, eu: KafkaCluster, copied: list[int], *, spoil: str = "") -> PartitionReport:
    """Ten records at the source; at the target those of ``copied``, the last one spoilt if asked."""
    name = f"judged-{uuid.uuid4().hex[:8]}"
    await make_topics(us.bootstrap, {name: 1})
    await make_topics(eu.bootstrap, {f"us.{name}": 1})
    await _produce(us, name, list(range(10)))
    await _produce(eu, f"us.{name}", copied, spoil=spoil)
    async with Checker(us.bootstrap, eu.bootstrap, [TopicPair(name, f"us.{name}", 1)]) as checker:
        (partition,) = (await checker.caught_up(0)).partitions
    return partition


async def _produce(cluster: KafkaCluster, topic: str, sequences: list[int], *, spoil: str = "") -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for sequence in sequences:
            key, value, headers = marked.make(0, sequence, 50, NOW_MS)
            record: dict[str, Any] = {"key": key, "value": value, "headers": headers, "timestamp_ms": NOW_MS}
            if spoil and sequence == sequences[-1]:
                record.update(_SPOILT[spoil])
            await producer.send_and_wait(topic, partition=0, **record)


_SPOILT: dict[str, dict[str, Any]] = {
    "value": {"value": b"12345678 other"},
    "timestamp": {"timestamp_ms": NOW_MS + 1},
    "headers": {"headers": [("surprise", b"")]},
    "partition": {"key": marked.KEY.pack(1, 9)},
}


async def test_an_exact_copy_is_exact(us: KafkaCluster, eu: KafkaCluster) -> None:
    found = await _compare(us, eu, list(range(10)))
    assert found.is_exact
    assert (found.source_records, found.target_records) == (10, 10)


@pytest.mark.parametrize(
    ("copied", "name", "count"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "behind", 2),
        ([0, 1, 2, 5, 6, 7, 8, 9], "gaps", 2),
        ([0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9], "duplicates", 2),
        ([0, 1, 3, 2, 4, 5, 6, 7, 8, 9], "disorder", 1),
        ([], "behind", 10),
    ],
)
async def test_each_fault_of_order_is_found_and_no_other(
    us: KafkaCluster, eu: KafkaCluster, copied: list[int], name: str, count: int
) -> None:
    found = await _compare(us, eu, copied)
    counts = {key: getattr(found, key) for key in ("behind", "gaps", "duplicates", "disorder", "damaged")}
    assert counts == {**dict.fromkeys(counts, 0), name: count}


@pytest.mark.parametrize("spoil", sorted(_SPOILT))
async def test_a_changed_record_is_found(us: KafkaCluster, eu: KafkaCluster, spoil: str) -> None:
    found = await _compare(us, eu, list(range(10)), spoil=spoil)
    assert found.damaged == 1
    assert "offset 9" in found.fault


async def test_what_comes_late_is_found_by_a_later_check(us: KafkaCluster, eu: KafkaCluster) -> None:
    name = f"late-{uuid.uuid4().hex[:8]}"
    await make_topics(us.bootstrap, {name: 1})
    await _produce(us, name, [0, 1, 2])
    async with Checker(us.bootstrap, eu.bootstrap, [TopicPair(name, f"us.{name}", 1)]) as checker:
        assert (await checker.check()).total("behind") == 3, "the mirrored topic is not made yet"
        await make_topics(eu.bootstrap, {f"us.{name}": 1})
        await _produce(eu, f"us.{name}", [0, 1, 2])
        assert (await checker.check()).is_exact
        await _produce(eu, f"us.{name}", [2])
        assert (await checker.check()).total("duplicates") == 1


async def test_markers_are_no_records(us: KafkaCluster, eu: KafkaCluster) -> None:
    name = f"fenced-{uuid.uuid4().hex[:8]}"
    await make_topics(us.bootstrap, {name: 1})
    await make_topics(eu.bootstrap, {f"us.{name}": 1})
    await _produce(us, name, [0, 1])
    async with AIOKafkaProducer(bootstrap_servers=eu.bootstrap, transactional_id=name) as producer:
        for sequence in (0, 1):
            key, value, headers = marked.make(0, sequence, 50, NOW_MS)
            async with producer.transaction():
                await producer.send(f"us.{name}", value, key, 0, NOW_MS, headers)
    async with Checker(us.bootstrap, eu.bootstrap, [TopicPair(name, f"us.{name}", 1)]) as checker:
        # The last one is written a moment after the end of its transaction is answered.
        async with asyncio.timeout(DEADLINE_S):
            while (report := await checker.check()).total("markers") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert report.is_exact, report.summary()
    assert report.total("markers") == 2
