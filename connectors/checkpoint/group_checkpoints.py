"""Choose the source's groups that get checkpoints, translate their offsets, and decide which checkpoints to write.

The choice of groups is Kafka's ``MirrorCheckpointConnector.findConsumerGroups``, the choice of checkpoints is
``MirrorCheckpointTask.checkpointIsMoreRecent``. A task and a plan use the same translation.

The module also records which offsets a group still has at the source, because Java's topic keeps old checkpoints: when
a group loses its offset, because it or its topic was deleted, the last checkpoint stays. Java's clients do not survive
a tombstone there. So a record of each group, in the topic of the offset map, names the partitions that the last look
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
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.kafka.log.topic_admin import known_topic
from connectors.checkpoint.offset_translation import OffsetSyncReader, Translator
from connectors.config.connector_configs import CheckpointSettings
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import VERSION, KeyKind, Reader, check_version, front, text
from connectors.formats.types import TopicPartition
from connectors.internal_topics import RecordKind, read_all_records
from connectors.offset_map.reader import MapReader

log = logging.getLogger(__name__)

_WHY_LEFT: Final = {
    SHARE: "a share group has no offset that could be translated: its records are acknowledged one by one",
    STREAMS: "a streams group keeps its state beside its offsets, which a mirror does not carry",
}
#: Between the groups of a task, as in Java's config.
_SEPARATOR: Final = ","
_WHY_SEPARATED: Final = (
    "tasks are told their groups in one list, with commas between them, where its name would be that of others; "
    "heliograph failover moves it, while its cluster answers"
)


class GroupFinder:
    """Looks at the source's groups, and says once of each kind that is left alone why."""

    def __init__(self, settings: CheckpointSettings, source: Cluster) -> None:
        self._settings = settings
        self._source = source
        self._told: set[str] = set()

    async def find(self) -> list[str]:
        """Groups that the filter takes and that have an offset in a topic that is mirrored, in order.

        Raises as :func:`connect.kafka.log.committed_offsets.committed`: one group that cannot be asked for fails the
        look, or its checkpoints would end without a word.
        """
        listed = await list_groups(self._source)
        taken = {name: one for name, one in listed.items() if self._settings.group_filter.should_replicate_group(name)}
        self._tell(taken)

        async def has_offsets(group: str) -> bool:
            stored = await committed_offsets(self._source, group)
            return any(self._settings.topic_filter.should_replicate_topic(topic) for topic, _ in stored)

        groups = sorted(name for name, one in taken.items() if one.has_offsets and not _why_left(name, one))
        kept = await gather_limited(has_offsets, groups)
        return [group for group, is_kept in zip(groups, kept, strict=True) if is_kept]

    def _tell(self, groups: Mapping[str, GroupListing]) -> None:
        for name, one in groups.items():
            if (why := _why_left(name, one)) and name not in self._told:
                self._told.add(name)
                log.info("%s: group %s gets no checkpoints: %s", self._settings.flow, name, why)


def _why_left(name: str, one: GroupListing) -> str:
    return _WHY_LEFT.get(one.kind, _WHY_SEPARATED if _SEPARATOR in name and one.has_offsets else "")


def split(groups: Sequence[str], max_tasks: int) -> list[Sequence[str]]:
    """One run of groups a task, the first ones longer by one where they do not come out even (``ConnectorUtils``)."""
    tasks = min(max_tasks, len(groups))
    if not tasks:
        return []
    each, more = divmod(len(groups), tasks)
    begins = [index * each + min(index, more) for index in range(tasks + 1)]
    return [groups[begin:end] for begin, end in itertools.pairwise(begins)]


def encode(groups: Collection[str]) -> str:
    """``task.assigned.groups``, of names without commas."""
    return _SEPARATOR.join(groups)


def decode(assigned: str) -> list[str]:
    return [group for group in assigned.split(_SEPARATOR) if group]


class TranslatedCheckpoint(NamedTuple):
    """A checkpoint as it is translated now; ``by_map``: by the offset map, which knows better than what was written.
    ``topic_id`` is the remote topic's, ``source_id`` that of its source; None if it is not known."""

    checkpoint: Checkpoint
    by_map: bool
    topic_id: UUID | None = None
    source_id: UUID | None = None


class Checkpoints:
    """The last checkpoint of every group and remote partition, of the groups that matter here."""

    def __init__(self, groups: Collection[str]) -> None:
        self._last: dict[str, dict[TopicPartition, Checkpoint]] = {group: {} for group in groups}
        #: By remote partition the id of the topic that the last look was at.
        self._standing: dict[str, dict[TopicPartition, UUID | None]] = {group: {} for group in groups}

    def take(self, checkpoint: Checkpoint) -> None:
        """One that was written, by whomever; later ones win."""
        if checkpoint.group in self._last:
            self._last[checkpoint.group][_place(checkpoint)] = checkpoint

    def forget(self) -> None:
        """What was taken is not to be trusted."""
        for known in self._last.values():
            known.clear()

    def look(self, group: str, found: Collection[TranslatedCheckpoint]) -> list[Checkpoint]:
        """All that is known of a group now. Returns, and takes, what says more than what was written: of a group that
        went on, or that was wound back at the source; by the map, whatever differs."""
        newer = [one.checkpoint for one in found if self._is_newer(one)]
        for checkpoint in newer:
            self.take(checkpoint)
        self._standing[group] = {_place(one.checkpoint): one.topic_id for one in found}
        return newer

    def standing(self, group: str) -> dict[TopicPartition, Checkpoint]:
        """By remote partition: the checkpoints of the last look. Others may be of a topic that was made anew since, and
        lead behind records that nobody has read."""
        return {place: one for place, one in self._last[group].items() if place in self._standing[group]}

    def topic_ids(self, group: str) -> dict[str, UUID | None]:
        """Of the topics of :meth:`standing`, as the last look saw them: a look may be long ago."""
        return {place.topic: topic_id for place, topic_id in self._standing[group].items()}

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
            syncs = OffsetSyncReader(self._syncs, topic, only_last=not self._knows_before)
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


#: By remote partition the id of its topic at the source; None for brokers that have none.
Live = Mapping[TopicPartition, UUID | None]


def _encode_key(flow: str, group: str) -> bytes:
    return front(KeyKind.LIVE_OFFSETS) + text(flow) + text(group)


def _decode_key(key: bytes) -> tuple[str, str]:
    reader = Reader(key, len(front(KeyKind.LIVE_OFFSETS)))
    decoded = reader.text(), reader.text()
    reader.end()
    return decoded


def encode_live(live: Live) -> bytes:
    topics: dict[str, tuple[str | None, list[int]]] = {}
    for place, topic_id in sorted(live.items()):
        known = topics.setdefault(place.topic, (None if topic_id is None else str(topic_id), []))
        known[1].append(place.partition)
    return bytes((VERSION,)) + json.dumps(topics).encode()


def decode_live(value: bytes) -> Live:
    """Raises UnreadableRecord."""
    check_version(value, "live offsets of a group")
    try:
        topics = json.loads(value[1:])
        return {
            TopicPartition(topic, index): None if topic_id is None else UUID(topic_id)
            for topic, (topic_id, indexes) in topics.items()
            for index in indexes
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise UnreadableRecord(f"it cannot be read: {error}") from None


LIVE_OFFSETS: Final[RecordKind[str, Live]] = RecordKind(
    KeyKind.LIVE_OFFSETS, b"live offsets", _encode_key, _decode_key, encode_live, decode_live
)


async def read_live(target: Cluster, map_topic: str, flow: str) -> dict[str, Live]:
    """By group of a flow. Raises as :func:`connectors.internal_topics.read_all_records`."""
    found = await read_all_records(target, map_topic, LIVE_OFFSETS)
    return {group: live for (of_flow, group), live in found.items() if of_flow == flow}


class LiveOffsets:
    """Of the groups of one task. What is new is stored once the checkpoints of the same look are written, what is gone
    at once: a crash in between makes a checkpoint count as stale that is not, and never the reverse. Of a group without
    a record yet, nothing counts as stale."""

    def __init__(self, target: Cluster, map_topic: str, flow: str) -> None:
        self._target = target
        self._topic = map_topic
        self._flow = flow
        self._writer = PlainWriter(target)
        #: None until it is read.
        self._stored: dict[str, Live] | None = None
        self._wanted: dict[str, Live] = {}
        self._unwritten: dict[str, int] = {}
        self._said = ""

    def look(self, group: str, live: Live, checkpoints: int) -> None:
        """Take what a look has found, with so many checkpoints that are to be written now."""
        self._wanted[group] = live
        self._unwritten[group] = self._unwritten.get(group, 0) + checkpoints

    def written(self, group: str) -> bool:
        """Take note that a checkpoint of the group is acknowledged. Return whether none is waited for any more."""
        before = self._unwritten.get(group, 0)
        self._unwritten[group] = max(before - 1, 0)
        return before == 1

    async def store(self) -> None:
        """Store what differs. What fails is named in the log once, and comes again with the next call."""
        try:
            await self._store()
        except HeliographError as error:
            if str(error) != self._said:
                log.warning("%s: which checkpoints are stale cannot be stored: %s", self._flow, error)
            self._said = str(error)
        else:
            self._said = ""

    async def _store(self) -> None:
        # Without the topic Java's MirrorSource copies, or ours has not begun yet.
        if not self._wanted or (self._stored is None and await known_topic(self._target, self._topic) is None):
            return
        if self._stored is None:
            self._stored = await read_live(self._target, self._topic, self._flow)
        due = {group: self._due(group, self._stored) for group in self._wanted}
        changed = {group: one for group, one in due.items() if one is not None and one != self._stored.get(group)}
        await self._writer.write(
            OutRecord(self._topic, _encode_key(self._flow, group), encode_live(live), LIVE_OFFSETS.partition_key)
            for group, live in sorted(changed.items())
        )
        self._stored |= changed

    def _due(self, group: str, stored: Mapping[str, Live]) -> Live | None:
        """What may be stored now of a group; None for nothing."""
        wanted = self._wanted[group]
        if not self._unwritten.get(group):
            return wanted
        known = stored.get(group)
        return None if known is None else {place: one for place, one in known.items() if place in wanted}
