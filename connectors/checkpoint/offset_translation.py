"""Translate a group's source offset to the remote topic: by the offset map exactly, else by Java's offset syncs.

Kafka's ``OffsetSyncStore`` keeps 64 syncs of each source partition: the newest first, the oldest that may be used last,
and between them such that their distance grows as powers of two. So translation is most precise near the end of a
partition. A reader follows the topic of offset syncs. A group whose offset is older than the offset map continues at
the beginning of the remote partition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import HeliographError, PermanentError, SecurityError
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.log_ranges import has_records
from connect.kafka.log.offsets import EARLIEST, LATEST, known_offsets, list_offset
from connect.kafka.log.topic_admin import known_topic
from connectors.config.connector_configs import CheckpointSettings
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition, is_recreated
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import MapPair, OffsetLocation

_SLOTS: Final = 64
#: Result of :meth:`OffsetSyncStore.translate` for an offset before all syncs.
TOO_OLD: Final = -1


class OffsetSyncStore:
    """Takes syncs as they were written and translates offsets. ``only_last``: of the syncs that exist when reading
    begins only the last of each partition is used, because an older one could move a group back behind a checkpoint
    that the reader does not know."""

    def __init__(self, *, only_last: bool) -> None:
        self._only_last = only_last
        self._is_read = False
        self._slots: dict[TopicPartition, list[OffsetSync]] = {}

    def read_to_end(self) -> None:
        """Note that the topic has been read to its end: from now on offsets are translated."""
        self._is_read = True

    def take(self, sync: OffsetSync) -> None:
        source = TopicPartition(sync.topic, sync.partition)
        slots = self._slots.get(source)
        replaces_slots = self._only_last and not self._is_read
        if slots is None or replaces_slots or sync.upstream_offset < slots[0].upstream_offset:
            self._slots[source] = [sync] * _SLOTS
        else:
            self._slots[source] = _with(slots, sync)

    def translate(self, source: TopicPartition, upstream_offset: int) -> int | None:
        """Return the downstream offset for a group at ``upstream_offset``: at the same record, or at an earlier one.
        None if nothing is known, TOO_OLD if all syncs are later than that offset."""
        slots = self._slots.get(source)
        if slots is None or not self._is_read:
            return None
        sync = next((slot for slot in slots if slot.upstream_offset <= upstream_offset), None)
        if sync is None:
            return TOO_OLD
        # It is unknown which records between two syncs were mirrored, so only one further is safe.
        return sync.downstream_offset + (sync.upstream_offset < upstream_offset)


def _with(original: list[OffsetSync], sync: OffsetSync) -> list[OffsetSync]:
    """Return the slots once ``sync`` is the newest. Each slot that has become too old for its place gets the newest
    older sync that fits there."""
    slots, older = [sync, *original[1:]], deque({id(one): one for one in original}.values())
    replacement = sync
    for index in range(1, _SLOTS):
        before = slots[index - 1]
        while older and not _is_apart(before, older[0], index - 1):
            older.popleft()
        if (
            older
            and _is_recent(before, older[0], index - 1, index)
            and (index + 1 == _SLOTS or _is_apart(older[0], slots[index + 1], index))
        ):
            replacement = older.popleft()
        if _is_recent(before, slots[index], index - 1, index):
            break  # and so are all that follow
        slots[index] = replacement
    return slots


def _is_recent(newer: OffsetSync, older: OffsetSync, at: int, older_at: int) -> bool:
    """Java's invariant B: the older sync is not too far away for its slot."""
    return newer is older or newer.upstream_offset <= older.upstream_offset + (1 << older_at) - (1 << at)


def _is_apart(newer: OffsetSync, older: OffsetSync, at: int) -> bool:
    """Java's invariant C: the two are not so close that one is useless."""
    return newer is older or newer.upstream_offset >= older.upstream_offset + (1 << max(at - 2, 0))


log = logging.getLogger(__name__)


class OffsetSyncReader:
    """Java's ``OffsetSyncStore`` with its ``KafkaBasedLog``: reads partition 0 of ``topic``. ``only_last``: see
    :class:`OffsetSyncStore`; it applies to syncs that exist when reading begins."""

    def __init__(self, cluster: Cluster, topic: str, *, only_last: bool) -> None:
        self._cluster, self._topic = cluster, topic
        self._topic_id: UUID | None = None
        self._next = 0
        self.store = OffsetSyncStore(only_last=only_last)

    async def follow(self) -> None:
        """Read what was added. A missing topic holds nothing yet; a recreated one is read from its beginning. Raises
        RetriableError if the cluster does not answer in time, and SecurityError if READ or DESCRIBE on the topic is
        missing."""
        known = await known_topic(self._cluster, self._topic)
        if known is None:
            return
        if known.topic_id != self._topic_id or await list_offset(self._cluster, (self._topic, 0), LATEST) < self._next:
            if self._next:
                log.warning("%s was recreated or truncated; reading it again from its beginning", self._topic)
                self.store = OffsetSyncStore(only_last=False)
            self._topic_id, self._next = known.topic_id, 0
        await read_to_end(self._cluster, self._topic, self._take, partitions=[0], after={0: self._next})
        self.store.read_to_end()

    def _take(self, record: LogRecord) -> None:
        self._next = record.offset + 1
        self.store.take(OffsetSync.decode(record.key, record.value))


class Beginnings:
    """Log start offsets of the partitions that a flow writes to."""

    def __init__(self, target: Cluster) -> None:
        self._target = target
        self._starts: dict[MapPair, int] = {}
        self._bare: dict[MapPair, tuple[int, bool]] = {}

    async def follow(self, pairs: Collection[MapPair]) -> None:
        """Read the start offsets. Raises RetriableError if the cluster does not answer; a partition without a leader
        keeps its earlier one."""
        found, missing = await known_offsets(self._target, {pair.target for pair in pairs}, EARLIEST)
        starts = {pair: found.get(pair.target, self._starts.get(pair)) for pair in pairs}
        self._starts = {pair: start for pair, start in starts.items() if start is not None}
        for why in missing.values():
            log.debug("cluster %s: %s", self._target.name, why)
        self._bare = {pair: known for pair, known in self._bare.items() if pair in pairs}

    def readable(self, pair: MapPair, offset: int) -> int | None:
        """Return ``offset``, or the log start if that is later: a group before the log start is reset by its consumers'
        ``auto.offset.reset``, which may skip everything. None if the log start is unknown."""
        start = self._starts.get(pair)
        return None if start is None else max(offset, start)

    async def is_bare_before(self, pair: MapPair, offset: int) -> bool:
        """Whether a reader of committed records gets none before ``offset``; False if that is unknown. Raises
        RetriableError or SecurityError if the log cannot be read."""
        start = self._starts.get(pair)
        if start is None or start >= offset:
            return start is not None
        known = self._bare.get(pair)
        if known is None or known[0] != offset:
            # Later records go to the end, so this holds permanently.
            is_bare = not await has_records(self._target, pair.target, start, offset, is_decided=True)
            known = self._bare[pair] = (offset, is_bare)
        return known[1]


_BY_JAVA: Final = "groups are translated by offset syncs, as Java does, to the record or one before it"
_BY_MAP: Final = "groups are translated by the offset map alone, and get no offset for what it does not know"


class TranslatedOffset(NamedTuple):
    """The next record to read; ``by_map``: found by the offset map, not by offset syncs."""

    target: TopicPartition
    offset: int
    by_map: bool


class Translator:
    """Translates offsets of one flow. The map knows what this project's MirrorSource copied; for what is older, or was
    copied by Java, offset syncs are used. A map is for two topics, by their ids: once one of them is recreated, nothing
    is known until the copy has begun again."""

    def __init__(
        self, settings: CheckpointSettings, source: Cluster, target: Cluster, maps: MapReader, syncs: OffsetSyncReader
    ) -> None:
        self._settings, self._source, self._target, self._maps = settings, source, target, maps
        self._syncs = syncs
        self._beginnings = Beginnings(target)
        self._has_map = self._has_syncs = False
        #: Remote topics by source partition, as of the last time that the map could be read.
        self._copied_to: dict[TopicPartition, set[str]] = {}
        self._source_ids: dict[str, UUID | None] = {}
        self._target_ids: dict[str, UUID | None] = {}
        self._said = ""
        self._said_of_syncs = ""

    async def follow(self) -> None:
        """Read what was copied since. Raises RetriableError or SecurityError if syncs or topics cannot be read. It
        works without the map, and without access to the syncs if the map knows of any partition."""
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
        pairs = [MapPair.of(one) for source in self._maps.sources() for one in self._maps.positions(source)]
        if self._has_map:
            self._copied_to = {}
        for pair in pairs:
            self._copied_to.setdefault(pair.source, set()).add(pair.target_topic)
        self._source_ids = await _ids(self._source, {pair.source_topic for pair in pairs})
        self._target_ids = await _ids(self._target, {pair.target_topic for pair in pairs})
        await self._beginnings.follow([pair for pair in pairs if pair.target_topic in self._target_ids])

    async def _follow_syncs(self) -> None:
        # What was read before may be of a topic that was recreated since.
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
        """Return the id of a remote topic that the map knows, as of :meth:`follow`."""
        return self._target_ids.get(topic)

    def source_id(self, topic: str) -> UUID | None:
        """Return the id of a source topic that the map knows, as of :meth:`follow`."""
        return self._source_ids.get(topic)

    async def translate(self, source: TopicPartition, offset: int) -> list[TranslatedOffset]:
        """Return where a group whose next record is ``offset`` continues, in each topic that its records are copied to;
        nothing if nothing, or nothing that old, is known. An offset that is not copied yet leads to the end of the
        copy. Errors are those of the map reader's look-ups."""
        # Another task may have advanced the shared map, and failed.
        positions = self._maps.positions(source) if self._has_map and self._maps.is_whole else []
        if positions:
            found = [await self._by_map(source, offset, position) for position in positions]
        else:
            by_syncs, known = self._by_syncs(source, offset), self._copied_to.get(source)
            # Syncs do not name their remote topic: they count only if it has the name that the policy gives.
            found = [by_syncs] if by_syncs is not None and (not known or by_syncs.target.topic in known) else []
        return [one for one in found if one is not None]

    async def _by_map(self, source: TopicPartition, offset: int, position: Position) -> TranslatedOffset | None:
        pair = MapPair.of(position)
        if not self._is_current(pair):
            return None
        found = await self._maps.forward(pair, offset)
        if found is not None and found.place is not OffsetLocation.BELOW:
            return self._readable(pair, found.offset)
        begin = found.offset if found is not None else position.target_end
        if await self._beginnings.is_bare_before(pair, begin):
            # What the group has not read yet and is no longer on the target never was there, or was deleted.
            return self._readable(pair, begin)
        by_syncs = self._by_syncs(source, offset)
        if by_syncs is None or by_syncs.target != pair.target:
            # The copy has begun again elsewhere, and syncs do not name their remote topic.
            return None
        # Syncs may be of an earlier topic of the same name: never go past the beginning of the map.
        return self._readable(pair, min(by_syncs.offset, begin), by_map=False)

    def _readable(self, pair: MapPair, offset: int, *, by_map: bool = True) -> TranslatedOffset | None:
        """Return None if the log start is unknown: it may be later than ``offset``."""
        place = self._beginnings.readable(pair, offset)
        return None if place is None else TranslatedOffset(pair.target, place, by_map)

    def _is_current(self, pair: MapPair) -> bool:
        """Whether its topics are those that exist now; without ids this is assumed."""
        here, there = (pair.source_topic_id, pair.source_topic), (pair.target_topic_id, pair.target_topic)
        for (before, topic), ids in ((here, self._source_ids), (there, self._target_ids)):
            if topic not in ids or is_recreated(ids[topic], before):
                return False
        return True

    def _by_syncs(self, source: TopicPartition, offset: int) -> TranslatedOffset | None:
        if not self._has_syncs:
            return None
        translated, remote = self._syncs.store.translate(source, offset), self._remote(source)
        if translated is None or translated < 0 or remote is None:
            return None
        return TranslatedOffset(remote, translated, by_map=False)

    def _remote(self, source: TopicPartition) -> TopicPartition | None:
        """Return the remote partition (Java's ``MirrorCheckpointTask.renameTopicPartition``)."""
        policy, topic = self._settings.policy, source.topic
        if policy.topic_source(topic) == self._settings.target_alias:
            return TopicPartition(policy.original_topic(topic), source.partition)
        try:
            return TopicPartition(policy.format_remote_topic(self._settings.source_alias, topic), source.partition)
        except PermanentError:  # the records' connector has reported that it is not mirrored
            return None


async def _ids(cluster: Cluster, topics: Collection[str]) -> dict[str, UUID | None]:
    """Return the ids of topics that exist."""
    if not topics:
        return {}
    found = (await cluster.metadata(set(topics))).topics
    return {name: topic.topic_id for name, topic in found.items() if topic.partitions}
