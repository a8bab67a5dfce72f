"""Tracks the highest leader epoch of each partition, so that no deposed leader is taken for the leader."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from connect.kafka.cluster import TopicMetadata


log = logging.getLogger(__name__)

#: A deposed broker learns of the new leader sooner than this.
_HIDDEN_S: Final = 60.0


class LeaderEpochs:
    """The newest leader epochs, which only grow while a topic keeps its id (Java: ``Metadata.updateLastSeenEpoch``).
    Topics without an id are not tracked, because their epochs restart when the topic is recreated."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._seen: dict[str, tuple[UUID, dict[int, int]]] = {}
        #: When metadata began to show only leaders of older epochs; infinite once that was logged.
        self._hidden_since_s: dict[tuple[str, int], float] = {}

    def saw(self, topic: str, topic_id: UUID | None, partition: int, epoch: int) -> None:
        """Record an epoch that a partition has reached, according to a batch or a stored position."""
        if topic_id is not None:
            seen = self._of(topic, topic_id)
            seen[partition] = max(epoch, seen.get(partition, -1))

    def current(self, topic: TopicMetadata) -> TopicMetadata:
        """Return the topic without leaders of outdated epochs, and record the epochs of the others."""
        if topic.topic_id is None:
            return topic
        seen = self._of(topic.name, topic.topic_id)
        over = {}
        for index, known in topic.partitions.items():
            if known.leader_epoch < seen.get(index, -1):
                over[index] = known._replace(leader=-1)
                if known.leader >= 0:
                    self._hidden(topic.name, index, known.leader_epoch, seen[index])
            else:
                seen[index] = known.leader_epoch
                self._hidden_since_s.pop((topic.name, index), None)
        return replace(topic, partitions=topic.partitions | over) if over else topic

    def keep(self, topics: Collection[str]) -> None:
        """Forget all other topics."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in topics}
        self._hidden_since_s = {one: since_s for one, since_s in self._hidden_since_s.items() if one[0] in topics}

    def _hidden(self, topic: str, index: int, epoch: int, newest: int) -> None:
        now_s = time.monotonic()
        if now_s - self._hidden_since_s.setdefault((topic, index), now_s) < _HIDDEN_S:
            return
        self._hidden_since_s[topic, index] = math.inf
        log.error(
            "cluster %s: %s-%d has had a leader of epoch %d for %g s after epoch %d, so the partition is treated as "
            "leaderless; if the cluster was restored from an older state, reset the stored source offsets of the topic "
            "and restart this process",
            *(self._cluster, topic, index, epoch, _HIDDEN_S, newest),
        )

    def _of(self, topic: str, topic_id: UUID) -> dict[int, int]:
        known_id, seen = self._seen.get(topic, (None, {}))
        if known_id != topic_id:
            seen = {}
            self._seen[topic] = topic_id, seen
        return seen
