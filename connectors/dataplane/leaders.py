"""The leaders of a cluster's topics, and connections to them, before a slice may copy."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple, Self
from uuid import UUID

from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.concurrency import Scope
from connectors.dataplane.plan import TopicPartition

#: A broker that does not answer holds up no others for longer.
_OPEN_TIMEOUT_S: Final = 5.0


class Leader(NamedTuple):
    node: int
    epoch: int


class Leaders:
    """What metadata said at one time. It is a hint: each request to a leader tells whether it still leads."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    @classmethod
    async def connected(cls, cluster: Cluster, topics: Collection[str]) -> Self:
        """Ask for the leaders of ``topics`` and open the connection to each.

        A leader that cannot be reached is left to its first request. Raises :class:`ClusterUnreachable`.
        """
        metadata = await cluster.metadata(topics)
        nodes = {row.leader for topic in metadata.topics.values() for row in topic.partitions.values()} - {-1}
        async with Scope("leaders") as scope:
            opening = [scope.spawn(cluster.connection(node, "copy"), f"connect to {node}") for node in nodes]
            if opening:
                await asyncio.wait(opening, timeout=_OPEN_TIMEOUT_S)
            for one in opening:
                if one.done() and not one.cancelled():
                    one.exception()  # comes again with the first request
        return cls(metadata)

    def of(self, partition: TopicPartition, topic_id: UUID | None, least_epoch: int = -1) -> Leader | None:
        """Return a partition's leader; None if there was none, its epoch is over, or the topic had another id."""
        topic = self._metadata.topics.get(partition.topic)
        row = topic.partitions.get(partition.partition) if topic is not None and topic.topic_id == topic_id else None
        if row is None or row.leader < 0 or row.leader_epoch < least_epoch:
            return None
        return Leader(row.leader, row.leader_epoch)
