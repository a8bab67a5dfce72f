"""The topic of offset syncs, read again and again."""

from __future__ import annotations

import logging
from uuid import UUID

from connect.kafka.cluster import Cluster
from connect.kafka.known_topic import known_topic
from connect.kafka.offsets import LATEST, list_offset
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.mirror_records import OffsetSync
from connectors.offset_sync_store import OffsetSyncStore

log = logging.getLogger(__name__)


class OffsetSyncs:
    """What Java's ``OffsetSyncStore`` and its ``KafkaBasedLog`` do together: partition 0 of ``topic`` counts.

    ``only_last``: see :class:`OffsetSyncStore`; it holds for what is there when reading begins.
    """

    def __init__(self, cluster: Cluster, topic: str, *, only_last: bool) -> None:
        self._cluster = cluster
        self._topic = topic
        self._topic_id: UUID | None = None
        self._next = 0
        self.store = OffsetSyncStore(only_last=only_last)

    async def follow(self) -> None:
        """Take in what was added. A topic that is not there holds nothing yet; one made anew is read anew.

        Raises:
            RetriableError: the cluster does not answer, or not in time.
            SecurityError: READ or DESCRIBE on the topic is missing.
        """
        known = await known_topic(self._cluster, self._topic)
        if known is None:
            return
        if known.topic_id != self._topic_id or await list_offset(self._cluster, (self._topic, 0), LATEST) < self._next:
            if self._next:
                log.warning("%s was made anew or truncated; read again from its beginning", self._topic)
                self.store = OffsetSyncStore(only_last=False)
            self._topic_id, self._next = known.topic_id, 0
        await read_to_end(self._cluster, self._topic, self._take, partitions=[0], after={0: self._next})
        self.store.read_to_end()

    def _take(self, record: LogRecord) -> None:
        self._next = record.offset + 1
        self.store.take(OffsetSync.decode(record.key, record.value))
