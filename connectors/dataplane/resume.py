"""Resume by counting: how many records of an unclean predecessor the target holds, and which source offset follows.

Bytes of both logs in, a decision out. The predecessor is fenced first, so the target's log up to the fence's marker is
final. Its batches there are counted by their sequences, and as many records of the source, from the stored position on,
go through the decision table of the copy. Both streams are folded into one fingerprint each. If the fingerprints are
equal, the target holds exactly these records and the copy continues behind them, whatever happened to the source in
between. If not, or if the target's log has a hole, the copy continues at the stored position: records may appear twice,
which is announced, and none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane.outgoing import append_run
from connectors.dataplane.outgoing import segments as dense_segments
from connectors.dataplane.plan import PartitionPlan, Proof, Run
from connectors.gaps import Gap

#: (first offset, count)
Segment = tuple[int, int]
_LOST: Final = "the target has lost records behind the stored position"


@dataclass(frozen=True, slots=True)
class Resumed:
    """How one partition continues.

    Args:
        plan: Where to copy from, without its proof; unchanged if there is a ``refusal`` or it is to be tried ``later``.
        runs: Source and target offsets of the records that had arrived, if that is certain.
        arrived: How many records the target holds behind the stored position; with a ``fallback`` at most so many.
        fallback: Why the copy continues at the stored position, so that up to ``may_double`` records appear twice.
        may_double: How many records may appear twice.
        refusal: Why the partition stops, as a sentence; ``gap`` if the target was truncated.
        later: Why it cannot be decided now.
    """

    plan: PartitionPlan
    runs: tuple[Run, ...] = ()
    arrived: int = 0
    fallback: str = ""
    may_double: int = 0
    refusal: str = ""
    gap: Gap | None = None
    later: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "plan": self.plan.to_wire(),
            "runs": [list(run) for run in self.runs],
            "gap": self.gap.to_wire() if self.gap else None,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Resumed:
        typed = {
            "plan": PartitionPlan.from_wire(data["plan"]),
            "runs": tuple((up, down, count) for up, down, count in data["runs"]),
            "gap": Gap.from_wire(data["gap"]) if data["gap"] else None,
        }
        return cls(**{**data, **typed})


class Fingerprint:
    """A running hash of records in order, with and without their timestamps. Comparable within one process only."""

    def __init__(self) -> None:
        self._with_times = self._without = 0

    def add(self, record: records.Record) -> None:
        content = hash((record.key, record.value, tuple(record.headers)))
        self._without = hash((self._without, content))
        self._with_times = hash((self._with_times, content, record.timestamp_ms))

    def equals(self, other: Fingerprint, *, ignore_timestamps: bool) -> bool:
        if ignore_timestamps:
            return self._without == other._without
        return self._with_times == other._with_times


class TargetScan:
    """Reads the target from the record before the stored end to the fence's marker.

    ``is_over`` once the marker is seen: a control batch of the predecessor's producer id with a higher epoch. Behind it
    the leader refuses the predecessor. Without a fence the log is read to its end. ``is_another_log`` if the record
    before the stored end is not the one that the position describes: the log was truncated and has grown since.
    """

    def __init__(self, proof: Proof, target_end: int, log_start: int) -> None:
        self.start = self.position = max(target_end - 1, log_start, 0)
        self.end = max(target_end, log_start)
        self.is_over = False
        self.is_another_log = False
        self.fingerprint = Fingerprint()
        self.segments: list[Segment] = []
        #: Whether the target stamped any of the records (LogAppendTime).
        self.has_own_timestamps = False
        #: Records of lower epochs that came in behind the stored end: they stand in the log before those of this one.
        self.late = 0
        #: The highest epoch of the producer id that was seen: the leader refuses batches of lower ones.
        self.highest = proof.producer
        self._proof = proof
        self._target_end = target_end
        self._foreign_offsets = 0
        self._arrived = 0
        #: Why the records that arrived cannot all be compared; empty if they can.
        self.doubt = _LOST if log_start > target_end else ""

    @property
    def arrived(self) -> int:
        """How many records arrived behind the stored position: the exact number, or with a :attr:`doubt` the most."""
        if not self.doubt:
            return self._arrived
        return max(self.end - self.is_over - self._target_end - self._foreign_offsets, self._arrived)

    def take(self, fetched: memoryview, position: int) -> int:
        """Feed what a fetch at ``position`` brought; return the next position to fetch."""
        for start, size, magic in wire.extents(fetched):
            if self.is_over:
                break
            batch = fetched[start : start + size]
            if magic < 2:
                position = max([position, *(record.offset + 1 for record in records.decode(batch, magic))])
                if position > self._target_end:
                    self.doubt = "the target keeps a message format without sequences"
                    self.end = position
                continue
            header = wire.read_header(batch)
            if header.last_offset >= position:
                self._take(header, batch)
                position = header.last_offset + 1
        return position

    def end_at(self, end: int) -> None:
        """The log ends at ``end``, and no marker is expected."""
        if end > self.end:
            self.end, self.doubt = end, _LOST

    def _take(self, header: wire.BatchHeader, batch: memoryview) -> None:
        wrote = self._proof.producer
        is_ours = header.producer_id == wrote.producer_id
        if header.base_offset < self._target_end:
            # The stored end lies between two batches of the log that it describes.
            reaches_over = header.last_offset >= self._target_end
            self.is_another_log |= reaches_over or not self._is_last_stored(header)
            if not reaches_over:
                return
        if header.base_offset > self.end:
            self.doubt = _LOST
        self.end = header.last_offset + 1
        if is_ours and header.producer_epoch > self.highest.epoch:
            self.highest = replace(wrote, epoch=header.producer_epoch)
        if is_ours and header.is_control and header.producer_epoch > wrote.epoch and self._proof.is_fenced:
            self.is_over = True
        elif is_ours and not header.is_control and header.producer_epoch == wrote.epoch:
            self._count(header, batch)
        else:
            if is_ours and not header.is_control and header.producer_epoch < wrote.epoch:
                self.late += header.last_offset_delta + 1
            self._foreign_offsets += header.last_offset_delta + 1

    def _is_last_stored(self, header: wire.BatchHeader) -> bool:
        """Whether a batch can be the last one before the stored end."""
        wrote, next_sequence = self._proof.producer, self._proof.next_sequence
        if header.producer_id != wrote.producer_id:  # it may have been there before the writer wrote its first record
            return next_sequence == 0 or not self._proof.is_last_ours
        if header.producer_epoch == wrote.epoch and not header.is_control:
            return wire.add_sequence(header.last_sequence, 1) == next_sequence
        return next_sequence == 0 and header.producer_epoch <= wrote.epoch

    def _count(self, header: wire.BatchHeader, batch: memoryview) -> None:
        expected = wire.add_sequence(self._proof.next_sequence, self._arrived)
        if header.base_sequence != expected:
            self.doubt = "the sequences behind the stored position have a hole"
            return
        count = header.last_offset_delta + 1
        self._arrived += count
        self.segments.append((header.base_offset, count))
        self.has_own_timestamps |= header.is_log_append_time
        if header.record_count != count:
            self.doubt = "the target was compacted behind the stored position"
            return
        for record in records.decode(batch, 2):
            self.fingerprint.add(record)


def is_another_log(proof: Proof, target_end: int, fetched: memoryview) -> bool:
    """Whether what a fetch brought of the record before the stored end shows that the log was truncated and has grown
    again; False if that record was compacted away."""
    scan = TargetScan(proof, target_end, 0)
    for start, size, magic in wire.extents(fetched):
        batch = fetched[start : start + size]
        if magic < 2 or wire.read_header(batch).base_offset >= target_end:
            break
        scan.take(batch, scan.start)
        if wire.read_header(batch).last_offset >= scan.start:
            break
    return scan.is_another_log


class SourceWalk:
    """Passes ``wanted`` records that the source gives from the stored offset on."""

    def __init__(self, start: int, wanted: int, source_epoch: int = -1) -> None:
        self.position = start
        self.remaining = wanted
        #: Leader epoch of the batch before the position; -1 if it is not known.
        self.source_epoch = source_epoch
        self.segments: list[Segment] = []
        self.fingerprint = Fingerprint()

    @property
    def is_over(self) -> bool:
        return not self.remaining

    def take(self, given: Sequence[records.Record], following: int, leader_epoch: int) -> None:
        """Pass what a source batch gives, behind which the source continues at ``following``; ``remaining`` is 0 when
        the walk is over."""
        part = given[: self.remaining]
        for record in part:
            self.fingerprint.add(record)
        self.segments += dense_segments(part)
        self.remaining -= len(part)
        self.source_epoch = leader_epoch
        self.position = following if self.remaining else part[-1].offset + 1


def exact(plan: PartitionPlan, scan: TargetScan, walk: SourceWalk | None) -> Resumed:
    """Continue behind what arrived; ``walk`` None if nothing did."""
    found = _behind(plan, scan)
    if walk is None:
        return Resumed(found, may_double=scan.late)
    found = replace(found, next_source_offset=walk.position, last_source_epoch=walk.source_epoch)
    return Resumed(found, tuple(pair_runs(walk.segments, scan.segments)), scan.arrived, may_double=scan.late)


def fallback(plan: PartitionPlan, scan: TargetScan, reason: str) -> Resumed:
    """Continue at the stored position. Its leader epoch stays: by it the copy notices what the source lost."""
    found = _behind(plan, scan)
    return Resumed(found, arrived=scan.arrived, fallback=reason, may_double=scan.arrived + scan.late)


def _behind(plan: PartitionPlan, scan: TargetScan) -> PartitionPlan:
    """Behind what is in the log, under an epoch above those in it if it was raised without a fence."""
    producer = plan.producer and scan.highest.raised()
    return replace(plan, target_end=scan.end, proof=None, producer=producer)


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
            append_run(runs, (upstream, downstream, step))
            upstream, left = upstream + step, left - step
    return runs
