"""Create, write and read the internal topics of a flow on its target: offsets, positions, and records of their state.

- Topics: a compacted topic that a connector writes into is created on the target, with retries, and kept small.
- Records of the flow other than its positions are in the topic of the offset map.
- States: a task records there which of its partitions are not copied, and why, so that every worker can report it,
  whether the task still runs or not. A partition without a record is copied if its task runs.
- Offsets: commands that run no worker read positions, Java's and ours, from the topic of source offsets.
- Target states: the config topic of a Connect group holds what users want of a flow's connector.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from connect.core import status_and_offset_topics
from connect.core.config_topic import ConfigLog
from connect.core.errors import HeliographError, RetriableError, UnreadableRecord
from connect.core.model import CLEANED_SOON, NewTopic, TargetState
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connect.kafka.log import compacted_topic, topic_admin
from connect.kafka.log.producer import OutRecord, PlainWriter, partition_of
from connect.kafka.log.topic_admin import Admin, ConfigSource, known_topic
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.gap import Gap, pack_gap, unpack_gap
from connectors.formats.position import (
    VERSION,
    KeyKind,
    Position,
    Reader,
    StoredPosition,
    check_version,
    decode_kind,
    decode_position_key,
    fold_position,
    front,
    map_partition_key,
    text,
)
from connectors.formats.types import TopicPartition

log = logging.getLogger(__name__)


async def correct_settings(cluster: Cluster, topics: Collection[str]) -> None:
    """Set CLEANED_SOON on topics that use the cluster's default for a key. A missing right is logged. Raises
    RetriableError if no broker answers."""
    wanted: dict[str, dict[str, str | None]] = {}
    for topic, configs in (await topic_admin.describe(cluster, topics)).items():
        if isinstance(configs, HeliographError):
            # A broker may not know yet a topic that was created just now, with these settings.
            level = logging.DEBUG if isinstance(configs, RetriableError) else logging.WARNING
            log.log(level, "%s; its segments may be cleaned late", configs)
            continue
        keys = CLEANED_SOON.items() & {(key, CLEANED_SOON.get(key)) for key in configs}
        inherited = {key: value for key, value in keys if configs[key].source is not ConfigSource.TOPIC}
        if changed := {key: value for key, value in inherited.items() if configs[key].value != value}:
            wanted[topic] = dict(changed)
    for topic, error in (await topic_admin.alter(cluster, wanted)).items():
        named = ", ".join(f"{key}={value}" for key, value in sorted(wanted[topic].items()))
        if error is None:
            log.info("cluster %s: set %s on topic %s to keep it small", cluster.name, named, topic)
        else:
            log.warning("%s; without %s it may become large and delay starts", error, named)


async def keep_making(admin: Admin, topic: NewTopic, tried: asyncio.Event | None = None) -> None:
    """Create ``topic`` if it is missing; ``tried`` is set after the first attempt. Retry temporary errors until it
    exists: Java tries once, and if the target is down at that moment, a broker's ``auto.create.topics.enable`` creates
    the topic, not compacted."""
    try:
        if await compacted_topic.make_topic(admin, topic, tried=tried):
            log.info("topic %s was created", topic.name)
    except HeliographError as error:
        log.error("%s", error)


#: Of a record that is decompressed: the rows of ten thousand partitions take a hundredth of it.
_MOST_BYTES: Final = 64 * 1024 * 1024


def decompressed(packed: bytes, what: str) -> bytes:
    """Return what zlib has compressed into a record. Raises zlib.error, UnreadableRecord if ``what`` is too long."""
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(packed, _MOST_BYTES)
    if not unpacker.eof:
        raise UnreadableRecord(f"{what} exceeds {_MOST_BYTES} bytes")
    return found


K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Settings of one connector; ``partitions`` and ``replication_factor`` are for a topic that does not exist yet."""

    connector: str
    topic: str
    partitions: int
    replication_factor: int

    async def make_topic(self, admin: Admin) -> None:
        """Create the topic if it is missing. Errors are those of
        :func:`connect.kafka.log.compacted_topic.ensure_compacted_topic`."""
        topic = NewTopic(self.topic, self.partitions, self.replication_factor, CLEANED_SOON)
        await compacted_topic.ensure_compacted_topic(admin, topic)


def record_settings(settings: MirrorSourceSettings) -> RecordSettings:
    return RecordSettings(
        settings.name, settings.map_topic, settings.offsets_topic_partitions, settings.offsets_topic_replication_factor
    )


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[K, V]):
    """How records of one kind are stored: a key has the connector and what the record is about. ``partition_key``:
    selects the partition of all records of the kind, so that only one has to be read. ``pack_key``: what is behind the
    kind; ``take_key`` reads it. ``pack_value``: what is behind the version; ``take_value`` reads it."""

    kind: KeyKind
    partition_key: bytes
    pack_key: Callable[[str, K], bytes]
    take_key: Callable[[Reader], tuple[str, K]]
    pack_value: Callable[[V], bytes]
    take_value: Callable[[Reader], V]

    def encode_key(self, connector: str, about: K) -> bytes:
        return front(self.kind) + self.pack_key(connector, about)

    def decode_key(self, key: bytes) -> tuple[str, K]:
        """Return the connector and what the record is about. Raises UnknownFormat."""
        return Reader(key, len(front(self.kind))).whole(self.take_key)

    def encode_value(self, value: V) -> bytes:
        return bytes((VERSION,)) + self.pack_value(value)

    def decode_value(self, value: bytes) -> V:
        """Decode a value. Raises LaterFormat or UnreadableRecord."""
        check_version(value, f"{self.kind.name} record")
        return Reader(value, 1).whole(self.take_value)


class Records(Generic[K, V]):
    """The records of one kind and one connector. Every method raises RetriableError, or SecurityError if a right is
    missing."""

    def __init__(self, of: RecordKind[K, V], cluster: Cluster, admin: Admin, settings: RecordSettings) -> None:
        self._of, self._cluster, self._admin, self._settings = of, cluster, admin, settings
        self._writer = PlainWriter(cluster)
        self._topic_id: UUID | None = None

    async def load(self) -> dict[K, V]:
        """Return what is stored; the topic is created if it is missing."""
        await self.make_topic()
        self._topic_id = await self._current_id()
        return await self.read()

    async def is_recreated(self) -> bool:
        """Whether the topic is another one than at the last :meth:`load`, so that what was stored is gone."""
        return await self._current_id() != self._topic_id

    async def _current_id(self) -> UUID | None:
        known = await known_topic(self._cluster, self._settings.topic)
        return None if known is None else known.topic_id

    async def make_topic(self) -> None:
        await self._settings.make_topic(self._admin)

    async def read(self) -> dict[K, V]:
        """Return what is stored; nothing if there is no topic."""
        return await read_records(self._cluster, self._settings, self._of)

    async def store(self, values: Mapping[K, V | None]) -> None:
        """Store values; None deletes a record."""
        of, connector = self._of, self._settings.connector
        records = [
            (of.encode_key(connector, about), None if value is None else of.encode_value(value))
            for about, value in values.items()
        ]
        await self._writer.write(
            OutRecord(self._settings.topic, key, value, of.partition_key) for key, value in sorted(records)
        )


async def read_records(cluster: Cluster, settings: RecordSettings, of: RecordKind[K, V]) -> dict[K, V]:
    """Return the connector's records of one kind. Errors are those of :func:`read_all_records`."""
    found = await read_all_records(cluster, settings.topic, of)
    return {about: value for (connector, about), value in found.items() if connector == settings.connector}


async def read_all_records(cluster: Cluster, topic: str, of: RecordKind[K, V]) -> dict[tuple[str, K], V]:
    """Return all connectors' records of one kind, by connector and what they are about; none if there is no topic.
    Raises RetriableError if the cluster does not answer in time, SecurityError if READ or DESCRIBE on the topic is
    missing, and LaterFormat if a later version wrote a record of this kind."""
    found: dict[tuple[str, K], V] = {}
    if await known_topic(cluster, topic) is None:
        return found

    def fold(record: compacted_topic.LogRecord) -> None:
        if decode_kind(record.key) is not of.kind:
            return
        assert record.key is not None
        about = of.decode_key(record.key)
        if record.value is None:
            found.pop(about, None)
        else:
            found[about] = of.decode_value(record.value)

    partitions = await compacted_topic.partition_count(cluster, topic)
    place = partition_of(of.partition_key, partitions)
    await compacted_topic.read_to_end(cluster, topic, fold, partitions={place}, only_last=True)
    return found


_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_BOOLEAN: Final = struct.Struct(">?")
_LONGEST_REASON: Final = 4_000


@dataclass(frozen=True, slots=True)
class PartitionState:
    """``state`` and ``reason`` as in ``PartitionView``, with ``gap`` if a log has changed; ``since_ms`` is when it was
    recorded, since 1970."""

    state: str
    reason: str
    target_topic: str
    since_ms: int
    gap: Gap | None = None

    def is_as(self, other: PartitionState | None) -> bool:
        """Whether both are the same, apart from when they were recorded."""
        mine = (self.state, self.reason, self.target_topic, self.gap)
        return other is not None and mine == (other.state, other.reason, other.target_topic, other.gap)

    def to_json(self) -> dict[str, Any]:
        gap = None
        if self.gap is not None:
            gap = {**self.gap.to_wire(), "kind": self.gap.kind.label, "lost_offsets": self.gap.lost_offsets}
        return {"state": self.state, "reason": self.reason, "since_ms": self.since_ms, "gap": gap}


def _pack_state(state: PartitionState) -> bytes:
    gap = b"" if state.gap is None else pack_gap(state.gap)
    texts = text(state.state) + text(state.reason[:_LONGEST_REASON]) + text(state.target_topic)
    return _INT64.pack(state.since_ms) + texts + bytes((state.gap is not None,)) + gap


def _take_state(reader: Reader) -> PartitionState:
    since_ms = reader.fixed(_INT64)[0]
    state, reason, target_topic = reader.text(), reader.text(), reader.text()
    gap = unpack_gap(reader) if reader.fixed(_BOOLEAN)[0] else None
    return PartitionState(state, reason, target_topic, since_ms, gap)


StateRecords = Records[TopicPartition, PartitionState]
#: By source partition.
PARTITION_STATES: Final[RecordKind[TopicPartition, PartitionState]] = RecordKind(
    KeyKind.STATE,
    b"states",
    lambda connector, one: text(connector) + text(one.topic) + _INT32.pack(one.partition),
    lambda reader: (reader.text(), TopicPartition(reader.text(), reader.int32())),
    _pack_state,
    _take_state,
)


async def read_states(cluster: Cluster, settings: RecordSettings) -> dict[TopicPartition, PartitionState]:
    """Read the states, by source partition. Errors are those of :func:`read_all_records`."""
    return await read_records(cluster, settings, PARTITION_STATES)


async def read_stored_offsets(store: Cluster, *topics: str) -> status_and_offset_topics.SourceOffsets:
    """Read those of ``topics`` that exist; a later one takes precedence. Raises NotAuthorized if DESCRIBE on one is
    missing, and what :func:`connect.kafka.log.compacted_topic.read_to_end` raises."""
    state = status_and_offset_topics.SourceOffsets()

    def fold(newest: compacted_topic.NewestByKey, record: compacted_topic.LogRecord) -> None:
        if newest.counts(record):
            status_and_offset_topics.apply(state, record.key, record.value)

    for topic in topics:
        of_topic = partial(fold, compacted_topic.NewestByKey())
        await compacted_topic.read_if_exists(store, topic, of_topic, read_committed=True, only_last=True)
    return state


async def read_copied(
    store: Cluster, settings: MirrorSourceSettings, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offset of the last record that a flow copied, for those of ``partitions`` that have one: by our
    position, which is newer than Java's record unless that was altered since. The flow may store both between the two
    reads, so an alteration counts only if a second read finds both unchanged. Errors as above."""
    before: dict[TopicPartition, tuple[Position, int | None]] = {}
    while True:
        offsets = await read_stored_offsets(store, *settings.offsets_topics)
        positions = await read_stored_positions(store, settings.map_topic, settings.name)
        copied: dict[TopicPartition, int] = {}
        altered: dict[TopicPartition, tuple[Position, int | None]] = {}
        async for one in in_turns(partitions):
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
    """Return our positions of a connector, by source partition; none if ``topic`` does not exist. Errors as above."""
    stored = await read_stored_positions(store, topic, connector)
    return {partition: one.position for partition, one in stored.items()}


async def read_stored_positions(store: Cluster, topic: str, connector: str) -> dict[TopicPartition, StoredPosition]:
    """Return the same with what shows whether Java's offsets were altered since."""
    found = await _read_positions(store, topic, lambda one: one == connector)
    return {partition: one for (_, partition), one in found.items()}


async def read_all_positions(store: Cluster, topic: str) -> dict[tuple[str, TopicPartition], Position]:
    """Return the positions of all connectors, by connector and source partition."""
    found = await _read_positions(store, topic, lambda _: True)
    return {of: one.position for of, one in found.items()}


async def _read_positions(
    store: Cluster, topic: str, wanted: Callable[[str], bool]
) -> dict[tuple[str, TopicPartition], StoredPosition]:
    found: dict[tuple[str, TopicPartition], StoredPosition] = {}
    places: dict[TopicPartition, int] = {}
    #: What was found outside of its partition, because partitions were added since.
    elsewhere: set[tuple[str, TopicPartition]] = set()
    known = await known_topic(store, topic)
    if known is None:
        return found

    def fold(record: compacted_topic.LogRecord) -> None:
        kind = decode_kind(record.key)
        if kind not in (KeyKind.POSITION, KeyKind.PROGRESS):
            return
        assert record.key is not None
        key = decode_position_key(record.key)
        if not wanted(key.connector):
            return
        of = key.connector, key.source
        if of[1] not in places:
            places[of[1]] = partition_of(map_partition_key(*of[1]), len(known.partitions))
        if record.partition == places[of[1]]:
            elsewhere.discard(of)
        elif of in found and of not in elsewhere:
            return
        else:
            elsewhere.add(of)
        stored = fold_position(found.get(of), kind, key, record.value, record.headers)
        found.pop(of, None)
        if stored is not None:
            found[of] = stored

    await compacted_topic.read_to_end(store, topic, fold, read_committed=True, only_last=True)
    return found


async def read_statuses(cluster: Cluster, topic: str) -> status_and_offset_topics.StatusLog:
    """Return the statuses of connectors and tasks; none if there is no such topic. Errors are those of
    ``read_to_end``."""
    statuses = status_and_offset_topics.StatusLog()

    def fold(record: compacted_topic.LogRecord) -> None:
        statuses.apply(None if record.key is None else record.key.decode(errors="replace"), record.value)

    await compacted_topic.read_if_exists(cluster, topic, fold, only_last=True)
    return statuses


async def read_target_state(cluster: Cluster, topic: str, connector: str) -> TargetState:
    """Return the target state; STARTED if there is no such topic. Errors are those of ``read_to_end``."""
    configs = ConfigLog()

    def fold(record: compacted_topic.LogRecord) -> None:
        configs.apply(record.offset, None if record.key is None else record.key.decode(errors="replace"), record.value)

    await compacted_topic.read_if_exists(cluster, topic, fold, partitions=[0])
    return configs.target_state(connector)
