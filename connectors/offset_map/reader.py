"""Read the offset map of a flow: translate offsets both ways, with bounded memory, while the map grows. Only the
beginning of each chunk is kept, 24 bytes for up to 4096 runs. The runs are fetched when an offset falls into the chunk,
and the chunks last used are cached."""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import PermanentError, RetriableError, UnreadableRecord
from connect.kafka.cluster import Cluster, NotAuthorized, TopicMetadata
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.compacted_topic import LogRecord, pass_over, read_to_end
from connect.kafka.log.offsets import LATEST, list_offsets
from connect.kafka.log.producer import partition_of
from connect.kafka.log.topic_admin import known_topic
from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import fetch_api
from connectors.dataplane.batches import error_codes
from connectors.formats.position import (
    KeyKind,
    Position,
    StoredPosition,
    decode_kind,
    decode_position_key,
    fold_position,
    map_partition_key,
)
from connectors.formats.types import TopicPartition
from connectors.offset_map.runs_and_chunks import (
    ChunkKey,
    MapPair,
    MappedOffset,
    MapRun,
    RunList,
    decode_chunk,
    decode_chunk_key,
    encode_chunk_key,
    first_downstream,
)

#: Longest value kept, in bytes, so that a chunk of a thousand runs does not displace many short ones.
_LONGEST_KEPT: Final = 4096
#: Memory that Python takes for a key and a value in addition to their bytes.
_ENTRY_BYTES: Final = 250
#: Loads a chunk's runs by its number in the index, cut at the beginning of the next chunk.
Load = Callable[[int], Awaitable[RunList]]
#: Returns the runs of a chunk on either side of an offset.
_Beside = Callable[[RunList, int], tuple[MapRun | None, MapRun | None]]


class ChunkPlace(NamedTuple):
    """A chunk: where it begins, where the next one begins (None: it is the last), and the offset of its record."""

    begin: tuple[int, int]
    limit: tuple[int, int] | None
    offset: int


class PairIndex:
    """The chunks of one pair, ascending."""

    def __init__(self) -> None:
        self._upstreams = array("q")
        self._downstreams = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._upstreams)

    def __contains__(self, upstream: int) -> bool:
        at = bisect_left(self._upstreams, upstream)
        return at < len(self) and self._upstreams[at] == upstream

    def put(self, upstream: int, downstream: int, offset: int) -> None:
        """Add a chunk, or its newer version, at ``offset`` of the map topic."""
        at = bisect_left(self._upstreams, upstream)
        if at < len(self) and self._upstreams[at] == upstream:
            self._downstreams[at], self._offsets[at] = downstream, offset
            return
        for column, value in ((self._upstreams, upstream), (self._downstreams, downstream), (self._offsets, offset)):
            column.insert(at, value)

    def drop(self, upstream: int) -> None:
        at = bisect_left(self._upstreams, upstream)
        if at < len(self) and self._upstreams[at] == upstream:
            for column in (self._upstreams, self._downstreams, self._offsets):
                del column[at]

    def place(self, at: int) -> ChunkPlace:
        limit = (self._upstreams[at + 1], self._downstreams[at + 1]) if at + 1 < len(self) else None
        return ChunkPlace((self._upstreams[at], self._downstreams[at]), limit, self._offsets[at])

    async def forward(self, upstream: int, load: Load) -> MappedOffset | None:
        """Translate as ``RunList.forward``, over all chunks."""
        return (await self._next_to(self._upstreams, upstream, load, RunList.next_to_upstream)).forward(upstream)

    async def reverse(self, downstream: int, load: Load) -> MappedOffset | None:
        """Translate as ``RunList.reverse``, over all chunks."""
        runs = await self._next_to(self._downstreams, downstream, load, RunList.next_to_downstream)
        return runs.reverse(downstream)

    async def _next_to(self, begins: array[int], offset: int, load: Load, beside: _Beside) -> RunList:
        """Return the runs on either side of an offset, by where chunks begin on its side; from a neighbour if its chunk
        begins before its first run, or is empty once it is cut."""
        if not len(self):
            return RunList()
        at = max(bisect_right(begins, offset) - 1, 0)
        before, after = beside(await load(at), offset)
        earlier, later = at - 1, at + 1
        while before is None and earlier >= 0:
            before = (await load(earlier)).last
            earlier -= 1
        while after is None and later < len(self):
            after = (await load(later)).first
            later += 1
        return RunList(run for run in (before, after) if run is not None)


def cut_chunk(place: ChunkPlace, value: bytes) -> RunList:
    """Return a chunk's runs, cut at the beginning of the next chunk. Raises UnknownFormat."""
    runs = RunList(decode_chunk(place.begin[0], value))
    if place.limit is not None:
        runs.cut(*place.limit)
    return runs


class ChunkCache:
    """The chunks last used, up to ``max_runs`` runs together; one chunk is kept whatever its size."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._chunks: OrderedDict[tuple[MapPair, ChunkPlace], RunList] = OrderedDict()
        self.runs = 0

    def get(self, pair: MapPair, place: ChunkPlace) -> RunList | None:
        """Return a chunk's runs; None if it is not cached, or it or its next chunk has changed."""
        found = self._chunks.get((pair, place))
        if found is not None:
            self._chunks.move_to_end((pair, place))
        return found

    def put(self, pair: MapPair, place: ChunkPlace, runs: RunList) -> None:
        replaced = self._chunks.pop((pair, place), None)
        self.runs += len(runs) - (len(replaced) if replaced is not None else 0)
        self._chunks[pair, place] = runs
        while self.runs > self._max_runs and len(self._chunks) > 1:
            self.runs -= len(self._chunks.popitem(last=False)[1])

    def clear(self) -> None:
        self._chunks.clear()
        self.runs = 0


class KeptValues:
    """The chunk values read last, up to ``max_bytes`` together, which need not be fetched again."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self.bytes = 0

    def get(self, key: bytes, offset: int) -> bytes | None:
        """Return the value of the record at ``offset`` of the map topic; None if it is not kept."""
        at, value = self._values.get(key, (-1, b""))
        return value if at == offset else None

    def put(self, key: bytes, offset: int, value: bytes | None) -> None:
        """Replace a chunk's value by the one read at ``offset``; None: the chunk was deleted."""
        self._drop(key)
        if value is not None and len(value) <= _LONGEST_KEPT:
            self._values[key] = offset, value
            self.bytes += _size(key, value)
        while self.bytes > self._max_bytes:
            key, (_, dropped) = self._values.popitem(last=False)
            self.bytes -= _size(key, dropped)

    def clear(self) -> None:
        self._values.clear()
        self.bytes = 0

    def _drop(self, key: bytes) -> None:
        if (dropped := self._values.pop(key, None)) is not None:
            self.bytes -= _size(key, dropped[1])


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _ENTRY_BYTES


log = logging.getLogger(__name__)

#: A broker returns one batch whatever its size (KIP-74).
_ONE_BATCH: Final = fetch_api.FetchLimits(0, 0, 1, 1, fetch_api.READ_UNCOMMITTED)
_TRIES: Final = 3
#: After this time the map is read from its beginning, because tombstones are kept for an hour (``CLEANED_SOON``).
_TOMBSTONES_MS: Final = 30 * 60_000
_LookUp = Callable[[PairIndex, int, Load], Awaitable[MappedOffset | None]]


@dataclass(frozen=True, slots=True)
class MapLimits:
    """Limits of memory. A cached run takes about 200 bytes. ``max_kept_bytes`` limits the values of short chunks kept
    while reading, which save a caller that looks up most partitions a fetch for each."""

    max_cached_runs: int = 100_000
    max_kept_bytes: int = 0


class MapReader:
    """The offset map of a flow. A source partition has a map for each of its pairs: several if a topic was recreated,
    or if it was copied elsewhere before. ``cluster``: the cluster where the flow stores its positions, normally the
    target. ``topic``: ``mm2-offset-map.<source>.internal``. ``connector``: use this connector's positions; None: the
    newest if several connectors copy a partition. ``partitions``: source partitions to read; None for all.
    ``must_be_seen``: if False, a topic without the right to DESCRIBE counts as empty, and ``unseen`` says why."""

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
        self._cluster, self._topic, self._connector = cluster, topic, connector
        self._wanted = None if partitions is None else frozenset(partitions)
        self._must_be_seen = must_be_seen
        self._limits = limits or MapLimits()
        self._topic_id: UUID | None = None
        self.unseen = ""
        #: When the last position was stored, in milliseconds since 1970; -1 if none was.
        self.stored_ms = -1
        self._cache = ChunkCache(self._limits.max_cached_runs)
        self._kept = KeptValues(self._limits.max_kept_bytes)
        self._followed_ms = 0
        #: For callers that share a reader, because :meth:`follow` changes the index in which another looks up.
        self.in_use = asyncio.Lock()
        #: Whether the last :meth:`follow` was complete; a partly read map has holes that the map itself does not have.
        self.is_whole = False
        self._forget()

    def _forget(self) -> None:
        self._partition_count = 0
        self._next: dict[int, int] = {}  # by partition of the map topic
        self._pairs: dict[MapPair, PairIndex] = {}
        self._by_source: dict[TopicPartition, set[MapPair]] = {}
        self._by_target: dict[TopicPartition, set[MapPair]] = {}
        self._positions: dict[TopicPartition, dict[str, StoredPosition]] = {}  # by connector, the newest last
        self._places: dict[TopicPartition, int] = {}
        #: Where records were before partitions were added to the topic: of a connector's partition, or of a chunk's
        #: key. One that is now in its own partition is newer.
        self._elsewhere: dict[tuple[str, TopicPartition] | bytes, int] = {}
        self._cache.clear()
        self._kept.clear()

    def pairs(self, source: TopicPartition) -> list[MapPair]:
        """Return the pairs with a map, in no particular order; :meth:`current` is the one that is copied to now."""
        return list(self._by_source.get(source, ()))

    def pairs_to(self, target: TopicPartition) -> list[MapPair]:
        """Return the pairs of a target partition: many if it has records of several flows or topics."""
        return list(self._by_target.get(target, ()))

    def current(self, source: TopicPartition) -> MapPair | None:
        """Return the pair that a source partition is copied in now; None if nothing is stored for it."""
        position = self.position(source)
        return None if position is None else MapPair.of(position)

    def position(self, source: TopicPartition) -> Position | None:
        return next(reversed(self._positions[source].values())).position if source in self._positions else None

    def positions(self, source: TopicPartition) -> list[Position]:
        """Return the position for each target topic: several if connectors divide the records of a topic."""
        stored = [one.position for one in self._positions.get(source, {}).values()]
        return list({position.target_topic: position for position in stored}.values())

    def sources(self) -> list[TopicPartition]:
        """Return every source partition with a stored position or map, in order."""
        mapped = {pair.source for pair in self._pairs}
        return sorted(mapped | self._positions.keys())

    def chunks(self, pair: MapPair) -> list[ChunkPlace]:
        """Return a pair's chunks, ascending."""
        index = self._pairs.get(pair, PairIndex())
        return [index.place(at) for at in range(len(index))]

    async def forward(self, pair: MapPair, upstream: int) -> MappedOffset | None:
        """Return the target offset where a consumer that would read ``upstream`` next continues; None without a map.
        The caller decides about offsets BELOW or BEYOND it. Errors as :meth:`follow`."""
        return await self._look_up(pair, upstream, PairIndex.forward)

    async def reverse(self, pair: MapPair, downstream: int) -> MappedOffset | None:
        """As :meth:`forward`, from a target offset to the source offset."""
        return await self._look_up(pair, downstream, PairIndex.reverse)

    async def runs(self, pair: MapPair, chunk: ChunkPlace) -> RunList:
        """Return the runs of a chunk of :meth:`chunks`. Raises ChunkRewritten if the map has changed since."""
        known = self._cache.get(pair, chunk)
        if known is None:
            key = encode_chunk_key(ChunkKey(pair, chunk.begin[0]))
            index = self._elsewhere.get(key, self._place_of(pair.source))
            value = self._kept.get(key, chunk.offset) or await self._value(index, chunk.offset, key)
            try:
                known = cut_chunk(chunk, value)
            except UnreadableRecord as error:
                pass_over(f"cluster {self._cluster.name}: topic {self._topic}", index, chunk.offset, str(error))
                known = RunList()
            self._cache.put(pair, chunk, known)
        if chunk.limit is None:
            for stored in self._positions.get(pair.source, {}).values():
                if stored.last_run is not None and MapPair.of(stored.position) == pair:
                    known.lengthen(stored.last_run)
        return known

    async def _look_up(self, pair: MapPair, offset: int, look_up: _LookUp) -> MappedOffset | None:
        for tried in range(_TRIES):
            index = self._pairs.get(pair)
            if index is None:
                return None

            async def load(at: int, index: PairIndex = index) -> RunList:
                return await self.runs(pair, index.place(at))

            try:
                return await look_up(index, offset, load)
            except ChunkRewritten:
                if tried:  # because a reader that slept longer than tombstones are kept has missed one
                    self._forget()
                await self.follow()
        raise RetriableError(f"cluster {self._cluster.name}: {self._topic} changes faster than it can be read")

    async def follow(self) -> None:
        """Read what was added since the last call. A missing topic is an empty map. Raises RetriableError if the
        cluster does not answer in time, SecurityError if the right to READ or DESCRIBE the topic is missing,
        LaterFormat if a later version wrote into it."""
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
        partitions = None if self._wanted is None else {self._place_of(one) for one in self._wanted}
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
        # After the fold, so that a record of a later version is read again and not passed over.
        self._next[record.partition] = record.offset + 1

    def _fold_kind(self, kind: KeyKind | None, record: LogRecord) -> None:
        if kind in (KeyKind.POSITION, KeyKind.PROGRESS):
            assert record.key is not None, "it has a kind"
            key = decode_position_key(record.key)
            source = key.source
            if self._connector not in (None, key.connector) or not self._wants(source):
                return
            before = self._positions.get(source, {}).get(key.connector)
            if self._is_outdated((key.connector, source), source, record, is_known=before is not None):
                return
            self.stored_ms = max(self.stored_ms, record.timestamp_ms)
            stored = fold_position(before, kind, key, record.value, record.headers)
            known = self._positions.setdefault(source, {})
            known.pop(key.connector, None)
            if stored is not None:
                known[key.connector] = stored
            elif not known:
                del self._positions[source]
        elif kind is KeyKind.CHUNK:
            assert record.key is not None, "it has a kind"
            pair, upstream = decode_chunk_key(record.key)
            is_known = pair in self._pairs and upstream in self._pairs[pair]
            if self._wants(pair.source) and not self._is_outdated(record.key, pair.source, record, is_known=is_known):
                self._kept.put(record.key, record.offset, record.value)
                self._fold_chunk(pair, upstream, record)

    def _is_outdated(
        self, of: tuple[str, TopicPartition] | bytes, source: TopicPartition, record: LogRecord, *, is_known: bool
    ) -> bool:
        """Whether a record is from before partitions were added, and what it is ``of`` is known from its own one."""
        if record.partition == self._place_of(source):
            if self._elsewhere.pop(of, None) is not None:
                self._cache.clear()  # because a chunk may have the same offset in both partitions
        elif is_known and of not in self._elsewhere:
            return True
        else:
            self._elsewhere[of] = record.partition
        return False

    def _fold_chunk(self, pair: MapPair, upstream: int, record: LogRecord) -> None:
        index = self._pairs.get(pair)
        if index is None:
            if record.value is None:
                return
            index = self._pairs[pair] = PairIndex()
            self._by_source.setdefault(pair.source, set()).add(pair)
            self._by_target.setdefault(pair.target, set()).add(pair)
        if record.value is None:
            index.drop(upstream)
            if not len(index):
                del self._pairs[pair]
                self._by_source[pair.source].discard(pair)
                self._by_target[pair.target].discard(pair)
        else:
            index.put(upstream, first_downstream(record.value), record.offset)

    def _wants(self, source: TopicPartition) -> bool:
        return self._wanted is None or source in self._wanted

    def _place_of(self, source: TopicPartition) -> int:
        place = self._places.get(source)
        if place is None:
            place = self._places[source] = partition_of(map_partition_key(*source), self._partition_count)
        return place

    async def _value(self, partition: int, offset: int, key: bytes) -> bytes:
        """Fetch one record's value. Raises ChunkRewritten if the cleaner removed it because there is a newer one."""
        topic = fetch_api.TopicOnWire(self._topic, self._topic_id)
        row = await fetch_api.fetch_from_leader(self._cluster, topic, partition, offset, _ONE_BATCH)
        if row.error_code:
            if row.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                raise ChunkRewritten
            where = f"cluster {self._cluster.name}: {self._topic}-{partition}"
            raise RetriableError(f"{where} cannot be read: {error_codes.code_name(row.error_code)}")
        for start, size, magic in wire.extents(row.records):
            batch = row.records[start : start + size]
            if wire.read_header(batch).crc != wire.checksum(batch):
                raise PermanentError(f"cluster {self._cluster.name}: a batch of {self._topic}-{partition} is damaged")
            for record in records.decode(batch, magic):
                if record.offset == offset and record.key == key and record.value is not None:
                    return record.value
        raise ChunkRewritten


class ChunkRewritten(RetriableError):
    """A newer record has replaced a chunk's record: follow the map, and look again."""

    def __init__(self) -> None:
        super().__init__("a chunk of the offset map has been rewritten")
