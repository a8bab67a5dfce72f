"""A running flow handed from Java's MirrorMaker 2 to ours and back by its offsets: every record once."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.offsetlog import mirror_key
from connect.embedded.brokers import KafkaCluster
from tests.interop.flow import CONNECTOR, Flow, create_topic, mirrored, read_all
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.java_mm2 import JavaMirrorMaker
from tests.kit.mirror import Mirror
from tests.kit.writer import Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_RECORDS_PER_S = 2000
#: More than this must come from each program before it is stopped, so that every hand-over is midway.
_LEG_RECORDS = 4000
_DEADLINE_S = 90.0


@pytest.mark.timeout(300)
async def test_java_then_ours_then_java(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    flow = Flow(us.bootstrap, eu.bootstrap)
    await create_topic(us.bootstrap, flow.source_topic, flow.partitions)
    pair = TopicPair(flow.source_topic, flow.target_topic, flow.partitions)
    load = Load(flow.source_topic, flow.partitions, codec="lz4", batch_records=50)

    with Writer(us.bootstrap, [load], records_per_s=_RECORDS_PER_S, seed=7) as writer:
        async with Checker(us.bootstrap, eu.bootstrap, [pair]) as checker:
            with JavaMirrorMaker(flow.properties(), tmp_path / "java" / "first.log") as java:
                await mirrored(flow, _LEG_RECORDS, _DEADLINE_S)
                java.stop()
            by_java = await _midway(checker)
            written_by_java = await read_all(eu.bootstrap, flow.offsets_topic)

            with Mirror(flow.properties(), tmp_path) as ours:
                ours.start()
                await mirrored(flow, by_java.total("target_records") + _LEG_RECORDS, _DEADLINE_S)
                assert ours.stop() == 0
            by_both = await _midway(checker)
            assert by_both.total("target_records") >= by_java.total("target_records") + _LEG_RECORDS

            with JavaMirrorMaker(flow.properties(), tmp_path / "java" / "second.log") as java:
                await mirrored(flow, by_both.total("target_records") + _LEG_RECORDS, _DEADLINE_S)
                writer.pause()
                at_the_end = await checker.caught_up(_DEADLINE_S)
                java.stop()
    assert at_the_end.is_exact, at_the_end.summary()

    keys = {mirror_key(CONNECTOR, flow.alias, flow.source_topic, index) for index in range(flow.partitions)}
    where = {record.key: record.partition for record in written_by_java}
    # Java flushes what it has copied of; a partition may not be among it yet.
    assert where, "Java stored its offsets when it was stopped"
    assert where.keys() <= keys, "Java's keys have other bytes than ours"
    for record in await read_all(eu.bootstrap, flow.offsets_topic):
        assert record.key in keys
        assert record.partition == where.setdefault(record.key, record.partition), (
            "one of the programs hashes the key elsewhere"
        )


async def _midway(checker: Checker) -> Report:
    """What the target holds while no program copies and the writer writes on: behind, and otherwise exact."""
    report = await checker.check()
    faults = {name: report.total(name) for name in ("gaps", "duplicates", "disorder", "damaged")}
    assert not any(faults.values()), report.summary()
    return report
