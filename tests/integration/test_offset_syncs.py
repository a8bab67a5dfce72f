"""Offset syncs of a running mirror, as a stock consumer of either cluster sees them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from connect.embedded.brokers import KafkaCluster
from connectors.formats.mirror_records import OffsetSync
from tests.interop.flow import read_all
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

_DEADLINE_S = 180.0
_POLL_S = 0.2
_PLAIN, _TRANSACTIONS, _EACH = 1000, 4, 5


@pytest.mark.long
def test_syncs_on_the_source_and_on_the_target(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    name = uuid.uuid4().hex[:6]
    near, far = f"near{name}", f"far{name}"
    plain, gaps = f"plain-{name}", f"gaps-{name}"
    asyncio.run(_write(us, plain, gaps))
    properties = {
        "clusters": f"{near}, {far}, eu",
        **{f"{alias}.bootstrap.servers": us.bootstrap for alias in (near, far)},
        "eu.bootstrap.servers": eu.bootstrap,
        f"{near}->eu.enabled": "true",
        f"{far}->eu.enabled": "true",
        f"{far}->eu.offset-syncs.topic.location": "target",
        "topics": f"{plain}, {gaps}",
        **SMALL,
        **CALM,
    }
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        for alias, cluster, topic in (
            (near, us, "mm2-offset-syncs.eu.internal"),
            (far, eu, f"mm2-offset-syncs.{far}.internal"),
        ):
            found = _await_ends(mirror, cluster, topic, {plain: _PLAIN - 1, gaps: _TRANSACTIONS * (_EACH + 1) - 2})
            assert _settings(cluster, topic) == {"cleanup.policy": "compact", "partitions": 1}
            assert found[plain][0] == (0, 0)
            assert all(later - earlier <= 101 for (earlier, _), (later, _) in pairwise(found[plain]))
            # each transaction leaves a marker at the source, and none at the target
            starts = [(number * (_EACH + 1), number * _EACH) for number in range(_TRANSACTIONS)]
            assert set(starts) <= set(found[gaps])
            for source in (plain, gaps):
                asyncio.run(_assert_same(us, source, eu, f"{alias}.{source}", found[source]))
        assert mirror.stop() == 0


async def _write(us: KafkaCluster, plain: str, gaps: str) -> None:
    await make_topics(us.bootstrap, {plain: 1, gaps: 1})
    async with AIOKafkaProducer(bootstrap_servers=us.bootstrap) as producer:
        for number in range(_PLAIN):
            await producer.send(plain, b"%d" % number)
    async with AIOKafkaProducer(bootstrap_servers=us.bootstrap, transactional_id=gaps) as producer:
        for number in range(_TRANSACTIONS):
            async with producer.transaction():
                for part in range(_EACH):
                    await producer.send(gaps, b"%d %d" % (number, part))


def _await_ends(
    mirror: Mirror, cluster: KafkaCluster, topic: str, ends: Mapping[str, int]
) -> dict[str, list[tuple[int, int]]]:
    """The syncs of each source topic in order, once they reach to these source offsets."""

    def found() -> dict[str, list[tuple[int, int]]]:
        assert mirror.is_running, mirror.log_lines()[-20:]
        syncs = asyncio.run(_syncs(cluster, topic, ends))
        return syncs if all(pairs and pairs[-1][0] == ends[source] for source, pairs in syncs.items()) else {}

    return wait_until(found, _DEADLINE_S, f"{topic} has syncs up to {ends}", _POLL_S)


async def _syncs(cluster: KafkaCluster, topic: str, sources: Mapping[str, int]) -> dict[str, list[tuple[int, int]]]:
    syncs = [OffsetSync.decode(record.key, record.value) for record in await read_all(cluster.bootstrap, topic)]
    return {
        source: [(sync.upstream_offset, sync.downstream_offset) for sync in syncs if sync.topic == source]
        for source in sources
    }


async def _assert_same(
    us: KafkaCluster, source: str, eu: KafkaCluster, remote: str, syncs: list[tuple[int, int]]
) -> None:
    """Each sync names the same record in both logs."""
    upstream = {record.offset: record.value for record in await read_all(us.bootstrap, source)}
    downstream = {record.offset: record.value for record in await read_all(eu.bootstrap, remote)}
    assert [upstream[up] for up, _ in syncs] == [downstream[down] for _, down in syncs]


def _settings(cluster: KafkaCluster, topic: str) -> dict[str, object]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        (described,) = admin.describe_topics([topic])
        configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        policy = configs["topic"][topic]["cleanup.policy"]["value"]
        return {"cleanup.policy": policy, "partitions": len(described["partitions"])}
    finally:
        admin.close()
