"""Settings of topics, asked of whichever broker answers, and of brokers, asked of each (DescribeConfigs)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kafka.errors import for_code
from kafka.protocol.admin import DescribeConfigsRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster

_TOPIC: Final = 2
_BROKER: Final = 4
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_CLEANUP_POLICY: Final = "cleanup.policy"
_MIN_IN_SYNC: Final = "min.insync.replicas"


async def max_message_bytes(cluster: Cluster, topic: str) -> int | None:
    """``max.message.bytes`` of a topic as it is in force; None where we may not look.

    Raises :class:`RetriableError` where no broker tells now.
    """
    value = (await _describe(cluster, [topic], [_MAX_MESSAGE_BYTES])).get(topic, {}).get(_MAX_MESSAGE_BYTES)
    return int(value) if value else None


async def min_insync_replicas(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """``min.insync.replicas`` of those of ``topics`` that we may look at. Raises as :func:`max_message_bytes`."""
    found = await _describe(cluster, topics, [_MIN_IN_SYNC])
    return {topic: int(value) for topic, settings in found.items() if (value := settings.get(_MIN_IN_SYNC))}


async def perhaps_compacted(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Return those of ``topics`` whose records compaction may remove, and those whose settings we may not see.

    Raises as :func:`max_message_bytes`.
    """
    found = await _describe(cluster, topics, [_CLEANUP_POLICY])
    return {topic for topic in topics if "compact" in (found.get(topic, {}).get(_CLEANUP_POLICY) or "compact")}


async def is_perhaps_true(cluster: Cluster, setting: str) -> bool | None:
    """Whether a broker has ``setting`` at true, or at what it does not tell: of what is of a plug-in, such as an
    authorizer, it tells that it is set, and no value (Kafka ``ConfigHelper``). None where a broker does not let us
    look, and no other has it.

    Raises :class:`RetriableError` where a broker does not answer, or cannot now.
    """
    is_told = True
    for node in sorted((await cluster.metadata(())).brokers):
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(node), configuration_keys=[setting]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        for row in (await (await cluster.connection(node)).call(request)).results:
            if row.error_code and for_code(row.error_code).retriable:
                raise RetriableError(f"cluster {cluster.name}: broker {node} does not tell its settings now")
            if any((entry.value or "true").lower() == "true" for entry in row.configs):
                return True
            is_told = is_told and not row.error_code
    return False if is_told else None


async def _describe(
    cluster: Cluster, topics: Collection[str], keys: Collection[str]
) -> dict[str, dict[str, str | None]]:
    """These settings of each topic as they are in force; those are missing that we may not look at or do not exist."""
    if not topics:
        return {}
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=list(keys)
        )
        for topic in sorted(topics)
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    rows = (await (await cluster.any_connection()).call(request)).results
    for row in rows:
        if row.error_code not in (0, _UNKNOWN_TOPIC_OR_PARTITION) and for_code(row.error_code).retriable:
            raise RetriableError(f"cluster {cluster.name} does not tell the settings of topic {row.resource_name} now")
    return {row.resource_name: {entry.name: entry.value for entry in row.configs} for row in rows if not row.error_code}
