"""Cases of Kafka's ``MirrorConnectorsIntegrationBaseTest`` in one flow: ``testReplicateFromLatest``,
``testReplicationWithEmptyPartition``, ``testOneWayReplicationWithFrequentOffsetSyncs`` (``offset.lag.max = 0``), with
the names of ``IdentityReplicationIntegrationTest``."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer

from connect.embedded.brokers import KafkaCluster
from connectors.checkpoint.offset_translation import OffsetSyncStore
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import TopicPartition
from tests.interop.flow import read_all
from tests.kit.copies import partition_count
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.moving import commit, committed
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

_DEADLINE_S: Final = 240.0
_POLL_S: Final = 0.3
_OLD: Final = 10
_LATER: Final = 100


async def _write(us: KafkaCluster, topic: str, *numbers: int) -> None:
    """To partition 0; 1 is left as it is."""
    async with AIOKafkaProducer(bootstrap_servers=us.bootstrap) as producer:
        for number in numbers:
            await producer.send_and_wait(topic, b"%d" % number, partition=0)


def test_from_the_latest_with_an_empty_partition_and_a_sync_for_each_record(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    name = uuid.uuid4().hex[:6]
    topic, group, alias = f"kept-{name}", f"{name}-group", f"us{name}"
    syncs_topic = f"mm2-offset-syncs.{alias}.internal"
    properties = {
        "clusters": f"{alias}, eu",
        f"{alias}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{alias}->eu.enabled": "true",
        "topics": topic,
        "groups": group,
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        **SMALL,
        **CALM,
        "emit.checkpoints.enabled": "true",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        f"{alias}->eu.consumer.auto.offset.reset": "latest",
        "offset-syncs.topic.location": "target",
        "offset.lag.max": "0",
        "eu.offset.flush.interval.ms": "1000",
    }
    asyncio.run(make_topics(us.bootstrap, {topic: 2}))
    asyncio.run(_write(us, topic, *range(_OLD)))
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        written = _OLD

        def arrived() -> list[int]:
            nonlocal written
            assert mirror.is_running, mirror.log_lines()[-20:]
            asyncio.run(_write(us, topic, written))
            written += 1
            return [int(one.value or b"") for one in asyncio.run(read_all(eu.bootstrap, topic))]

        first = wait_until(arrived, _DEADLINE_S, "a record arrives", _POLL_S)[0]
        end = written + _LATER
        asyncio.run(_write(us, topic, *range(written, end)))
        wanted = list(range(first, end))
        wait_until(
            lambda: [int(one.value or b"") for one in asyncio.run(read_all(eu.bootstrap, topic))] == wanted,
            _DEADLINE_S,
            "all from the first on has arrived once",
            _POLL_S,
        )
        assert first >= _OLD
        assert asyncio.run(partition_count(eu, topic)) == 2
        # A group in the middle, which only a sync near it translates.
        asyncio.run(commit(us.bootstrap, group, {topic: end - 1}))
        wait_until(
            lambda: asyncio.run(committed(eu.bootstrap, group, [topic]))[topic] == end - 1 - first,
            _DEADLINE_S,
            "the group is moved",
            _POLL_S,
        )
        store = OffsetSyncStore(only_last=False)
        for one in asyncio.run(read_all(eu.bootstrap, syncs_topic)):
            store.take(OffsetSync.decode(one.key, one.value))
        store.read_to_end()
        place = TopicPartition(topic, 0)
        assert [store.translate(place, offset) for offset in (end - 1, end)] == [end - 1 - first, end - first]
        assert store.translate(TopicPartition(topic, 1), 0) is None
        assert mirror.stop() == 0
