"""The reader's index against the naive twin of the map: what it finds chunk by chunk is what all records say."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors.formats.position import LastRun
from connectors.offset_map.reader import ChunkCache, ChunkPlace, KeptValues, PairIndex, cut_chunk
from connectors.offset_map.runs_and_chunks import (
    MappedOffset,
    MapRun,
    MapWriter,
    OffsetLocation,
    RunList,
    decode_chunk_key,
    first_downstream,
)
from tests.unit.connectors.offset_map.test_runs_and_chunks import PAIR, Twin, histories


class Stored:
    """The map topic as a reader of it sees it: an index, and values to be loaded."""

    def __init__(self) -> None:
        self.index = PairIndex()
        self.values: list[bytes] = []
        self.last_run: LastRun | None = None

    def write(self, writer: MapWriter) -> None:
        for key, value in writer.changes():
            upstream = decode_chunk_key(key).first_upstream
            if value is None:
                self.index.drop(upstream)
            else:
                self.index.put(upstream, first_downstream(value), len(self.values))
                self.values.append(value)
        writer.written()
        self.last_run = writer.last_run  # which a position carries

    async def load(self, at: int) -> RunList:
        place = self.index.place(at)
        runs = cut_chunk(place, self.values[place.offset])
        if place.limit is None and self.last_run is not None:
            runs.lengthen(self.last_run)
        return runs

    def forward(self, upstream: int) -> MappedOffset | None:
        return asyncio.run(self.index.forward(upstream, self.load))

    def reverse(self, downstream: int) -> MappedOffset | None:
        return asyncio.run(self.index.reverse(downstream, self.load))


@settings(max_examples=60)
@example(history=[MapRun(0, 0, 1), MapRun(1, 1, 1)], max_runs=1, together=1, offsets=[2])  # the last run grows
@given(
    history=histories(max_runs=40),
    max_runs=st.integers(1, 4),
    together=st.integers(1, 7),
    offsets=st.lists(st.integers(0, 250), min_size=1, max_size=8),
)
def test_chunks_say_what_all_runs_say(history: list[MapRun], max_runs: int, together: int, offsets: list[int]) -> None:
    writer, stored, twin, whole = MapWriter(PAIR, max_runs=max_runs), Stored(), Twin(), RunList()
    for turn, run in enumerate(history):
        writer.append(run)
        twin.append(run)
        whole.append(run)
        if turn % together == 0:
            stored.write(writer)
    stored.write(writer)
    for offset in offsets:
        assert stored.forward(offset) == whole.forward(offset)
        assert stored.reverse(offset) == whole.reverse(offset)
        found = stored.forward(offset)
        assert found is not None
        assert found.offset == twin.forward(offset)


def test_what_was_trimmed_is_below_the_map() -> None:
    writer, stored = MapWriter(PAIR, max_runs=2), Stored()
    for at in range(10):
        writer.append(MapRun(11 * at, 10 * at, 10))
    stored.write(writer)
    writer.trim(45)
    stored.write(writer)
    assert len(stored.index) == 3
    assert stored.forward(5) == MappedOffset(40, OffsetLocation.BELOW)
    assert stored.forward(44) == MappedOffset(40, OffsetLocation.INSIDE)
    assert stored.reverse(45) == MappedOffset(49, OffsetLocation.INSIDE)


def test_no_chunk_is_no_answer() -> None:
    stored = Stored()
    assert (stored.forward(1), stored.reverse(1)) == (None, None)
    stored.index.drop(7)
    assert len(stored.index) == 0


def test_the_cache_is_bounded_by_runs_and_keeps_what_is_asked_for() -> None:
    cache = ChunkCache(max_runs=25)
    runs = RunList(MapRun(20 * at, 10 * at, 5) for at in range(10))
    places = [ChunkPlace((at, at), None, at) for at in range(4)]
    for place in places[:2]:
        cache.put(PAIR, place, runs)
    assert cache.get(PAIR, places[0]) is runs
    cache.put(PAIR, places[2], runs)
    assert (cache.get(PAIR, places[1]), cache.get(PAIR, places[0]), cache.runs) == (None, runs, 20)
    cache.put(PAIR, places[3], RunList(MapRun(20 * at, 10 * at, 5) for at in range(100)))
    assert cache.runs == 100, "one is kept whatever its size"


def test_a_chunk_counts_for_what_lies_before_the_next_one() -> None:
    """The target was truncated within a chunk that is closed and not written again."""
    writer, stored = MapWriter(PAIR, max_runs=2), Stored()
    for run in (MapRun(0, 0, 10), MapRun(20, 20, 10), MapRun(40, 40, 10), MapRun(60, 25, 5)):
        writer.append(run)
        stored.write(writer)
    assert len(stored.index) == 2
    assert stored.forward(24) == MappedOffset(24, OffsetLocation.INSIDE)
    assert stored.forward(27) == MappedOffset(25, OffsetLocation.GAP)
    assert stored.reverse(27) == MappedOffset(62, OffsetLocation.INSIDE)


def test_values_are_kept_within_their_bytes_and_the_newest_longest() -> None:
    kept = KeptValues(3000)
    for offset in range(100):
        kept.put(b"%d" % offset, offset, b"v" * 100)
        assert kept.bytes <= 3000
    assert kept.get(b"99", 99) == b"v" * 100
    assert kept.get(b"1", 1) is None
    kept.put(b"99", 200, b"again")
    assert (kept.get(b"99", 99), kept.get(b"99", 200)) == (None, b"again")
    kept.put(b"98", 201, None)
    assert kept.get(b"98", 98) is None


def test_a_long_value_takes_the_place_of_no_other() -> None:
    kept = KeptValues(10_000)
    kept.put(b"short", 1, b"v")
    kept.put(b"long", 2, b"v" * 9_000)
    assert (kept.get(b"short", 1), kept.get(b"long", 2)) == (b"v", None)
    kept.clear()
    assert (kept.get(b"short", 1), kept.bytes) == (None, 0)
