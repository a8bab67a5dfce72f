"""Map each mirrored source offset to its target offset and back, in runs that are stored in chunks.

A partition's map is a list of runs (upstream start, downstream start, length), ascending both ways. A new run begins
only when the difference changes, so a plain topic has one run. A source with a thousand transactions a second has a
thousand runs a second, so the list is stored in chunks of bounded size, of which only the last is ever rewritten. A
chunk is valid before the next chunk's beginning only, upstream and downstream: this expresses a rewind or a truncated
target without reading old chunks. So a chunk that replaces others begins no later than they did, even if its first run
is behind: what they cut off from older chunks must not become valid again.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from connect.wire.fetch_produce import uvarint
from connectors.formats.position import (
    VERSION,
    KeyKind,
    LastRun,
    Position,
    Reader,
    UnknownFormat,
    check_version,
    front,
    text,
    topic_id,
)
from connectors.formats.types import OfPair, is_recreated

MAX_RUNS_PER_CHUNK: Final = 4096
#: Most runs of a pair with a compacted target, whose log start does not advance: about 200 MB in the map topic.
MAX_RUNS: Final = 2**26
_FAR: Final = 2**63
_NO_LIMIT: Final = (_FAR, _FAR)
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_CHUNK_FRONT: Final = struct.Struct(">bqH")  # version, first downstream, runs


class MapRun(NamedTuple):
    """``length`` records in a row, from ``upstream`` in the source and from ``downstream`` in the target."""

    upstream: int
    downstream: int
    length: int

    @property
    def upstream_end(self) -> int:
        return self.upstream + self.length

    @property
    def downstream_end(self) -> int:
        return self.downstream + self.length


class OffsetLocation(Enum):
    """Where an offset is relative to the map."""

    INSIDE = "inside"  # within a run, or right behind the last: exact
    GAP = "gap"  # between runs: the map has no copy of it, so the end of the run before is equivalent
    BELOW = "below"  # before the map begins: older copies may exist that the map does not have
    BEYOND = "beyond"  # behind its end: not mirrored yet, or dropped


class MappedOffset(NamedTuple):
    offset: int
    place: OffsetLocation


class RunList:
    """Runs of one pair of partitions, ascending upstream and downstream, at most one per change of the difference."""

    __slots__ = ("_downstreams", "_runs", "_upstreams")

    def __init__(self, runs: Iterable[MapRun] = ()) -> None:
        self._runs: list[MapRun] = []
        self._upstreams: list[int] = []
        self._downstreams: list[int] = []
        for run in runs:
            self.append(run)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[MapRun]:
        return iter(self._runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunList) and self._runs == other._runs

    __hash__ = None  # type: ignore[assignment]

    @property
    def last(self) -> MapRun | None:
        return self._runs[-1] if self._runs else None

    @property
    def first(self) -> MapRun | None:
        return self._runs[0] if self._runs else None

    def next_to_upstream(self, upstream: int) -> tuple[MapRun | None, MapRun | None]:
        """Return the last run that begins at or before a source offset, and the first behind it."""
        return self._next_to(bisect_right(self._upstreams, upstream))

    def next_to_downstream(self, downstream: int) -> tuple[MapRun | None, MapRun | None]:
        """Return the last run that begins at or before a target offset, and the first behind it."""
        return self._next_to(bisect_right(self._downstreams, downstream))

    def _next_to(self, at: int) -> tuple[MapRun | None, MapRun | None]:
        return self._runs[at - 1] if at else None, self._runs[at] if at < len(self._runs) else None

    def append(self, run: MapRun) -> None:
        """Add a run that was copied just now. If it begins before the known end, upstream (a rewind: records were
        copied again) or downstream (the target was truncated), it replaces what is behind its beginning: the later copy
        counts."""
        _check(run)
        self.cut(run.upstream, run.downstream)
        last = self.last
        if last and last.upstream_end == run.upstream and last.downstream_end == run.downstream:
            self._runs[-1] = MapRun(last.upstream, last.downstream, last.length + run.length)
        else:
            self._runs.append(run)
            self._upstreams.append(run.upstream)
            self._downstreams.append(run.downstream)

    def cut(self, upstream_end: int, downstream_end: int) -> None:
        """Remove every record at or behind ``upstream_end`` in the source or ``downstream_end`` in the target."""
        while (last := self.last) and (last.upstream_end > upstream_end or last.downstream_end > downstream_end):
            self._runs.pop()
            self._upstreams.pop()
            self._downstreams.pop()
            left = min(last.length, upstream_end - last.upstream, downstream_end - last.downstream)
            if left > 0:
                self._runs.append(MapRun(last.upstream, last.downstream, left))
                self._upstreams.append(last.upstream)
                self._downstreams.append(last.downstream)

    def lengthen(self, last_run: LastRun) -> None:
        """Take the length of the last run from a position that is newer than the chunk."""
        last = self.last
        if last and last.upstream == last_run.upstream:
            self._runs[-1] = MapRun(last.upstream, last.downstream, max(last.length, last_run.length))

    def forward(self, upstream: int) -> MappedOffset | None:
        """Return the target offset where a consumer that would read ``upstream`` next continues; None if empty. In a
        gap this is behind the last record mirrored before it: what follows up to the next run is not of this source, or
        was copied without a map, and is then read too. Before the first run it is its start, and behind the last run
        its end, both marked, for the caller to decide."""
        return self._mapped(upstream, self._upstreams, self._downstreams)

    def reverse(self, downstream: int) -> MappedOffset | None:
        """Return the source offset where a consumer that would read ``downstream`` next continues; None if empty. In a
        gap (markers, records of other producers) this is behind the last record mirrored before it."""
        return self._mapped(downstream, self._downstreams, self._upstreams)

    def _mapped(self, offset: int, begins: Sequence[int], others: Sequence[int]) -> MappedOffset | None:
        """``begins`` and ``others``: where each run begins in the log of ``offset``, and in the other log."""
        if not begins:
            return None
        at = bisect_right(begins, offset) - 1
        if at < 0:
            return MappedOffset(others[0], OffsetLocation.BELOW)
        distance, length = offset - begins[at], self._runs[at].length
        if distance < length:
            return MappedOffset(others[at] + distance, OffsetLocation.INSIDE)
        behind_last = OffsetLocation.INSIDE if distance == length else OffsetLocation.BEYOND
        is_last = at + 1 == len(begins)
        return MappedOffset(others[at] + length, behind_last if is_last else OffsetLocation.GAP)


@dataclass(frozen=True, slots=True)
class MapPair(OfPair):
    """A source partition and the target partition it is copied to; an id is None if the brokers have none."""

    source_topic: str
    source_topic_id: UUID | None
    source_partition: int
    target_topic: str
    target_topic_id: UUID | None
    target_partition: int

    @classmethod
    def of(cls, position: Position) -> MapPair:
        return cls(
            position.source_topic,
            position.source_topic_id,
            position.source_partition,
            position.target_topic,
            position.target_topic_id,
            position.target_partition,
        )

    def is_predecessor_of(self, other: MapPair) -> bool:
        """Return whether this is the same pair by name, of which a topic was recreated since."""
        return self.names() == other.names() and (
            is_recreated(other.source_topic_id, self.source_topic_id)
            or is_recreated(other.target_topic_id, self.target_topic_id)
        )

    def names(self) -> tuple[str, int, str, int]:
        return self.source_topic, self.source_partition, self.target_topic, self.target_partition


class ChunkKey(NamedTuple):
    pair: MapPair
    first_upstream: int


def encode_chunk_key(key: ChunkKey) -> bytes:
    pair = key.pair
    return (
        front(KeyKind.CHUNK)
        + topic_id(pair.source_topic_id)
        + _INT32.pack(pair.source_partition)
        + topic_id(pair.target_topic_id)
        + _INT32.pack(pair.target_partition)
        + _INT64.pack(key.first_upstream)
        + text(pair.source_topic)
        + text(pair.target_topic)
    )


@lru_cache(maxsize=65_536)  # because an uncleaned topic repeats each key many times
def decode_chunk_key(key: bytes) -> ChunkKey:
    reader = Reader(key, len(front(KeyKind.CHUNK)))
    source_id, source_partition = reader.topic_id(), reader.int32()
    target_id, target_partition = reader.topic_id(), reader.int32()
    first_upstream = reader.fixed(_INT64)[0]
    source_topic, target_topic = reader.text(), reader.text()
    reader.end()
    return ChunkKey(
        MapPair(source_topic, source_id, source_partition, target_topic, target_id, target_partition), first_upstream
    )


def decode_chunk(first_upstream: int, value: bytes) -> list[MapRun]:
    """Decode a chunk's runs, in order. Raises UnknownFormat."""
    check_version(value, "chunk")
    reader = Reader(value, 0)
    _, downstream, count = reader.fixed(_CHUNK_FRONT)
    if not 0 < count <= MAX_RUNS_PER_CHUNK:
        raise UnknownFormat(f"chunk of {count} runs in the offset map")
    upstream = first_upstream
    runs: list[MapRun] = []
    for _ in range(count):
        run = MapRun(upstream + reader.uvarint(), downstream + reader.uvarint(), reader.uvarint())
        if run.length <= 0:
            raise UnknownFormat("chunk with an empty run in the offset map")
        runs.append(run)
        upstream, downstream = run.upstream_end, run.downstream_end
    reader.end()
    return runs


def first_downstream(value: bytes) -> int:
    """Return where a chunk begins in the target, without decoding its runs. Raises UnknownFormat."""
    check_version(value, "chunk")
    return Reader(value, 0).fixed(_CHUNK_FRONT)[1]


class _OpenChunk:
    """A growing chunk that encodes each run once, because it is rewritten with every commit until it is full."""

    def __init__(self, first: MapRun, begin: tuple[int, int], max_runs: int) -> None:
        self._max_runs = max_runs
        self.is_changed = True  # whether it differs from the stored chunk, not only in the length of its last run
        self.has_grown = False  # whether the last run is longer than in the stored chunk
        self.begin = begin  # (upstream, downstream), at or before the first run
        self.last = first
        self._count = 1
        self._settled = bytearray()  # all runs except the last, which may still grow
        self._settled_upstream, self._settled_downstream = begin

    @classmethod
    def of(cls, runs: Sequence[MapRun], begin: tuple[int, int], max_runs: int) -> _OpenChunk:
        chunk = cls(runs[0], begin, MAX_RUNS_PER_CHUNK)
        for run in runs[1:]:
            if not chunk.take(run):
                raise ValueError(f"more than {MAX_RUNS_PER_CHUNK} runs in a chunk")
        chunk._max_runs = max_runs
        return chunk

    def take(self, run: MapRun) -> bool:
        """Add a run behind the last; return False if the chunk is full."""
        last = self.last
        if last.upstream_end == run.upstream and last.downstream_end == run.downstream:
            self.last = MapRun(last.upstream, last.downstream, last.length + run.length)
            self.has_grown = True
            return True
        if self._count >= self._max_runs:
            return False
        self._settled += self._encoded_last()
        self._settled_upstream, self._settled_downstream = last.upstream_end, last.downstream_end
        self.last = run
        self._count += 1
        self.is_changed = True
        return True

    def value(self) -> bytes:
        return _CHUNK_FRONT.pack(VERSION, self.begin[1], self._count) + self._settled + self._encoded_last()

    def runs(self) -> list[MapRun]:
        return decode_chunk(self.begin[0], self.value())

    def _encoded_last(self) -> bytes:
        last = self.last
        return (
            uvarint(last.upstream - self._settled_upstream)
            + uvarint(last.downstream - self._settled_downstream)
            + uvarint(last.length)
        )


class MapWriter:
    """The map of one pair as its only writer keeps it: where each chunk begins, and the open chunk. ``append``, ``cut``
    and ``trim`` collect changes; ``changes`` returns them as records to write, until ``written`` is called. A chunk is
    full with ``max_runs``. While only the last run grows, nothing is written, because a position carries
    :attr:`last_run`."""

    def __init__(self, pair: MapPair, *, max_runs: int | None = None) -> None:
        self.pair = pair
        self._max_runs = max_runs or MAX_RUNS_PER_CHUNK
        #: (first upstream, first downstream) of every chunk, ascending; an open chunk is the last.
        self._begins: list[tuple[int, int]] = []
        self._open: _OpenChunk | None = None
        self._changed: dict[int, bytes | None] = {}  # other chunks by first upstream; None deletes
        self._limit = _NO_LIMIT  # where the next chunk begins at the latest

    @classmethod
    def load(
        cls,
        pair: MapPair,
        chunks: Mapping[int, int],
        last_chunk: bytes | None,
        *,
        last_run: LastRun | None = None,
        max_runs: int | None = None,
    ) -> MapWriter:
        """Continue with what is stored. ``chunks``: first downstream of every stored chunk by its first upstream.
        ``last_chunk``: the value of the chunk with the highest first upstream; None if nothing is stored. ``last_run``:
        that of the newest position."""
        writer = cls(pair, max_runs=max_runs)
        writer._begins = sorted(chunks.items())
        if last_chunk is not None:
            begin, runs = writer._begins[-1], RunList(decode_chunk(writer._begins[-1][0], last_chunk))
            stored = runs.last
            if last_run is not None:
                runs.lengthen(last_run)
            writer._open = chunk = _OpenChunk.of(list(runs), begin, writer._max_runs)
            chunk.is_changed, chunk.has_grown = False, runs.last != stored
        return writer

    @property
    def last(self) -> MapRun | None:
        """The newest run; None if the map is empty or a cut left only closed chunks."""
        return self._open.last if self._open else None

    @property
    def last_run(self) -> LastRun | None:
        """The newest run as a position carries it; None if the stored chunk is complete."""
        chunk = self._open
        return LastRun(chunk.last.upstream, chunk.last.length) if chunk and chunk.has_grown else None

    @property
    def chunks(self) -> int:
        return len(self._begins)

    @property
    def upstreams(self) -> list[int]:
        """Where each chunk begins in the source, as in its key."""
        return [upstream for upstream, _ in self._begins]

    def append(self, run: MapRun) -> None:
        """Add a run that was copied just now; if it begins before the known end, it replaces what is behind it."""
        _check(run)
        self._cut(run.upstream, run.downstream)
        if self._open is None or not self._open.take(run):
            self._close()
            begin = min(self._limit[0], run.upstream), min(self._limit[1], run.downstream)
            self._open, self._limit = _OpenChunk(run, begin, self._max_runs), _NO_LIMIT
            self._begins.append(begin)

    def cut(self, downstream_end: int) -> None:
        """Remove what is at or behind ``downstream_end``: the target was truncated there."""
        self._cut(_FAR, downstream_end)

    def cut_source(self, upstream_end: int) -> None:
        """Remove what is at or behind ``upstream_end``: the source was truncated there, or is copied again."""
        self._cut(upstream_end, _FAR)

    def open_runs(self) -> list[MapRun]:
        """Return the runs of the open chunk, ascending; empty if a cut left only closed chunks."""
        return self._open.runs() if self._open else []

    def trim(self, log_start: int, *, is_compacted: bool = False) -> None:
        """Delete the chunks that are wholly below the target's log start; if the target is compacted, also the oldest
        beyond a number that may hold MAX_RUNS; never the last."""
        below = max(bisect_right(self._begins, log_start, key=lambda begin: begin[1]) - 1, 0)
        if is_compacted:
            below = max(below, len(self._begins) - MAX_RUNS // self._max_runs)
        for upstream, _ in self._begins[:below]:
            self._changed[upstream] = None
        del self._begins[:below]

    def values(self) -> list[tuple[int, bytes]]:
        """Return the first upstream and value of all chunks, ascending, of a map that is not stored yet."""
        return [(decode_chunk_key(key).first_upstream, value) for key, value in self.changes() if value is not None]

    def changes(self, *, complete: bool = False) -> list[tuple[bytes, bytes | None]]:
        """Return the records to write: key, and value or None for a tombstone; tombstones first, then ascending. In
        this order a reader has seen the end of what a chunk replaces before it. ``complete``: include the last chunk
        even if only its last run grew, so that :attr:`last_run` is not needed."""
        values = dict(self._changed)
        if (chunk := self._open) and (chunk.is_changed or (complete and chunk.has_grown)):
            values[chunk.begin[0]] = chunk.value()
        ordered = sorted(values.items(), key=lambda change: (change[1] is not None, change[0]))
        return [(encode_chunk_key(ChunkKey(self.pair, upstream)), value) for upstream, value in ordered]

    def written(self, *, complete: bool = False) -> None:
        """Note that what ``changes`` returned is stored."""
        self._changed.clear()
        if chunk := self._open:
            chunk.has_grown &= not (chunk.is_changed or complete)
            chunk.is_changed = False

    def _close(self) -> None:
        if (chunk := self._open) and (chunk.is_changed or chunk.has_grown):
            self._changed[chunk.begin[0]] = chunk.value()

    def _cut(self, upstream_end: int, downstream_end: int) -> None:
        while self._begins:
            upstream, downstream = self._begins[-1]
            if upstream < upstream_end and downstream < downstream_end and self._shorten(upstream_end, downstream_end):
                break
            self._begins.pop()
            self._changed[upstream] = None
            self._open = None
            self._limit = min(self._limit[0], upstream), min(self._limit[1], downstream)
        if self._open is None:
            self._limit = min(self._limit[0], upstream_end), min(self._limit[1], downstream_end)

    def _shorten(self, upstream_end: int, downstream_end: int) -> bool:
        """Cut the open chunk, if there is one; return False if nothing of it would be left."""
        if self._open is None:
            return True
        last = self._open.last
        if last.upstream_end > upstream_end or last.downstream_end > downstream_end:
            kept = RunList(self._open.runs())
            kept.cut(upstream_end, downstream_end)
            if not kept:
                return False
            self._open = _OpenChunk.of(list(kept), self._open.begin, self._max_runs)
        return True


def _check(run: MapRun) -> None:
    if run.length <= 0 or run.upstream < 0 or run.downstream < 0:
        raise ValueError(f"not a run: {run}")
