"""Align two logs without stored positions: find which record of the target is the copy of which source record.

Every pair is proven, none is guessed. Both logs are walked downwards from the beginning of the existing map: what is
before it in one log was copied to before it in the other. A record whose content occurs once in the window of each log,
and in neither shortly above, is an anchor if no other anchor crosses it. Between two anchors, records that only one log
has have no partner; the others of one log must all be found in the other, in order. If they are not, or no anchor is
found, the walk ends, because a hole in a map means that nothing was copied there, whereas offsets below its beginning
are known to be unknown.

This depends on two facts. Copies are written in source order, and what was copied twice occurs again not far from the
first time. Of equal records (key, value, headers, time) both logs lose the earlier first, as retention and cleaners do,
so the latest of one log match the latest of the other; therefore the walk goes down. Memory is bounded by the window,
and by the most runs wanted.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from connectors.offset_map.runs_and_chunks import MapPair, MapRun, MapWriter

#: Records of each log that are compared at once.
WINDOW: Final = 20_000
#: Most runs kept of a partition, the newest, at 24 bytes each.
MAX_RUNS: Final = 2_000_000
#: Number of passed windows that are remembered: a content that also occurs there is not an anchor further down.
_WINDOWS_ABOVE: Final = 8
_TOP: Final = 1  # not a digest, because digests are even
_FAR: Final = 2**62


class LogSide(Enum):
    SOURCE = "source"
    TARGET = "target"


class Item(NamedTuple):
    """A record's offset and content (see :func:`digest`)."""

    offset: int
    digest: int


def digest(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]], time_ms: int) -> int:
    """Hash what a copy keeps; valid in this process only. ``time_ms``: a constant if the target has its own times."""
    return hash((key, value, tuple(headers), time_ms)) << 1


class ProvenMap:
    """The proven part of a map, built downwards."""

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self.records = 0
        self._max_runs = max_runs
        self._columns = (array("q"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def first(self) -> MapRun | None:
        return MapRun(*(column[-1] for column in self._columns)) if len(self) else None

    @property
    def is_full(self) -> bool:
        return len(self) >= self._max_runs

    def add_below(self, run: MapRun) -> None:
        self.records += run.length
        above = self.first
        if above and (above.upstream, above.downstream) == (run.upstream_end, run.downstream_end):
            run = MapRun(run.upstream, run.downstream, run.length + above.length)
            for column in self._columns:
                column.pop()
        for column, value in zip(self._columns, run, strict=True):
            column.append(value)

    def chunks(self, pair: MapPair) -> list[tuple[int, bytes]]:
        """Return the first upstream and value of each chunk, ascending."""
        writer = MapWriter(pair)
        for at in reversed(range(len(self))):
            writer.append(MapRun(*(column[at] for column in self._columns)))
        return writer.values()


class _Above:
    """The contents of the records passed last, of both logs."""

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
    """Both logs, fed in descending pieces from ``top`` downwards; proven runs are added to ``found``. ``top``: (source
    offset, target offset) where the existing map begins."""

    def __init__(self, top: tuple[int, int], found: ProvenMap, window: int = WINDOW) -> None:
        self.is_done = False
        self._found, self._window = found, window
        #: The first items of both logs are a pair.
        self._waiting = {side: [Item(offset, _TOP)] for side, offset in zip(LogSide, top, strict=True)}
        self._ended: set[LogSide] = set()
        self._above = _Above(2 * _WINDOWS_ABOVE * window)
        #: The log of which records below the anchor were passed over, because the other has none of them.
        self._passed: LogSide | None = None

    def wants(self, side: LogSide) -> bool:
        return side not in self._ended and len(self._waiting[side]) <= self._window

    def take(self, side: LogSide, items: Iterable[Item]) -> None:
        self._waiting[side] += items

    def end(self, side: LogSide) -> None:
        """Note that the log was taken to its beginning."""
        self._ended.add(side)

    def settle(self) -> None:
        """Prove what can be proven, and drop it. Call it when neither log is wanted."""
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
        """Pass over records that are not in the other log's window, which reaches to the next anchor."""
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
    """Return the index pairs that are certain, ascending both ways, without the first items. A content that also occurs
    ``above`` is left out, because it may be a second copy of that record."""
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
    """Return the pairs that are in the same order as all others in both logs."""
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
    """Return the pairs if the records common to both logs are, in one, a subsequence of those in the other; else None.
    Of equal records the one is chosen with which no consumer misses a record: the first in the target, the last in the
    source."""
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
    """Yield runs from the first of ``pairs`` up to the last, which is known already. If two pairs have the same
    distance in both logs, with a source record at each offset between them and nothing in the target, which was read
    completely if ``is_whole``, the copies of those records were there, and the target's cleaner removed them."""
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
