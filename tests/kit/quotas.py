"""Set quotas of a broker for one client id, and stand in for a connection that obeys them."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from tests.kit.clients import cluster_at

_DEADLINE_S = 180.0


class Quota(NamedTuple):
    """Whose, by client id, and what it limits."""

    client_id: str
    key: str


#: Of what the first task of a mirror writes.
WRITING = Quota("connector-producer-MirrorSourceConnector-0", "producer_byte_rate")


async def set_quota(brokers: KafkaCluster, quota: Quota, bytes_per_s: int, *, remove: bool = False) -> None:
    request = AlterClientQuotasRequest
    entity = request.EntryData.EntityData(entity_type="client-id", entity_name=quota.client_id)
    change = request.EntryData.OpData(key=quota.key, value=float(bytes_per_s), remove=remove)
    entry = request.EntryData(entity=[entity], ops=[change])
    async with cluster_at(brokers.bootstrap) as cluster:
        connection = await cluster.any_connection()
        answer = await connection.call(request(entries=[entry], validate_only=False))
        assert [row.error_code for row in answer.entries] == [0]
        async with asyncio.timeout(_DEADLINE_S):
            while await _is_known(cluster, quota) is remove:
                pass  # each look asks the broker, which takes its time


async def _is_known(cluster: Cluster, quota: Quota) -> bool:
    request = DescribeClientQuotasRequest
    component = request.ComponentData(entity_type="client-id", match_type=0, match=quota.client_id)
    answer = await (await cluster.any_connection()).call(request(components=[component], strict=True))
    assert answer.error_code == 0, answer.error_message
    return any(value.key == quota.key for entry in answer.entries or () for value in entry.values)


class Mutable:
    """A connection to a broker with quotas; the tests do not wait."""

    def __init__(self, waited_s: float = 0.0, *, is_receiving: bool = False) -> None:
        self.waited_s, self.is_receiving, self.purpose = waited_s, is_receiving, ""
        self.muted_ms = 0

    def mute(self, throttle_time_ms: int) -> None:
        self.muted_ms += throttle_time_ms

    async def unmuted(self) -> None:
        pass
