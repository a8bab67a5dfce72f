"""Where a copy stood that left records out: its surplus, record by record, against what the source holds. Pure.

Counting does not help there, for the count says nothing of what was left out. The surplus is a part of the source in
the same order, so the first place where all of it has passed by is at or before the true one: what lies between is
copied once more, and never anything lost. That holds while the source keeps what was copied: of a compacted one only
an alignment that leaves nothing out proves something.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane.cut import cut
from connectors.dataplane.outgoing import append_run
from connectors.dataplane.plan import Proof, Run

#: In place of a timestamp that is the target's own (LogAppendTime).
_ANY_TIME: Final = -(2**63)
_HALF: Final = wire.SEQUENCE_MODULUS // 2
#: Of a record without a key.
NO_KEY: Final = 0
#: So many source records in a row may have been left out; then the surplus is not looked for any further.
MOST_LEFT_OUT: Final = 1_000_000


class SurplusRecords:
    """What the predecessor wrote behind its stored position: 40 bytes a record, however large it is.

    ``indexes`` count what arrived, whatever the target has lost of it since.
    """

    def __init__(self, proof: Proof) -> None:
        self.offsets = array("q")
        self.indexes = array("q")
        self.digests = array("q")
        self.keys = array("q")
        self.timestamps_ms = array("q")
        self._proof = proof

    @property
    def has_own_time(self) -> bool:
        """Whether the target stamped any of its records (LogAppendTime)."""
        return _ANY_TIME in self.timestamps_ms

    def has_last_of(self, records: int) -> bool:
        """Whether the last one that arrived, of so many, is still there."""
        return bool(self.indexes) and self.indexes[-1] == records - 1

    def contents(self) -> array[int]:
        """One number for each record; those of the source are :func:`content_of`."""
        if self.has_own_time:
            return self.digests
        return array("q", map(_with_time, self.digests, self.timestamps_ms))

    def take(self, fetched: memoryview, position: int) -> int:
        """Feed what a fetch of the target at ``position`` brought; returns the next position to fetch."""
        for start, size, magic in wire.extents(fetched):
            batch = fetched[start : start + size]
            if magic < 2:
                position = max([position, *(record.offset + 1 for record in records.decode(batch, magic))])
                continue
            header = wire.read_header(batch)
            if header.last_offset >= position and self._is_surplus(header):
                first = (header.base_sequence - self._proof.next_sequence) % wire.SEQUENCE_MODULUS
                for record in records.decode(batch, 2):
                    self.offsets.append(record.offset)
                    self.indexes.append(first + record.offset - header.base_offset)
                    self.digests.append(digest_of(record))
                    self.keys.append(key_of(record))
                    self.timestamps_ms.append(_ANY_TIME if header.is_log_append_time else record.timestamp_ms)
            position = max(position, header.last_offset + 1)
        return position

    def _is_surplus(self, header: wire.BatchHeader) -> bool:
        producer = self._proof.producer
        if header.is_control or (header.producer_id, header.producer_epoch) != (producer.producer_id, producer.epoch):
            return False
        behind = (header.last_sequence + 1 - self._proof.next_sequence) % wire.SEQUENCE_MODULUS
        return 0 < behind <= _HALF


class Alignment:
    """Walks the source from the stored offset until all of ``surplus`` has passed by, in order.

    ``position`` is behind its last record then, ``runs`` say where each one lies, and ``left_out`` records between
    them, the last at offset ``last_left_out``, are not in the target. Bounded: see ``MOST_LEFT_OUT``.
    """

    def __init__(self, start: int, surplus: SurplusRecords, *, read_committed: bool) -> None:
        self.position = start
        self.source_epoch = -1
        self.runs: list[Run] = []
        self.left_out = 0
        self.last_left_out = -1
        self._last_passed_by = -1
        self._surplus = surplus
        self._read_committed = read_committed
        self._matched = 0
        self._passed_by = 0

    @property
    def is_complete(self) -> bool:
        return self._matched == len(self._surplus.digests)

    @property
    def is_over(self) -> bool:
        return self.is_complete or self._passed_by > MOST_LEFT_OUT

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]]) -> None:
        """Feed what a fetch of the source at ``position`` brought."""
        decided = cut(fetched, self.position, aborted if self._read_committed else None, wire.SEQUENCE_MODULUS)
        for batch, header, decision in decided:
            if header is not None:  # of the batch that it may end in, or the source seems to diverge from it
                self.source_epoch = header.leader_epoch
            if decision.kind != "dropped":
                self._take(records.decode(batch, batch[16]))
            if self.is_over:
                return
            if header is not None:
                self.position = max(self.position, header.last_offset + 1)

    def take_records(self, found: Iterable[records.Record], following: int, leader_epoch: int) -> None:
        """As :meth:`take`, of records that were opened before; the source goes on at ``following``."""
        self.source_epoch = leader_epoch
        self._take(found)
        if not self.is_over:
            self.position = max(self.position, following)

    def _take(self, found: Iterable[records.Record]) -> None:
        surplus = self._surplus
        for record in found:
            if record.offset < self.position or self.is_over:
                continue
            self.position = record.offset + 1
            time_ms = surplus.timestamps_ms[self._matched]
            if surplus.digests[self._matched] == digest_of(record) and time_ms in (_ANY_TIME, record.timestamp_ms):
                append_run(self.runs, (record.offset, surplus.offsets[self._matched], 1))
                self._matched += 1
                if self._passed_by:
                    self.last_left_out = self._last_passed_by
                self.left_out, self._passed_by = self.left_out + self._passed_by, 0
            else:
                self._passed_by, self._last_passed_by = self._passed_by + 1, record.offset


def content_of(record: records.Record, *, ignores_time: bool) -> int:
    """What a copy keeps of a record, as one number; within this process only."""
    return digest_of(record) if ignores_time else _with_time(digest_of(record), record.timestamp_ms)


def key_of(record: records.Record) -> int:
    """Its key as one number, :data:`NO_KEY` without one; within this process only."""
    return NO_KEY if record.key is None else hash(record.key) or 1


def _with_time(digest: int, timestamp_ms: int) -> int:
    return hash((digest, timestamp_ms))


def digest_of(record: records.Record) -> int:
    """Of what a copy keeps but the time; within this process only."""
    return hash((record.key, record.value, tuple(record.headers)))
