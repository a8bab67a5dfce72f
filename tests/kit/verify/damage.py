"""Damage as a fault would leave it: chosen by chance, planted in segments, and remembered as what is to be found."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from connect.wire.records import Headers, Record
from tests.kit.verify.data import PARTITIONS, Topic
from tests.kit.verify.segments import Batch, Original, batches, committed, rebuilt

#: Records on either side of a damaged one that stay whole.
_APART: Final = 3
_TRIES: Final = 2000


class Kind(enum.StrEnum):
    """What becomes of a record."""

    MISSING = "missing"
    DOUBLED = "doubled"
    KEY = "key"
    VALUE = "value"
    HEADER = "header"
    TIMESTAMP = "timestamp"
    SWAPPED = "swapped"
    #: Missing as well, and the map knows of no copy: at the source, what was aborted is not.
    UNCOPIED = "uncopied"


#: What a comparison by last value per key can see.
_SEEN_IN_COMPACTED: Final = frozenset(Kind) - {Kind.DOUBLED, Kind.UNCOPIED}


class Planted(NamedTuple):
    """One damage; of a doubled record the original's offset, of two swapped ones the first's; -1: uncopied."""

    kind: Kind
    topic: str
    partition: int
    source_offset: int
    target_offset: int

    def __str__(self) -> str:
        return f"{self.kind} {self.topic}-{self.partition} {self.source_offset} -> {self.target_offset}"


@dataclass
class Pair:
    """A partition and its copy: source offsets by target ones, ``last`` of each key, foreign aborted ``slots``."""

    topic: Topic
    partition: int
    source: list[Path]
    target: list[Path]
    offsets: dict[int, int] = field(default_factory=dict)
    last: set[int] = field(default_factory=set)
    slots: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)

    @property
    def source_name(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def target_name(self) -> str:
        return f"{self.topic.remote}-{self.partition}"


def read_pair(topic: Topic, partition: int, source: Original, target: Original) -> Pair:
    """Read a partition and its copy whole. AssertionError if they differ: no damage is planted yet."""
    pair = Pair(topic, partition, source.keep(f"{topic.name}-{partition}"), target.keep(f"{topic.remote}-{partition}"))
    latest: dict[bytes | None, int] = {}
    theirs = (record for batch in batches(pair.target) if batch.is_visible for record in batch.records())
    ours = (record for batch in batches(pair.source) if batch.is_visible for record in batch.records())
    for one, other in zip_longest(ours, theirs):
        assert one is not None and other is not None and one[1:] == other[1:], (pair.target_name, one, other)
        pair.offsets[other.offset] = one.offset
        if topic.compacted:
            latest[other.key] = other.offset
    pair.last = set(latest.values())
    pair.slots = [one.header.base_offset for one in batches(pair.target) if one.is_aborted]
    pair.aborted = [
        one.header.base_offset for one in batches(pair.source) if one.is_aborted and one.header.record_count == 1
    ]
    return pair


def read_pairs(topics: Iterable[Topic], source: Original, target: Original) -> list[Pair]:
    return [read_pair(topic, at, source, target) for topic in topics for at in range(PARTITIONS)]


class Planter:
    """Plants one round's damage. ``changed`` are batches by partition and base offset."""

    def __init__(self, pairs: Sequence[Pair], seed: int) -> None:
        self._pairs = pairs
        self._chance = random.Random(f"damage {seed}")
        self._batches: dict[str, dict[int, Batch]] = {}
        self._used: dict[str, set[int]] = {}
        self.changed: dict[str, dict[int, bytes]] = {}
        self.changed_source: dict[str, dict[int, bytes]] = {}

    def clean(self) -> None:
        """Leave out half of what later keys replace, other records at the source than at the target."""
        for pair in self._pairs:
            if not pair.topic.compacted:
                continue
            for base, batch in list(self._of(pair).items()):
                kept = self._cleaned(batch, pair.last)
                if kept is not None:
                    self._put(pair, base, kept)
            last = {pair.offsets[offset] for offset in pair.last}
            for batch in batches(pair.source):
                kept = self._cleaned(batch, last)
                if kept is not None:
                    data = rebuilt(batch, kept) if kept else b""
                    self.changed_source.setdefault(pair.source_name, {})[batch.header.base_offset] = data

    def _cleaned(self, batch: Batch, last: Collection[int]) -> list[Record] | None:
        """Return what a cleaner leaves of a batch; None if it leaves all."""
        found = batch.records() if batch.is_visible else []
        kept = [one for one in found if one.offset in last or self._chance.random() < 0.5]
        return kept if len(kept) < len(found) else None

    def plant(self, kind: Kind) -> Planted:
        """Plant one damage of a kind, apart from all others."""
        if kind is Kind.UNCOPIED:
            return self._uncopy()
        if kind is Kind.DOUBLED:
            return self._double()
        for _ in range(_TRIES):
            pair = self._chance.choice(self._pairs)
            if pair.topic.compacted and kind not in _SEEN_IN_COMPACTED:
                continue
            base, batch = self._chance.choice(list(self._of(pair).items()))
            if not batch.is_visible or not (found := batch.records()):
                continue
            at = self._chance.randrange(len(found))
            offset = found[at].offset
            if not self._is_free(pair, offset) or (pair.topic.compacted and not self._is_seen(pair, kind, found, at)):
                continue
            damaged = _DAMAGE[kind](found, at)
            if damaged is None or (not damaged and base == max(self._of(pair))):
                continue
            self._put(pair, base, damaged)
            return self._planted(kind, pair, offset)
        raise AssertionError(f"nothing to damage: {kind}")

    def _is_seen(self, pair: Pair, kind: Kind, found: Sequence[Record], at: int) -> bool:
        """By last records a tombstone that is gone is no difference: a cleaner removes it too."""
        if kind is Kind.SWAPPED and (at + 1 >= len(found) or found[at + 1].offset not in pair.last):
            return False
        is_gone = kind in (Kind.MISSING, Kind.KEY) and found[at].value is None
        return found[at].offset in pair.last and not is_gone

    def _uncopy(self) -> Planted:
        pair = self._chance.choice([pair for pair in self._pairs if pair.aborted])
        base = self._chance.choice(pair.aborted)
        batch = next(one for one in batches(pair.source) if one.header.base_offset == base)
        self.changed_source.setdefault(pair.source_name, {})[base] = committed(batch, batch.records())
        return Planted(Kind.UNCOPIED, pair.topic.name, pair.partition, base, -1)

    def _double(self) -> Planted:
        pair = self._chance.choice([pair for pair in self._pairs if pair.slots and not pair.topic.compacted])
        slot = self._chance.choice(pair.slots)
        earlier = max(offset for offset in pair.offsets if offset < slot)
        origin = next(
            record for batch in self._of(pair).values() for record in batch.records() if record.offset == earlier
        )
        again = committed(self._of(pair)[slot], [origin._replace(offset=slot)])
        self.changed.setdefault(pair.target_name, {})[slot] = again
        self._used.setdefault(pair.target_name, set()).add(earlier)
        return Planted(Kind.DOUBLED, pair.topic.name, pair.partition, pair.offsets[earlier], slot)

    def _of(self, pair: Pair) -> dict[int, Batch]:
        if pair.target_name not in self._batches:
            self._batches[pair.target_name] = {one.header.base_offset: one for one in batches(pair.target)}
        return self._batches[pair.target_name]

    def _put(self, pair: Pair, base: int, found: Sequence[Record]) -> None:
        known = self._of(pair)
        data = rebuilt(known[base], found) if found else b""
        self.changed.setdefault(pair.target_name, {})[base] = data
        if data:
            known[base] = known[base]._replace(data=data)
        else:
            del known[base]

    def _is_free(self, pair: Pair, offset: int) -> bool:
        used = self._used.setdefault(pair.target_name, set())
        return all(abs(offset - one) > _APART for one in used)

    def _planted(self, kind: Kind, pair: Pair, offset: int) -> Planted:
        self._used.setdefault(pair.target_name, set()).add(offset)
        return Planted(kind, pair.topic.name, pair.partition, pair.offsets[offset], offset)


def _without(found: Sequence[Record], at: int) -> list[Record]:
    return [*found[:at], *found[at + 1 :]]


def _with(found: Sequence[Record], at: int, record: Record) -> list[Record]:
    return [*found[:at], record, *found[at + 1 :]]


def _altered(part: bytes | None) -> bytes:
    """Another value of the same length, if it has one: nothing but its content tells."""
    return bytes([part[0] ^ 1]) + part[1:] if part else b"?"


def _swapped(found: Sequence[Record], at: int) -> list[Record] | None:
    if at + 1 >= len(found) or found[at + 1].offset != found[at].offset + 1:  # a cleaned batch has gaps
        return None
    one, other = found[at], found[at + 1]
    return [*found[:at], other._replace(offset=one.offset), one._replace(offset=other.offset), *found[at + 2 :]]


def _header(found: Sequence[Record], at: int) -> list[Record]:
    headers = found[at].headers
    changed: Headers = [(headers[0][0], _altered(headers[0][1])), *headers[1:]] if headers else [("n", b"0")]
    return _with(found, at, found[at]._replace(headers=changed))


_DAMAGE: Final[Mapping[Kind, Callable[[Sequence[Record], int], list[Record] | None]]] = {
    Kind.MISSING: _without,
    Kind.KEY: lambda found, at: _with(found, at, found[at]._replace(key=_altered(found[at].key))),
    Kind.VALUE: lambda found, at: _with(found, at, found[at]._replace(value=_altered(found[at].value))),
    Kind.HEADER: _header,
    Kind.TIMESTAMP: lambda found, at: _with(found, at, found[at]._replace(timestamp_ms=found[at].timestamp_ms + 1)),
    Kind.SWAPPED: _swapped,
}


def write(original: Original, changed: Mapping[str, Mapping[int, bytes]], before: Iterable[str]) -> None:
    """Write the changed partitions, and those that were changed ``before`` as they were."""
    for name in {*changed, *before}:
        original.write(name, dict(changed.get(name, {})))
