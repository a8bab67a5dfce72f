"""One partition of a slice as a state machine: fetched bytes in, batches to produce out, answers in, runs out.

It knows no socket and no clock. What holds at every moment:

A. Batches leave in source order, their sequences without a gap; an unacknowledged batch is kept byte-identical.
B. The position (``next_source_offset``, ``target_end``, ``next_sequence``) speaks of acknowledged batches only,
   taken from the front, so it never runs ahead of one that may be lost.
C. Until the target's leader knows our producer id here, one batch is in flight: an unknown id takes any first
   sequence, so a second batch could land without the first.
D. After a failed or lost answer nothing is sent until what the leader really has was asked for (``settle``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import shape
from connectors.dataplane.cut import cut
from connectors.dataplane.plan import PartitionPlan, PartitionProgress, ProducerIdentity, Run

_HALF: Final = wire.SEQUENCE_MODULUS // 2


class TargetTruncated(Exception):
    """The target's log no longer holds what it had acknowledged."""


class Outgoing:
    """A batch on its way: its bytes as produced, its sequences, and the source offsets it stands for."""

    __slots__ = (
        "base_offset",
        "base_sequence",
        "batch",
        "count",
        "next_source_offset",
        "segments",
        "sent",
        "source_epoch",
        "timestamp_ms",
    )

    def __init__(
        self,
        batch: memoryview,
        base_sequence: int,
        count: int,
        segments: Sequence[tuple[int, int]],
        next_source_offset: int,
        source_epoch: int,
        timestamp_ms: int,
    ) -> None:
        self.batch = batch
        self.base_sequence = base_sequence
        self.count = count
        #: (first source offset, count), in order: one where offsets are dense
        self.segments = segments
        self.next_source_offset = next_source_offset
        self.source_epoch = source_epoch
        self.timestamp_ms = timestamp_ms
        #: the answer's base offset once the batch is known to be in the target's log
        self.base_offset: int | None = None
        #: once sent, its bytes may reach the target at any later time
        self.sent = False

    @property
    def last_sequence(self) -> int:
        return wire.add_sequence(self.base_sequence, self.count - 1)


class PartitionCopier:
    """See the module for what holds at every moment."""

    def __init__(self, plan: PartitionPlan, producer: ProducerIdentity, *, read_committed: bool) -> None:
        self.plan = plan
        self.producer = producer
        self.max_message_bytes = plan.max_message_bytes
        self.fetch_offset = plan.next_source_offset
        self.last_fetched_epoch = plan.last_source_epoch
        self.next_source_offset = plan.next_source_offset
        self.last_source_epoch = plan.last_source_epoch
        self.target_end = plan.target_end
        self.next_sequence = plan.next_sequence
        self.pipelined = plan.pipelined
        self.high_watermark = -1
        self.log_start_offset = -1
        self.faulted = False
        self.unanswered = 0
        self.buffered_bytes = 0
        self.stopped_reason = ""
        self.stopped_error = ""
        self._read_committed = read_committed
        self._queue: deque[Outgoing] = deque()
        self._in_flight: deque[Outgoing] = deque()
        self._queued_sequence = plan.next_sequence
        self._timestamp_ms = -1
        self._records = 0
        self._bytes = 0
        self._batches: dict[str, int] = {}
        self._runs: list[Run] = []
        self._reported: tuple[int, int, int, str] | None = None

    # -- source side ------------------------------------------------------------------------------

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take what a fetch brought; ``fetched`` is changed in place and kept until acknowledged.

        ``aborted``: (producer id, first offset) of this answer. Raises :class:`cut.CorruptBatch`, with what
        came before it taken.
        """
        for batch, header, decision in cut(
            fetched, self.fetch_offset, aborted if self._read_committed else None, self.max_message_bytes
        ):
            self._batches[decision.reason] = self._batches.get(decision.reason, 0) + 1
            if header is None:
                self._take_old(batch)
            else:
                self._take_batch(batch, header, decision)

    def _take_batch(self, batch: memoryview, header: wire.BatchHeader, decision: shape.Decision) -> None:
        following = header.base_offset + header.last_offset_delta + 1
        if decision is shape.SHALLOW:
            sequence = self._queued_sequence
            wire.rewrite(
                batch, header.attributes & wire.CODEC_MASK, self.producer.producer_id, self.producer.epoch, sequence
            )
            self._enqueue(
                Outgoing(
                    batch,
                    sequence,
                    header.record_count,
                    ((header.base_offset, header.record_count),),
                    following,
                    header.leader_epoch,
                    header.max_timestamp,
                )
            )
        elif decision.kind is shape.Kind.DEEP:
            self._rebuild(list(records.decode(batch, 2)), header.codec, following, header.leader_epoch)
        else:
            self._pass_over(following, header.leader_epoch)
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = header.leader_epoch

    def _take_old(self, batch: memoryview) -> None:
        opened = list(records.decode(batch, batch[16]))
        following = max((record.offset + 1 for record in opened), default=self.fetch_offset)
        codec = batch[17] & wire.CODEC_MASK
        self._rebuild(opened, codec, following, -1)
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = -1

    def _rebuild(self, opened: list[records.Record], codec: int, following: int, epoch: int) -> None:
        kept = [record for record in opened if record.offset >= self.fetch_offset]
        for part in self._fitting(kept, codec):
            sequence = self._queued_sequence
            built = records.build(part, codec, self.producer.producer_id, self.producer.epoch, sequence)
            timestamp = max(record.timestamp_ms for record in part)
            behind = part[-1].offset + 1
            self._enqueue(Outgoing(memoryview(built), sequence, len(part), segments(part), behind, epoch, timestamp))
        self._pass_over(following, epoch)

    def _fitting(self, kept: list[records.Record], codec: int) -> Iterable[list[records.Record]]:
        """``kept`` in parts whose batches the target takes; a single record goes as it is, whatever its size."""
        if not kept:
            return
        if len(kept) > 1 and len(records.build(kept, codec, -1, -1, -1)) > self.max_message_bytes:
            middle = len(kept) // 2
            yield from self._fitting(kept[:middle], codec)
            yield from self._fitting(kept[middle:], codec)
            return
        yield kept

    def _enqueue(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self._queued_sequence = wire.add_sequence(self._queued_sequence, outgoing.count)
        self.buffered_bytes += len(outgoing.batch)

    def _pass_over(self, following: int, epoch: int) -> None:
        """Let the position move behind what is not copied, once all before it is acknowledged."""
        last = self._queue[-1] if self._queue else self._in_flight[-1] if self._in_flight else None
        if last is None:
            self.next_source_offset = max(self.next_source_offset, following)
            self.last_source_epoch = epoch
        else:
            last.next_source_offset = max(last.next_source_offset, following)
            last.source_epoch = epoch

    # -- target side ------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return bool(self._queue)

    @property
    def has_unacknowledged(self) -> bool:
        """Whether something that was sent has no answer yet: then a successor must fence."""
        return bool(self._in_flight) or bool(self._queue and self._queue[0].sent)

    @property
    def stopped(self) -> bool:
        return bool(self.stopped_reason)

    def next_batch(self) -> Outgoing | None:
        """The next batch to put into a request, now counted as in flight; None if nothing may be sent."""
        if not self._queue or self.faulted or self.stopped_reason or (self._in_flight and not self.pipelined):
            return None
        outgoing = self._queue.popleft()
        outgoing.sent = True
        self._in_flight.append(outgoing)
        self.unanswered += 1
        return outgoing

    def acknowledged(self, outgoing: Outgoing, base_offset: int) -> None:
        """The target answered without error. Raises :class:`TargetTruncated` on an offset it had given before."""
        self.unanswered -= 1
        self.pipelined = True
        outgoing.base_offset = base_offset
        self._account()

    def failed(self) -> None:
        """An answer with an error, or none at all: nothing more is sent until :meth:`settle`."""
        self.unanswered -= 1
        self.faulted = True

    def appended_unknown(self, last_sequence: int | None) -> list[Outgoing]:
        """Which batches in flight the leader has without our knowing where, given its last sequence of ours.

        ``last_sequence`` None: the leader knows nothing of our producer id. Raises :class:`TargetTruncated`
        if it knows less than was acknowledged.
        """
        acknowledged_before = self._first_open_sequence()
        if last_sequence is None:
            if self.pipelined and not self._nothing_written():
                raise TargetTruncated("its leader knows nothing of a producer whose batches it had acknowledged")
            return []
        arrived = (last_sequence + 1 - acknowledged_before) % wire.SEQUENCE_MODULUS
        if arrived > _HALF:
            raise TargetTruncated("its leader's last sequence is older than one it had acknowledged")
        unknown = []
        for outgoing in self._in_flight:
            if arrived < outgoing.count:
                break
            arrived -= outgoing.count
            if outgoing.base_offset is None:
                unknown.append(outgoing)
        return unknown

    def settle(self, found: Mapping[int, int]) -> None:
        """Go on after a fault: ``found`` maps base sequences of appended batches to their base offsets.

        What is in flight and not found is sent again, unchanged and in order.
        """
        for outgoing in self._in_flight:
            if outgoing.base_offset is None:
                outgoing.base_offset = found.get(outgoing.base_sequence)
        if found:
            self.pipelined = True
        self._account()
        while self._in_flight:
            self._queue.appendleft(self._in_flight.pop())
        self.faulted = False

    def discard_unsent(self) -> None:
        """Forget what was never sent, for a clean end: the position never covered it."""
        while self._queue and not self._queue[-1].sent:
            self.buffered_bytes -= len(self._queue.pop().batch)

    def stop(self, reason: str, error: str = "") -> None:
        """End this partition with a sentence for people; what was acknowledged stands."""
        if not self.stopped_reason:
            self.stopped_reason, self.stopped_error = reason, error

    def report(self) -> PartitionProgress | None:
        """What happened since the last report, which the caller sends; None if nothing did."""
        standing = (self.next_source_offset, self.high_watermark, self.log_start_offset, self.stopped_reason)
        if standing == self._reported and not self._batches:
            return None
        self._reported = standing
        progress = PartitionProgress(
            source=self.plan.source,
            next_source_offset=self.next_source_offset,
            last_source_epoch=self.last_source_epoch,
            target_end=self.target_end,
            next_sequence=self.next_sequence,
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
            timestamp_ms=self._timestamp_ms,
            records=self._records,
            bytes=self._bytes,
            batches=self._batches,
            runs=self._runs,
            state="stopped" if self.stopped_reason else "running",
            reason=self.stopped_reason,
            error=self.stopped_error,
        )
        self._records = self._bytes = 0
        self._batches, self._runs = {}, []
        return progress

    def _nothing_written(self) -> bool:
        """True where the marker of a fence made the id known, and no batch of ours was acknowledged since."""
        return self.next_sequence == self.plan.next_sequence == 0

    def _first_open_sequence(self) -> int:
        return self._in_flight[0].base_sequence if self._in_flight else self.next_sequence

    def _account(self) -> None:
        in_flight = self._in_flight
        while in_flight and (base := in_flight[0].base_offset) is not None:
            outgoing = in_flight[0]
            if base < self.target_end:
                raise TargetTruncated(f"it gave offset {base} again, and {self.target_end - 1} before")
            in_flight.popleft()
            size = len(outgoing.batch)
            self.buffered_bytes -= size
            self._bytes += size
            self._records += outgoing.count
            self.target_end = base + outgoing.count
            self.next_sequence = wire.add_sequence(outgoing.base_sequence, outgoing.count)
            self.next_source_offset = outgoing.next_source_offset
            self.last_source_epoch = outgoing.source_epoch
            if outgoing.timestamp_ms > self._timestamp_ms:
                self._timestamp_ms = outgoing.timestamp_ms
            for upstream, count in outgoing.segments:
                self._add_run(upstream, base, count)
                base += count

    def _add_run(self, upstream: int, downstream: int, count: int) -> None:
        runs = self._runs
        if runs:
            up, down, length = runs[-1]
            if upstream == up + length and downstream == down + length:
                runs[-1] = (up, down, length + count)
                return
        runs.append((upstream, downstream, count))


def segments(part: Sequence[records.Record]) -> list[tuple[int, int]]:
    """Source offsets of ``part`` as (first, count) of what is dense."""
    out: list[tuple[int, int]] = []
    for record in part:
        if out and record.offset == out[-1][0] + out[-1][1]:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((record.offset, 1))
    return out
