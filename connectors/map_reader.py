"""Reads the offset map of a flow: translates offsets both ways, with bounded memory, while the map grows.

The map topic is read once from its beginning, and then what is added. Of each chunk only its beginning is kept; its
runs are fetched when an offset falls into it. For checkpoints, failover, failback and people.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from connect.core.errors import PermanentError, RetriableError, UnreadableRecord
from connect.kafka.clock import wall_ms
from connect.kafka.cluster import Cluster, NotAuthorized, TopicMetadata
from connect.kafka.known_topic import known_topic
from connect.kafka.offsets import LATEST, list_offsets
from connect.kafka.producer import partition_of
from connect.kafka.topiclog import LogRecord, read_to_end
from connect.kafka.unreadable import pass_over
from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import codes, reading
from connectors.dataplane.plan import TopicPartition
from connectors.map_index import ChunkCache, ChunkPlace, KeptValues, Load, PairIndex, cut_chunk
from connectors.offset_map import (
    ChunkKey,
    Pair,
    RunList,
    Translation,
    decode_chunk_key,
    encode_chunk_key,
    first_downstream,
    map_partition_key,
)
from connectors.positions import Kind, Position, StoredPosition, decode_kind, decode_position_key, fold_position

log = logging.getLogger(__name__)

#: One batch comes whatever its size (KIP-74).
_ONE_BATCH: Final = reading.FetchLimits(0, 0, 1, 1, reading.READ_UNCOMMITTED)
_TRIES: Final = 3
#: After so long without a look the map is read from its beginning: tombstones are kept for an hour (``CLEANED_SOON``).
_TOMBSTONES_MS: Final = 30 * 60_000
_LookUp = Callable[[PairIndex, int, Load], Awaitable[Translation | None]]


@dataclass(frozen=True, slots=True)
class MapLimits:
    """Of memory: about 200 bytes a run. A chunk takes 24 bytes, and its writer bounds how many a pair has.

    Args:
        max_kept_bytes: Of values of short chunks that are kept as they are read: whoever looks up most partitions of a
            flow saves a fetch for each.
    """

    max_cached_runs: int = 100_000
    max_kept_bytes: int = 0


class MapReader:
    """See the module. Of several pairs of a source partition each has a map of its own: its topics were made anew, or
    it was sent elsewhere.

    Args:
        cluster: The target, or wherever the flow stores.
        topic: ``mm2-offset-map.<source>.internal``.
        connector: Whose positions count; None: of several connectors that copy a partition, the last one's.
        partitions: Source partitions to know of; None for all.
        must_be_seen: False: a topic that DESCRIBE is missing for counts as empty, and ``unseen`` says why.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        connector: str | None = "MirrorSourceConnector",
        partitions: Collection[TopicPartition] | None = None,
        must_be_seen: bool = True,
        limits: MapLimits | None = None,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._connector = connector
        self._wanted = None if partitions is None else frozenset(partitions)
        self._must_be_seen = must_be_seen
        self._limits = limits or MapLimits()
        self._topic_id: UUID | None = None
        self.unseen = ""
        #: When a position was stored last, in milliseconds since 1970; -1 if none was.
        self.stored_ms = -1
        self._cache = ChunkCache(self._limits.max_cached_runs)
        self._kept = KeptValues(self._limits.max_kept_bytes)
        self._followed_ms = 0
        #: For those who share a reader: what one follows would change the index in which another looks up.
        self.in_use = asyncio.Lock()
        #: Whether the last :meth:`follow` has ended: half of a map has holes that the map itself does not have.
        self.is_whole = False
        self._forget()

    def _forget(self) -> None:
        self._partition_count = 0
        self._next: dict[int, int] = {}  # by partition of the map topic
        self._pairs: dict[Pair, PairIndex] = {}
        self._by_source: dict[TopicPartition, set[Pair]] = {}
        self._by_target: dict[TopicPartition, set[Pair]] = {}
        self._positions: dict[TopicPartition, dict[str, StoredPosition]] = {}  # by connector, the last one's last
        self._cache.clear()
        self._kept.clear()

    # -- what is known ----------------------------------------------------------------------------

    def pairs(self, source: TopicPartition) -> list[Pair]:
        """All that have a map, in no particular order; :meth:`current` is the one that is copied to now."""
        return list(self._by_source.get(source, ()))

    def pairs_to(self, target: TopicPartition) -> list[Pair]:
        """The same by target partition: of several flows' or topics' records in one topic, there may be many."""
        return list(self._by_target.get(target, ()))

    def current(self, source: TopicPartition) -> Pair | None:
        """Where a source partition is copied to now; None where nothing is stored of it."""
        position = self.position(source)
        return None if position is None else Pair.of(position)

    def position(self, source: TopicPartition) -> Position | None:
        """How far it is copied, as the map knows."""
        return next(reversed(self._positions[source].values())).position if source in self._positions else None

    def positions(self, source: TopicPartition) -> list[Position]:
        """The same for each target topic that it is copied to: several where connectors share its records out."""
        stored = [one.position for one in self._positions.get(source, {}).values()]
        return list({position.target_topic: position for position in stored}.values())

    def sources(self) -> list[TopicPartition]:
        """Every source partition that a position or a map is stored of, in order."""
        mapped = {source_of(pair) for pair in self._pairs}
        return sorted(mapped | self._positions.keys())

    def chunks(self, pair: Pair) -> list[ChunkPlace]:
        """Where its chunks begin, ascending."""
        index = self._pairs.get(pair, PairIndex())
        return [index.place(at) for at in range(len(index))]

    # -- looking up -------------------------------------------------------------------------------

    async def forward(self, pair: Pair, upstream: int) -> Translation | None:
        """Where in the target a reader goes on who would read ``upstream`` next; None where there is no map.

        What is BELOW the map or BEYOND it is for the caller to judge. Errors as :meth:`follow`.
        """
        return await self._look_up(pair, upstream, PairIndex.forward)

    async def reverse(self, pair: Pair, downstream: int) -> Translation | None:
        """Where in the source a reader goes on who would read ``downstream`` next; as :meth:`forward`."""
        return await self._look_up(pair, downstream, PairIndex.reverse)

    async def runs(self, pair: Pair, chunk: ChunkPlace) -> RunList:
        """What a chunk of :meth:`chunks` holds. Raises ChunkRewritten where the map has changed since."""
        known = self._cache.get(pair, chunk)
        if known is None:
            key = encode_chunk_key(ChunkKey(pair, chunk.begin[0]))
            index = self._partition_of(pair)
            value = self._kept.get(key, chunk.offset) or await self._value(index, chunk.offset, key)
            try:
                known = cut_chunk(chunk, value)
            except UnreadableRecord as error:
                pass_over(f"cluster {self._cluster.name}: topic {self._topic}", index, chunk.offset, str(error))
                known = RunList()
            self._cache.put(pair, chunk, known)
        if chunk.limit is None:
            for stored in self._positions.get(source_of(pair), {}).values():
                if stored.last_run is not None and Pair.of(stored.position) == pair:
                    known.lengthen(stored.last_run)
        return known

    async def _look_up(self, pair: Pair, offset: int, look_up: _LookUp) -> Translation | None:
        for tried in range(_TRIES):
            index = self._pairs.get(pair)
            if index is None:
                return None

            async def load(at: int, index: PairIndex = index) -> RunList:
                return await self.runs(pair, index.place(at))

            try:
                return await look_up(index, offset, load)
            except ChunkRewritten:
                if tried:  # a reader that slept longer than tombstones are kept has missed one
                    self._forget()
                await self.follow()
        raise RetriableError(f"cluster {self._cluster.name}: {self._topic} changes faster than it can be read")

    # -- following --------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Read what has been added, all at first. A topic that is missing is an empty map.

        Raises:
            RetriableError: the cluster does not answer, or not in time.
            SecurityError: READ or DESCRIBE on the topic is missing.
            LaterFormat: a later version wrote into the topic.
        """
        self.is_whole = False
        began_ms = wall_ms()
        if began_ms - self._followed_ms > _TOMBSTONES_MS:
            self._forget()
        known = await self._known()
        if known is None:
            self._forget()
            self.is_whole = True
            return
        if known.topic_id != self._topic_id or len(known.partitions) != self._partition_count:
            self._forget()
            self._topic_id, self._partition_count = known.topic_id, len(known.partitions)
        elif await self._is_cut():
            log.warning("%s was truncated; read again from its beginning", self._topic)
            self._forget()
            self._partition_count = len(known.partitions)
        partitions = None if self._wanted is None else {self._place_of(*one) for one in self._wanted}
        await read_to_end(
            self._cluster,
            self._topic,
            self._fold,
            partitions=partitions,
            after=self._next,
            read_committed=True,
            only_last=True,
        )
        self.is_whole = True
        self._followed_ms = began_ms

    async def _known(self) -> TopicMetadata | None:
        self.unseen = ""
        try:
            return await known_topic(self._cluster, self._topic)
        except NotAuthorized as error:
            if self._must_be_seen:
                raise
            self.unseen = str(error)
            return None

    async def _is_cut(self) -> bool:
        ends = await list_offsets(self._cluster, [(self._topic, index) for index in self._next], LATEST)
        return any(ends[self._topic, index] < following for index, following in self._next.items())

    def _fold(self, record: LogRecord) -> None:
        self._fold_kind(decode_kind(record.key), record)
        # One of a later version is met again, and not passed over.
        self._next[record.partition] = record.offset + 1

    def _fold_kind(self, kind: Kind | None, record: LogRecord) -> None:
        if kind in (Kind.POSITION, Kind.PROGRESS):
            assert record.key is not None, "it has a kind"
            key = decode_position_key(record.key)
            source = TopicPartition(key.source_topic, key.source_partition)
            if self._connector not in (None, key.connector) or not self._wants(source):
                return
            self.stored_ms = max(self.stored_ms, record.timestamp_ms)
            before = self._positions.get(source, {}).get(key.connector)
            stored = fold_position(before, kind, key, record.value, record.headers)
            known = self._positions.setdefault(source, {})
            known.pop(key.connector, None)
            if stored is not None:
                known[key.connector] = stored
            elif not known:
                del self._positions[source]
        elif kind is Kind.CHUNK:
            assert record.key is not None, "it has a kind"
            pair, upstream = decode_chunk_key(record.key)
            if self._wants(source_of(pair)):
                self._kept.put(record.key, record.offset, record.value)
                self._fold_chunk(pair, upstream, record)

    def _fold_chunk(self, pair: Pair, upstream: int, record: LogRecord) -> None:
        index = self._pairs.get(pair)
        if index is None:
            if record.value is None:
                return
            index = self._pairs[pair] = PairIndex()
            self._by_source.setdefault(source_of(pair), set()).add(pair)
            self._by_target.setdefault(target_of(pair), set()).add(pair)
        if record.value is None:
            index.drop(upstream)
            if not len(index):
                del self._pairs[pair]
                self._by_source[source_of(pair)].discard(pair)
                self._by_target[target_of(pair)].discard(pair)
        else:
            index.put(upstream, first_downstream(record.value), record.offset)

    def _wants(self, source: TopicPartition) -> bool:
        return self._wanted is None or source in self._wanted

    def _partition_of(self, pair: Pair) -> int:
        return self._place_of(pair.source_topic, pair.source_partition)

    def _place_of(self, topic: str, partition: int) -> int:
        return partition_of(map_partition_key(topic, partition), self._partition_count)

    async def _value(self, partition: int, offset: int, key: bytes) -> bytes:
        """Of one record. Raises ChunkRewritten where the topic's cleaner took it, as a newer one is there."""
        leader = (await self._cluster.metadata({self._topic})).leader(self._topic, partition)
        if leader is None:
            raise RetriableError(f"cluster {self._cluster.name}: {self._topic}-{partition} has no leader now")
        connection = await self._cluster.connection(leader)
        topic = reading.TopicOnWire(self._topic, self._topic_id)
        row = await reading.fetch_one(connection, topic, partition, (offset, -1, -1), _ONE_BATCH)
        if row.error_code:
            if row.error_code == codes.OFFSET_OUT_OF_RANGE:
                raise ChunkRewritten
            where = f"cluster {self._cluster.name}: {self._topic}-{partition}"
            raise RetriableError(f"{where} cannot be read: {codes.name(row.error_code)}")
        for start, size, magic in wire.extents(row.records):
            batch = row.records[start : start + size]
            if wire.read_header(batch).crc != wire.checksum(batch):
                raise PermanentError(f"cluster {self._cluster.name}: a batch of {self._topic}-{partition} is damaged")
            for record in records.decode(batch, magic):
                if record.offset == offset and record.key == key and record.value is not None:
                    return record.value
        raise ChunkRewritten


def source_of(pair: Pair) -> TopicPartition:
    """The partition that a pair's records are copied from."""
    return TopicPartition(pair.source_topic, pair.source_partition)


def target_of(pair: Pair) -> TopicPartition:
    """The partition that they are copied to."""
    return TopicPartition(pair.target_topic, pair.target_partition)


class ChunkRewritten(RetriableError):
    """A chunk's record is gone, for a newer one has taken its place: follow the map, and look again."""

    def __init__(self) -> None:
        super().__init__("a chunk of the offset map has been written again")
