"""Where a group of the source stands in the remote topic: by the offset map exactly, else by Java's offset syncs."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import HeliographError, PermanentError, SecurityError
from connect.kafka.cluster import Cluster
from connectors.checkpoint.beginnings import Beginnings
from connectors.checkpoint.settings import CheckpointSettings
from connectors.checkpoint.syncs import OffsetSyncs
from connectors.dataplane.plan import TopicPartition
from connectors.map_reader import MapReader
from connectors.offset_map import Pair, Place
from connectors.positions import Position

log = logging.getLogger(__name__)

_BY_JAVA: Final = "groups are translated by offset syncs, as Java does, at the record or before it"
_BY_MAP: Final = "groups are translated by the offset map alone, and get no place in what it does not know"


class Translated(NamedTuple):
    """The next record to read; ``by_map``: as the offset map says, and not by offset syncs."""

    target: TopicPartition
    offset: int
    by_map: bool


class Translator:
    """Of one flow. The map knows what this project's MirrorSource copied; of what is older, or Java's, syncs tell.

    A map is of two topics, by their ids: where one of them was made anew, nothing is known until the copy has begun
    again.
    """

    def __init__(
        self, settings: CheckpointSettings, source: Cluster, target: Cluster, maps: MapReader, syncs: OffsetSyncs
    ) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._maps = maps
        self._syncs = syncs
        self._beginnings = Beginnings(target)
        self._has_map = self._has_syncs = False
        #: Remote topics by source partition, as the map said when it could be read last.
        self._copied_to: dict[TopicPartition, set[str]] = {}
        self._source_ids: dict[str, UUID | None] = {}
        self._target_ids: dict[str, UUID | None] = {}
        self._said = ""
        self._said_of_syncs = ""

    async def follow(self) -> None:
        """Take in what was copied since.

        Raises:
            RetriableError, SecurityError: of the topic of offset syncs, or of the topics. Without the map it goes on,
                and without a right to the syncs where the map knows of anything.
        """
        self._has_map = False
        try:
            await self._maps.follow()
        except HeliographError as error:
            if str(error) != self._said:
                log.warning("%s: the offset map cannot be read: %s; %s", self._settings.flow, error, _BY_JAVA)
            self._said = str(error)
        else:
            self._has_map, self._said = True, ""
        await self._follow_syncs()
        pairs = [Pair.of(one) for source in self._maps.sources() for one in self._maps.positions(source)]
        if self._has_map:
            self._copied_to = {}
        for pair in pairs:
            source = TopicPartition(pair.source_topic, pair.source_partition)
            self._copied_to.setdefault(source, set()).add(pair.target_topic)
        self._source_ids = await _ids(self._source, {pair.source_topic for pair in pairs})
        self._target_ids = await _ids(self._target, {pair.target_topic for pair in pairs})
        await self._beginnings.follow([pair for pair in pairs if pair.target_topic in self._target_ids])

    async def _follow_syncs(self) -> None:
        # What was read before may be of a topic that was made anew since.
        self._has_syncs = False
        try:
            await self._syncs.follow()
        except SecurityError as error:
            if not (self._has_map and self._maps.sources()):
                raise
            if str(error) != self._said_of_syncs:
                log.warning("%s: offset syncs cannot be read: %s; %s", self._settings.flow, error, _BY_MAP)
            self._said_of_syncs = str(error)
        else:
            self._has_syncs, self._said_of_syncs = True, ""

    def target_id(self, topic: str) -> UUID | None:
        """Of a remote topic that the map knows, as it was when :meth:`follow` looked."""
        return self._target_ids.get(topic)

    def source_id(self, topic: str) -> UUID | None:
        """Of a topic of the source that the map knows, as it was when :meth:`follow` looked."""
        return self._source_ids.get(topic)

    async def translate(self, source: TopicPartition, offset: int) -> list[Translated]:
        """Where who would read ``offset`` next goes on, in each topic that its records are copied to; nothing where
        nothing is known, or nothing so old.

        An offset that is not copied yet leads to the end of the copy. Errors as of the map reader's look-ups.
        """
        # Another task may have followed since the map that both share, and failed.
        positions = self._maps.positions(source) if self._has_map and self._maps.is_whole else []
        if positions:
            found = [await self._by_map(source, offset, position) for position in positions]
        else:
            by_syncs, known = self._by_syncs(source, offset), self._copied_to.get(source)
            # Syncs do not say of which topic they tell: where its name is not the policy's, not of the policy's.
            found = [by_syncs] if by_syncs is not None and (not known or by_syncs.target.topic in known) else []
        return [one for one in found if one is not None]

    async def _by_map(self, source: TopicPartition, offset: int, position: Position) -> Translated | None:
        pair = Pair.of(position)
        if not self._is_current(pair):
            return None
        found = await self._maps.forward(pair, offset)
        if found is not None and found.place is not Place.BELOW:
            return self._readable(pair, found.offset)
        begin = found.offset if found is not None else position.target_end
        if await self._beginnings.is_bare_before(pair, begin):
            # What the group has not read yet and is no longer on the target never was there, or is gone.
            return self._readable(pair, begin)
        by_syncs = self._by_syncs(source, offset)
        if by_syncs is None or by_syncs.target != _target(pair):
            # The copy has begun anew elsewhere; syncs do not say of which topic they tell.
            return None
        # Syncs may be of a topic of the same name that was there before: never behind where the map begins.
        return self._readable(pair, min(by_syncs.offset, begin), by_map=False)

    def _readable(self, pair: Pair, offset: int, *, by_map: bool = True) -> Translated | None:
        """None where nobody has told yet where the log begins: it may be behind ``offset``."""
        place = self._beginnings.readable(pair, offset)
        return None if place is None else Translated(_target(pair), place, by_map)

    def _is_current(self, pair: Pair) -> bool:
        """Whether its topics are those that are there; brokers without ids cannot tell."""
        ids = (
            (pair.source_topic_id, self._source_ids.get(pair.source_topic)),
            (pair.target_topic_id, self._target_ids.get(pair.target_topic)),
        )
        there = pair.source_topic in self._source_ids and pair.target_topic in self._target_ids
        return there and all(one is None or now is None or one == now for one, now in ids)

    def _by_syncs(self, source: TopicPartition, offset: int) -> Translated | None:
        if not self._has_syncs:
            return None
        translated, remote = self._syncs.store.translate(source, offset), self._remote(source)
        if translated is None or translated < 0 or remote is None:
            return None
        return Translated(remote, translated, by_map=False)

    def _remote(self, source: TopicPartition) -> TopicPartition | None:
        """Java's ``MirrorCheckpointTask.renameTopicPartition``."""
        policy, topic = self._settings.policy, source.topic
        if policy.topic_source(topic) == self._settings.target_alias:
            return TopicPartition(policy.original_topic(topic), source.partition)
        try:
            return TopicPartition(policy.format_remote_topic(self._settings.source_alias, topic), source.partition)
        except PermanentError:  # the connector of the records has said that it is not mirrored
            return None


def _target(pair: Pair) -> TopicPartition:
    return TopicPartition(pair.target_topic, pair.target_partition)


async def _ids(cluster: Cluster, topics: Collection[str]) -> dict[str, UUID | None]:
    """Of those that are there."""
    if not topics:
        return {}
    found = (await cluster.metadata(set(topics))).topics
    return {name: topic.topic_id for name, topic in found.items() if topic.partitions}
