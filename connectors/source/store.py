"""Where source offsets, positions and the offset map are kept: on the target cluster, changed together or not at all.

The source offset's own record has Java's bytes, for a Java worker to go on from and for operators to alter; where it
and our position disagree, somebody has moved it since, and it wins.

Without the right to a transactional id the records are written plainly: first Java's records, which bear a header
then, then what the map knows, then positions. Such a record that disagrees with its position is a commit that was
torn between the two, and the position wins.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from connect.core import offsetlog
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.producer import OutRecord, PlainWriter, TransactionalWriter, partition_of
from connect.kafka.topiclog import LogRecord, ensure_compacted_topic, partition_count, read_to_end
from connect.kafka.transactions import TransactionalIdRefused
from connectors.dataplane.plan import TopicPartition
from connectors.offset_map import ChunkKey, MapWriter, Pair, Run, decode_chunk_key, encode_chunk_key, first_downstream
from connectors.positions import (
    Kind,
    Position,
    PositionKey,
    decode_kind,
    decode_position,
    decode_position_key,
    encode_position,
    encode_position_key,
)
from connectors.source.second_line import SecondLine

log = logging.getLogger(__name__)

#: Kafka Connect's default for ``offset.storage.partitions``.
DEFAULT_PARTITIONS: Final = 25
#: On Java's record, where it was not written together with its position in a transaction.
_WRITTEN_PLAINLY: Final = ("heliograph.plain", b"1")


@dataclass(frozen=True, slots=True)
class Start:
    """What is stored of a partition.

    Args:
        committed_source_offset: Offset of the last record copied, in Java's record; None where there is none.
        moved: The position does not belong to that offset: an operator or a Java worker has changed it since.
    """

    position: Position | None
    committed_source_offset: int | None
    moved: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """What to store of a partition.

    Args:
        runs: (upstream, downstream, count) copied since the last commit; storing a run twice does no harm.
        target_truncated_to: The target's log was found to end here, below what had been acknowledged.
        target_log_start: The map below it is let go.
    """

    position: Position
    runs: Sequence[tuple[int, int, int]] = ()
    target_truncated_to: int | None = None
    target_log_start: int | None = None


class PositionStore(Protocol):
    """Keeps positions for the partitions of one task. Errors of every method: RetriableError (the cluster does not
    answer now), Superseded (another process has taken over: stop), SecurityError (rights are missing)."""

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        """Shut earlier writers out of the store, as far as our rights go, then read what it says of source
        partitions."""

    async def commit(self, commits: Sequence[Commit]) -> None:
        """Store, all or nothing as far as our rights go; after an error give the same again."""

    async def close(self) -> None:
        """Let go of what the store holds."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where a flow keeps its positions.

    ``transactional_id`` is the store's own, one per task; whoever opens a store with it shuts the one before out.
    """

    connector: str
    source_alias: str
    offsets_topic: str
    map_topic: str
    transactional_id: str
    replication_factor: int = 3
    partitions: int = DEFAULT_PARTITIONS
    timeout_s: float = 60.0


@dataclass(slots=True)
class _Stored:
    """What the map topic holds of the partitions asked for."""

    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    chunks: dict[Pair, dict[int, int]] = field(default_factory=dict)  # first upstream to first downstream
    newest: dict[Pair, tuple[int, bytes]] = field(default_factory=dict)  # first upstream and value of the last chunk
    names: dict[tuple[str, int, str, int], set[Pair]] = field(default_factory=dict)

    def chunks_of(self, pair: Pair) -> dict[int, int]:
        """The chunks of a pair, found by its names from here on."""
        self.names.setdefault(pair.names(), set()).add(pair)
        return self.chunks.setdefault(pair, {})

    def named(self, pair: Pair) -> list[Pair]:
        """All that have chunks under the names of ``pair``, its own topics or such as are gone."""
        return [other for other in self.names.get(pair.names(), ()) if other in self.chunks]


class MirrorPositionStore:
    """A ``PositionStore`` in two compacted topics of the target cluster; see the module's text."""

    def __init__(
        self, cluster: Cluster, admin: Admin, settings: StoreSettings, second_line: SecondLine | None = None
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._settings = settings
        self._second_line = second_line or SecondLine()
        self._writer = TransactionalWriter(cluster, settings.transactional_id)
        self._plain: PlainWriter | None = None  # once the transactional id was refused
        self._stored = _Stored()
        self._maps: dict[Pair, MapWriter] = {}
        self._obsolete: list[ChunkKey] = []  # of topics that have been made anew since

    async def load(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Start]:
        settings = self._settings
        wanted = set(partitions)
        for topic in (settings.offsets_topic, settings.map_topic):
            await ensure_compacted_topic(
                self._admin,
                topic,
                partitions=settings.partitions,
                replication_factor=settings.replication_factor,
                timeout_s=settings.timeout_s,
            )
        await self._open()  # before reading, so that what is read cannot change behind us
        offsets, torn = await self._read_offsets()
        self._stored = await self._read_map(wanted)
        self._maps = {}
        return {partition: self._start(partition, offsets, torn) for partition in wanted}

    async def commit(self, commits: Sequence[Commit]) -> None:
        records: list[OutRecord] = []
        maps: dict[Pair, MapWriter] = {}
        for commit in commits:
            pair = _pair(commit.position)
            writer = maps[pair] = self._map_of(pair)
            if commit.target_truncated_to is not None:
                writer.cut(commit.target_truncated_to)
            for run in commit.runs:
                writer.append(Run(*run))
            if commit.target_log_start is not None:
                writer.trim(commit.target_log_start)
        for pair, writer in maps.items():
            records += [self._map_record(pair, key, value) for key, value in writer.changes()]
        records += [self._map_record(key.pair, encode_chunk_key(key), None) for key in self._obsolete]
        records += [self._position_record(commit.position) for commit in commits]
        await self._write(records, [self._offset_record(commit.position) for commit in commits])
        self._obsolete.clear()
        for writer in maps.values():
            writer.written()

    async def close(self) -> None:
        """Nothing to let go of: connections are the cluster's, and an open transaction is wound up by the next."""

    async def _open(self) -> None:
        self._plain = None
        try:
            await self._writer.open()
        except TransactionalIdRefused as error:
            self._write_plainly(error)

    async def _write(self, mapped: list[OutRecord], offsets: list[OutRecord]) -> None:
        if self._plain is None:
            try:
                await self._writer.write([*mapped, *offsets])
                return
            except TransactionalIdRefused as error:  # taken from us since
                plain = self._write_plainly(error)
        else:
            plain = self._plain
        # In this order: all of it is acknowledged at the target, so Java may go on behind its offset at once, and a
        # position whose offset is not yet marked as ours would be taken for altered. It is never ahead of the map.
        await plain.write([record._replace(headers=(_WRITTEN_PLAINLY,)) for record in offsets])
        await plain.write(mapped)

    def _write_plainly(self, error: TransactionalIdRefused) -> PlainWriter:
        self._second_line.refused(error)
        self._plain = PlainWriter(self._cluster)
        return self._plain

    async def _read_offsets(self) -> tuple[offsetlog.SourceOffsets, set[bytes]]:
        """The offsets, and the keys of those that were written plainly."""
        topic = self._settings.offsets_topic
        state = offsetlog.SourceOffsets()
        plain: set[bytes] = set()

        def fold(record: LogRecord) -> None:
            passed_over = offsetlog.apply(state, record.key, record.value)
            if passed_over:
                log.warning("%s-%d, offset %d: passed over, %s", topic, record.partition, record.offset, passed_over)
            elif record.key is not None and _WRITTEN_PLAINLY in record.headers:
                plain.add(record.key)
            elif record.key is not None:
                plain.discard(record.key)

        await read_to_end(self._cluster, topic, fold, read_committed=True, timeout_s=self._settings.timeout_s)
        return state, plain

    async def _read_map(self, wanted: set[TopicPartition]) -> _Stored:
        stored = _Stored()

        def fold(record: LogRecord) -> None:
            if decode_kind(record.key) is Kind.POSITION:
                self._fold_position(stored, wanted, record)
            else:
                _fold_chunk(stored, wanted, record)

        settings = self._settings
        partitions = await partition_count(self._cluster, settings.map_topic, timeout_s=settings.timeout_s)
        await read_to_end(
            self._cluster,
            settings.map_topic,
            fold,
            partitions={partition_of(_partition_key(*one), partitions) for one in wanted},
            read_committed=True,
            timeout_s=settings.timeout_s,
        )
        return stored

    def _fold_position(self, stored: _Stored, wanted: set[TopicPartition], record: LogRecord) -> None:
        assert record.key is not None
        key = decode_position_key(record.key)
        partition = TopicPartition(key.source_topic, key.source_partition)
        if key.connector != self._settings.connector or partition not in wanted:
            return
        if record.value is None:
            stored.positions.pop(partition, None)
        else:
            stored.positions[partition] = decode_position(key, record.value)

    def _start(self, partition: TopicPartition, offsets: offsetlog.SourceOffsets, plain: Collection[bytes]) -> Start:
        settings = self._settings
        committed = offsets.mirrored_offset(settings.connector, settings.source_alias, *partition)
        position = self._stored.positions.get(partition)
        if position is not None and self._java_key(*partition) in plain:
            return Start(position, position.next_source_offset - 1 if position.next_source_offset else None, False)
        # Before the first record Java has no offset, where a position says 0.
        stored = -1 if committed is None else committed
        return Start(position, committed, position is not None and position.next_source_offset - 1 != stored)

    def _java_key(self, topic: str, partition: int) -> bytes:
        return offsetlog.mirror_key(self._settings.connector, self._settings.source_alias, topic, partition)

    def _offset_record(self, position: Position) -> OutRecord:
        key = self._java_key(position.source_topic, position.source_partition)
        last = position.next_source_offset - 1
        # Nothing copied yet is the absence of a record: Java knows no offset of -1.
        return OutRecord(self._settings.offsets_topic, key, offsetlog.mirror_value(last) if last >= 0 else None)

    def _position_record(self, position: Position) -> OutRecord:
        topic, partition = position.source_topic, position.source_partition
        key = PositionKey(self._settings.connector, topic, partition)
        return OutRecord(
            self._settings.map_topic,
            encode_position_key(key),
            encode_position(position),
            _partition_key(topic, partition),
        )

    def _map_record(self, pair: Pair, key: bytes, value: bytes | None) -> OutRecord:
        partition_key = _partition_key(pair.source_topic, pair.source_partition)
        return OutRecord(self._settings.map_topic, key, value, partition_key)

    def _map_of(self, pair: Pair) -> MapWriter:
        writer = self._maps.get(pair)
        if writer is None:
            for other in [other for other in self._stored.named(pair) if other.is_predecessor_of(pair)]:
                self._obsolete += [ChunkKey(other, upstream) for upstream in self._stored.chunks.pop(other)]
            chunks = self._stored.chunks.pop(pair, {})
            newest = self._stored.newest.pop(pair, None)
            open_chunk = newest[1] if newest and chunks and newest[0] == max(chunks) else None
            writer = self._maps[pair] = MapWriter.load(pair, chunks, open_chunk)
        return writer


def _pair(position: Position) -> Pair:
    return Pair(
        position.source_topic,
        position.source_topic_id,
        position.source_partition,
        position.target_topic,
        position.target_topic_id,
        position.target_partition,
    )


def _partition_key(source_topic: str, source_partition: int) -> bytes:
    """All that is stored of a source partition shares a partition of the map topic: it keeps its order there, and a
    task reads only where its own partitions lie."""
    return f"{source_topic}-{source_partition}".encode()


def _fold_chunk(stored: _Stored, wanted: set[TopicPartition], record: LogRecord) -> None:
    assert record.key is not None
    pair, upstream = decode_chunk_key(record.key)
    if TopicPartition(pair.source_topic, pair.source_partition) not in wanted:
        return
    chunks = stored.chunks_of(pair)
    if record.value is None:
        chunks.pop(upstream, None)
        return
    chunks[upstream] = first_downstream(record.value)
    newest = stored.newest.get(pair)
    if newest is None or upstream >= newest[0] or newest[0] not in chunks:
        stored.newest[pair] = (upstream, record.value)
