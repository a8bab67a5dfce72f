"""Show the offset map of a flow, and rebuild it from both logs if it was lost or never written.

The view reads from the target only. A rebuild fills the map below its beginning, from what both logs prove (see
:mod:`connectors.offset_map.log_alignment`). Its chunks are below everything that the flow's task writes, so the two
never write the same key. Readers use them at once; the task trims them after its next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import closing
from connect.kafka.log.offsets import EARLIEST, list_offset
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.wire import batch as wire
from connect.wire import fetch_produce, records
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.dataplane import fetch_api
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.fetched_batches import CorruptBatch, cut
from connectors.formats.position import Position, map_partition_key
from connectors.formats.types import TopicPartition
from connectors.offset_map.log_alignment import Item, LogSide, ProvenMap, SideBySide, digest
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import ChunkKey, MapPair, OffsetLocation, encode_chunk_key, first_downstream


@dataclass(frozen=True, slots=True)
class MapQuery:
    """Which part of the map to show, and which offset to translate, if any; ``is_reverse``: a target offset."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    is_reverse: bool = False

    def is_about(self, source: TopicPartition) -> bool:
        return self.topic in (None, source.topic) and self.partition in (None, source.partition)


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """A translated offset, and where the one asked for is relative to the map (``OffsetLocation``)."""

    offset: int
    place: str


@dataclass(frozen=True, slots=True)
class PairView:
    """The map of one pair. Offsets are -1 if it is empty; ``runs`` counts those of the last chunk only."""

    source_topic: str
    source_partition: int
    target_topic: str
    target_partition: int
    target_topic_id: str
    is_current: bool
    copied_to: int
    source_begin: int
    source_end: int
    target_begin: int
    target_end: int
    chunks: int
    runs: int
    answer: MapAnswer | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def read_map(settings: MirrorSourceSettings, clients: FlowClients, question: MapQuery) -> list[PairView]:
    """Return the pairs asked for, in order. Errors as ``MapReader.follow``."""
    store = Cluster(clients.offsets(), settings.target_alias)
    wanted = None
    if question.topic is not None and question.partition is not None:
        wanted = [TopicPartition(question.topic, question.partition)]
    async with closing(store):
        reader = MapReader(store, settings.map_topic, connector=settings.name, partitions=wanted)
        await reader.follow()
        views = []
        for source in reader.sources():
            if question.is_about(source):
                views += [await _view(reader, source, pair, question) for pair in _pairs(reader, source)]
        return views


def _pairs(reader: MapReader, source: TopicPartition) -> Sequence[MapPair]:
    """Return the current pair first, even if it has no map yet."""
    current = reader.current(source)
    others = sorted((pair for pair in reader.pairs(source) if pair != current), key=str)
    return [*([current] if current else []), *others]


async def _view(reader: MapReader, source: TopicPartition, pair: MapPair, question: MapQuery) -> PairView:
    chunks = reader.chunks(pair)
    newest = await reader.runs(pair, chunks[-1]) if chunks else None
    last = newest.last if newest else None
    begin, position = chunks[0].begin if chunks else (-1, -1), reader.position(source)
    is_current = pair == reader.current(source)
    return PairView(
        *pair.names(),
        target_topic_id=str(pair.target_topic_id or ""),
        is_current=is_current,
        copied_to=position.next_source_offset if position and is_current else -1,
        source_begin=begin[0],
        source_end=last.upstream_end if last else -1,
        target_begin=begin[1],
        target_end=last.downstream_end if last else -1,
        chunks=len(chunks),
        runs=len(newest) if newest else 0,
        answer=await _answer(reader, pair, question),
    )


async def _answer(reader: MapReader, pair: MapPair, question: MapQuery) -> MapAnswer | None:
    if question.offset is None:
        return None
    look_up = reader.reverse if question.is_reverse else reader.forward
    found = await look_up(pair, question.offset)
    return None if found is None else MapAnswer(found.offset, found.place.value)


#: What a location means, for the user who asked.
MEANING = {
    OffsetLocation.INSIDE.value: "exact",
    OffsetLocation.GAP.value: "not mirrored; this is the nearest mirrored offset",
    OffsetLocation.BELOW.value: "before the map begins: that part of the target was deleted, or something else copied "
    "it",
    OffsetLocation.BEYOND.value: "not copied yet",
}


_FETCH_BYTES: Final = 1024 * 1024
_WAIT_MS: Final = 500
#: Offsets that are read in one step, and in the longest step where nearly all were deleted.
_STEP: Final = 5_000
_LONGEST_STEP: Final = 1_000_000
#: Instead of record times if the target has its own (LogAppendTime).
_NO_TIME: Final = -2


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The proven part of a pair: ``records`` from source offset ``source_begin`` up to ``top``, where its map begins; 0
    if none. ``failure`` says why the logs could not be read."""

    source_topic: str
    source_partition: int
    target_topic: str
    target_partition: int
    top: tuple[int, int]
    records: int = 0
    source_begin: int = -1
    target_begin: int = -1
    chunks: int = 0
    failure: str = ""


class LogFeed:
    """Reads one partition from ``top`` down to its beginning, as items to compare. Errors of every method:
    RetriableError (it cannot be read now), PermanentError (a batch is damaged)."""

    def __init__(
        self, cluster: Cluster, partition: TopicPartition, topic_id: UUID | None, top: int, *, read_committed: bool
    ) -> None:
        self.top, self._end = top, top
        self._start = 0
        self._step, self._cluster, self._partition = _STEP, cluster, partition
        self._topic = fetch_api.TopicOnWire(partition.topic, topic_id)
        self._read_committed = read_committed
        isolation = fetch_api.READ_COMMITTED if read_committed else fetch_api.READ_UNCOMMITTED
        self._limits = fetch_api.FetchLimits(_WAIT_MS, 1, _FETCH_BYTES, _FETCH_BYTES, isolation)

    async def open(self) -> None:
        self._start = await list_offset(self._cluster, self._partition, EARLIEST)

    async def stamps_its_own(self) -> bool:
        """Return whether the first batch has the log's own time (LogAppendTime)."""
        if self._start >= self.top:
            return False
        fetched = (await self._fetch(self._start)).records
        first = next(wire.extents(fetched), None)
        return first is not None and first[2] >= 2 and wire.read_header(fetched, first[0]).is_log_append_time

    async def below(self, *, ignores_time: bool) -> list[Item] | None:
        """Return the next records downwards, descending; possibly none if the log has few. None at the end."""
        if self._end <= self._start:
            return None
        begin = max(self._end - self._step, self._start)
        found: list[Item] = []
        position = begin
        while position < self._end:
            position = await self._read(position, found, ignores_time)
        within = [item for item in found if begin <= item.offset < self._end]
        self._end = begin
        # Longer steps pass what a cleaner removed; a step never returns more records than its length.
        self._step = min(self._step * 2, _LONGEST_STEP) if len(within) < _STEP // 4 else _STEP
        return within[::-1]

    async def _read(self, position: int, found: list[Item], ignores_time: bool) -> int:
        """Fetch once; return where the next fetch begins."""
        row = await self._fetch(position)
        if row.error_code == error_codes.OFFSET_OUT_OF_RANGE:  # retention deleted it, but not what is above
            self._start = await list_offset(self._cluster, self._partition, EARLIEST)
            return max(self._start, position + 1)
        try:
            aborted = row.aborted if self._read_committed else None
            # In a thread, because a worker may do this during its copy.
            following = await asyncio.to_thread(self._take, row, position, aborted, found, ignores_time)
        except CorruptBatch as error:
            raise PermanentError(f"{self._where}: {error}") from error
        return following if following > position else self._end  # because nothing is left below it

    def _take(
        self,
        row: fetch_produce.FetchedPartition,
        position: int,
        aborted: Iterable[tuple[int, int]] | None,
        found: list[Item],
        ignores_time: bool,
    ) -> int:
        """Append the items to ``found``; return where the fetched bytes end."""
        following = position
        for batch, header, decision, _ in cut(row.records, position, aborted, wire.SEQUENCE_MODULUS):
            if decision.kind != "dropped":
                found += self._items(batch, ignores_time)
                following = max(following, found[-1].offset + 1)
            if header is not None:
                following = max(following, header.last_offset + 1)
        return following

    def _items(self, batch: memoryview, ignores_time: bool) -> list[Item]:
        try:
            decoded = list(records.decode(batch, batch[16]))
        except Exception as error:  # no codec decodes it, but its checksum is right, so it is copied unchanged
            why = f"{type(error).__name__}: {error}"
            raise PermanentError(f"{self._where}: a batch cannot be decoded: {why}") from error
        return [
            Item(one.offset, digest(one.key, one.value, one.headers, _NO_TIME if ignores_time else one.timestamp_ms))
            for one in decoded
        ]

    async def _fetch(self, position: int) -> fetch_produce.FetchedPartition:
        index = self._partition.partition
        row = await fetch_api.fetch_from_leader(self._cluster, self._topic, index, position, self._limits)
        if row.error_code not in (0, error_codes.OFFSET_OUT_OF_RANGE):
            raise RetriableError(f"{self._where} cannot be read: {error_codes.code_name(row.error_code)}")
        return row

    @property
    def _where(self) -> str:
        return f"cluster {self._cluster.name}: {self._partition}"


async def lay_side_by_side(feeds: Mapping[LogSide, LogFeed], found: ProvenMap) -> None:
    """Add everything that two logs prove to ``found``. Errors as :class:`LogFeed`."""
    target = feeds[LogSide.TARGET]
    logs = SideBySide((feeds[LogSide.SOURCE].top, target.top), found)
    for feed in feeds.values():
        await feed.open()
    ignores_time = await target.stamps_its_own()
    while not logs.is_done:
        for side, feed in feeds.items():
            while logs.wants(side):
                items = await feed.below(ignores_time=ignores_time)
                if items is None:
                    logs.end(side)
                else:
                    logs.take(side, items)
        await asyncio.to_thread(logs.settle)


class Rebuilder:
    """Rebuilds the maps of one flow, partition by partition; it leaves both clusters open."""

    def __init__(self, settings: MirrorSourceSettings, source: Cluster, target: Cluster) -> None:
        self._settings, self._source, self._target = settings, source, target
        self._maps = MapReader(target, settings.map_topic, connector=settings.name)

    async def partitions(self) -> list[TopicPartition]:
        """Return the source partitions with a position. Errors as ``MapReader.follow``."""
        await self._maps.follow()
        return [source for source in self._maps.sources() if self._maps.position(source) is not None]

    async def rebuild(self, source: TopicPartition) -> Rebuilt:
        """Find what belongs below the map of ``source``, and add it."""
        pair, position = self._maps.current(source), self._maps.position(source)
        assert pair is not None, "there is a position"
        assert position is not None, "there is a position"
        top = self._begin(pair, position)
        names = (*source, pair.target_topic, pair.target_partition)
        found = ProvenMap()
        try:
            await lay_side_by_side(self._feeds(pair, top), found)
            made = found.chunks(pair)
            await self._add(pair, made, position)
        except HeliographError as error:
            return Rebuilt(*names, top, failure=str(error))
        lowest = found.first
        if lowest is None:
            return Rebuilt(*names, top)
        return Rebuilt(*names, top, found.records, lowest.upstream, lowest.downstream, len(made))

    def _feeds(self, pair: MapPair, top: tuple[int, int]) -> dict[LogSide, LogFeed]:
        here, there = (pair.source, pair.source_topic_id, top[0]), (pair.target, pair.target_topic_id, top[1])
        return {
            LogSide.SOURCE: LogFeed(self._source, *here, read_committed=self._settings.read_committed),
            LogSide.TARGET: LogFeed(self._target, *there, read_committed=True),
        }

    def _begin(self, pair: MapPair, position: Position) -> tuple[int, int]:
        """Return the source and target offset at which the map of ``pair`` begins."""
        chunks = self._maps.chunks(pair)
        return chunks[0].begin if chunks else (position.next_source_offset, position.target_end)

    async def _add(self, pair: MapPair, chunks: Sequence[tuple[int, bytes]], position: Position) -> None:
        """Write the newest chunk first, so that an interruption leaves no hole."""
        await self._maps.follow()
        floor = self._begin(pair, position)  # the flow may have cut its map while the logs were read
        partition_key = map_partition_key(*pair.source)
        topic = self._settings.map_topic
        await PlainWriter(self._target).write(
            OutRecord(topic, encode_chunk_key(ChunkKey(pair, upstream)), value, partition_key)
            for upstream, value in reversed(chunks)
            if upstream < floor[0] and first_downstream(value) < floor[1]
        )


async def rebuild_maps(
    settings: MirrorSourceSettings,
    clients: FlowClients,
    is_wanted: Callable[[TopicPartition], bool],
    done: Callable[[Rebuilt], None],
) -> None:
    """Rebuild the maps of a flow's partitions one after the other, and call ``done`` with each result, or its failure.
    Raises the errors of its clusters, and ConfigError if records are transformed."""
    if key := settings.changing_key:
        # Because a changed record would look like one that was never copied.
        raise ConfigError(f"the map of {settings.flow} cannot be rebuilt: {key} makes copies unlike their sources", key)
    source = Cluster(clients.replication_consumer(0), settings.source_alias)
    target = Cluster(clients.offsets(), settings.target_alias)
    async with closing(source, target):
        rebuilder = Rebuilder(settings, source, target)
        for partition in await rebuilder.partitions():
            if is_wanted(partition):
                done(await rebuilder.rebuild(partition))
