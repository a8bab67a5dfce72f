"""One partition of a slice as a state machine: fetched bytes in, batches to produce out, answers in, runs out.

It knows no socket and no clock. What holds at every moment:

A. Batches leave in source order, their sequences without a gap. A batch of which a sent copy may still reach the target
   is kept byte-identical; others may be merged, or given other boundaries and sequences (``mend``).
B. The position (``next_source_offset``, ``target_end``, ``next_sequence``) speaks of acknowledged batches, and of what
   was left out between them, only; taken from the front, so it never runs ahead of one that may be lost.
C. Until the target's leader knows our producer id here, one batch is in flight: an unknown id takes any first
   sequence, so a second batch could land without the first.
D. After a failed or lost answer nothing is sent until what the leader really has was asked for (``settle``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import PlainRun, Unmergeable
from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.dataplane.batches import error_codes, fetched_batches
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.fetched_batches import cut
from connectors.dataplane.batches.outgoing_batches import Builder, Merging, Outgoing, Stamp, apart, append_run
from connectors.dataplane.batches.sequencer import CopiesUnderWay, Mender, Poison
from connectors.formats.gap import Gap
from connectors.formats.types import (
    DEFAULT_BATCH_BYTES,
    NO_COMPRESSION,
    QUARANTINED,
    RUNNING,
    STOPPED,
    Compression,
    ProducerIdAndEpoch,
    Run,
    Skip,
)

_HALF: Final = wire.SEQUENCE_MODULUS // 2


class TargetTruncated(Exception):
    """The target's log no longer holds what it had acknowledged."""


class AnotherWrites(CopiesUnderWay):
    """The target has batches of our producer id that are not ours: of a predecessor that could not be fenced."""


class PartitionCopier:
    """See the module for what holds at every moment."""

    #: Attribute bits of what is produced, beside the codec's.
    marks = 0

    def __init__(
        self,
        plan: PartitionPlan,
        producer: ProducerIdAndEpoch,
        *,
        read_committed: bool,
        skip_refused: bool = False,
        compression: Compression = NO_COMPRESSION,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
    ) -> None:
        self.plan = plan
        self.producer = plan.producer or producer
        self.max_message_bytes = plan.max_message_bytes
        self.fetch_offset = plan.next_source_offset
        self.last_fetched_epoch = plan.last_source_epoch
        self.next_source_offset = plan.next_source_offset
        self.last_source_epoch = plan.last_source_epoch
        self.target_end = plan.target_end
        self.next_sequence = plan.next_sequence
        self.pipelined = plan.pipelined
        #: since :meth:`doubt_if_idle` was last asked
        self._has_written = plan.pipelined
        self.high_watermark = -1
        self.log_start_offset = -1
        self.faulted = False
        #: Its leader lacked replicas: one batch at a time is sent until one is acknowledged.
        self.lacks_replicas = False
        #: Part of what was read was forgotten, to be fetched again when the fault is over.
        self.gave_back = False
        self.unanswered = 0
        self.state = RUNNING
        self.stopped_reason = ""
        self.stopped_error = ""
        self.gap: Gap | None = None
        self._after_last: tuple[str, str, str, Gap | None] | None = None
        self._read_committed = read_committed
        self._skip_refused = skip_refused
        self._builder = Builder(self.producer, compression)
        self._merging = Merging(batch_bytes, compression)
        self._mender = Mender(self._builder, plan.target, skip_refused)
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

    # -- source side ------------------------------------------------------------------------------

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take all that a fetch brought, as :meth:`taking`."""
        for _ in self.taking(fetched, aborted):
            pass

    def taking(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[None]:
        """Take what a fetch brought, a batch at each step; ``fetched`` is changed in place and kept until acknowledged.

        ``aborted``: (producer id, first offset) of this answer. No step is to be taken of a copier that is not
        :attr:`is_read` any more. Raises :class:`cut.CorruptBatch`, with what came before it taken.
        """
        listed = aborted if self._read_committed else None
        decided = cut(
            fetched,
            self.fetch_offset,
            listed,
            self.max_message_bytes,
            run_limits=self._run_limits,
        )
        for batch, header, decision, run in decided:
            if header is None:
                self._count(decision)
                self._take_old(batch)
            elif decision is fetched_batches.SHALLOW:
                self._take_shallow(batch, header, run)
            else:
                self._count(decision)
                self._take_batch(batch, header, decision)
            yield

    def _run_limits(self, codec: int) -> tuple[int, int]:
        small_bytes, most_bytes = self._merging.run_limits(codec)
        return small_bytes, min(most_bytes, self.max_message_bytes)

    def _count(self, decision: fetched_batches.Decision, batches: int = 1) -> None:
        self._batches[decision.reason] = self._batches.get(decision.reason, 0) + batches

    def _take_shallow(self, batch: memoryview, header: wire.BatchHeader, run: PlainRun | None) -> None:
        first, epoch = header.base_offset, header.leader_epoch
        following, latest_ms, number = first + header.record_count, header.max_timestamp, 1
        if run is not None:
            number, following, latest_ms = run.batches, run.next_offset, run.max_timestamp_ms
        count = following - first
        codec, sequence = header.codec, self._queued_sequence
        self._enqueue(
            Outgoing(
                batch, sequence, count, ((first, count),), following, epoch, latest_ms, codec, source_batches=number
            )
        )
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = epoch

    def _take_batch(self, batch: memoryview, header: wire.BatchHeader, decision: fetched_batches.Decision) -> None:
        following = header.last_offset + 1
        if decision.kind is fetched_batches.BatchKind.DROPPED:
            self._pass_over(following, header.leader_epoch)
        else:
            self._rebuild(list(records.decode(batch, 2)), header.codec, following, header.leader_epoch)
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = header.leader_epoch

    def _take_old(self, messages: memoryview) -> None:
        opened = list(records.decode(messages, messages[16]))
        following = max((record.offset + 1 for record in opened), default=self.fetch_offset)
        codec = messages[17] & wire.CODEC_MASK
        self._rebuild(opened, codec, following, -1)
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = -1

    def _rebuild(self, opened: list[records.Record], codec: int, following: int, epoch: int) -> None:
        self._put([record for record in opened if record.offset >= self.fetch_offset], codec, following, epoch)

    def _put(
        self, kept: list[records.Record], codec: int, following: int, epoch: int, left_out: Sequence[Skip] = ()
    ) -> None:
        """Queue what is built of these records, which stand for all up to ``following``."""
        skips = list(left_out)
        parts = list(self._builder.fitting(kept, codec, self.max_message_bytes))
        for outgoing in self._builder.outgoings(parts, codec, self._queued_sequence, epoch):
            outgoing.skips, skips = tuple(skips), []
            self._enqueue(outgoing)
        self._pass_over(following, epoch, skips)

    def _enqueue(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self._queued_sequence = wire.add_sequence(self._queued_sequence, outgoing.count)
        self._queued_bytes += len(outgoing.batch)

    def _pass_over(self, following: int, epoch: int, skips: Sequence[Skip] = ()) -> None:
        """Let the position move behind what is not copied, once all before it is acknowledged."""
        last = self._last()
        if last is None:
            self._move_to(following, epoch, skips)
        else:
            last.next_source_offset = max(last.next_source_offset, following)
            last.source_epoch = epoch
            last.skips += tuple(skips)

    # -- target side ------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """What was read and is not acknowledged, as on the wire."""
        return self._queued_bytes

    @property
    def held_bytes(self) -> int:
        """How much memory that takes, about, with what was opened."""
        return self.buffered_bytes

    @property
    def has_unsent(self) -> bool:
        return bool(self._queue)

    @property
    def has_unacknowledged(self) -> bool:
        """Whether something that was sent has no answer yet: then a successor must fence."""
        return bool(self._in_flight) or bool(self._queue and self._queue[0].sent)

    @property
    def holds_up_end(self) -> bool:
        """Whether a clean end waits for answers to what was sent. A stopped one waits for none, and is never handed
        over."""
        return self.has_unacknowledged and not self.stopped

    @property
    def stopped(self) -> bool:
        return bool(self.stopped_reason)

    @property
    def is_read(self) -> bool:
        """Whether more of it is to be read: not once it is stopped, or about to, or leaves."""
        return not (self.stopped_reason or self._is_ending or self._after_last)

    @property
    def has_refused(self) -> bool:
        """Whether :meth:`mend` has something to do."""
        return any(outgoing.refusal is not None for outgoing in self._queue)

    @property
    def is_refused_for_size(self) -> bool:
        """Whether the target found a batch larger than we thought it takes."""
        waiting = (*self._in_flight, *self._queue)
        return any(outgoing.refusal is not None and outgoing.refusal.is_for_size for outgoing in waiting)

    def next_batch(self, saved_s: float = 0.0) -> Outgoing | None:
        """The next batch to put into a request, now counted as in flight; None if nothing may be sent.

        It holds as much of what waits as is worth merging, if each batch less saves ``saved_s``.
        """
        if not self._queue or self.faulted or self.stopped_reason:
            return None
        if self._in_flight and (self.lacks_replicas or not self.pipelined):
            return None
        outgoing = self._queue.popleft()
        if not outgoing.sent:
            outgoing = self._made_ready(outgoing, saved_s)
            outgoing.sent = True
        self._in_flight.append(outgoing)
        self.unanswered += 1
        return outgoing

    def _made_ready(self, first: Outgoing, saved_s: float) -> Outgoing:
        """``first`` as one batch that bears our identity and codec, with what follows it in the queue where that is
        merged."""
        number = self._merging.takes(first, self._queue, self.max_message_bytes, saved_s)
        if number or self._merging.opens(first):
            first = self._merge([first, *(self._queue.popleft() for _ in range(number))])
        if first.stamp is None:
            self._count(fetched_batches.SHALLOW)
        first.make_ready(self._stamp_of(first))
        return first

    def _stamp_of(self, outgoing: Outgoing) -> Stamp:
        return self.marks, self.producer.producer_id, self.producer.epoch, outgoing.base_sequence

    def _merge(self, parts: list[Outgoing]) -> Outgoing:
        """``parts`` as one, or else the first of them by itself, with the others waiting again."""
        first, before_bytes = parts[0], sum(len(part.batch) for part in parts)
        stamp = self._stamp_of(first)
        try:
            merged = self._merging.merged(parts, stamp)
            if len(merged) > self.max_message_bytes:
                raise Unmergeable("it would be larger than the target takes")
        except Unmergeable:
            alone = [one for part in parts for one in apart(part)]
            self._queue.extendleft(reversed(alone[1:]))
            return alone[0]
        batches = sum(part.source_batches for part in parts if part.stamp is None)
        self._count(fetched_batches.MERGED if batches > 1 or len(parts) > 1 else fetched_batches.COMPRESSED, batches)
        first.join(parts[1:], merged, stamp)
        self._queued_bytes += len(merged) - before_bytes
        return first

    def acknowledged(self, outgoing: Outgoing, base_offset: int) -> None:
        """The target answered without error. Raises :class:`TargetTruncated` on an offset it had given before."""
        self.unanswered -= 1
        self.pipelined = self._has_written = True
        self.lacks_replicas = False
        outgoing.base_offset = base_offset
        try:
            self._account()
        finally:
            self._let_go_if_done()

    def failed(self, outgoing: Outgoing, code: int | None) -> None:
        """An answer with an error, or (None) none at all: nothing more is sent until :meth:`settle`."""
        self.unanswered -= 1
        self.faulted = True
        if code not in error_codes.NOT_WRITTEN:
            outgoing.is_doubtful = True
        if code in error_codes.LACKS_REPLICAS:
            self.lacks_replicas = True
        self._let_go_if_done()

    def give_back(self, keep: int) -> None:
        """Forget all but the first ``keep`` batches of a faulted partition; the source is read again from there.

        A batch of which a copy is at the target or may still reach it is kept, and so are all before it.
        """
        if not self.is_read:
            return  # what was read may be gone from the source
        self.gave_back = True
        while len(self._in_flight) + len(self._queue) > keep:
            waiting = self._queue or self._in_flight
            last = waiting[-1]
            is_answered = waiting is self._queue or not self.unanswered
            if not is_answered or last.is_doubtful or last.base_offset is not None or last.refusal is not None:
                break
            waiting.pop()
            self._queued_bytes -= len(last.batch)
        self._read_on_behind_last()

    def _read_on_behind_last(self) -> None:
        if kept := self._last():
            self.fetch_offset, self.last_fetched_epoch = kept.next_source_offset, kept.source_epoch
            self._queued_sequence = wire.add_sequence(kept.base_sequence, kept.count)
        else:
            self.fetch_offset, self.last_fetched_epoch = self.next_source_offset, self.last_source_epoch
            self._queued_sequence = self.next_sequence

    def _last(self) -> Outgoing | None:
        return self._queue[-1] if self._queue else self._in_flight[-1] if self._in_flight else None

    def doubt_if_idle(self) -> None:
        """Now and then: a leader forgets a producer that has been silent for long (``producer.id.expiration.ms``), and
        would take any sequence then."""
        if not self._has_written and not self._in_flight:
            self.pipelined = False
        self._has_written = False

    def refused(self, outgoing: Outgoing, refusal: Refusal) -> None:
        """The target will never take this batch as it is: :meth:`mend` decides, once all is settled."""
        outgoing.refusal = refusal
        if refusal.is_for_size and outgoing.source_batches > 1:
            self._merging.was_refused_for_size(len(outgoing.batch))
        self.failed(outgoing, refusal.code)

    def appended_unknown(self, last_sequence: int | None) -> list[Outgoing]:
        """Which batches in flight the leader has without our knowing where, given its last sequence of ours.

        ``last_sequence`` None: the leader knows nothing of our producer id. Raises :class:`TargetTruncated`
        if it knows less than was acknowledged, :class:`AnotherWrites` if it has what we did not send.
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
        for outgoing in (*self._in_flight, *takewhile(lambda queued: queued.sent, self._queue)):
            if arrived < outgoing.count:
                break
            arrived -= outgoing.count
            if outgoing.base_offset is None:
                unknown.append(outgoing)
        if arrived:
            message = f"the leader of {self.plan.target} has batches of our producer id that we did not send"
            raise AnotherWrites(message)
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
        self.faulted = self.gave_back = False

    def mend(self) -> None:
        """Put something else in the place of what was refused for good, and renumber what is behind it; or stop.

        Right after :meth:`settle`. Raises :class:`CopiesUnderWay` where only a new epoch makes that safe: a late copy
        with an old number would be taken for one of the new batches, which are then written nowhere.
        """
        first = next((index for index, outgoing in enumerate(self._queue) if outgoing.refusal is not None), None)
        if first is None:
            return
        waiting = list(self._queue)
        before, refused = waiting[:first], waiting[first:]
        try:
            mended = self._mender.mend(refused, self.max_message_bytes)
        except Poison as poison:
            self.quarantine(poison.reason, poison.error)
            return
        if any(outgoing.is_doubtful for outgoing in refused):
            raise CopiesUnderWay(
                f"target {self.plan.target} refused a batch for good while others behind it had no answer: taking over "
                "before it is taken apart"
            )
        sequence = refused[0].base_sequence
        self._queue = deque(before)
        self._queued_sequence = sequence
        if mended.behind is not None:
            self._pass_over(*mended.behind, mended.skips)
        for outgoing in [] if self._is_ending else mended.batches:
            outgoing.renumber(self._queued_sequence)
            self._enqueue(outgoing)
        self._queued_bytes = sum(len(outgoing.batch) for outgoing in self._queue)
        self._stop_after_last()

    def discard_unsent(self) -> None:
        """Forget what was never sent, now and later, for a clean end: the position never covered it."""
        self._is_ending = True
        while self._queue and not self._queue[-1].sent:
            self._queued_bytes -= len(self._queue.pop().batch)

    def stop(self, reason: str, error: str = "", gap: Gap | None = None) -> None:
        """End this partition with a sentence for people; what was acknowledged stands."""
        self._end(STOPPED, reason, error, gap)

    def quarantine(self, reason: str, error: str, gap: Gap | None = None) -> None:
        """As :meth:`stop`, where the target refuses for good."""
        self._end(QUARANTINED, reason, error, gap)

    def stop_reading(self, reason: str, error: str, gap: Gap | None, state: str = STOPPED) -> None:
        """As :meth:`stop`, once all that was read is acknowledged: so the position says what exactly is missing."""
        self._after_last = state, reason, error, gap
        self._stop_after_last()

    def _stop_after_last(self) -> None:
        if self._after_last is not None and not self._queue and not self._in_flight and not self._is_ending:
            self._end(*self._after_last)

    def _end(self, state: str, reason: str, error: str, gap: Gap | None) -> None:
        if not self.stopped_reason:
            self.state, self.stopped_reason, self.stopped_error, self.gap = state, reason, error, gap
            self._let_go()

    def _let_go_if_done(self) -> None:
        if self.stopped_reason and not self.unanswered:
            self._let_go()

    def _let_go(self) -> None:
        """Hold no memory for what is never sent again; what was sent is remembered, as its copies may still arrive.

        What has no answer yet is counted until the last of them is there.
        """
        while self._queue and not self._queue[-1].sent:
            self._queue.pop()
        for outgoing in (*self._queue, *(() if self.unanswered else self._in_flight)):
            outgoing.release()
        self._queued_bytes = sum(len(outgoing.batch) for outgoing in self._in_flight)

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
            self._queued_bytes -= size
            self._bytes += size
            self._records += outgoing.count
            self.target_end = base + outgoing.count
            self.next_sequence = wire.add_sequence(outgoing.base_sequence, outgoing.count)
            self._move_to(outgoing.next_source_offset, outgoing.source_epoch, outgoing.skips)
            if outgoing.timestamp_ms > self._timestamp_ms:
                self._timestamp_ms = outgoing.timestamp_ms
            for upstream, count in outgoing.segments:
                append_run(self._runs, (upstream, base, count))
                base += count
        self._stop_after_last()

    def _move_to(self, next_source_offset: int, source_epoch: int, skips: Sequence[Skip]) -> None:
        self.next_source_offset = max(self.next_source_offset, next_source_offset)
        self.last_source_epoch = source_epoch
        if skips:
            self._skips += skips
