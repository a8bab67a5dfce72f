"""The ceiling's loops produce over and over what the source holds, as it is or merged."""

from __future__ import annotations

import time
import uuid

import pytest
from aiokafka import AIOKafkaProducer

from bench.bed import Bed, Side
from bench.ceiling import Loops, Variant
from bench.loads import Load
from tests.kit.brokers import KafkaCluster

pytestmark = pytest.mark.integration

_RECORDS = 400
_PARTITIONS = 2


@pytest.mark.parametrize(
    "variant",
    [Variant(1, together=True, merged=True), Variant(2, together=False, merged=False)],
    ids=lambda variant: variant.title,
)
async def test_loops_produce_the_batches_of_the_load(us: KafkaCluster, eu: KafkaCluster, variant: Variant) -> None:
    load = Load(
        name=f"ceiling-{uuid.uuid4().hex[:8]}",
        title="zstd",
        about="",
        group="",
        partitions=_PARTITIONS,
        records=_RECORDS,
        record_bytes=None,
    )
    copy = f"copy.{load.topic}"
    bed = Bed(Side(us), Side(eu))
    try:
        await bed.source.create(load.topic, _PARTITIONS, 1)
        await bed.target.create(copy, _PARTITIONS, 1)
        await _write(us.bootstrap, load.topic)
        held = await bed.source.contents(load.topic, _PARTITIONS)
        assert held.records == _RECORDS
        with Loops(us.bootstrap, eu.bootstrap, load, copy, variant) as loops:
            assert await bed.target.records(copy, _PARTITIONS) == 0
            loops.go()
            until_s = time.monotonic() + 60
            while (copied := await bed.target.records(copy, _PARTITIONS)) <= _RECORDS:
                assert loops.failure() is None
                assert time.monotonic() < until_s, f"{copied} records"
        produced = await bed.target.contents(copy, _PARTITIONS)
        assert (produced.batch_bytes > 2 * held.batch_bytes) == variant.merged
    finally:
        await bed.close()


async def test_contents_are_those_behind_given_offsets(us: KafkaCluster) -> None:
    topic = f"contents-{uuid.uuid4().hex[:8]}"
    side = Side(us)
    try:
        await side.create(topic, _PARTITIONS, 1)
        await _write(us.bootstrap, topic)
        begin = await side.ends(topic, _PARTITIONS)
        assert sum(begin.values()) == _RECORDS
        async with AIOKafkaProducer(bootstrap_servers=us.bootstrap, acks="all") as producer:
            await producer.send_and_wait(topic, 50_000 * b"x", partition=0)
        assert (await side.contents(topic, _PARTITIONS, begin)).batch_bytes > 50_000
        assert (await side.contents(topic, _PARTITIONS)).batch_bytes < 500
    finally:
        await side.cluster.close()


async def _write(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type="zstd") as producer:
        for index in range(_RECORDS):
            await producer.send_and_wait(topic, b"record %d" % index, partition=index % _PARTITIONS)
