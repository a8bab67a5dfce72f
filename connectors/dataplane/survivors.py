"""How far a source was copied that may have lost records since: its survivors against the surplus, in order. Pure.

Compaction takes records from what was copied and puts nothing in their place, so the survivors of it are a part of the
surplus, in the same order: the first record of the source that the surplus does not have behind the ones before was
never copied, and everything before it was. What the surplus has besides is gone at the source.

Two things blur that. A record that was not copied may be like one that was and has vanished since. It is passed over
then: the target has an equal one in its place, and with the last record passed over of each key the target's last one
of that key says the same, else the copy goes on before it. So each key's last value is right whichever of the two it
was. A record without a key has no last value, and behind what is certain none is passed over. And the target's cleaner
may have taken records too: one that it has taken has left a hole among the sequences, and a later one of its
key stands behind it, at the target and, as it is older and still there, at the source.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane.alignment import NO_KEY, SurplusRecords, content_of, key_of
from connectors.dataplane.cut import cut
from connectors.dataplane.outgoing import append_run
from connectors.dataplane.plan import Run

#: Surpluses of more records are not compared, for what is known of one is held in memory: some 300 bytes.
MOST_COMPARED: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known before anything is compared.

    Args:
        stored: The source offset that the surplus begins at or behind.
        source_start: Where the source begins now.
        certain_before: What lies before this offset was copied, or left out, in any case, unless the source was
            truncated and has grown again.
        arrived: So many records came to the target behind the stored position.
        kept_before: What lies before this offset is no other than what was copied, by its leader epoch.
    """

    stored: int
    source_start: int
    certain_before: int
    arrived: int
    kept_before: int


class Walk:
    """What the source gives from ``position`` on, record by record, until ``is_over``."""

    def __init__(self, position: int, *, read_committed: bool) -> None:
        self.position = position
        self.is_over = False
        self._read_committed = read_committed

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]]) -> None:
        """Feed what a fetch of the source at ``position`` brought."""
        decided = cut(fetched, self.position, aborted if self._read_committed else None, wire.SEQUENCE_MODULUS)
        for batch, header, decision in decided:
            if decision.kind != "dropped":
                self._take(records.decode(batch, batch[16]))
            if self.is_over:
                return
            if header is not None:
                self.position = max(self.position, header.last_offset + 1)

    def take_records(self, found: Iterable[records.Record], following: int) -> None:
        """As :meth:`take`, of records that were opened before; the source goes on at ``following``."""
        self._take(found)
        if not self.is_over:
            self.position = max(self.position, following)

    def _take(self, found: Iterable[records.Record]) -> None:
        raise NotImplementedError


class Survivors(Walk):
    """Walks the source until a record that was not copied, or until all that arrived was found.

    ``position`` is behind what was passed; :meth:`cut_short` gives back what may not be passed over.
    """

    def __init__(self, bounds: Bounds, surplus: SurplusRecords, *, read_committed: bool) -> None:
        super().__init__(max(bounds.stored, bounds.source_start), read_committed=read_committed)
        self.passed = 0
        #: So many of those passed were found in the surplus; the others were taken for cleaned.
        self.found = 0
        #: Records that must have been copied, and that the whole surplus does not have: it cannot be compared.
        self.unlike = 0
        self._surplus = surplus
        self._bounds = bounds
        self.ignores_time = surplus.has_own_time
        self._contents = surplus.contents()
        self._last_like = {content: at for at, content in enumerate(self._contents)}
        self._last_of_key = {key: at for at, key in enumerate(surplus.keys)}
        self._next = 0  # in the surplus: what is before was passed by
        self._index = -1  # of the last record passed, among those that arrived
        self._pairs: list[Run] = []  # (source offset, index) of what was found, in runs
        self._doubtful = array("q")  # offsets passed behind what is certain
        self._last_passed: dict[int, tuple[int, int]] = {}  # by key: content, offset
        self._first_keyless: int | None = None  # the first offset passed behind what is certain
        self._unconfirmed: dict[int, int] = {}  # by key: the first one passed as cleaned since one was found

    @property
    def is_whole(self) -> bool:
        """Whether the target still has all that arrived."""
        return len(self._contents) == self._bounds.arrived

    @property
    def has_likes(self) -> bool:
        """Whether two of those at the target are alike, their times too unless the target stamped them."""
        return len(self._last_like) < len(self._contents)

    @property
    def is_ending(self) -> bool:
        """Whether those passed are the last that arrived, with none left out between, as of a log that lost its
        beginning."""
        return bool(self._pairs) and self.passed == self._bounds.arrived - self._pairs[0][1]

    @property
    def rest(self) -> Iterable[int]:
        """The contents of those at the target behind the last one that was found."""
        return self._contents[self._next :]

    @property
    def remaining(self) -> int:
        """So many arrived behind the last one that was found."""
        return self._bounds.arrived - 1 - self._index

    @property
    def certain(self) -> int:
        """So many of those passed were copied in any case."""
        return self.passed - len(self._doubtful) - self.unlike

    def cut_short(self, *, may_vanish: bool) -> int:
        """Go back before the first record that may not be passed over; returns how many are given back.

        ``may_vanish``: the one that it is like may have vanished anywhere; then one without a key is never passed over.
        """
        last = self._last_of_key
        wrong = [at for key, (content, at) in self._last_passed.items() if content != self._contents[last[key]]]
        wrong += self._unconfirmed.values()
        if may_vanish and self._first_keyless is not None:
            wrong.append(self._first_keyless)
        if not wrong:
            return 0
        self.position = min(wrong)
        kept = array("q", (offset for offset in self._doubtful if offset < self.position))
        given_back = len(self._doubtful) - len(kept)
        self.passed, self._doubtful = self.passed - given_back, kept
        self.is_over = False
        self._pairs = _ahead_of(self.position, self._pairs)
        self._index = self._pairs[-1][1] + self._pairs[-1][2] - 1 if self._pairs else -1
        return given_back

    def runs(self, before: int, *, with_gone: bool) -> list[Run]:
        """Where the records of the surplus lie ahead of an offset: those found.

        ``with_gone``: and what is gone between two of them, right before the second. It may have lain before that; but
        where all that is left was copied, nothing that is left lies between, and who goes on there by the map reads
        some of it again at worst. None where some are alike: what is left is found at the first of its likes, and who
        came back by that from between two of them would skip what was written between.
        """
        found: list[Run] = []
        if self.unlike or self.has_likes:
            return found
        laid, at = self._laid(before) if with_gone else _ahead_of(before, self._pairs), 0
        for target_offset, index in zip(self._surplus.offsets, self._surplus.indexes, strict=True):
            while at < len(laid) and index >= laid[at][1] + laid[at][2]:
                at += 1
            if at < len(laid) and index >= laid[at][1]:
                append_run(found, (laid[at][0] + index - laid[at][1], target_offset, 1))
        return found

    def _laid(self, before: int) -> list[Run]:
        """(source offset, index) in runs."""
        is_end = self.is_over and self.is_whole and before == self.position
        laid: list[Run] = []
        offset, index = self._bounds.stored, 0
        for next_offset, next_index, count in [
            *_ahead_of(before, self._pairs),
            *([(before, self._bounds.arrived, 0)] if is_end else ()),
        ]:
            # Likes may leave less room than there is to lay out.
            between = min(next_index - index, next_offset - offset)
            append_run(laid, (next_offset - between, next_index - between, between + count))
            offset, index = next_offset + count, next_index + count
        return laid

    def _take(self, found: Iterable[records.Record]) -> None:
        for record in found:
            if record.offset < self.position:
                continue
            if not self._passes(record):
                self.position, self.is_over = record.offset, True
                return
            self.position = record.offset + 1
            self.passed += 1
            if not self.remaining:
                self.is_over = True
                return

    def _passes(self, record: records.Record) -> bool:
        content, key = content_of(record, ignores_time=self.ignores_time), key_of(record)
        certain = record.offset < self._bounds.certain_before
        if self._find(content):
            append_run(self._pairs, (record.offset, self._index, 1))
            self.found += 1
            self._unconfirmed.pop(key, None)
        elif certain:
            self.unlike += self.is_whole
        elif self._was_cleaned(key):
            self._unconfirmed.setdefault(key, record.offset)
        else:
            return False
        if not certain:
            self._doubtful.append(record.offset)
            if key != NO_KEY:
                self._last_passed[key] = (content, record.offset)
            elif self._first_keyless is None:
                self._first_keyless = record.offset
        return True

    def _find(self, content: int) -> bool:
        """The next of the surplus that is like it; what is before that is passed by."""
        if self._last_like.get(content, -1) < self._next:
            return False
        while self._contents[self._next] != content:
            self._next += 1
        self._index = self._surplus.indexes[self._next]
        self._next += 1
        return True

    def _was_cleaned(self, key: int) -> bool:
        """Whether the target's cleaner may have taken it; then it takes the next hole among the sequences."""
        last = self._last_of_key.get(key, -1)
        if key == NO_KEY or last < self._next:
            return False
        indexes, at, hole = self._surplus.indexes, self._next, self._index + 1
        while at <= last and indexes[at] == hole:
            at, hole = at + 1, hole + 1
        if at > last:
            return False
        self._next, self._index = at, hole
        return True


def _ahead_of(before: int, pairs: Iterable[Run]) -> list[Run]:
    return [(offset, index, min(count, before - offset)) for offset, index, count in pairs if offset < before]
