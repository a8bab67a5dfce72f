"""Positions as every MirrorMaker stores them, Java's and ours: read from the topic of source offsets by who runs no
worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from connect.core import offsetlog
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connect.kafka.known_topic import known_topic
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.dataplane.plan import TopicPartition
from connectors.positions import (
    Kind,
    Position,
    StoredPosition,
    decode_kind,
    decode_position_key,
    fold_position,
)
from connectors.settings import MirrorSourceSettings

#: So many partitions are looked up before others of the loop have their turn; each takes some 4 us.
_AT_ONCE: Final = 500


async def read_stored_offsets(store: Cluster, topic: str) -> offsetlog.SourceOffsets:
    """What ``topic`` says; nothing where it is not there. Raises as :func:`connect.kafka.topiclog.read_to_end`, and
    NotAuthorized where DESCRIBE on it is missing."""
    state = offsetlog.SourceOffsets()
    if await known_topic(store, topic) is None:
        return state

    def fold(record: LogRecord) -> None:
        offsetlog.apply(state, record.key, record.value)

    await read_to_end(store, topic, fold, read_committed=True, only_last=True)
    return state


async def read_copied(
    store: Cluster, settings: MirrorSourceSettings, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset of the last record that a flow copied of those of ``partitions`` that have one: by our position, which
    is newer than Java's record, unless that was altered since. The flow may store both between the two readings, so
    that it was altered is believed once a second reading finds both the same. Raises as above."""
    before: dict[TopicPartition, tuple[Position, int | None]] = {}
    while True:
        offsets = await read_stored_offsets(store, settings.offsets_topic)
        positions = await read_stored_positions(store, settings.map_topic, settings.name)
        copied: dict[TopicPartition, int] = {}
        altered: dict[TopicPartition, tuple[Position, int | None]] = {}
        async for one in in_turns(partitions, _AT_ONCE):
            java, stored = offsets.mirrored_offset(settings.name, settings.source_alias, *one), positions.get(one)
            offset = java
            if stored is not None and stored.was_altered(java):
                altered[one] = stored.full, java
            elif stored is not None:
                offset = stored.position.next_source_offset - 1
            if offset is not None and offset >= 0:
                copied[one] = offset
        if altered.items() <= before.items():
            return copied
        before = altered


async def read_positions(store: Cluster, topic: str, connector: str) -> dict[TopicPartition, Position]:
    """Our own positions of a connector, by source partition; none if ``topic`` does not exist. Raises as above."""
    stored = await read_stored_positions(store, topic, connector)
    return {partition: one.position for partition, one in stored.items()}


async def read_stored_positions(store: Cluster, topic: str, connector: str) -> dict[TopicPartition, StoredPosition]:
    """The same with what tells whether Java's offsets were altered since."""
    found = await _read_positions(store, topic, lambda one: one == connector)
    return {partition: one for (_, partition), one in found.items()}


async def read_all_positions(store: Cluster, topic: str) -> dict[tuple[str, TopicPartition], Position]:
    """The same of all connectors, by connector and source partition."""
    found = await _read_positions(store, topic, lambda _: True)
    return {of: one.position for of, one in found.items()}


async def _read_positions(
    store: Cluster, topic: str, wanted: Callable[[str], bool]
) -> dict[tuple[str, TopicPartition], StoredPosition]:
    found: dict[tuple[str, TopicPartition], StoredPosition] = {}
    if await known_topic(store, topic) is None:
        return found

    def fold(record: LogRecord) -> None:
        kind = decode_kind(record.key)
        if kind not in (Kind.POSITION, Kind.PROGRESS):
            return
        assert record.key is not None
        key = decode_position_key(record.key)
        if not wanted(key.connector):
            return
        of = key.connector, TopicPartition(key.source_topic, key.source_partition)
        stored = fold_position(found.get(of), kind, key, record.value, record.headers)
        found.pop(of, None)
        if stored is not None:
            found[of] = stored

    await read_to_end(store, topic, fold, read_committed=True, only_last=True)
    return found
