"""The offset map against a naive twin: a dictionary of every record, searched from end to end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.formats.position import KeyKind, LastRun, UnknownFormat, decode_kind
from connectors.offset_map import runs_and_chunks
from connectors.offset_map.runs_and_chunks import (
    ChunkKey,
    MapPair,
    MapRun,
    MapWriter,
    OffsetLocation,
    RunList,
    decode_chunk,
    decode_chunk_key,
    encode_chunk_key,
    first_downstream,
)
from tests.kit.stored import encode_chunk

PAIR = MapPair("orders", uuid4(), 3, "us.orders", uuid4(), 3)
SMALL = st.integers(0, 6)


class Twin:
    """Every mirrored record by itself: upstream offset to downstream offset."""

    def __init__(self) -> None:
        self.records: dict[int, int] = {}

    def append(self, run: MapRun) -> None:
        self.cut(run.upstream, run.downstream)
        self.records |= {run.upstream + at: run.downstream + at for at in range(run.length)}

    def cut(self, upstream_end: int, downstream_end: int) -> None:
        self.records = {up: down for up, down in self.records.items() if up < upstream_end and down < downstream_end}

    def forward(self, upstream: int) -> int:
        if upstream in self.records:
            return self.records[upstream]
        earlier = [down for up, down in self.records.items() if up < upstream]
        return max(earlier) + 1 if earlier else min(self.records.values())

    def reverse(self, downstream: int) -> int:
        if downstream in self.records.values():
            return next(up for up, down in self.records.items() if down == downstream)
        earlier = [up for up, down in self.records.items() if down < downstream]
        return max(earlier) + 1 if earlier else min(self.records)


@st.composite
def histories(draw: st.DrawFn, max_runs: int = 25) -> list[MapRun]:
    """Runs as a copier makes them: mostly onwards with gaps, now and then back, upstream, downstream or both."""
    runs: list[MapRun] = []
    up, down = draw(SMALL), draw(SMALL)
    for _ in range(draw(st.integers(1, max_runs))):
        step = st.integers(-12, 3) if draw(st.integers(0, 9)) == 0 else SMALL
        up, down = max(up + draw(step), 0), max(down + draw(step), 0)
        length = draw(st.integers(1, 8))
        runs.append(MapRun(up, down, length))
        up, down = up + length, down + length
    return runs


def dense(runs: Iterable[MapRun]) -> dict[int, int]:
    return {run.upstream + at: run.downstream + at for run in runs for at in range(run.length)}


@given(history=histories())
def test_runs_say_what_the_records_say(history: list[MapRun]) -> None:
    runs, twin = RunList(), Twin()
    for run in history:
        runs.append(run)
        twin.append(run)
    assert dense(runs) == twin.records
    joints = list(zip(runs, list(runs)[1:], strict=False))
    for left, right in joints:
        assert left.upstream_end <= right.upstream
        assert left.downstream_end <= right.downstream
        assert (left.upstream_end, left.downstream_end) != (right.upstream, right.downstream), "should be one run"


@given(history=histories(), offset=st.integers(0, 200))
def test_translation_both_ways(history: list[MapRun], offset: int) -> None:
    runs, twin = RunList(history), Twin()
    for run in history:
        twin.append(run)
    forward, reverse = runs.forward(offset), runs.reverse(offset)
    assert forward is not None
    assert reverse is not None
    assert forward.offset == twin.forward(offset)
    assert reverse.offset == twin.reverse(offset)
    assert (forward.place is OffsetLocation.BELOW) == (offset < min(twin.records))
    assert (reverse.place is OffsetLocation.BELOW) == (offset < min(twin.records.values()))
    assert (forward.place is OffsetLocation.BEYOND) == (offset > max(twin.records) + 1)
    assert (reverse.place is OffsetLocation.BEYOND) == (offset > max(twin.records.values()) + 1)
    assert (forward.place is OffsetLocation.INSIDE) == (offset in twin.records or offset == max(twin.records) + 1)
    first, *_, last = *runs, *runs
    assert (runs.first, runs.last) == (first, last)
    for beside, begin in ((runs.next_to_upstream, 0), (runs.next_to_downstream, 1)):
        at_or_before = [run for run in runs if run[begin] <= offset]
        behind = [run for run in runs if run[begin] > offset]
        assert beside(offset) == (at_or_before[-1] if at_or_before else None, behind[0] if behind else None)


def test_runs_equal_runs_only() -> None:
    runs = [MapRun(0, 0, 3)]
    assert RunList(runs) == RunList(runs) != RunList()
    assert RunList(runs) != runs


@pytest.mark.parametrize(("last_run", "length"), [(LastRun(20, 9), 9), (LastRun(20, 3), 5), (LastRun(10, 9), 5)])
def test_only_a_newer_position_of_the_last_run_lengthens_it(last_run: LastRun, length: int) -> None:
    runs = RunList([MapRun(10, 0, 5), MapRun(20, 5, 5)])
    runs.lengthen(last_run)
    assert list(runs) == [MapRun(10, 0, 5), MapRun(20, 5, length)]


def test_right_behind_a_run_is_a_gap_unless_it_is_the_last() -> None:
    runs = RunList([MapRun(10, 0, 5), MapRun(20, 7, 5)])
    assert [runs.forward(at) for at in (15, 25)] == [(5, OffsetLocation.GAP), (12, OffsetLocation.INSIDE)]
    assert [runs.reverse(at) for at in (5, 12)] == [(15, OffsetLocation.GAP), (25, OffsetLocation.INSIDE)]


def test_an_empty_map_knows_nothing() -> None:
    assert RunList().forward(5) is None
    assert RunList().reverse(5) is None


@pytest.mark.parametrize("run", [MapRun(0, 0, 0), MapRun(-1, 0, 1), MapRun(0, -1, 1)])
def test_what_is_no_run_is_refused(run: MapRun) -> None:
    with pytest.raises(ValueError, match="not a run"):
        RunList().append(run)
    with pytest.raises(ValueError, match="not a run"):
        MapWriter(PAIR).append(run)


def merged(history: Iterable[MapRun]) -> list[MapRun]:
    return list(RunList(history))


@given(history=histories(max_runs=60))
def test_chunk_round_trip(history: list[MapRun]) -> None:
    runs = merged(history)
    value = encode_chunk(runs)
    assert decode_chunk(runs[0].upstream, value) == runs
    assert first_downstream(value) == runs[0].downstream


@given(up=st.integers(0, 2**62), down=st.integers(0, 2**62), length=st.integers(1, 2**40), gaps=st.tuples(SMALL, SMALL))
def test_chunk_of_large_offsets(up: int, down: int, length: int, gaps: tuple[int, int]) -> None:
    runs = merged([MapRun(up, down, length), MapRun(up + length + gaps[0], down + length + gaps[1] + 1, 1)])
    assert decode_chunk(up, encode_chunk(runs)) == runs


def test_transactions_cost_about_three_bytes_a_run() -> None:
    """A thousand transactions a second, each closed by a marker, are 86 million runs a day."""
    runs = [MapRun(11 * at, 10 * at, 10) for at in range(runs_and_chunks.MAX_RUNS_PER_CHUNK)]
    assert len(encode_chunk(runs)) / len(runs) <= 3.1
    mixed = merged(MapRun(300 * at, 299 * at, 299 - at % 200) for at in range(runs_and_chunks.MAX_RUNS_PER_CHUNK))
    assert len(encode_chunk(mixed)) / len(mixed) <= 6


IDS = st.none() | st.uuids().filter(lambda value: value != UUID(int=0))
NAMES, NUMBERS = st.text("ab.-_", min_size=1), st.integers(0, 2**31 - 1)


@given(pair=st.builds(MapPair, NAMES, IDS, NUMBERS, NAMES, IDS, NUMBERS), upstream=st.integers(0, 2**63 - 1))
def test_chunk_key_round_trip(pair: MapPair, upstream: int) -> None:
    raw = encode_chunk_key(ChunkKey(pair, upstream))
    assert decode_kind(raw) is KeyKind.CHUNK
    assert decode_chunk_key(raw) == ChunkKey(pair, upstream)


def test_the_bytes_stay() -> None:
    """Stored for years: a change of these bytes is a change of version."""
    pair = MapPair("orders", UUID(int=1), 3, "us.orders", None, 4)
    assert encode_chunk_key(ChunkKey(pair, 5)).hex() == (
        "0102" + UUID(int=1).hex + "00000003" + "00" * 16 + "00000004" + "0000000000000005"
        "0006" + b"orders".hex() + "0009" + b"us.orders".hex()
    )
    encoded = encode_chunk([MapRun(5, 2, 300), MapRun(306, 302, 1)])
    assert encoded.hex() == "01" + "0000000000000002" + "0002" + "0000ac02" + "010001"


ONE_RUN = encode_chunk([MapRun(0, 0, 1)])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[" + ONE_RUN[1:],
        ONE_RUN[:-1],
        ONE_RUN + b"\0",
        ONE_RUN[:-1] + b"\0",  # an empty run
        ONE_RUN[:10] + b"\0",  # no run
    ],
)
def test_chunks_of_another_form_are_refused(value: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_chunk(0, value)


def test_the_beginning_of_a_chunk_and_its_key_are_checked_too() -> None:
    with pytest.raises(UnknownFormat):
        first_downstream(b"[" + ONE_RUN[1:])
    with pytest.raises(UnknownFormat):
        decode_chunk_key(encode_chunk_key(ChunkKey(PAIR, 5)) + b"\0")


class Topic:
    """The compacted topic and the last run of the position, and a reader of them that looks at one chunk and the
    beginnings of the others."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.last_run: LastRun | None = None

    def write(self, writer: MapWriter, *, complete: bool = False) -> int:
        changes = writer.changes(complete=complete)
        self.last_run = None if complete else writer.last_run
        writer.written(complete=complete)
        for key, value in changes:
            upstream = decode_chunk_key(key).first_upstream
            if value is None:
                self.values.pop(upstream, None)
            else:
                self.values[upstream] = value
        return len(changes)

    def dense(self) -> dict[int, int]:
        """All chunks, each holding only below the next one's beginning, upstream and downstream."""
        begins = sorted(self.values)
        found: dict[int, int] = {}
        for upstream, following in zip(begins, [*begins[1:], None], strict=True):
            runs = RunList(decode_chunk(upstream, self.values[upstream]))
            if following is not None:
                runs.cut(following, first_downstream(self.values[following]))
            elif self.last_run is not None:
                runs.lengthen(self.last_run)
            found |= dense(runs)
        return found

    def load(self) -> MapWriter:
        chunks = {upstream: first_downstream(value) for upstream, value in self.values.items()}
        newest = self.values[max(self.values)] if self.values else None
        return MapWriter.load(PAIR, chunks, newest, last_run=self.last_run)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_and_chunks, "MAX_RUNS_PER_CHUNK", 3)


@pytest.mark.usefixtures("small_chunks")
class TestMapWriter:
    @settings(deadline=None)
    @given(
        history=histories(max_runs=60),
        restarts=st.sets(st.integers(0, 60)),
        unwritten=st.sets(st.integers(0, 60)),
        complete=st.sets(st.integers(0, 60)),
    )
    def test_what_is_stored_says_what_the_records_say(
        self, history: list[MapRun], restarts: set[int], unwritten: set[int], complete: set[int]
    ) -> None:
        writer, topic, twin = MapWriter(PAIR), Topic(), Twin()
        for turn, run in enumerate(history):
            writer.append(run)
            twin.append(run)
            if turn in unwritten:
                continue
            topic.write(writer, complete=turn in complete)
            assert topic.dense() == twin.records
            if turn in restarts:
                writer = topic.load()
        topic.write(writer)
        assert topic.dense() == twin.records
        assert writer.chunks == len(topic.values)
        topic.write(writer, complete=True)
        assert topic.last_run is None
        assert topic.dense() == twin.records, "an earlier version reads chunks alone"

    def test_a_last_run_that_grows_is_in_the_position_and_costs_no_chunk(self) -> None:
        writer, topic = MapWriter(PAIR), Topic()
        writer.append(MapRun(0, 0, 10))
        assert topic.write(writer) == 1
        for at in range(10, 100, 10):
            writer.append(MapRun(at, at, 10))
            assert topic.write(writer) == 0
            assert topic.last_run == (0, at + 10)
            if at == 50:
                writer = topic.load()
        assert topic.dense() == dense([MapRun(0, 0, 100)])
        assert topic.write(writer, complete=True) == 1
        assert topic.write(writer, complete=True) == 0

    def test_what_a_cut_takes_from_a_closed_chunk_does_not_come_back_behind_a_marker(self) -> None:
        """The target was truncated inside a closed chunk, and the next run begins behind the marker of a fence."""
        writer, topic, twin = MapWriter(PAIR), Topic(), Twin()
        for at in range(4):
            run = MapRun(11 * at, 10 * at, 10)
            writer.append(run)
            twin.append(run)
        topic.write(writer)
        writer.cut(5)
        twin.cut(2**63, 5)
        following = MapRun(44, 7, 1)
        writer.append(following)
        twin.append(following)
        topic.write(writer)
        assert topic.dense() == twin.records

    @pytest.mark.parametrize(("is_compacted", "kept"), [(True, [198, 231, 264, 297]), (False, range(0, 330, 33))])
    def test_only_the_map_of_a_compacted_target_keeps_a_bounded_number_of_runs(
        self, monkeypatch: pytest.MonkeyPatch, is_compacted: bool, kept: Iterable[int]
    ) -> None:
        """Its log always begins at 0."""
        monkeypatch.setattr(runs_and_chunks, "MAX_RUNS", 12)
        writer, topic = MapWriter(PAIR, max_runs=3), Topic()
        for at in range(30):
            writer.append(MapRun(11 * at, 10 * at, 10))
            writer.trim(0, is_compacted=is_compacted)
            topic.write(writer)
        assert sorted(topic.values) == list(kept)
        assert writer.chunks == len(topic.values)

    @pytest.mark.parametrize(
        "later",
        [
            [MapRun(10, 3, 1), MapRun(5, 6, 1)],  # the target truncated, then the source rewound
            [MapRun(2, 7, 1), MapRun(3, 7, 1)],  # the source rewound, then the target truncated
            [MapRun(10, 3, 1), MapRun(5, 6, 1), MapRun(6, 6, 1), MapRun(1, 9, 1)],
        ],
    )
    def test_what_a_chunk_took_from_older_ones_stays_away_when_it_is_replaced(self, later: list[MapRun]) -> None:
        writer, topic, twin = MapWriter(PAIR), Topic(), Twin()
        for run in [MapRun(0, 0, 1), MapRun(1, 2, 1), MapRun(2, 4, 1), MapRun(3, 6, 1), *later]:
            writer.append(run)
            twin.append(run)
            topic.write(writer)
            assert topic.dense() == twin.records
            writer = topic.load()

    @given(history=histories(), repeated=st.integers(1, 5))
    def test_storing_runs_twice_does_no_harm(self, history: list[MapRun], repeated: int) -> None:
        onwards = merged(history)
        writer, topic = MapWriter(PAIR), Topic()
        for run in [*onwards, *onwards[-repeated:]]:
            writer.append(run)
        topic.write(writer)
        assert topic.dense() == dense(onwards)

    @given(history=histories(), end=st.integers(0, 120), is_source=st.booleans())
    def test_a_truncated_log_is_forgotten(self, history: list[MapRun], end: int, is_source: bool) -> None:
        """Closed chunks are not read again: what one claims beyond the end falls with the next run."""
        writer, topic, twin = MapWriter(PAIR), Topic(), Twin()
        for run in history:
            writer.append(run)
            twin.append(run)
        topic.write(writer)
        if is_source:
            writer.cut_source(end)
            twin.cut(end, 2**63)
        else:
            writer.cut(end)
            twin.cut(2**63, end)
        following = MapRun(max(twin.records, default=0) + 1, max(twin.records.values(), default=0) + 1, 2)
        writer.append(following)
        twin.append(following)
        topic.write(writer)
        assert topic.dense() == twin.records

    def test_only_the_open_chunk_is_written_again(self) -> None:
        writer, topic = MapWriter(PAIR), Topic()
        for at in range(7):
            writer.append(MapRun(11 * at, 10 * at, 10))
        assert [upstream for upstream, _ in writer.values()] == [0, 33, 66]
        assert topic.write(writer) == 3
        for at in range(7, 13):  # the chunk that is closed at 9 and 12 is stored
            writer.append(MapRun(11 * at, 10 * at, 10))
            assert writer.last_run is None
            assert topic.write(writer) == 1
            assert topic.write(writer) == 0

    def test_a_chunk_is_full_with_the_number_of_runs_of_its_writer(self) -> None:
        writer, topic = MapWriter(PAIR, max_runs=2), Topic()
        for at in range(5):
            writer.append(MapRun(11 * at, 10 * at, 10))
        assert writer.upstreams == [0, 22, 44]
        topic.write(writer)
        chunks = {upstream: first_downstream(value) for upstream, value in topic.values.items()}
        smaller = MapWriter.load(PAIR, chunks, topic.values[44], max_runs=1)
        assert smaller.last_run is None, "the stored chunk is complete"
        smaller.append(MapRun(55, 50, 10))
        assert smaller.upstreams == [0, 22, 44, 55]

    def test_chunks_below_the_log_start_are_let_go(self) -> None:
        writer, topic = MapWriter(PAIR), Topic()
        for at in range(9):
            writer.append(MapRun(11 * at, 10 * at, 10))
        topic.write(writer)
        before = topic.dense()
        writer.trim(59)  # inside the second chunk: only the first is wholly below
        topic.write(writer)
        assert sorted(topic.values) == [33, 66]
        writer.trim(60)
        writer.trim(10_000)
        topic.write(writer)
        assert sorted(topic.values) == [66]
        assert topic.dense() == {up: down for up, down in before.items() if up >= 66}

    def test_what_could_not_be_stored_is_offered_again(self) -> None:
        writer = MapWriter(PAIR)
        writer.append(MapRun(0, 0, 5))
        refused = writer.changes()
        assert writer.changes() == refused
        writer.append(MapRun(5, 5, 5))
        topic = Topic()
        topic.write(writer)
        assert topic.dense() == dense([MapRun(0, 0, 10)])

    def test_what_is_behind_the_end_of_either_log_is_cut_off(self) -> None:
        writer = MapWriter(PAIR)
        writer.append(MapRun(10, 0, 10))
        writer.cut_source(15)
        assert writer.last == MapRun(10, 0, 5)
        writer.cut(2)
        assert writer.last == MapRun(10, 0, 2)

    @pytest.mark.parametrize("run", [MapRun(133, 70, 1), MapRun(200, 30, 1)])
    def test_a_chunk_that_is_replaced_from_its_beginning_is_gone(self, run: MapRun) -> None:
        writer = MapWriter(PAIR)
        for at in range(7):
            writer.append(MapRun(100 + 11 * at, 10 * at, 10))
        writer.append(run)
        assert writer.upstreams == [100, 133]

    def test_tombstones_come_before_what_replaces_them(self) -> None:
        writer = MapWriter(PAIR)
        for at in range(7):
            writer.append(MapRun(100 + 11 * at, 10 * at, 10))
        writer.written()
        writer.append(MapRun(120, 19, 1))
        changes = [(decode_chunk_key(key).first_upstream, value is None) for key, value in writer.changes()]
        assert changes == [(133, True), (166, True), (120, False)]
        assert [upstream for upstream, _ in writer.values()] == [120]


def test_predecessors_differ_in_a_known_id() -> None:
    of = MapPair("t", UUID(int=1), 0, "us.t", UUID(int=2), 0)
    for source, target, is_recreated in ((9, 2, True), (1, 9, True), (1, 2, False)):
        ids: Any = {"source_topic_id": UUID(int=source), "target_topic_id": UUID(int=target)}
        assert replace(of, **ids).is_predecessor_of(of) is is_recreated
    learnt = replace(of, source_topic_id=None)
    assert not learnt.is_predecessor_of(of), "brokers that have learnt topic ids meanwhile"
    assert not MapPair("other", UUID(int=9), 0, "us.t", None, 0).is_predecessor_of(PAIR)
