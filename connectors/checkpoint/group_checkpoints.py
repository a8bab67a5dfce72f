"""Choose the source's groups that get checkpoints, translate their offsets, and decide which checkpoints to write.

The choice of groups is Kafka's ``MirrorCheckpointConnector.findConsumerGroups``, the choice of checkpoints is
``MirrorCheckpointTask.checkpointIsMoreRecent``. A task and a plan use the same translation.

The module also records which offsets a group still has at the source, because Java's topic keeps old checkpoints: if a
group loses its offset, because it or its topic was deleted, the last checkpoint stays. Java's clients fail on a
tombstone there. So a record for each group, in the topic of the offset map, names the partitions that the last read
found, with the ids of their topics at the source.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import HeliographError, UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import (
    SHARE,
    STREAMS,
    Committed,
    GroupListing,
    Partition,
    committed,
    committed_offsets,
    list_groups,
)
from connect.kafka.log.compacted_topic import LogRecord, read_if_exists
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.kafka.log.topic_admin import known_topic
from connectors.checkpoint.offset_translation import OffsetSyncReader, Translator
from connectors.config.connector_configs import CheckpointSettings
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import KeyKind, Reader, text
from connectors.formats.types import TopicPartition
from connectors.internal_topics import RecordKind, read_all_records
from connectors.offset_map.reader import MapReader

log = logging.getLogger(__name__)

_WHY_LEFT: Final = {
    SHARE: "a share group has no offset to translate: its records are acknowledged one by one",
    STREAMS: "a streams group also has state, which a mirror does not copy",
}
#: Between the groups in a task's config, as in Java.
_SEPARATOR: Final = ","
_WHY_SEPARATED: Final = (
    "tasks get their groups in one list separated by commas, where its name would be read as several names; "
    "heliograph failover moves it, while its cluster answers"
)


class GroupFinder:
    """Finds the source's groups, and logs once for each skipped group why."""

    def __init__(self, settings: CheckpointSettings, source: Cluster) -> None:
        self._settings, self._source = settings, source
        self._reported: set[str] = set()

    async def find(self) -> list[str]:
        """Return groups that the filter selects and that have an offset in a mirrored topic, in order. Raises
        HeliographError: one group that cannot be read fails the whole read; otherwise its checkpoints would end without
        a message."""
        listed = await list_groups(self._source)
        taken = {name: one for name, one in listed.items() if self._settings.group_filter.should_replicate_group(name)}
        self._report(taken)

        async def has_offsets(group: str) -> bool:
            stored = await committed_offsets(self._source, group)
            return any(self._settings.topic_filter.should_replicate_topic(topic) for topic, _ in stored)

        groups = sorted(name for name, one in taken.items() if one.has_offsets and not why_no_checkpoints(name, one))
        kept = await gather_limited(has_offsets, groups)
        return [group for group, is_kept in zip(groups, kept, strict=True) if is_kept]

    def _report(self, groups: Mapping[str, GroupListing]) -> None:
        for name, one in groups.items():
            if (why := why_no_checkpoints(name, one)) and name not in self._reported:
                self._reported.add(name)
                log.info("%s: group %s gets no checkpoints: %s", self._settings.flow, name, why)


def why_no_checkpoints(name: str, one: GroupListing) -> str:
    return _WHY_LEFT.get(one.kind, _WHY_SEPARATED if _SEPARATOR in name and one.has_offsets else "")


def split(groups: Sequence[str], max_tasks: int) -> list[Sequence[str]]:
    """Split groups into runs, one for each task; the first are longer by one if needed (``ConnectorUtils``)."""
    tasks = min(max_tasks, len(groups))
    if not tasks:
        return []
    each, more = divmod(len(groups), tasks)
    begins = [index * each + min(index, more) for index in range(tasks + 1)]
    return [groups[begin:end] for begin, end in itertools.pairwise(begins)]


def encode(groups: Collection[str]) -> str:
    """Return ``task.assigned.groups``; names must have no commas."""
    return _SEPARATOR.join(groups)


def decode(assigned: str) -> list[str]:
    return [group for group in assigned.split(_SEPARATOR) if group]


class TranslatedCheckpoint(NamedTuple):
    """A checkpoint translated now; ``by_map``: by the offset map, which overrides what was written. ``topic_id`` is the
    remote topic's, ``source_id`` that of its source; None if unknown."""

    checkpoint: Checkpoint
    by_map: bool
    topic_id: UUID | None = None
    source_id: UUID | None = None


class Checkpoints:
    """The last checkpoint of every group and remote partition, for given groups."""

    def __init__(self, groups: Collection[str]) -> None:
        self._last: dict[str, dict[TopicPartition, Checkpoint]] = {group: {} for group in groups}
        #: By remote partition the id of the topic at the last read.
        self._current_ids: dict[str, dict[TopicPartition, UUID | None]] = {group: {} for group in groups}

    def take(self, checkpoint: Checkpoint) -> None:
        """Take a checkpoint that any task wrote; later ones win."""
        if checkpoint.group in self._last:
            self._last[checkpoint.group][_place(checkpoint)] = checkpoint

    def forget(self) -> None:
        """Forget all that was taken, because it may be incomplete."""
        for known in self._last.values():
            known.clear()

    def look(self, group: str, found: Collection[TranslatedCheckpoint]) -> list[Checkpoint]:
        """Take all that is known of a group now. Return what is newer than what was written: the group has advanced, or
        was reset at the source; by the map, anything that differs."""
        newer = [one.checkpoint for one in found if self._is_newer(one)]
        for checkpoint in newer:
            self.take(checkpoint)
        self._current_ids[group] = {_place(one.checkpoint): one.topic_id for one in found}
        return newer

    def current(self, group: str) -> dict[TopicPartition, Checkpoint]:
        """Return the checkpoints of the last read, by remote partition. Others may be of a topic recreated since, and
        skip records that no consumer has read."""
        return {place: one for place, one in self._last[group].items() if place in self._current_ids[group]}

    def topic_ids(self, group: str) -> dict[str, UUID | None]:
        """Return the ids of the topics of :meth:`current` at the last read, which may be long ago."""
        return {place.topic: topic_id for place, topic_id in self._current_ids[group].items()}

    def _is_newer(self, found: TranslatedCheckpoint) -> bool:
        checkpoint = found.checkpoint
        last = self._last[checkpoint.group].get(_place(checkpoint))
        if last is None or checkpoint.upstream_offset < last.upstream_offset:
            return True
        if found.by_map:
            return checkpoint.downstream_offset != last.downstream_offset
        return checkpoint.downstream_offset > last.downstream_offset


def _place(checkpoint: Checkpoint) -> TopicPartition:
    return TopicPartition(checkpoint.topic, checkpoint.partition)


#: Timeout for reading a group, because the checkpoints of all others wait for it.
_CALL_S: Final = 5.0


class GroupLook:
    """Reads some groups of one flow. ``source``: the cluster of the groups. ``target``: the cluster of the checkpoints
    and the offset map. ``syncs``: the cluster that holds the topic of offset syncs. ``maps``: the offset map of the
    flow; None: read it separately."""

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
        #: By group, the remote partitions of the last read, with the ids of their topics at the source.
        self.live: dict[str, dict[TopicPartition, UUID | None]] = {}
        self._settings, self._source, self._target, self._syncs = settings, source, target, syncs
        self._maps = maps or MapReader(target, settings.map_topic, connector=None)
        self._translator: Translator | None = None
        self._knows_before = False

    async def begin(self) -> None:
        """Read earlier checkpoints and prepare to translate; may be called again after HeliographError."""
        if self._translator is None or not self._knows_before:
            self._knows_before = await self._read_checkpoints()
            topic = self._settings.offset_syncs_topic
            syncs = OffsetSyncReader(self._syncs, topic, only_last=not self._knows_before)
            self._translator = Translator(self._settings, self._source, self._target, self._maps, syncs)
        await self.follow()

    async def follow(self) -> None:
        """Read what was copied since. Errors as in :meth:`begin`."""
        assert self._translator is not None, "it has begun"
        async with self._maps.in_use:
            await self._translator.follow()

    async def newer(self, group: str) -> list[Checkpoint]:
        """Return a group's checkpoints that are newer than earlier ones; they count as written from now on. Many groups
        may be read concurrently. Raises HeliographError if the group cannot be read, or its offsets cannot be
        translated."""
        stored = await committed(self._source, group, timeout_s=_CALL_S)
        # A look-up may advance the map, which all groups and tasks of a worker share.
        async with self._maps.in_use:
            found = await self._translated(group, stored)
        self.live[group] = {_place(one.checkpoint): one.source_id for one in found}
        return self.checkpoints.look(group, found)

    async def _translated(self, group: str, stored: Mapping[Partition, Committed]) -> list[TranslatedCheckpoint]:
        assert self._translator is not None, "it has begun"
        found = []
        for (topic, partition), at in stored.items():
            if not self._settings.topic_filter.should_replicate_topic(topic):
                continue
            for place in await self._translator.translate(TopicPartition(topic, partition), at.offset):
                checkpoint = Checkpoint(group, *place.target, at.offset, place.offset, at.metadata)
                ids = self._translator.target_id(place.target.topic), self._translator.source_id(topic)
                found.append(TranslatedCheckpoint(checkpoint, place.by_map, *ids))
        return found

    async def _read_checkpoints(self) -> bool:
        """Whether they could be read. If not, only the newest sync is used, because a group might be moved back."""
        topic = self._settings.checkpoints_topic
        try:
            await read_if_exists(self._target, topic, self._take, read_committed=True, only_last=True)
        except HeliographError as error:
            said = "%s: earlier checkpoints cannot be read, so only the newest offset sync is used: %s"
            log.warning(said, self._settings.flow, error)
            self.checkpoints.forget()
            return False
        return True

    def _take(self, record: LogRecord) -> None:
        self.checkpoints.take(Checkpoint.decode(record.key, record.value))


#: By remote partition the id of its topic at the source; None if brokers have no ids.
Live = Mapping[TopicPartition, UUID | None]


def _pack_live(live: Live) -> bytes:
    topics: dict[str, tuple[str | None, list[int]]] = {}
    for place, topic_id in sorted(live.items()):
        known = topics.setdefault(place.topic, (None if topic_id is None else str(topic_id), []))
        known[1].append(place.partition)
    return json.dumps(topics).encode()


def _take_live(reader: Reader) -> Live:
    """Raises UnreadableRecord."""
    try:
        topics = json.loads(reader.rest())
        return {
            TopicPartition(topic, index): None if topic_id is None else UUID(topic_id)
            for topic, (topic_id, indexes) in topics.items()
            for index in indexes
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise UnreadableRecord(f"its JSON cannot be read: {error}") from None


LIVE_OFFSETS: Final[RecordKind[str, Live]] = RecordKind(
    KeyKind.LIVE_OFFSETS,
    b"live offsets",
    lambda flow, group: text(flow) + text(group),
    lambda reader: (reader.text(), reader.text()),
    _pack_live,
    _take_live,
)


async def read_live(target: Cluster, map_topic: str, flow: str) -> dict[str, Live]:
    """Read a flow's records, by group. Errors are those of :func:`connectors.internal_topics.read_all_records`."""
    found = await read_all_records(target, map_topic, LIVE_OFFSETS)
    return {group: live for (of_flow, group), live in found.items() if of_flow == flow}


class LiveOffsets:
    """The live offsets of one task's groups. New partitions are stored after the checkpoints of the same read, removed
    ones at once: a crash in between makes a valid checkpoint count as stale, and never the reverse. Without a record
    nothing of a group counts as stale."""

    def __init__(self, target: Cluster, map_topic: str, flow: str) -> None:
        self._target, self._topic, self._flow = target, map_topic, flow
        self._writer = PlainWriter(target)
        self._topic_id: UUID | None = None
        #: None until it is read.
        self._stored: dict[str, Live] | None = None
        self._wanted: dict[str, Live] = {}
        self._unwritten: dict[str, int] = {}
        self._said = ""

    def look(self, group: str, live: Live, checkpoints: int) -> None:
        """Take the result of a read, and the number of its checkpoints that are to be written."""
        self._wanted[group] = live
        self._unwritten[group] = self._unwritten.get(group, 0) + checkpoints

    def written(self, group: str) -> bool:
        """Note that a checkpoint of the group is acknowledged. Return whether it was the last one awaited."""
        before = self._unwritten.get(group, 0)
        self._unwritten[group] = max(before - 1, 0)
        return before == 1

    async def store(self) -> None:
        """Store what differs. A failure is logged once, and retried with the next call."""
        try:
            await self._store()
        except HeliographError as error:
            if str(error) != self._said:
                log.warning("%s: which checkpoints are stale cannot be stored: %s", self._flow, error)
            self._said = str(error)
        else:
            self._said = ""

    async def _store(self) -> None:
        # Without the topic, Java's MirrorSource copies, or ours has not started yet.
        if not self._wanted or (known := await known_topic(self._target, self._topic)) is None:
            return
        if self._stored is None or known.topic_id != self._topic_id:
            self._topic_id = known.topic_id
            self._stored = await read_live(self._target, self._topic, self._flow)
        due = {group: self._due(group, self._stored) for group in self._wanted}
        changed = {group: one for group, one in due.items() if one is not None and one != self._stored.get(group)}
        kind = LIVE_OFFSETS
        await self._writer.write(
            OutRecord(self._topic, kind.encode_key(self._flow, group), kind.encode_value(live), kind.partition_key)
            for group, live in sorted(changed.items())
        )
        self._stored |= changed

    def _due(self, group: str, stored: Mapping[str, Live]) -> Live | None:
        """Return what may be stored now for a group; None if nothing."""
        wanted, known = self._wanted[group], stored.get(group)
        if not self._unwritten.get(group):
            return wanted
        return None if known is None else {place: one for place, one in known.items() if place in wanted}
