"""The highest leader epoch seen of each partition, so that a deposed leader is never taken for the leader."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from connect.kafka.cluster import TopicMetadata


class LeaderEpochs:
    """Leader epochs only grow while a topic keeps its id (Java: ``Metadata.updateLastSeenEpoch``). Topics without an id
    are left as they are, because their epochs start again when the topic is recreated."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[UUID, dict[int, int]]] = {}

    def saw(self, topic: str, topic_id: UUID | None, partition: int, epoch: int) -> None:
        """Note an epoch that a partition is known to have reached, from a batch or a stored position."""
        if topic_id is not None:
            seen = self._of(topic, topic_id)
            seen[partition] = max(epoch, seen.get(partition, -1))

    def current(self, topic: TopicMetadata) -> TopicMetadata:
        """Return the topic without the leaders of epochs that are over, and note the epochs of the others."""
        if topic.topic_id is None:
            return topic
        seen = self._of(topic.name, topic.topic_id)
        over = {}
        for index, known in topic.partitions.items():
            if known.leader_epoch < seen.get(index, -1):
                over[index] = known._replace(leader=-1)
            else:
                seen[index] = known.leader_epoch
        return replace(topic, partitions=topic.partitions | over) if over else topic

    def _of(self, topic: str, topic_id: UUID) -> dict[int, int]:
        known_id, seen = self._seen.get(topic, (None, {}))
        if known_id != topic_id:
            seen = {}
            self._seen[topic] = topic_id, seen
        return seen
