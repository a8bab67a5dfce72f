"""Where groups of the source stand, and where that is on the target: what a task writes, and what a plan foresees."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Committed, Partition, committed
from connect.kafka.known_topic import known_topic
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.checkpoint.emission import Checkpoints, Found
from connectors.checkpoint.settings import CheckpointSettings
from connectors.checkpoint.syncs import OffsetSyncs
from connectors.checkpoint.translating import Translator
from connectors.dataplane.plan import TopicPartition
from connectors.map_reader import MapReader
from connectors.mirror_records import Checkpoint

log = logging.getLogger(__name__)

#: How long a group is asked for: the checkpoints of all others wait for it.
_CALL_S: Final = 5.0


class GroupLook:
    """At some groups of one flow.

    Args:
        source: Whose groups they are.
        target: Whence checkpoints and the offset map are read.
        syncs: The cluster that holds the topic of offset syncs.
        maps: The offset map of the flow; None: a reader of its own.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        groups: Collection[str],
        source: Cluster,
        target: Cluster,
        syncs: Cluster,
        maps: MapReader | None = None,
    ) -> None:
        self.checkpoints = Checkpoints(groups)
        #: By group, the remote partitions of the last look, with the ids of their topics at the source.
        self.live: dict[str, dict[TopicPartition, UUID | None]] = {}
        self._settings = settings
        self._source = source
        self._target = target
        self._syncs = syncs
        self._maps = maps or MapReader(target, settings.map_topic, connector=None)
        self._translator: Translator | None = None
        self._knows_before = False

    async def begin(self) -> None:
        """Read what was written before, and make ready to translate. Raises HeliographError: to be tried again, where
        what was read by then stays."""
        if self._translator is None or not self._knows_before:
            self._knows_before = await self._read_checkpoints()
            topic = self._settings.offset_syncs_topic
            syncs = OffsetSyncs(self._syncs, topic, only_last=not self._knows_before)
            self._translator = Translator(self._settings, self._source, self._target, self._maps, syncs)
        await self.follow()

    async def follow(self) -> None:
        """Take in what was copied since. Errors as :meth:`begin`."""
        assert self._translator is not None, "it has begun"
        async with self._maps.in_use:
            await self._translator.follow()

    async def newer(self, group: str) -> list[Checkpoint]:
        """The checkpoints of a group that say more than those before, which count as written from now on. Many groups
        may be looked at side by side.

        Raises:
            HeliographError: the group cannot be asked for, or its offsets not be looked up.
        """
        stored = await committed(self._source, group, timeout_s=_CALL_S)
        # A look-up may read on in the map, which is one for all groups and all tasks of a worker.
        async with self._maps.in_use:
            found = await self._translated(group, stored)
        self.live[group] = {
            TopicPartition(one.checkpoint.topic, one.checkpoint.partition): one.source_id for one in found
        }
        return self.checkpoints.look(group, found)

    async def _translated(self, group: str, stored: Mapping[Partition, Committed]) -> list[Found]:
        assert self._translator is not None, "it has begun"
        found = []
        for (topic, partition), at in stored.items():
            if not self._settings.topic_filter.should_replicate_topic(topic):
                continue
            for place in await self._translator.translate(TopicPartition(topic, partition), at.offset):
                checkpoint = Checkpoint(group, *place.target, at.offset, place.offset, at.metadata)
                ids = self._translator.target_id(place.target.topic), self._translator.source_id(topic)
                found.append(Found(checkpoint, place.by_map, *ids))
        return found

    async def _read_checkpoints(self) -> bool:
        """Whether they could be read. Without them a group might be sent back, so only the newest sync is used then."""
        topic = self._settings.checkpoints_topic
        try:
            if await known_topic(self._target, topic) is not None:
                await read_to_end(self._target, topic, self._take, read_committed=True, only_last=True)
        except HeliographError as error:
            log.warning(
                "%s: earlier checkpoints cannot be read, the newest offset sync alone will be used: %s",
                self._settings.flow,
                error,
            )
            self.checkpoints.forget()
            return False
        return True

    def _take(self, record: LogRecord) -> None:
        self.checkpoints.take(Checkpoint.decode(record.key, record.value))
