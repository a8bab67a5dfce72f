"""A cluster as a stock client sees it: kafka-python's admin client, and nothing of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

from connect.embedded.brokers import KafkaCluster
from tests.kit.members import until


class Stock:
    """A cluster as kafka-python's admin client sees it."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap, client_id="stock")

    async def make(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, topic_configs=dict(configs or {}))
        await asyncio.to_thread(self._admin.create_topics, [topic])
        await self.until_partitions(name, partitions)  # brokers hear of it a little later

    async def grow(self, name: str, partitions: int) -> None:
        await asyncio.to_thread(self._admin.create_partitions, {name: partitions})

    async def alter(self, name: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(configs))
        await asyncio.to_thread(self._admin.alter_configs, [resource])

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._admin.delete_topics, [name])

    async def partitions(self, name: str) -> int:
        rows = await asyncio.to_thread(self._admin.describe_topics, [name])
        return len(rows[0]["partitions"]) if rows and not rows[0]["error_code"] else 0

    async def configs(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = await asyncio.to_thread(lambda: self._admin.describe_configs([resource], config_filter="all"))
        entries = found.get("topic", {}).get(name, {})
        return {
            key: entry["value"]
            for key, entry in entries.items()
            if entry["config_source"] in (1, "DYNAMIC_TOPIC_CONFIG")
        }

    async def until_configs(self, name: str, wanted: Mapping[str, str]) -> None:
        async def same() -> bool:
            return await self.configs(name) == wanted

        await until(same, f"{name} has {wanted}")

    async def until_partitions(self, name: str, wanted: int) -> None:
        async def same() -> bool:
            return await self.partitions(name) == wanted

        await until(same, f"{name} has {wanted} partitions")

    def close(self) -> None:
        self._admin.close()
