"""Topics for tests, made with kafka-python's admin client, and led once a test goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from kafka.admin import NewTopic

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit.clients import cluster_at, stock_admin

_LED_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.02


async def make_topics(
    bootstrap: str, partitions: Mapping[str, int], configs: Mapping[str, str] | None = None, replicas: int = 1
) -> None:
    """Make topics, each with so many partitions, and wait for their leaders; an error of the library if one exists."""
    topics: Any = [
        NewTopic(name=name, num_partitions=count, replication_factor=replicas, topic_configs=dict(configs or {}))
        for name, count in partitions.items()
    ]
    await asyncio.to_thread(_create, bootstrap, topics)
    async with cluster_at(bootstrap) as cluster:
        await until_led(cluster, partitions)


async def until_led(cluster: Cluster, partitions: Mapping[str, int]) -> None:
    """Until each topic has so many partitions that lead: brokers hear of it after the controller has answered."""
    async with asyncio.timeout(_LED_DEADLINE_S):
        while not await _are_led(cluster, partitions):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def until_gone(cluster: Cluster, topics: Collection[str]) -> None:
    """Until the broker knows none of them any more: before, it may take records for one that is to be made anew."""
    async with asyncio.timeout(_LED_DEADLINE_S):
        while any(topic.partitions for topic in (await cluster.metadata(topics)).topics.values()):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def _are_led(cluster: Cluster, partitions: Mapping[str, int]) -> bool:
    wanted = [(topic, index) for topic, count in partitions.items() for index in range(count)]
    try:
        return bool(await list_offsets(cluster, wanted, LATEST))
    except RetriableError:
        return False


def _create(bootstrap: str, topics: Any) -> None:
    with stock_admin(bootstrap) as admin:
        admin.create_topics(topics)
