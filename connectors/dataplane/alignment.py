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
#: So many source records in a row may have been left out; then the surplus is not looked for any further.
MOST_LEFT_OUT: Final = 1_000_000


class SurplusRecords:
    """What the predecessor wrote behind its stored position: 24 bytes a record, however large it is."""

    def __init__(self, proof: Proof) -> None:
        self.offsets = array("q")
        self.digests = array("q")
        self.timestamps_ms = array("q")
        self._proof = proof

    def take(self, fetched: memoryview, position: int) -> int:
        """Feed what a fetch of the target at ``position`` brought; returns the next position to fetch."""
        for start, size, magic in wire.extents(fetched):
            batch = fetched[start : start + size]
            if magic < 2:
                position = max([position, *(record.offset + 1 for record in records.decode(batch, magic))])
                continue
            header = wire.read_header(batch)
            if header.last_offset >= position and self._is_surplus(header):
                for record in records.decode(batch, 2):
                    self.offsets.append(record.offset)
                    self.digests.append(_digest(record))
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

    ``position`` is behind its last record then, ``runs`` say where each one lies, and ``left_out`` records between them
    are not in the target. Bounded: see ``MOST_LEFT_OUT``.
    """

    def __init__(self, start: int, surplus: SurplusRecords, *, read_committed: bool) -> None:
        self.position = start
        self.source_epoch = -1
        self.runs: list[Run] = []
        self.left_out = 0
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
            if decision.kind != "dropped":
                self._take(batch)
            if self.is_over:
                return
            if header is not None:
                self.position = max(self.position, header.last_offset + 1)
                self.source_epoch = header.leader_epoch

    def _take(self, batch: memoryview) -> None:
        surplus = self._surplus
        for record in records.decode(batch, batch[16]):
            if record.offset < self.position or self.is_over:
                continue
            self.position = record.offset + 1
            time_ms = surplus.timestamps_ms[self._matched]
            if surplus.digests[self._matched] == _digest(record) and time_ms in (_ANY_TIME, record.timestamp_ms):
                append_run(self.runs, (record.offset, surplus.offsets[self._matched], 1))
                self._matched += 1
                self.left_out, self._passed_by = self.left_out + self._passed_by, 0
            else:
                self._passed_by += 1


def _digest(record: records.Record) -> int:
    """Of what a copy keeps but the time; within this process only."""
    return hash((record.key, record.value, tuple(record.headers)))
