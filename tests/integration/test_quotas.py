"""Quotas by Java's client ids bind the mirror, which obeys them: it waits as long as it is told, and loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from connect.core.errors import RetriableError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offset
from connect.kafka.security.connection_settings import connection_settings
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.processes import local_ports, slices
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


class Quota(NamedTuple):
    """Whose, by client id, and what it limits."""

    client_id: str
    key: str


READING = Quota(f"{ALIAS}->eu|MirrorSourceConnector-0|replication-consumer", "consumer_byte_rate")
WRITING = Quota("connector-producer-MirrorSourceConnector-0", "producer_byte_rate")


class Scene:
    """A running mirror of one partition, and bursts of records through it."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, mirror: Mirror) -> None:
        self.us, self.eu, self.mirror = us, eu, mirror
        self._written = 0

    async def burst(self, records: int = BURST_RECORDS) -> float:
        """Write so many records; seconds until the target has them."""
        began_s = time.monotonic()
        async with AIOKafkaProducer(bootstrap_servers=self.us.bootstrap, max_batch_size=4 * RECORD_BYTES) as producer:
            sent = [await producer.send(TOPIC, bytes(RECORD_BYTES - 100), partition=0) for _ in range(records)]
            await asyncio.gather(*sent)
        self._written += records
        async with cluster_of(self.eu) as target:
            while await end_of(target) < self._written:
                assert time.monotonic() - began_s < DEADLINE_S, self.mirror.log_lines()
                await asyncio.sleep(0.05)
        return time.monotonic() - began_s

    def connections(self) -> set[int]:
        """The local ports of the slice's connections to both clusters."""
        ports = [self.us.nodes[0].port, self.eu.nodes[0].port]
        return {port for member in slices(self.mirror.pid, ports) for port in local_ports(member.process)}


@asynccontextmanager
async def cluster_of(brokers: KafkaCluster) -> AsyncIterator[Cluster]:
    settings = connection_settings({"bootstrap.servers": brokers.bootstrap}, client_id="quotas", where="test")
    cluster = Cluster(settings)
    try:
        yield cluster
    finally:
        await cluster.close()


async def end_of(target: Cluster) -> int:
    """How many records the target has; none before the topic is there."""
    try:
        return await list_offset(target, (f"{ALIAS}.{TOPIC}", 0), LATEST)
    except RetriableError:
        return 0


@asynccontextmanager
async def limited(brokers: KafkaCluster, quota: Quota) -> AsyncIterator[None]:
    """The quota is in force inside."""
    async with cluster_of(brokers) as cluster:
        await alter(cluster, quota, remove=False)
        try:
            yield
        finally:
            await alter(cluster, quota, remove=True)


async def alter(cluster: Cluster, quota: Quota, *, remove: bool) -> None:
    """Set or remove a quota, and wait until the broker knows."""
    request = AlterClientQuotasRequest
    entity = request.EntryData.EntityData(entity_type="client-id", entity_name=quota.client_id)
    change = request.EntryData.OpData(key=quota.key, value=float(QUOTA_BYTES_PER_S), remove=remove)
    entry = request.EntryData(entity=[entity], ops=[change])
    connection = await cluster.any_connection()
    answer = await connection.call(request(entries=[entry], validate_only=False))
    assert [row.error_code for row in answer.entries] == [0]
    async with asyncio.timeout(DEADLINE_S):
        while await is_known(cluster, quota) is remove:
            pass  # each look asks the broker, which takes its time


async def is_known(cluster: Cluster, quota: Quota) -> bool:
    request = DescribeClientQuotasRequest
    component = request.ComponentData(entity_type="client-id", match_type=0, match=quota.client_id)
    answer = await (await cluster.any_connection()).call(request(components=[component], strict=True))
    assert answer.error_code == 0, answer.error_message
    return any(value.key == quota.key for entry in answer.entries or () for value in entry.values)


@pytest.fixture
def scene(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[Scene]:
    asyncio.run(make_topics(us.bootstrap, {TOPIC: 1}))
    properties = {
        "clusters": f"{ALIAS}, eu",
        f"{ALIAS}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{ALIAS}->eu.enabled": "true",
        f"{ALIAS}->eu.topics": TOPIC,
        # One slice for the whole test, so that its connections can be told from others.
        "copy.epoch.ms": "3600000",
        "tasks.max": "1",
        **SMALL,
        **CALM,
    }
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        yield Scene(us, eu, mirror)
        assert mirror.stop() == 0


@pytest.mark.long
async def test_quotas_by_javas_client_ids_bind_and_cost_no_connection(scene: Scene) -> None:
    await scene.burst(records=1)
    connections = scene.connections()
    assert connections
    log_start = scene.mirror.log_end()
    throttled_s = []
    for brokers, quota in ((scene.us, READING), (scene.eu, WRITING)):
        async with limited(brokers, quota):
            throttled_s.append(await scene.burst())
    assert min(throttled_s) > LEAST_S, throttled_s
    end_s = time.monotonic() + DEADLINE_S
    while (free_s := await scene.burst()) > min(throttled_s) / 2:
        assert time.monotonic() < end_s, f"{free_s} s without a quota, {throttled_s} with one"
    assert scene.connections() == connections
    assert not [line for line in scene.mirror.log_lines(log_start) if " INFO " not in line]
