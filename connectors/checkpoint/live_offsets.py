"""Which checkpoints are of offsets that a group still has at the source: beside Java's topic, which keeps old ones.

Of a group that lost its offset, because it or its topic was deleted, the last checkpoint stays. Java's clients do not
survive a tombstone there. So a record of each group, in the topic of the offset map, names the partitions that the last
look found, with the ids of their topics at the source.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from connect.core.errors import HeliographError, UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.known_topic import known_topic
from connect.kafka.producer import OutRecord, PlainWriter
from connectors.dataplane.plan import TopicPartition
from connectors.positions import VERSION, Kind, Reader, check_version, front, text
from connectors.record_settings import RecordKind, read_all_records

log = logging.getLogger(__name__)

#: By remote partition the id of its topic at the source; None for brokers that have none.
Live = Mapping[TopicPartition, UUID | None]


def _encode_key(flow: str, group: str) -> bytes:
    return front(Kind.LIVE_OFFSETS) + text(flow) + text(group)


def _decode_key(key: bytes) -> tuple[str, str]:
    reader = Reader(key, len(front(Kind.LIVE_OFFSETS)))
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
    Kind.LIVE_OFFSETS, b"live offsets", _encode_key, _decode_key, encode_live, decode_live
)


async def read_live(target: Cluster, map_topic: str, flow: str) -> dict[str, Live]:
    """By group of a flow. Raises as :func:`connectors.record_settings.read_all_records`."""
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
