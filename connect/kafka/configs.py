"""Settings of topics, asked of whichever broker answers (DescribeConfigs)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kafka.errors import for_code
from kafka.protocol.admin import DescribeConfigsRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster

_TOPIC: Final = 2
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_CLEANUP_POLICY: Final = "cleanup.policy"


async def max_message_bytes(cluster: Cluster, topic: str) -> int | None:
    """``max.message.bytes`` of a topic as it is in force; None where we may not look.

    Raises :class:`RetriableError` where no broker tells now.
    """
    connection = await cluster.any_connection()
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=[_MAX_MESSAGE_BYTES]
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
    (found,) = (await connection.call(request)).results
    if found.error_code:
        error = for_code(found.error_code)
        if error.retriable:
            raise RetriableError(f"cluster {cluster.name} does not tell the settings of topic {topic} now")
        return None
    return next((int(entry.value) for entry in found.configs if entry.name == _MAX_MESSAGE_BYTES), None)


async def perhaps_compacted(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Those of ``topics`` whose records may vanish between two readings, and those that we may not ask about.

    Raises :class:`RetriableError` where no broker tells now.
    """
    if not topics:
        return set()
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=[_CLEANUP_POLICY]
        )
        for topic in sorted(topics)
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    answer = await (await cluster.any_connection()).call(request)
    kept = {
        row.resource_name
        for row in answer.results
        if not row.error_code and not any("compact" in (entry.value or "") for entry in row.configs)
    }
    return set(topics) - kept
