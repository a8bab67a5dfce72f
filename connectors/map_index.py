"""What a reader of the offset map keeps in memory: where chunks begin, and the few that it looked at last (pure).

A chunk of up to 4096 runs is 24 bytes here, so that the maps of a flow fit however long they are. Chunks themselves are
asked for when an offset falls into them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from connectors.offset_map import Pair, Run, RunList, Translation, decode_chunk

#: Of a chunk whose value is kept: so none of a thousand runs takes the place of many short ones.
_LONGEST_KEPT: Final = 4096
#: What Python takes for a key and a value beside their bytes.
_ENTRY_BYTES: Final = 250
#: A chunk's runs by its number in the index, cut where the next chunk begins.
Load = Callable[[int], Awaitable[RunList]]


class ChunkPlace(NamedTuple):
    """A chunk: where it begins, where the next one does (None: it is the last), and the offset of its record."""

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

    def put(self, upstream: int, downstream: int, offset: int) -> None:
        """A chunk is written, or written again, at ``offset`` of the map topic."""
        at = bisect_left(self._upstreams, upstream)
        if at < len(self) and self._upstreams[at] == upstream:
            self._downstreams[at], self._offsets[at] = downstream, offset
            return
        for column, value in (
            (self._upstreams, upstream),
            (self._downstreams, downstream),
            (self._offsets, offset),
        ):
            column.insert(at, value)

    def drop(self, upstream: int) -> None:
        """A chunk is deleted; one that is not known was dropped before."""
        at = bisect_left(self._upstreams, upstream)
        if at < len(self) and self._upstreams[at] == upstream:
            for column in (self._upstreams, self._downstreams, self._offsets):
                del column[at]

    def place(self, at: int) -> ChunkPlace:
        limit = (self._upstreams[at + 1], self._downstreams[at + 1]) if at + 1 < len(self) else None
        return ChunkPlace((self._upstreams[at], self._downstreams[at]), limit, self._offsets[at])

    async def forward(self, upstream: int, load: Load) -> Translation | None:
        """As ``RunList.forward`` of all the runs there are."""
        if not len(self):
            return None
        at = max(bisect_right(self._upstreams, upstream) - 1, 0)
        beside = await self._beside(at, (await load(at)).beside_upstream(upstream), load)
        return beside.forward(upstream)

    async def reverse(self, downstream: int, load: Load) -> Translation | None:
        """As ``RunList.reverse`` of all the runs there are."""
        if not len(self):
            return None
        at = max(bisect_right(self._downstreams, downstream) - 1, 0)
        beside = await self._beside(at, (await load(at)).beside_downstream(downstream), load)
        return beside.reverse(downstream)

    async def _beside(self, at: int, known: tuple[Run | None, Run | None], load: Load) -> RunList:
        """The runs on either side of an offset that falls into chunk ``at``. A chunk may begin before its first run,
        and nothing may be left of it once it is cut: then a neighbour has the run."""
        before, after = known
        earlier, later = at - 1, at + 1
        while before is None and earlier >= 0:
            before = (await load(earlier)).last
            earlier -= 1
        while after is None and later < len(self):
            after = (await load(later)).first
            later += 1
        return RunList(run for run in (before, after) if run is not None)


def cut_chunk(place: ChunkPlace, value: bytes) -> RunList:
    """What a chunk holds: it counts for what lies before the next one's beginning only. Raises UnknownFormat."""
    runs = RunList(decode_chunk(place.begin[0], value))
    if place.limit is not None:
        runs.cut(*place.limit)
    return runs


class ChunkCache:
    """The chunks looked at last, up to ``max_runs`` runs together; one chunk is kept whatever its size."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._chunks: OrderedDict[tuple[Pair, ChunkPlace], RunList] = OrderedDict()
        self.runs = 0

    def get(self, pair: Pair, place: ChunkPlace) -> RunList | None:
        """None as well where the chunk was written again since, or another follows it now."""
        found = self._chunks.get((pair, place))
        if found is not None:
            self._chunks.move_to_end((pair, place))
        return found

    def put(self, pair: Pair, place: ChunkPlace, runs: RunList) -> None:
        replaced = self._chunks.pop((pair, place), None)
        self.runs += len(runs) - (len(replaced) if replaced is not None else 0)
        self._chunks[pair, place] = runs
        while self.runs > self._max_runs and len(self._chunks) > 1:
            self.runs -= len(self._chunks.popitem(last=False)[1])

    def clear(self) -> None:
        self._chunks.clear()
        self.runs = 0


class KeptValues:
    """The values of chunks that were read last, up to ``max_bytes`` together: these need not be fetched."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self.bytes = 0

    def get(self, key: bytes, offset: int) -> bytes | None:
        """Return the value of the record at ``offset`` of the map topic; None if it is not kept."""
        at, value = self._values.get(key, (-1, b""))
        return value if at == offset else None

    def put(self, key: bytes, offset: int, value: bytes | None) -> None:
        """Keep what was read at ``offset`` instead of what was there before; None: the chunk was deleted."""
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
