"""Topics for tests, made with kafka-python's admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic


async def make_topics(
    bootstrap: str, partitions: Mapping[str, int], configs: Mapping[str, str] | None = None, replicas: int = 1
) -> None:
    """Make topics, each with so many partitions; an error of the library if one exists."""
    topics: Any = [
        NewTopic(name=name, num_partitions=count, replication_factor=replicas, topic_configs=dict(configs or {}))
        for name, count in partitions.items()
    ]
    await asyncio.to_thread(_create, bootstrap, topics)


def _create(bootstrap: str, topics: Any) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="test-kit")
    try:
        admin.create_topics(topics)
    finally:
        admin.close()
