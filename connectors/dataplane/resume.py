"""Exact resume: how much of a lost predecessor's work the target holds, and where the source goes on.

Pure: bytes of both logs in, a verdict out. The predecessor is fenced before any of this is asked, so the target's
log is final. Sequences count records whatever happened to the batches since (recompressed, re-stamped, compacted),
so ``n`` records under the stored producer and epoch behind the stored sequence are ``n`` output records of the
decision table behind the stored source offset. Nothing is skipped that was not verified; in doubt a record is
doubled, never lost, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane.cut import cut
from connectors.dataplane.outgoing import segments as dense_segments
from connectors.dataplane.plan import Proof, Run

#: (first offset, count)
Segment = tuple[int, int]
_HALF: Final = wire.SEQUENCE_MODULUS // 2


@dataclass(frozen=True, slots=True)
class Surplus:
    """What arrived behind the stored position: ``records`` in the target's ``segments``; ``last_batch`` ends it.

    ``doubt`` says, for people, why the records are not all there to be compared; ``is_in_the_log``: whether the
    target's log itself shows that so many had arrived.
    """

    records: int
    segments: tuple[Segment, ...] = ()
    last_batch: bytes | None = None
    doubt: str = ""
    is_in_the_log: bool = True


class TargetScan:
    """Reads the target from the last record before the stored end to where it ended after the fence.

    ``is_another_log``: that record is ours and not the one that the stored position speaks of, so the log was
    truncated and has grown again since.
    """

    def __init__(self, proof: Proof, target_end: int, log_start: int) -> None:
        self.start = max(target_end - 1, log_start, 0)
        self.is_another_log = False
        self._proof = proof
        self._target_end = target_end
        self._cut_away = log_start > target_end
        self._last_sequence: int | None = None
        self._segments: list[Segment] = []
        self._last_batch: bytes | None = None
        self._foreign_records = False

    def take(self, fetched: memoryview, position: int) -> int:
        """Feed what a fetch at ``position`` brought; returns the next position to fetch."""
        for start, size, magic in wire.extents(fetched):
            batch = fetched[start : start + size]
            if magic < 2:
                position = max([position, *(record.offset + 1 for record in records.decode(batch, magic))])
                self._foreign_records |= position > self._target_end
                continue
            header = wire.read_header(batch)
            if header.last_offset >= position:
                self._take(header, batch)
                position = header.last_offset + 1
        return position

    def _take(self, header: wire.BatchHeader, batch: memoryview) -> None:
        if header.is_control:
            return
        producer = self._proof.producer
        if (header.producer_id, header.producer_epoch) != (producer.producer_id, producer.epoch):
            self._foreign_records |= header.last_offset >= self._target_end
            return
        if header.base_offset < self._target_end and self._behind(header.last_sequence):
            self.is_another_log = True
            return
        behind = (header.last_sequence + 1 - self._proof.next_sequence) % wire.SEQUENCE_MODULUS
        if behind == 0 or behind > _HALF:
            return  # at or before the stored position
        self._last_sequence = header.last_sequence
        self._segments.append((header.base_offset, header.last_offset_delta + 1))
        self._last_batch = bytes(batch) if header.record_count else None

    def surplus(self) -> Surplus:
        hint = self._proof.hint
        expected = None if hint is None else self._behind(hint)
        if self._last_sequence is None:
            return self._nothing_seen(expected)
        arrived = self._behind(self._last_sequence)
        if sum(count for _, count in self._segments) != arrived:
            return Surplus(arrived, doubt="batches between are missing from the target's log")
        if self._last_batch is None:
            return Surplus(arrived, doubt="the target compacted the last record away")
        return Surplus(arrived, tuple(self._segments), self._last_batch)

    def _nothing_seen(self, expected: int | None) -> Surplus:
        if expected == 0:
            return Surplus(0)
        if expected is not None:
            return Surplus(
                expected, doubt="the leader knows of records that its log does not show", is_in_the_log=False
            )
        if self._cut_away or self._foreign_records:
            return Surplus(0, doubt="the leader has forgotten the producer and the log has moved", is_in_the_log=False)
        return Surplus(0)

    def _behind(self, last_sequence: int) -> int:
        return (last_sequence + 1 - self._proof.next_sequence) % wire.SEQUENCE_MODULUS


class SourceWalk:
    """Counts ``wanted`` output records of the decision table from the stored source offset on."""

    def __init__(self, start: int, wanted: int, *, read_committed: bool, max_message_bytes: int) -> None:
        self.position = start
        self.remaining = wanted
        self.source_epoch = -1
        self.segments: list[Segment] = []
        self.last_record: records.Record | None = None
        self._read_committed = read_committed
        self._max_message_bytes = max_message_bytes

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]]) -> None:
        """Feed what a fetch at ``position`` brought; ``remaining`` is 0 when the walk is over."""
        decided = cut(fetched, self.position, aborted if self._read_committed else None, self._max_message_bytes)
        for batch, header, decision in decided:
            if not self.remaining:
                return
            if header is None or decision.kind == "deep":
                self._take_opened(batch, header)
            elif decision.kind == "shallow":
                self._take_dense(batch, header)
            else:
                self.position = max(self.position, header.last_offset + 1)
            if header is not None:
                self.source_epoch = header.leader_epoch

    def _take_dense(self, batch: memoryview, header: wire.BatchHeader) -> None:
        count = min(header.record_count, self.remaining)
        self._add((header.base_offset, count))
        self.remaining -= count
        self.position = header.base_offset + count
        if not self.remaining:
            last = self.position - 1
            self.last_record = next(record for record in records.decode(batch, 2) if record.offset == last)

    def _take_opened(self, batch: memoryview, header: wire.BatchHeader | None) -> None:
        opened = [record for record in records.decode(batch, batch[16]) if record.offset >= self.position]
        part = opened[: self.remaining]
        for segment in dense_segments(part):
            self._add(segment)
        self.remaining -= len(part)
        if part:
            self.last_record = part[-1]
            self.position = part[-1].offset + 1
        if len(part) == len(opened) and header is not None and self.remaining:
            self.position = max(self.position, header.last_offset + 1)

    def _add(self, segment: Segment) -> None:
        if self.segments and segment[0] == sum(self.segments[-1]):
            self.segments[-1] = (self.segments[-1][0], self.segments[-1][1] + segment[1])
        else:
            self.segments.append(segment)


@dataclass(slots=True)
class SourceSearch:
    """Looks for the target's last record in a thinned source, the latest match before ``end`` winning."""

    wanted: records.Record
    end: int
    ignore_timestamp: bool
    found: int | None = field(default=None)

    def take(self, fetched: memoryview, position: int, aborted: Iterable[tuple[int, int]] | None) -> int:
        """Feed what a fetch at ``position`` brought; returns the next position to fetch."""
        for batch, header, decision in cut(fetched, position, aborted, wire.SEQUENCE_MODULUS):
            if decision.kind != "dropped":
                for record in records.decode(batch, batch[16]):
                    if position <= record.offset < self.end and same_record(record, self.wanted, self.ignore_timestamp):
                        self.found = record.offset
            position = max(position, header.last_offset + 1) if header else self.end
        return position


def same_record(source: records.Record, target: records.Record, ignore_timestamp: bool) -> bool:
    """Whether a target record is the copy of a source record; offsets differ by nature."""
    return (
        source.key == target.key
        and source.value == target.value
        and source.headers == target.headers
        and (ignore_timestamp or source.timestamp_ms == target.timestamp_ms)
    )


def last_record(batch: bytes) -> tuple[records.Record, bool] | None:
    """The last record of a target batch, and whether its timestamp is the target's own (LogAppendTime).

    None where compaction took that very record out of the batch.
    """
    header = wire.read_header(batch)
    last = list(records.decode(batch, 2))[-1]
    return (last, header.is_log_append_time) if last.offset == header.last_offset else None


def pair_runs(source: Sequence[Segment], target: Sequence[Segment]) -> list[Run]:
    """Zip two segment lists that count the same records, in order, into map runs."""
    runs: list[Run] = []
    waiting = list(reversed(target))
    for first, count in source:
        upstream, left = first, count
        while left:
            downstream, available = waiting.pop()
            step = min(left, available)
            if step < available:
                waiting.append((downstream + step, available - step))
            last = runs[-1] if runs else None
            if last and last[0] + last[2] == upstream and last[1] + last[2] == downstream:
                runs[-1] = (last[0], last[1], last[2] + step)
            else:
                runs.append((upstream, downstream, step))
            upstream, left = upstream + step, left - step
    return runs
