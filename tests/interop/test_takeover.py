"""A running flow handed from Java's MirrorMaker 2 to ours and back by its offsets: every record once."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import ConsumerRecord

from connect.core.status_and_offset_topics import SourceOffsets, apply, mirror_key, mirror_value
from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from tests.interop.flow import CONNECTOR, Flow, mirrored
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.copies import read_all
from tests.kit.java_program import JavaMirrorMaker
from tests.kit.mirror import Mirror
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_RECORDS_PER_S = 2000
#: More than this must come from each program before it is stopped, so that every hand-over is midway.
_LEG_RECORDS = 4000
#: Long, for a Java MirrorMaker 2 on a busy machine needs more than a minute to start.
_DEADLINE_S = 300.0
#: Each partition of the begun topic has so many, and is copied up to these offsets.
_BEGUN_RECORDS = 500
_BEGUN_AT = (0, 123, _BEGUN_RECORDS - 2)
_LEFT_OF_BEGUN = sum(_BEGUN_RECORDS - 1 - last for last in _BEGUN_AT)
_OFFSET_PARTITIONS = 25


@pytest.mark.long
async def test_java_then_ours_then_java(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    flow = Flow(us.bootstrap, eu.bootstrap)
    await make_topics(us.bootstrap, {flow.source_topic: flow.partitions})
    begun_keys = await _begin_by_hand(flow)
    pair = TopicPair(flow.source_topic, flow.target_topic, flow.partitions)
    load = Load(flow.source_topic, flow.partitions, codec="lz4", batch_records=50)

    with Writer(us.bootstrap, [load], records_per_s=_RECORDS_PER_S, seed=7) as writer:
        async with Checker(us.bootstrap, eu.bootstrap, [pair]) as checker:
            with _java(flow, tmp_path / "first.log") as java:
                await mirrored(flow.target, flow.target_topic, flow.partitions, _LEG_RECORDS, _DEADLINE_S)
                await mirrored(flow.target, flow.begun_target_topic, flow.partitions, _LEFT_OF_BEGUN, _DEADLINE_S)
                java.stop()
            by_java = await _midway(checker)
            written_by_java = await read_all(eu.bootstrap, flow.offsets_topic)
            await _java_read_ours(flow, begun_keys, written_by_java)

            with Mirror(flow.properties(), tmp_path) as ours:
                ours.start()
                await _leg(flow, by_java)
                assert ours.stop() == 0
            by_both = await _midway(checker)
            assert by_both.total("target_records") >= by_java.total("target_records") + _LEG_RECORDS

            with _java(flow, tmp_path / "second.log") as java:
                await _leg(flow, by_both)
                writer.pause()
                at_the_end = await checker.caught_up(_DEADLINE_S)
                java.stop()
    assert at_the_end.is_exact, at_the_end.summary()
    assert len(await read_all(eu.bootstrap, flow.begun_target_topic)) == _LEFT_OF_BEGUN, "it was copied again"

    keys = begun_keys | _keys(flow, flow.source_topic)
    where = {record.key: record.partition for record in written_by_java}
    # Java flushes what it has copied of; a partition may not be among it yet.
    assert where.keys() <= keys, "Java's keys have other bytes than ours"
    for record in await read_all(eu.bootstrap, flow.offsets_topic):
        assert record.key in keys
        assert record.partition == where.setdefault(record.key, record.partition), (
            "one of the programs hashes the key elsewhere"
        )


def _java(flow: Flow, log: Path) -> JavaMirrorMaker:
    return JavaMirrorMaker(flow.properties(), log, heap="512m", jvm_options=QUICK_JVM)


async def _begin_by_hand(flow: Flow) -> set[bytes]:
    """A topic whose records have their offsets as values, and offsets to go on from as we write them; their keys."""
    await make_topics(flow.source, {flow.begun_topic: flow.partitions})
    await make_topics(flow.target, {flow.offsets_topic: _OFFSET_PARTITIONS}, {"cleanup.policy": "compact"})
    async with AIOKafkaProducer(bootstrap_servers=flow.source, acks="all") as producer:
        for partition in range(flow.partitions):
            for offset in range(_BEGUN_RECORDS):
                await producer.send(flow.begun_topic, b"%d" % offset, partition=partition)
        await producer.flush()
    async with AIOKafkaProducer(bootstrap_servers=flow.target, acks="all") as producer:
        for partition, last in enumerate(_BEGUN_AT):
            key = mirror_key(CONNECTOR, flow.alias, flow.begun_topic, partition)
            await producer.send_and_wait(flow.offsets_topic, mirror_value(last), key=key)
    return _keys(flow, flow.begun_topic)


async def _java_read_ours(
    flow: Flow, begun_keys: set[bytes], stored: list[ConsumerRecord[bytes | None, bytes | None]]
) -> None:
    """Java began behind our offsets, and stored under our keys and in our places what we would have stored."""
    first: dict[int, bytes | None] = {}
    for record in await read_all(flow.target, flow.begun_target_topic):
        first.setdefault(record.partition, record.value)
    assert first == {partition: b"%d" % (last + 1) for partition, last in enumerate(_BEGUN_AT)}
    assert {record.key for record in stored} <= begun_keys | _keys(flow, flow.source_topic), (
        "Java stored under keys of other bytes than ours"
    )
    begun = [record for record in stored if record.key in begun_keys]
    last = {record.key: record.value for record in begun}
    assert last.keys() == begun_keys
    assert set(last.values()) == {mirror_value(_BEGUN_RECORDS - 1)}
    where = {record.key: record.partition for record in begun}
    assert all(record.partition == where[record.key] for record in begun), "Java hashes our keys elsewhere"
    folded = SourceOffsets()
    for record in stored:
        assert apply(folded, record.key, record.value) is None
    for partition in range(flow.partitions):
        offset = folded.mirrored_offset(CONNECTOR, flow.alias, flow.begun_topic, partition)
        assert offset == _BEGUN_RECORDS - 1


def _keys(flow: Flow, topic: str) -> set[bytes]:
    return {mirror_key(CONNECTOR, flow.alias, topic, index) for index in range(flow.partitions)}


async def _leg(flow: Flow, before: Report) -> None:
    records = before.total("target_records") + _LEG_RECORDS
    await mirrored(flow.target, flow.target_topic, flow.partitions, records, _DEADLINE_S)


async def _midway(checker: Checker) -> Report:
    """What the target holds while no program copies and the writer writes on: behind, and otherwise exact."""
    report = await checker.check()
    faults = {name: report.total(name) for name in ("gaps", "duplicates", "disorder", "damaged")}
    assert not any(faults.values()), report.summary()
    return report
