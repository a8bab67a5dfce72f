"""MirrorHeartbeat's topic on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from connect.embedded.brokers import KafkaCluster
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import connection_settings
from connectors.heartbeat import MirrorHeartbeatConnector

pytestmark = pytest.mark.integration

_DEADLINE_S = 120.0


@pytest.fixture
async def admin(eu: KafkaCluster) -> AsyncIterator[Admin]:
    settings = connection_settings({"bootstrap.servers": eu.bootstrap}, client_id="test", where="cluster eu")
    admin = Admin(settings)
    yield admin
    # Its name is fixed, and others of this cluster's tests would mirror it.
    await admin.delete_topics(["heartbeats"])
    await admin.close()


async def test_the_topic_is_compacted_and_has_one_partition(eu: KafkaCluster, admin: Admin) -> None:
    props = {
        "name": "heartbeat",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        "target.cluster.bootstrap.servers": eu.bootstrap,
        "heartbeats.topic.replication.factor": "1",
    }
    for _ in ("made", "there already"):
        connector = MirrorHeartbeatConnector()
        await connector.start(props)
        await connector.stop()
    async with asyncio.timeout(_DEADLINE_S):  # a broker hears of a topic a moment after it is made
        while not (described := await admin.describe_topics(["heartbeats"])):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        # Of its settings a moment later still; until then it has those that all topics have.
        while (await admin.describe_topic_configs(["heartbeats"]))["heartbeats"].get("cleanup.policy") != "compact":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert len(described["heartbeats"].partitions) == 1
