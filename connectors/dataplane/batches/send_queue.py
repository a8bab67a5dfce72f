"""Queue one partition's batches for the target, number them, send them, and account for the answers.

What holds at every moment:

A. Batches leave in source order, their sequences without a gap. A batch of which a sent copy may still reach the target
   stays byte-identical; others may be merged, or get other boundaries and sequences (``split_or_skip``).
B. The position (``next_source_offset``, ``target_end``, ``next_sequence``) covers acknowledged batches, and what was
   left out between them, only. It advances from the front of the queue, so it never passes a batch that may be lost.
C. Until the target's leader knows our producer id, one batch is in flight: a leader accepts any first sequence of an
   unknown id, so a second batch could be written without the first.
D. After an error or a lost answer nothing is sent until the leader has said what it holds (``settle``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final, Protocol

from connect.wire import batch as wire
from connect.wire.merge import Unmergeable
from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.dataplane.batches import error_codes, fetched_batches
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.outgoing_batches import Builder, Merging, Outgoing, Stamp, apart, append_run
from connectors.dataplane.batches.sequencer import BatchSplitter, CopiesUnderWay, RecordRejected
from connectors.formats import types
from connectors.formats.gap import Gap
from connectors.formats.types import ProducerIdAndEpoch, Run, Skip

_HALF: Final = wire.SEQUENCE_MODULUS // 2


class TargetTruncated(Exception):
    """The target's log no longer holds what it had acknowledged."""


class AnotherWrites(CopiesUnderWay):
    """The target has batches of our producer id that we did not send: a predecessor was not fenced and still writes."""


class OpenTransaction(Protocol):
    """The transaction of a slice, if it copies in transactions."""

    def admits(self, copier: SendQueue, /) -> bool:
        """Return whether a batch of the copier may be sent for the first time."""

    def sends(self, copier: SendQueue, /) -> None:
        """Note that it sends one."""


class SendQueue:
    """The state of one partition: what waits, what is in flight, and the position behind what is acknowledged. With a
    ``transaction``, batches are transactional, under a producer id and epoch that may change with each. Whenever there
    is something to report, the queue is put into ``moved``, so that a report costs nothing for idle partitions."""

    def __init__(
        self,
        plan: PartitionPlan,
        producer: ProducerIdAndEpoch,
        *,
        read_committed: bool,
        skip_refused: bool = False,
        compression: types.Compression = types.NO_COMPRESSION,
        batch_bytes: int = types.DEFAULT_BATCH_BYTES,
        transaction: OpenTransaction | None = None,
        moved: dict[SendQueue, None] | None = None,
    ) -> None:
        self.plan = plan
        self._moved = {} if moved is None else moved
        self._transaction = transaction
        self.producer = plan.producer or producer
        self.max_message_bytes = plan.max_message_bytes
        self.fetch_offset = plan.next_source_offset
        self.last_fetched_epoch = plan.last_source_epoch
        self.next_source_offset = plan.next_source_offset
        self.last_source_epoch = plan.last_source_epoch
        self.target_end = plan.target_end
        self.next_sequence = plan.next_sequence
        self.pipelined = plan.pipelined
        #: since the last :meth:`reset_pipelining_if_idle`
        self._has_written = plan.pipelined
        self.high_watermark = -1
        self.log_start_offset = -1
        self.faulted = False
        #: The leader lacked replicas: one batch is in flight at a time until one is acknowledged.
        self.lacks_replicas = False
        #: Some of what was read was dropped, to be fetched again when the fault is over.
        self.gave_back = False
        self.unanswered = 0
        self.state = types.RUNNING
        self.stopped_reason = ""
        self.stopped_error = ""
        self.gap: Gap | None = None
        self._after_last: tuple[str, str, str, Gap | None] | None = None
        self._read_committed = read_committed
        self._skip_refused = skip_refused
        self._builder = Builder(self.producer, compression)
        self._merging = Merging(batch_bytes, compression)
        self._splitter = BatchSplitter(self._builder, plan.target, skip_refused)
        self._is_ending = False
        self._queue: deque[Outgoing] = deque()
        self._queued_bytes = 0
        self._in_flight: deque[Outgoing] = deque()
        self._queued_sequence = plan.next_sequence
        self._timestamp_ms = -1
        self._records = 0
        self._bytes = 0
        self._batches: dict[str, int] = {}
        self._runs: list[Run] = []
        self._skips: list[Skip] = []
        self._dropped = 0
        self._changed = 0
        self._reported: tuple[int, int, int, str] | None = None

    def _count(self, decision: fetched_batches.Decision, batches: int = 1) -> None:
        self._batches[decision.reason] = self._batches.get(decision.reason, 0) + batches
        self._moved[self] = None

    def _enqueue(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self._queued_sequence = wire.add_sequence(self._queued_sequence, outgoing.count)
        self._queued_bytes += len(outgoing.batch)

    def _pass_over(self, following: int, epoch: int, skips: Sequence[Skip] = ()) -> None:
        """Move the position past what is not copied, once everything before it is acknowledged."""
        last = self._last()
        if last is None:
            self._move_to(following, epoch, skips)
        else:
            last.next_source_offset = max(last.next_source_offset, following)
            last.source_epoch = epoch
            last.skips += tuple(skips)

    @property
    def has_unsent(self) -> bool:
        return bool(self._queue)

    @property
    def has_unacknowledged(self) -> bool:
        """Whether a sent batch has no answer yet, so that a successor must fence."""
        return bool(self._in_flight) or bool(self._queue and self._queue[0].sent)

    @property
    def holds_up_end(self) -> bool:
        """Whether a clean end must wait for answers. A stopped partition is never handed over, so it waits for
        none, except in a transaction, which its batches in flight may still join."""
        in_transaction = self._transaction is not None and self.unanswered > 0
        return in_transaction or (self.has_unacknowledged and not self.stopped)

    @property
    def is_settled(self) -> bool:
        """Whether it is known of every batch that was sent if it is in the log."""
        return not self.unanswered and not self.faulted and not self.has_unacknowledged

    @property
    def is_in_doubt(self) -> bool:
        """Whether it is unknown, once the partition is stopped, which of its batches are in the log."""
        waiting = (*self._in_flight, *self._queue)
        return any(one.is_doubtful or one.base_offset is not None for one in waiting if one.sent)

    @property
    def stopped(self) -> bool:
        return bool(self.stopped_reason)

    @property
    def is_read(self) -> bool:
        """Whether the partition is still read: not once it is stopped, about to stop, or ending."""
        return not (self.stopped_reason or self._is_ending or self._after_last)

    @property
    def has_refused(self) -> bool:
        return any(outgoing.refusal is not None for outgoing in self._queue)

    @property
    def is_refused_for_size(self) -> bool:
        """Whether the target refused a batch because its size limit is lower than we know."""
        waiting = (*self._in_flight, *self._queue)
        return any(outgoing.refusal is not None and outgoing.refusal.is_for_size for outgoing in waiting)

    def next_batch(self, saved_s: float = 0.0) -> Outgoing | None:
        """Return the next batch to send, and count it as in flight; None if nothing may be sent. Waiting batches are
        merged into it if that is worth its cost; each batch less saves ``saved_s``."""
        if not self._queue or self.faulted or self.stopped_reason:
            return None
        if self._in_flight and (self.lacks_replicas or not self.pipelined):
            return None
        if self._transaction is not None and not self._queue[0].sent and not self._transaction.admits(self):
            return None
        outgoing = self._queue.popleft()
        if not outgoing.sent:
            outgoing = self._made_ready(outgoing, saved_s)
            outgoing.sent = True
        self._in_flight.append(outgoing)
        self.unanswered += 1
        if self._transaction is not None:
            self._transaction.sends(self)
        return outgoing

    def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
        """Begin the next transaction, as ``producer``; sequences start at 0 if ``restarts``."""
        if producer.producer_id != self.producer.producer_id:
            self.pipelined = False  # because its leader does not know this id
        self.producer = producer
        if restarts:
            self.next_sequence = self._queued_sequence = 0
            for outgoing in self._queue:
                outgoing.base_sequence = self._queued_sequence
                self._queued_sequence = wire.add_sequence(self._queued_sequence, outgoing.count)

    def _made_ready(self, first: Outgoing, saved_s: float) -> Outgoing:
        """Return ``first`` as one batch with our producer and codec, merged with later ones if that is worthwhile."""
        number = self._merging.takes(first, self._queue, self.max_message_bytes, saved_s)
        if number or self._merging.opens(first):
            first = self._merge([first, *(self._queue.popleft() for _ in range(number))])
        if first.stamp is None:
            self._count(fetched_batches.SHALLOW)
        first.make_ready(self._stamp_of(first))
        return first

    def _stamp_of(self, outgoing: Outgoing) -> Stamp:
        marks = 0 if self._transaction is None else wire.TRANSACTIONAL
        return marks, self.producer.producer_id, self.producer.epoch, outgoing.base_sequence

    def _merge(self, parts: list[Outgoing]) -> Outgoing:
        """Merge ``parts`` into one batch; if that fails, send the first alone, batch by batch if it is a region, and
        queue the others again: of what follows less is merged."""
        first, before_bytes = parts[0], sum(len(part.batch) for part in parts)
        stamp = self._stamp_of(first)
        try:
            merged = self._merging.merged(parts, stamp)
            if len(merged) > self.max_message_bytes:
                raise Unmergeable("the merged batch would be larger than the target accepts")
        except Unmergeable:
            self._merging.failed(parts)
            alone = [*apart(first), *parts[1:]]
            self._queue.extendleft(reversed(alone[1:]))
            return alone[0]
        batches = sum(part.source_batches for part in parts if part.stamp is None)
        self._count(fetched_batches.MERGED if batches > 1 or len(parts) > 1 else fetched_batches.COMPRESSED, batches)
        first.join(parts[1:], merged, stamp)
        self._queued_bytes += len(merged) - before_bytes
        return first

    def acknowledged(self, outgoing: Outgoing, base_offset: int) -> None:
        """Take an answer without error. Raises :class:`TargetTruncated` if its offset was assigned before."""
        self.unanswered -= 1
        self.pipelined = self._has_written = True
        self.lacks_replicas = False
        outgoing.base_offset = base_offset
        try:
            self._account()
        finally:
            self._release_if_done()

    def failed(self, outgoing: Outgoing, code: int | None) -> None:
        """Take an answer with an error ``code``, or None for no answer: nothing is sent until :meth:`settle`."""
        self.unanswered -= 1
        self.faulted = True
        if code not in error_codes.NOT_WRITTEN:
            outgoing.is_doubtful = True
        if code in error_codes.LACKS_REPLICAS:
            self.lacks_replicas = True
        self._release_if_done()

    def give_back(self, keep: int) -> None:
        """Drop all but the first ``keep`` batches of a faulted partition, to be read again from the source. A batch of
        which a copy is at the target or may still reach it is kept, and so are all before it."""
        if not self.is_read:
            return  # because the source may no longer have what was read
        self.gave_back = True
        while len(self._in_flight) + len(self._queue) > keep:
            waiting = self._queue or self._in_flight
            last = waiting[-1]
            is_answered = waiting is self._queue or not self.unanswered
            if not is_answered or last.is_doubtful or last.base_offset is not None or last.refusal is not None:
                break
            waiting.pop()
            self._queued_bytes -= len(last.batch)
        if kept := self._last():
            self.fetch_offset, self.last_fetched_epoch = kept.next_source_offset, kept.source_epoch
            self._queued_sequence = wire.add_sequence(kept.base_sequence, kept.count)
        else:
            self.fetch_offset, self.last_fetched_epoch = self.next_source_offset, self.last_source_epoch
            self._queued_sequence = self.next_sequence

    def _last(self) -> Outgoing | None:
        return self._queue[-1] if self._queue else self._in_flight[-1] if self._in_flight else None

    def reset_pipelining_if_idle(self) -> None:
        """Assume, if nothing was written since the last call, that the leader no longer knows our producer id
        (``producer.id.expiration.ms``) and would accept any sequence. Called at intervals."""
        if not self._has_written and not self._in_flight:
            self.pipelined = False
        self._has_written = False

    def refused(self, outgoing: Outgoing, refusal: Refusal) -> None:
        """Take a permanent refusal of this batch; :meth:`split_or_skip` decides after :meth:`settle`."""
        outgoing.refusal = refusal
        if refusal.is_for_size and outgoing.source_batches > 1:
            self._merging.was_refused_for_size(len(outgoing.batch))
        self.failed(outgoing, refusal.code)

    def appended_unknown(self, last_sequence: int | None) -> list[Outgoing]:
        """Return the batches that the leader has at offsets unknown to us, given the last sequence it has of ours.
        ``last_sequence`` None: the leader does not know our producer id. Raises :class:`TargetTruncated` if it has less
        than it acknowledged, :class:`AnotherWrites` if it has batches that we did not send."""
        acknowledged_before = self._in_flight[0].base_sequence if self._in_flight else self.next_sequence
        if last_sequence is None:
            if self.pipelined and not self._nothing_written():
                raise TargetTruncated("its leader does not know the producer id whose batches it had acknowledged")
            return []
        arrived = (last_sequence + 1 - acknowledged_before) % wire.SEQUENCE_MODULUS
        if arrived > _HALF:
            raise TargetTruncated("its leader's last sequence is lower than one it had acknowledged")
        unknown = []
        for outgoing in (*self._in_flight, *takewhile(lambda queued: queued.sent, self._queue)):
            if arrived < outgoing.count:
                break
            arrived -= outgoing.count
            if outgoing.base_offset is None:
                unknown.append(outgoing)
        if arrived:
            raise AnotherWrites(f"the leader of {self.plan.target} has batches of our producer id that we did not send")
        return unknown

    def settle(self, found: Mapping[int, int]) -> None:
        """Continue after a fault; ``found`` maps base sequences of appended batches to their base offsets. The other
        batches in flight are sent again, unchanged and in order."""
        for outgoing in self._in_flight:
            if outgoing.base_offset is None:
                outgoing.base_offset = found.get(outgoing.base_sequence)
        if found:
            self.pipelined = True
        self._account()
        while self._in_flight:
            self._queue.appendleft(self._in_flight.pop())
        self.faulted = self.gave_back = False

    def split_or_skip(self) -> None:
        """Replace permanently refused batches and renumber those behind them, or stop. Call it right after
        :meth:`settle`. Raises :class:`CopiesUnderWay` if only a new epoch makes that safe: the target would take a late
        copy with an old sequence for one of the new batches, which it would then never write."""
        first = next((index for index, outgoing in enumerate(self._queue) if outgoing.refusal is not None), None)
        if first is None:
            return
        waiting = list(self._queue)
        before, refused = waiting[:first], waiting[first:]
        try:
            replacement = self._splitter.split_or_skip(refused, self.max_message_bytes)
        except RecordRejected as rejection:
            self.quarantine(rejection.reason, rejection.error)
            return
        if any(outgoing.is_doubtful for outgoing in refused):
            raise CopiesUnderWay(
                f"target {self.plan.target} refused a batch permanently while later ones had no answer: taking over "
                "before the batch is split"
            )
        sequence = refused[0].base_sequence
        self._queue = deque(before)
        self._queued_sequence = sequence
        if replacement.behind is not None:
            self._pass_over(*replacement.behind, replacement.skips)
        for outgoing in [] if self._is_ending else replacement.batches:
            outgoing.renumber(self._queued_sequence)
            self._enqueue(outgoing)
        self._queued_bytes = sum(len(outgoing.batch) for outgoing in self._queue)
        self._stop_after_last()

    def discard_unsent(self) -> None:
        """Drop what was never sent, from now on too, for a clean end; the position never covered it."""
        self._is_ending = True
        while self._queue and not self._queue[-1].sent:
            self._queued_bytes -= len(self._queue.pop().batch)

    def stop(self, reason: str, error: str = "", gap: Gap | None = None) -> None:
        """Stop this partition with a reason for the operator; acknowledged batches count."""
        self._end(types.STOPPED, reason, error, gap)

    def quarantine(self, reason: str, error: str) -> None:
        """Stop this partition because the target refuses a batch permanently; see :meth:`stop`."""
        self._end(types.QUARANTINED, reason, error, None)

    def stop_reading(self, reason: str, error: str, gap: Gap | None, state: str = types.STOPPED) -> None:
        """Stop once everything read is acknowledged, so that the position shows exactly what is missing."""
        self._after_last = state, reason, error, gap
        self._stop_after_last()

    def _stop_after_last(self) -> None:
        if self._after_last is not None and not self._queue and not self._in_flight and not self._is_ending:
            self._end(*self._after_last)

    def _end(self, state: str, reason: str, error: str, gap: Gap | None) -> None:
        if not self.stopped_reason:
            self.state, self.stopped_reason, self.stopped_error, self.gap = state, reason, error, gap
            self._moved[self] = None
            self._release()

    def _release_if_done(self) -> None:
        if self.stopped_reason and not self.unanswered:
            self._release()

    def _release(self) -> None:
        """Free the memory of batches that are never sent again; keep sent ones, because copies may still arrive. Their
        bytes count until the last answer came."""
        while self._queue and not self._queue[-1].sent:
            self._queue.pop()
        for outgoing in (*self._queue, *(() if self.unanswered else self._in_flight)):
            outgoing.release()
        self._queued_bytes = sum(len(outgoing.batch) for outgoing in self._in_flight)

    def report(self) -> PartitionProgress | None:
        """Return what happened since the last report, for the caller to send; None if nothing did."""
        state_now = (self.next_source_offset, self.high_watermark, self.log_start_offset, self.stopped_reason)
        if state_now == self._reported and not self._batches:
            return None
        self._reported = state_now
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
            skips=self._skips,
            dropped=self._dropped,
            changed=self._changed,
            state=self.state,
            reason=self.stopped_reason,
            error=self.stopped_error,
            gap=self.gap,
        )
        self._records = self._bytes = self._dropped = self._changed = 0
        self._batches, self._runs, self._skips = {}, [], []
        return progress

    def _nothing_written(self) -> bool:
        """Return whether a fence's or a transaction's marker made the id known and no batch was acknowledged since."""
        return self.next_sequence == 0 and (self._transaction is not None or self.plan.next_sequence == 0)

    def _account(self) -> None:
        in_flight = self._in_flight
        while in_flight and (base := in_flight[0].base_offset) is not None:
            outgoing = in_flight[0]
            if base < self.target_end:
                raise TargetTruncated(f"it assigned offset {base} again after offset {self.target_end - 1}")
            in_flight.popleft()
            size = len(outgoing.batch)
            self._queued_bytes -= size
            self._bytes += size
            self._records += outgoing.count
            self.target_end = base + outgoing.count
            self.next_sequence = wire.add_sequence(outgoing.base_sequence, outgoing.count)
            self._move_to(outgoing.next_source_offset, outgoing.source_epoch, outgoing.skips)
            self._timestamp_ms = max(self._timestamp_ms, outgoing.timestamp_ms)
            for upstream, count in outgoing.segments:
                append_run(self._runs, (upstream, base, count))
                base += count
        self._stop_after_last()

    def reaches(self, high_watermark: int, log_start_offset: int) -> None:
        """Note where the source's log ends and begins."""
        self.high_watermark, self.log_start_offset = high_watermark, log_start_offset
        self._moved[self] = None

    def _move_to(self, next_source_offset: int, source_epoch: int, skips: Sequence[Skip]) -> None:
        self._moved[self] = None
        self.next_source_offset = max(self.next_source_offset, next_source_offset)
        self.last_source_epoch = source_epoch
        if skips:
            self._skips += skips
