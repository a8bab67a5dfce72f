"""Java as judge of the bytes of source offsets: it finds ours, and they are what it writes itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from connect.core.offsetlog import SourceOffsets, apply, mirror_key, mirror_value
from connect.embedded.brokers import KafkaCluster
from tests.interop.flow import CONNECTOR, Flow, create_topic, mirrored, read_all
from tests.kit.java_mm2 import JavaMirrorMaker

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_RECORDS = 500
_OFFSET_PARTITIONS = 25
_MIRRORED_DEADLINE_S = 60


async def test_java_starts_behind_the_offsets_that_we_wrote(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    flow = Flow(us.bootstrap, eu.bootstrap)
    await create_topic(us.bootstrap, flow.source_topic, flow.partitions)
    await create_topic(eu.bootstrap, flow.offsets_topic, _OFFSET_PARTITIONS, {"cleanup.policy": "compact"})
    ours = {
        mirror_key(CONNECTOR, flow.alias, flow.source_topic, partition): mirror_value(last)
        for partition, last in enumerate((0, 123, _RECORDS - 2))
    }
    await _write_source(flow)
    await _write(eu.bootstrap, flow.offsets_topic, ours)

    with JavaMirrorMaker(flow.properties(), tmp_path / "java.log") as java:
        await mirrored(flow, (_RECORDS - 1) + (_RECORDS - 124) + 1, _MIRRORED_DEADLINE_S)
        java.stop()

    first: dict[int, bytes | None] = {}
    for record in await read_all(eu.bootstrap, flow.target_topic):
        first.setdefault(record.partition, record.value)
    assert first == {0: b"1", 1: b"124", 2: b"%d" % (_RECORDS - 1)}

    stored = await read_all(eu.bootstrap, flow.offsets_topic)
    assert {record.key for record in stored} == set(ours), "Java stored under keys of other bytes than ours"
    last = {record.key: record.value for record in stored}
    assert set(last.values()) == {mirror_value(_RECORDS - 1)}
    folded = SourceOffsets()
    for record in stored:
        assert apply(folded, record.key, record.value) is None
    for partition in range(flow.partitions):
        offset = folded.mirrored_offset(CONNECTOR, flow.alias, flow.source_topic, partition)
        assert offset == _RECORDS - 1
    where = {record.key: record.partition for record in stored}
    assert all(record.partition == where[record.key] for record in stored), "Java hashes our keys elsewhere"


async def _write_source(flow: Flow) -> None:
    """Records whose value is their offset."""
    async with AIOKafkaProducer(bootstrap_servers=flow.source, acks="all") as producer:
        for partition in range(flow.partitions):
            for offset in range(_RECORDS):
                await producer.send(flow.source_topic, b"%d" % offset, partition=partition)
        await producer.flush()


async def _write(bootstrap: str, topic: str, records: dict[bytes, bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        for key, value in records.items():
            await producer.send_and_wait(topic, value, key=key)
