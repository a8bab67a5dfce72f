"""The ceiling's loops write exactly what the source holds, and the watch sees the first and the last of it."""

from __future__ import annotations

import uuid

import pytest
from aiokafka import AIOKafkaProducer

from bench.ceiling import Loops
from bench.loads import PARTITIONS, Load
from bench.topics import BenchError, Topics
from bench.watch import watch
from connect.embedded.brokers import KafkaCluster

pytestmark = pytest.mark.integration

_RECORDS = 8000


async def test_loops_copy_every_batch_once(us: KafkaCluster, eu: KafkaCluster) -> None:
    load = Load(f"ceiling-{uuid.uuid4().hex[:8]}", "zstd", _RECORDS, None)
    copy = f"copy.{load.topic}"
    async with await Topics.open(us.bootstrap) as source, await Topics.open(eu.bootstrap) as target:
        await source.create(load.topic, PARTITIONS)
        await target.create(copy, PARTITIONS)
        await _write(us.bootstrap, load.topic)
        held = await source.contents(load.topic, PARTITIONS)
        assert held.records == _RECORDS
        assert held.batches >= PARTITIONS

        with Loops(us.bootstrap, eu.bootstrap, load, copy, 2) as loops:
            assert await target.end_offsets(copy, PARTITIONS) == dict.fromkeys(range(PARTITIONS), 0)
            loops.go()
            first, last = await watch(target, copy, held, lambda: "looked", loops.failure)
        assert 0 < first.records <= last.records == _RECORDS
        assert first.look == "looked"
        assert await target.contents(copy, PARTITIONS) == held


async def test_watch_says_why_nothing_more_comes(us: KafkaCluster) -> None:
    topic = f"silent-{uuid.uuid4().hex[:8]}"
    async with await Topics.open(us.bootstrap) as cluster:
        held = await cluster.contents(topic, PARTITIONS)
        assert held.records == 0
        with pytest.raises(BenchError, match="it died"):
            await watch(cluster, topic, held, lambda: None, lambda: "it died")


async def _write(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type="zstd") as producer:
        for index in range(_RECORDS):
            await producer.send(topic, b"record %d" % index, partition=index % PARTITIONS)
        await producer.flush()
