"""Quotas by Java's client ids bind the mirror: it waits as long as it must, shows that, and loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from connect.core.errors import RetriableError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offset
from tests.kit.clients import cluster_at
from tests.kit.mirror import CALM, Mirror, one_flow, with_rest
from tests.kit.processes import local_ports, slices, wait_until
from tests.kit.quotas import WRITING, Quota, set_quota
from tests.kit.seen import Seen
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ALIAS = "quoted"
TOPIC = "quoted"
QUOTA_BYTES_PER_S = 1_000_000
RECORD_BYTES = 32_000
BURST_RECORDS = 128
#: A burst less what brokers let pass at once: two windows of a second each, and one fetch or request.
LEAST_S = BURST_RECORDS * RECORD_BYTES / QUOTA_BYTES_PER_S - 3.1
DEADLINE_S = 180.0


READING = Quota(f"{ALIAS}->eu|MirrorSourceConnector-0|replication-consumer", "consumer_byte_rate")


class Scene:
    def __init__(self, us: KafkaCluster, eu: KafkaCluster, mirror: Mirror, seen: Seen) -> None:
        self.us, self.eu, self.mirror, self.seen = us, eu, mirror, seen
        self._written = 0

    async def burst(self, records: int = BURST_RECORDS) -> float:
        """Write so many records; seconds until the target has them."""
        began_s = time.monotonic()
        async with AIOKafkaProducer(bootstrap_servers=self.us.bootstrap, max_batch_size=4 * RECORD_BYTES) as producer:
            sent = [await producer.send(TOPIC, bytes(RECORD_BYTES - 100), partition=0) for _ in range(records)]
            await asyncio.gather(*sent)
        self._written += records
        async with cluster_at(self.eu.bootstrap) as target:
            while await end_of(target) < self._written:
                assert time.monotonic() - began_s < DEADLINE_S, self.mirror.log_lines()
                await asyncio.sleep(0.05)
        return time.monotonic() - began_s

    def is_shown(self, ratio: str) -> bool:
        return 0.02 < self.seen.metric(ratio) <= 1

    def connections(self) -> set[int]:
        ports = [self.us.nodes[0].port, self.eu.nodes[0].port]
        return {port for member in slices(self.mirror.pid, ports) for port in local_ports(member.process)}


async def end_of(target: Cluster) -> int:
    """How many records the target has; none before the topic is there."""
    try:
        return await list_offset(target, (f"{ALIAS}.{TOPIC}", 0), LATEST)
    except RetriableError:
        return 0


@pytest.fixture
def scene(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[Scene]:
    asyncio.run(make_topics(us.bootstrap, {TOPIC: 1}))
    rest = with_rest()
    properties = {
        **rest,
        **one_flow(us.bootstrap, eu.bootstrap, TOPIC, ALIAS, tasks=1),
        **CALM,
        # One slice for the whole test, so that its connections can be told from others.
        "copy.epoch.ms": "3600000",
    }
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        yield Scene(us, eu, mirror, Seen(mirror, rest["listeners"], ALIAS))
        assert mirror.stop() == 0


@pytest.mark.long
async def test_quotas_by_javas_client_ids_bind_and_cost_no_connection(scene: Scene) -> None:
    await scene.burst(records=1)
    connections = scene.connections()
    assert connections
    log_start = scene.mirror.log_end()
    throttled_s = []
    for brokers, quota in ((scene.us, READING), (scene.eu, WRITING)):
        await set_quota(brokers, quota, QUOTA_BYTES_PER_S)
        throttled_s.append(await scene.burst())
        await set_quota(brokers, quota, QUOTA_BYTES_PER_S, remove=True)
        ratio = f"{'source' if brokers is scene.us else 'target'}_throttled_ratio"
        # A mean over a minute at most.
        wait_until(partial(scene.is_shown, ratio), DEADLINE_S, f"{ratio} shows the quota")
    assert min(throttled_s) > LEAST_S, throttled_s
    end_s = time.monotonic() + DEADLINE_S
    while (free_s := await scene.burst()) > min(throttled_s) / 2:
        assert time.monotonic() < end_s, f"{free_s} s without a quota, {throttled_s} with one"
    assert scene.connections() == connections
    assert not [line for line in scene.mirror.log_lines(log_start) if " INFO " not in line]
