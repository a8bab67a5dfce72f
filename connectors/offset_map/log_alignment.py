"""Align two logs when no record says what was copied where: find which record is whose copy.

What is claimed is proven, never guessed. Both are walked from the top down: what lies before the beginning of the map
that is there, in the one log, was copied to before its beginning in the other. A record whose content occurs once in
what is seen of either log, and in neither shortly above, is an anchor if no other anchor crosses it. Of the records
between two anchors those that only one log has are copies of no record; the others must, of one log, all be found in
the other, in order. If they are not, or no anchor is found, the walk ends: in a map a hole says that nothing of it was
copied, whereas offsets below its beginning are known to be unknown.

That depends on two facts. Copies are written in the order of the source; what was copied twice occurs there once more,
not far from the first time.
And of equal records (key, value, headers, time) either log loses the earlier first, as retention and cleaners do; so
the latest of one log belong to the latest of the other, which is why the walk goes down. Memory is bounded by the
window, and by the most runs that are wanted.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from connectors.offset_map.runs_and_chunks import MapPair, MapRun, MapWriter

#: Records of either log that are looked at together.
WINDOW: Final = 20_000
#: What is kept of a partition, the newest: 24 bytes each.
MAX_RUNS: Final = 2_000_000
#: So many windows of what was let go of are remembered: a content that stands there too is no anchor further down.
_WINDOWS_ABOVE: Final = 8
_TOP: Final = 1  # no digest: those are even
_FAR: Final = 2**62


class LogSide(Enum):
    SOURCE = "source"
    TARGET = "target"


class Item(NamedTuple):
    """A record: where it stands, and what it holds (see :func:`digest`)."""

    offset: int
    digest: int


def digest(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]], time_ms: int) -> int:
    """Of what a copy keeps; within this process only. ``time_ms``: a constant where the target has its own times."""
    return hash((key, value, tuple(headers), time_ms)) << 1


class ProvenMap:
    """The map as far down as it is proven."""

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self.records = 0
        self._max_runs = max_runs
        self._columns = (array("q"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def first(self) -> MapRun | None:
        """The lowest run."""
        return MapRun(*(column[-1] for column in self._columns)) if len(self) else None

    @property
    def is_full(self) -> bool:
        return len(self) >= self._max_runs

    def add_below(self, run: MapRun) -> None:
        """The next one, which lies below all others."""
        self.records += run.length
        above = self.first
        if above and (above.upstream, above.downstream) == (run.upstream_end, run.downstream_end):
            run = MapRun(run.upstream, run.downstream, run.length + above.length)
            for column in self._columns:
                column.pop()
        for column, value in zip(self._columns, run, strict=True):
            column.append(value)

    def chunks(self, pair: MapPair) -> list[tuple[int, bytes]]:
        """First upstream and value of each, ascending."""
        writer = MapWriter(pair)
        for at in reversed(range(len(self))):
            writer.append(MapRun(*(column[at] for column in self._columns)))
        return writer.values()


class _Above:
    """The contents of the records that were let go of last, of both logs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._order: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    def __contains__(self, content: int) -> bool:
        return content in self._counts

    def add(self, items: Iterable[Item]) -> None:
        for item in items:
            self._order.append(item.digest)
            self._counts[item.digest] += 1
        while len(self._order) > self._most:
            oldest = self._order.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]


class SideBySide:
    """Both logs, fed in pieces from ``top`` downwards, each piece descending too; what is proven goes into ``found``.

    ``top``: (source offset, target offset) at which the map begins that is there.
    """

    def __init__(self, top: tuple[int, int], found: ProvenMap, window: int = WINDOW) -> None:
        self.is_done = False
        self._found = found
        self._window = window
        #: The first of either belong together.
        self._waiting = {side: [Item(offset, _TOP)] for side, offset in zip(LogSide, top, strict=True)}
        self._ended: set[LogSide] = set()
        self._above = _Above(2 * _WINDOWS_ABOVE * window)
        #: Of which log records were passed over below the anchor, as none of them is in the other down to the next.
        self._passed: LogSide | None = None

    def wants(self, side: LogSide) -> bool:
        return side not in self._ended and len(self._waiting[side]) <= self._window

    def take(self, side: LogSide, items: Iterable[Item]) -> None:
        self._waiting[side] += items

    def end(self, side: LogSide) -> None:
        """All of it was taken."""
        self._ended.add(side)

    def settle(self) -> None:
        """Once neither log is wanted: prove what can be, and let go of it."""
        source, target = (self._waiting[side] for side in LogSide)
        anchors = [(0, 0), *_anchors(source, target, self._above)]
        if len(anchors) == 1:
            self._pass_over()
            return
        for (i, j), (next_i, next_j) in pairwise(anchors):
            ours, theirs = source[i : next_i + 1][::-1], target[j : next_j + 1][::-1]
            between = embedded(ours[1:-1], theirs[1:-1])
            if between is None or self._found.is_full:
                self.is_done = True
                return
            pairs = [(ours[0], theirs[0]), *between, (ours[-1], theirs[-1])]
            for run in reversed(list(_runs(pairs, ours, theirs, is_whole=self._passed is None))):
                self._found.add_below(run)
            self._passed = None
        last_i, last_j = anchors[-1]
        self._above.add(source[:last_i])
        self._above.add(target[:last_j])
        self._waiting = {LogSide.SOURCE: source[last_i:], LogSide.TARGET: target[last_j:]}

    def _pass_over(self) -> None:
        """Go on below records of one log that are not in the other as far as that is seen, which must be all of it down
        to the next anchor: so of the other log nothing is passed over."""
        side = self._passed or next((one for one in LogSide if one not in self._ended), None)
        if side is not None:
            other = LogSide.TARGET if side is LogSide.SOURCE else LogSide.SOURCE
            passed, seen = self._waiting[side][1:], {item.digest for item in self._waiting[other][1:]}
            if passed and seen and not any(item.digest in seen for item in passed):
                self._above.add(passed)
                del self._waiting[side][1:]
                self._passed = side
                self.is_done = side in self._ended
                return
        self.is_done = True


def _anchors(source: Sequence[Item], target: Sequence[Item], above: _Above) -> list[tuple[int, int]]:
    """Pairs of indexes, ascending both ways, that are certain; the first items are none. What stands ``above`` as well
    may be the copy of that one, made a second time."""
    ours, theirs = (Counter(item.digest for item in items) for items in (source, target))
    places = {item.digest: at for at, item in enumerate(target) if at and theirs[item.digest] == 1}
    return _uncrossed(
        [
            (at, places[item.digest])
            for at, item in enumerate(source)
            if at and ours[item.digest] == 1 and item.digest in places and item.digest not in above
        ]
    )


def _uncrossed(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that stand in the same order as all others."""
    lowest_behind = [_FAR] * (len(pairs) + 1)
    for at in range(len(pairs) - 1, -1, -1):
        lowest_behind[at] = min(lowest_behind[at + 1], pairs[at][1])
    kept, highest = [], -1
    for at, (ours, theirs) in enumerate(pairs):
        if highest < theirs < lowest_behind[at + 1]:
            kept.append((ours, theirs))
        highest = max(highest, theirs)
    return kept


def embedded(source: Sequence[Item], target: Sequence[Item]) -> list[tuple[Item, Item]] | None:
    """Which is whose copy, where what is in both is, in the one, a part of the other, in order; else None.

    Of equal ones the place counts that makes no reader miss a record: the first of those in the target, and the last of
    those in the source.
    """
    ours, theirs = ({item.digest for item in items} for items in (source, target))
    source = [item for item in source if item.digest in theirs]
    target = [item for item in target if item.digest in ours]
    if (pairs := _subsequence(source, target)) is not None:
        return pairs
    if (pairs := _subsequence(target[::-1], source[::-1])) is not None:
        return [(one, other) for other, one in reversed(pairs)]
    return None


def _runs(
    pairs: Sequence[tuple[Item, Item]], source: Sequence[Item], target: Sequence[Item], *, is_whole: bool
) -> Iterator[MapRun]:
    """Runs from the first of ``pairs`` up to the last, which is there already.

    Where two of them lie as far from each other in either log, with a source record at each offset between them and
    nothing at all in the target, which ``is_whole`` has been looked through, the copies of those records stood there:
    the target's cleaner took them.
    """
    here, there = ({item.offset: at for at, item in enumerate(items)} for items in (source, target))
    for (ours, theirs), (next_ours, next_theirs) in pairwise(pairs):
        distance = next_ours.offset - ours.offset
        is_dense = here[next_ours.offset] - here[ours.offset] == distance
        is_empty = is_whole and there[next_theirs.offset] - there[theirs.offset] == 1
        is_taken = distance == next_theirs.offset - theirs.offset and is_dense and is_empty
        yield MapRun(ours.offset, theirs.offset, distance if is_taken else 1)


def _subsequence(fewer: Sequence[Item], more: Sequence[Item]) -> list[tuple[Item, Item]] | None:
    rest = iter(more)
    pairs = []
    for one in fewer:
        partner = next((other for other in rest if other.digest == one.digest), None)
        if partner is None:
            return None
        pairs.append((one, partner))
    return pairs
