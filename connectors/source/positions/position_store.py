"""Keep source offsets, positions and the offset map in two compacted topics of the target cluster.

A full commit writes Java's offset record, a full position and the map in one transaction, so it is stored as a whole or
not at all. A Java worker can continue from Java's record, and operators can alter it: if it is not the one that was
written with the last full position, it was altered since and takes precedence.

Between two full commits only progress records are written (see :mod:`connectors.formats.position`), without a
transaction unless a chunk of the map changed too. They need no fence, because records of a superseded writer do not
count.

Without ACLs on the transactional id, records are written without transactions: first Java's records, with a header,
then the map, then positions. If such a record disagrees with its position, a commit was interrupted between the two,
and the position takes precedence. The same holds if the target has ended a transaction in one topic and left it open in
the other.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from connect.core import status_and_offset_topics
from connect.core.errors import UnreadableRecord
from connect.core.model import CLEANED_SOON, NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic, partition_count, read_to_end
from connect.kafka.log.producer import OutRecord, PlainWriter, TransactionalWriter, partition_of
from connect.kafka.log.shared_transactions import SharedTransactions
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import TransactionalIdRefused
from connectors.formats.gap import GapRecord, encode_gap
from connectors.formats.position import (
    KeyKind,
    Position,
    PositionKey,
    StoredPosition,
    can_follow,
    decode_kind,
    decode_position_key,
    encode_claimant_header,
    encode_position,
    encode_position_key,
    encode_progress,
    encode_run_header,
    fold_position,
    map_partition_key,
)
from connectors.formats.types import TopicPartition
from connectors.internal_topics import correct_settings
from connectors.offset_map.runs_and_chunks import ChunkKey, MapPair, MapRun, MapWriter, encode_chunk_key
from connectors.source.positions import stored_positions

log = logging.getLogger(__name__)

#: Kafka Connect's default for ``offset.storage.partitions``.
DEFAULT_PARTITIONS: Final = 25


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where a flow keeps its positions. ``transactional_id`` is the store's own, one per task; a store that opens with
    it fences the previous one. ``read_topics``: the worker's offset topic, if ``offsets_topic`` is another one, and
    ``offsets_topic``, which takes precedence; the first has the offsets of a flow that got its own topic later
    (``ConnectorOffsetBackingStore``)."""

    connector: str
    source_alias: str
    offsets_topic: str
    map_topic: str
    transactional_id: str
    replication_factor: int = 3
    partitions: int = DEFAULT_PARTITIONS
    max_runs_per_chunk: int | None = None
    read_topics: tuple[str, ...] = ()


class MirrorPositionStore:
    """A ``PositionStore`` in two compacted topics of the target cluster; see the module."""

    def __init__(
        self,
        cluster: Cluster,
        admin: Admin,
        settings: StoreSettings,
        missing_rights: stored_positions.MissingRights | None = None,
        shared: SharedTransactions | None = None,
    ) -> None:
        """``shared``: writes into the records' own transactions, under exactly-once; else the store has its own."""
        self._cluster, self._admin, self._settings = cluster, admin, settings
        self._read_topics = settings.read_topics or (settings.offsets_topic,)
        self._missing_rights = missing_rights or stored_positions.MissingRights()
        self._shared = shared
        self._own = TransactionalWriter(cluster, settings.transactional_id)
        self._writer = shared or self._own
        self._plain: PlainWriter | None = None  # once the transactional id was refused
        self._predecessors = stored_positions.Predecessors(
            cluster, settings.transactional_id, self._missing_rights, is_atomic=shared is not None
        )
        self._unowned = stored_positions.Unowned(cluster, settings.map_topic, settings.connector)
        self._progress = PlainWriter(cluster)
        self._full: dict[TopicPartition, Position] = {}  # the last full positions that were written here
        self._stored = stored_positions.StoredRecords()
        self._maps: dict[MapPair, MapWriter] = {}
        self._committed: set[MapPair] = set()
        self._obsolete: list[ChunkKey] = []  # chunks of topics that were recreated since

    async def load(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, stored_positions.Start]:
        settings = self._settings
        wanted = set(partitions)
        for topic in (settings.offsets_topic, settings.map_topic):
            wanted_topic = NewTopic(topic, settings.partitions, settings.replication_factor, CLEANED_SOON)
            await ensure_compacted_topic(self._admin, wanted_topic)
        # A source offsets topic that a Connect group shares with other connectors belongs to the group.
        is_own = settings.offsets_topic.startswith("mm2-offsets.")
        await correct_settings(self._cluster, [settings.map_topic, *([settings.offsets_topic] if is_own else [])])
        await self._open()  # before reading, so that earlier writers cannot change what is read
        torn = await self._end_left_open(wanted) if self._plain is None else set()
        self._stored, starts = await self._read(wanted, torn)
        self._maps, self._full = {}, {}
        self._committed.clear()
        # Chunks that a failed commit has not deleted are found again.
        self._obsolete = []
        return starts

    async def load_more(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, stored_positions.Start]:
        wanted = set(partitions)
        read, starts = await self._read(wanted)
        # Forget what was known of these partitions, because other tasks have written since.
        for pair in [pair for pair in self._maps if pair.source in wanted]:
            del self._maps[pair]
            self._committed.discard(pair)
        for partition in wanted:
            self._full.pop(partition, None)
        self._stored.renew(wanted, read)
        return starts

    async def _read(
        self, wanted: set[TopicPartition], torn: Collection[bytes] = ()
    ) -> tuple[stored_positions.StoredRecords, dict[TopicPartition, stored_positions.Start]]:
        """Read both topics. Another task may store a partition between the two reads, so Java's record counts as
        altered only if a second read finds it with the same position."""
        before: dict[TopicPartition, tuple[Position, int | None]] = {}
        while True:
            offsets, plain = await stored_positions.read_offsets(self._cluster, *self._read_topics)
            read = await self._read_map(wanted)
            # Java has copied these, or partitions were added to the topic since they were stored,
            missing = wanted - read.positions.keys()
            lost = {one async for one in in_turns(missing) if self._java_offset(offsets, one) is not None}
            # or since the chunk was stored whose last run these lengthen.
            grown = {one: stored async for one, stored in in_turns(read.positions.items()) if read.lacks_run(stored)}
            if lost or grown:
                found = await self._read_map(lost | grown.keys(), anywhere=True)
                found.positions |= grown
                read.renew(lost | grown.keys(), found)
            ours = plain.union(torn)
            starts = {one: self._start(one, read.positions.get(one), offsets, ours) async for one in in_turns(wanted)}
            moved = {
                one: (read.positions[one].full, start.committed_source_offset)
                for one, start in starts.items()
                if start.moved
            }
            if moved.items() <= before.items():
                self._unowned.read(starts, read.read_to)
                return read, starts
            before = moved

    async def fence_predecessors(
        self, starts: Mapping[TopicPartition, stored_positions.Start]
    ) -> Mapping[TopicPartition, stored_positions.Start]:
        return await self._predecessors.fence_predecessors(starts, self.load_more, self._claim)

    async def _claim(self, writer: TransactionalWriter, sources: Collection[TopicPartition]) -> None:
        """Add our id as claimant to the positions of ``sources``, under the id of their writer's store."""
        claimant, records = encode_claimant_header(self._settings.transactional_id), list[OutRecord]()
        for source in sources:
            stored = self._stored.positions[source]
            headers = (claimant, *([encode_run_header(stored.last_run)] if stored.last_run else []))
            records.append(self._record(source, self._key(source), encode_position(stored.full), headers))
            if stored.position != stored.full:
                progress = encode_progress(stored.position, stored.last_run)
                records.append(self._record(source, self._key(source, KeyKind.PROGRESS), progress))
        await writer.write(records)

    async def commit(self, commits: Sequence[stored_positions.Commit]) -> None:
        maps: dict[MapPair, MapWriter] = {}
        incomplete: set[MapPair] = set()
        full: list[Position] = []
        following: list[Position] = []
        async for commit in in_turns(commits):
            pair = self._put_into_maps(commit, maps)
            if commit.scope < stored_positions.CommitScope.ALL:
                incomplete.add(pair)
            known = self._full.get(commit.position.source)
            is_small = commit.scope <= stored_positions.CommitScope.PROGRESS
            can_be_small = is_small and known is not None and can_follow(commit.position, known)
            (following if can_be_small else full).append(commit.position)
        complete = maps.keys() - incomplete
        records: list[OutRecord] = []
        async for pair, writer in in_turns(maps.items()):
            changes = writer.changes(complete=pair in complete)
            records += [self._record(pair.source, key, value) for key, value in changes]
        records += [self._record(key.pair.source, encode_chunk_key(key), None) for key in self._obsolete]
        records += [self._gap_record(one.position, one.passing) for one in commits if one.passing is not None]
        progress = [self._progress_record(one) async for one in in_turns(following)]
        positions: dict[TopicPartition, Position] = {}
        if records or full:
            offsets: list[OutRecord] = []
            async for position in in_turns(full):
                positions[position.source] = position
                records.append(self._position_record(position, is_complete=MapPair.of(position) in complete))
                offsets += self._offset_records(position)
            await self._write([*records, *progress], offsets, positions)
        else:
            await self._progress.write(progress)
        self._obsolete.clear()
        async for pair, writer in in_turns(maps.items()):
            writer.written(complete=pair in complete)
        async for source, position in in_turns(positions.items()):
            self._full[source] = position
            self._unowned.owned([source])

    def _put_into_maps(self, commit: stored_positions.Commit, maps: dict[MapPair, MapWriter]) -> MapPair:
        """Update the map of a commit's pair, and add it to ``maps``; return the pair."""
        pair = MapPair.of(commit.position)
        self._outdate_predecessors(pair)
        writer = maps[pair] = self._map_of(pair)
        passing = commit.passing
        if passing is not None and passing.target_truncated_to is not None:
            writer.cut(passing.target_truncated_to)
        if passing is not None and passing.source_truncated_to is not None:
            writer.cut_source(passing.source_truncated_to)
        for run in commit.runs:
            writer.append(MapRun(*run))
        if commit.target_log_start is not None:
            writer.trim(commit.target_log_start, is_compacted=commit.is_target_compacted)
        if (previous := self._left_pair(pair)) is not None:
            maps.setdefault(previous, self._map_of(previous))
        return pair

    def runs_of(self, position: Position) -> list[MapRun]:
        return self._map_of(MapPair.of(position)).open_runs()

    async def _open(self) -> None:
        self._plain = None
        try:
            await self._writer.open()
        except TransactionalIdRefused as error:
            if self._shared is not None:
                raise
            self._write_plainly(error)

    async def _end_left_open(self, wanted: Collection[TopicPartition]) -> set[bytes]:
        """Abort transactions that were left open, because they would block reads. Return the keys of Java's records
        that may have been committed without their positions or vice versa; no keys under exactly-once, where Java's
        record counts, because an older position would copy the transaction's records again."""
        settings = self._settings
        offsets = await partition_count(self._cluster, settings.offsets_topic)
        maps = await partition_count(self._cluster, settings.map_topic)
        of_map: dict[TopicPartition, tuple[str, int]] = {}
        keys: dict[TopicPartition, bytes] = {}
        of_java: dict[TopicPartition, tuple[str, int]] = {}
        async for one in in_turns(wanted):
            of_map[one] = (settings.map_topic, partition_of(map_partition_key(*one), maps))
            keys[one] = self._java_key(*one)
            of_java[one] = (settings.offsets_topic, partition_of(keys[one], offsets))
        left = await self._writer.end_left_open(
            [*((settings.offsets_topic, index) for index in range(offsets)), *set(of_map.values())]
        )
        if self._shared is not None:
            return set()
        return {key for one, key in keys.items() if of_map[one] in left or of_java[one] in left}

    async def _write(
        self, mapped: list[OutRecord], offsets: list[OutRecord], positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Write records of both topics; ``positions``: the full positions in ``mapped``."""
        if self._plain is None:
            check = partial(self._unowned.may_commit, positions) if self._unowned.concern(positions) else None
            try:
                if self._shared is not None:
                    await self._shared.write([*mapped, *offsets])
                elif not await self._own.write([*mapped, *offsets], check):
                    raise stored_positions.PositionsTaken(self._unowned.taken)
                return
            except TransactionalIdRefused as error:  # the ACL was removed since
                if self._shared is not None:
                    raise
                plain = self._write_plainly(error)
        else:
            plain = self._plain
        # In this order, because all records are acknowledged, so Java may continue at its offset at once, while a
        # position without Java's marked record would count as altered. A position is never ahead of the map.
        await plain.write([record._replace(headers=(stored_positions.WRITTEN_PLAINLY,)) for record in offsets])
        await plain.write(mapped)

    def _write_plainly(self, error: TransactionalIdRefused) -> PlainWriter:
        self._missing_rights.announce(error)
        self._plain = PlainWriter(self._cluster)
        return self._plain

    async def _read_map(self, wanted: set[TopicPartition], *, anywhere: bool = False) -> stored_positions.StoredRecords:
        """Read the records of ``wanted``; ``anywhere``: in whatever partitions they are."""
        stored, settings = stored_positions.StoredRecords(), self._settings
        partitions = await partition_count(self._cluster, settings.map_topic)
        places = {one: partition_of(map_partition_key(*one), partitions) async for one in in_turns(wanted)}

        def is_wanted(source: TopicPartition, partition: int) -> bool:
            return source in wanted if anywhere else places.get(source) == partition

        def fold(record: LogRecord) -> None:
            kind = decode_kind(record.key)
            if kind in (KeyKind.POSITION, KeyKind.PROGRESS):
                self._fold_position(stored, is_wanted, kind, record)
            elif kind is KeyKind.CHUNK:
                stored_positions.fold_chunk(stored, is_wanted, record)

        ends = await read_to_end(
            self._cluster,
            settings.map_topic,
            fold,
            partitions=None if anywhere else set(places.values()),
            read_committed=True,
            only_last=True,
        )
        stored.read_to = {one: stored_positions.ReadTo(index, ends.get(index, 0)) for one, index in places.items()}
        return stored

    def _fold_position(
        self,
        stored: stored_positions.StoredRecords,
        is_wanted: stored_positions.IsWanted,
        kind: KeyKind,
        record: LogRecord,
    ) -> None:
        assert record.key is not None
        key = decode_position_key(record.key)
        partition = key.source
        if key.connector != self._settings.connector or not is_wanted(partition, record.partition):
            return
        found = fold_position(stored.positions.get(partition), kind, key, record.value, record.headers)
        stored.positions.pop(partition, None)
        if found is not None:
            stored.positions[partition] = found

    def _start(
        self,
        partition: TopicPartition,
        position: StoredPosition | None,
        offsets: status_and_offset_topics.SourceOffsets,
        plain: Collection[bytes],
    ) -> stored_positions.Start:
        committed = self._java_offset(offsets, partition)
        return stored_positions.start_of(position, committed, plainly=self._java_key(*partition) in plain)

    def _java_offset(self, offsets: status_and_offset_topics.SourceOffsets, source: TopicPartition) -> int | None:
        return offsets.mirrored_offset(self._settings.connector, self._settings.source_alias, *source)

    def _java_key(self, topic: str, partition: int) -> bytes:
        return status_and_offset_topics.mirror_key(
            self._settings.connector, self._settings.source_alias, topic, partition
        )

    def _offset_records(self, position: Position) -> list[OutRecord]:
        key, settings = self._java_key(position.source_topic, position.source_partition), self._settings
        last = position.next_source_offset - 1
        if last >= 0:
            return [OutRecord(settings.offsets_topic, key, status_and_offset_topics.mirror_value(last))]
        # Tombstones if nothing was copied yet, because Java has no offset -1; without one in the worker's topic, reads
        # would return an older offset from there.
        return [OutRecord(topic, key, None) for topic in self._read_topics]

    def _left_pair(self, pair: MapPair) -> MapPair | None:
        """Return the pair that a source partition was copied to until now, if it is another one, whose map stays."""
        stored = self._stored.positions.get(pair.source)
        full = self._full.get(pair.source, stored.position if stored else None)
        before = MapPair.of(full) if full else pair
        return before if before != pair and (before in self._maps or before in self._stored.chunks) else None

    def _position_record(self, position: Position, *, is_complete: bool) -> OutRecord:
        last_run = None if is_complete else self._map_of(MapPair.of(position)).last_run
        headers = (encode_run_header(last_run),) if last_run else ()
        return self._record(position.source, self._key(position.source), encode_position(position), headers)

    def _progress_record(self, position: Position) -> OutRecord:
        value = encode_progress(position, self._map_of(MapPair.of(position)).last_run)
        return self._record(position.source, self._key(position.source, KeyKind.PROGRESS), value)

    def _key(self, source: TopicPartition, kind: KeyKind = KeyKind.POSITION) -> bytes:
        return encode_position_key(PositionKey(self._settings.connector, *source), kind)

    def _gap_record(self, position: Position, passing: stored_positions.PassedGap) -> OutRecord:
        found = passing.found_ms, passing.gap
        record = GapRecord(self._settings.connector, *position.source, *found, position.target_topic)
        return self._record(position.source, *encode_gap(record))

    def _record(
        self, source: TopicPartition, key: bytes, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> OutRecord:
        return OutRecord(self._settings.map_topic, key, value, map_partition_key(*source), headers)

    def _outdate_predecessors(self, pair: MapPair) -> None:
        """Mark the chunks of recreated topics that ``pair`` replaces for deletion."""
        if pair in self._committed:
            return
        self._committed.add(pair)
        for other in self._stored.predecessors(pair):
            self._committed.discard(other)
            mapped = self._maps.pop(other, None)
            upstreams = self._stored.chunks.pop(other, {}) if mapped is None else mapped.upstreams
            self._obsolete += [ChunkKey(other, upstream) for upstream in upstreams]

    def _map_of(self, pair: MapPair) -> MapWriter:
        writer = self._maps.get(pair)
        if writer is None:
            chunks = self._stored.chunks_of(pair)
            del self._stored.chunks[pair]
            newest = self._stored.newest.pop(pair, None)
            open_chunk = newest[1] if newest and chunks and newest[0] == max(chunks) else None
            load = partial(
                MapWriter.load,
                pair,
                chunks,
                last_run=self._stored.last_run_of(pair),
                max_runs=self._settings.max_runs_per_chunk,
            )
            try:
                writer = load(last_chunk=open_chunk)
            except UnreadableRecord as error:
                topic = self._settings.map_topic
                log.warning("topic %s: the last chunk of %s cannot be read and stays as it is: %s", topic, pair, error)
                writer = load(last_chunk=None)
            self._maps[pair] = writer
        return writer
