"""Copy one partition as a state machine: fetched bytes and answers go in, batches to produce and runs come out.

It has no socket and no clock. :mod:`connectors.dataplane.batches.send_queue` lists what holds at every moment.

With a :class:`Transform`, fetched batches are opened, and new batches are built from the transformed records. Dropped
records have no sequence, so a position passes them with the batch before them, and the offset map gets a gap. Under
exactly-once, records that are still being transformed belong to a later transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import PlainRun
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches import error_codes, fetched_batches
from connectors.dataplane.batches.error_codes import add_skip
from connectors.dataplane.batches.fetched_batches import BatchKind, Opened, cut, open_batch
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.dataplane.batches.send_queue import SendQueue
from connectors.formats.types import QUARANTINED, Skip
from connectors.transforms.smt_chain import Done, Outcome, Untransformable

log = logging.getLogger(__name__)

#: The error of a partition that a record stopped, because it cannot be transformed.
UNTRANSFORMABLE: Final = "not-transformed"
#: Memory of a record's objects without their contents, as measured.
_RECORD_BYTES: Final = 300


@dataclass(frozen=True, slots=True)
class Transform:
    """``submit`` takes records of a partition and a callback for their outcome; outcomes come in the order of the
    calls. ``ready`` is called when an outcome came: there may be batches to send, or only room."""

    submit: Callable[[PartitionPlan, Sequence[records.Record], Done], None]
    ready: Callable[[PartitionCopier], None]


class PartitionCopier(SendQueue):
    """A send queue filled from fetch answers; batches that must change are rebuilt from their records. The arguments of
    the queue come first."""

    def __init__(self, *args: Any, transform: Transform | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._transform = transform
        #: number of source batches that are being transformed, their bytes as on the wire, and those of their records
        self._transforming = self._transforming_bytes = self._opened_bytes = 0
        #: Whether a record was found that must not be left out; nothing behind it is copied.
        self._met_untransformable = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes read but not acknowledged, as on the wire."""
        return self._queued_bytes + self._transforming_bytes

    @property
    def held_bytes(self) -> int:
        """Approximate memory of these batches, decoded records included."""
        return self.buffered_bytes + self._opened_bytes

    def give_back(self, keep: int) -> None:
        # One transformed record may have become several of which some may have been sent, so all of them are kept.
        if self._transform is None:
            super().give_back(keep)

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take a whole fetch answer, as :meth:`taking`."""
        for _ in self.taking(fetched, aborted):
            pass

    def taking(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[None]:
        """Take a fetch answer, a batch at each step; ``fetched`` is changed in place and kept until acknowledged.
        ``aborted``: (producer id, first offset) of this answer. Take no further step once the copier is not
        :attr:`is_read`. Raises :class:`CorruptBatch` after taking what came before it."""
        listed = aborted if self._read_committed else None
        if self._transform is not None:
            decided = cut(fetched, self.fetch_offset, listed, wire.SEQUENCE_MODULUS)
        else:
            decided = cut(fetched, self.fetch_offset, listed, self.max_message_bytes, run_limits=self._run_limits)
        for batch, header, decision, run in decided:
            if header is not None and decision is fetched_batches.SHALLOW and self._transform is None:
                self._take_shallow(batch, header, run)
            else:
                part = open_batch(batch, header, decision, self.fetch_offset)
                self.fetch_offset = max(self.fetch_offset, part.following)
                self.last_fetched_epoch = part.leader_epoch
                if self._transform is not None:
                    self._submit(part, len(batch), self._transform)
                else:
                    self._count(decision)
                    self._put(part.records, part.codec, part.following, part.leader_epoch)
            yield

    def _run_limits(self, codec: int) -> tuple[int, int]:
        small_bytes, most_bytes = self._merging.run_limits(codec)
        return small_bytes, min(most_bytes, self.max_message_bytes)

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

    def _put(
        self, kept: Sequence[records.Record], codec: int, following: int, epoch: int, left_out: Sequence[Skip] = ()
    ) -> None:
        """Queue batches built from these records, which cover all offsets before ``following``."""
        skips = list(left_out)
        parts = list(self._builder.fitting(kept, codec, self.max_message_bytes))
        for outgoing in self._builder.outgoings(parts, codec, self._queued_sequence, epoch):
            outgoing.skips, skips = tuple(skips), []
            self._enqueue(outgoing)
        self._pass_over(following, epoch, skips)

    def _submit(self, part: Opened, size: int, transform: Transform) -> None:
        """Let the records of a batch of ``size`` bytes be transformed."""
        held_bytes = sum(map(_held_bytes, part.records))
        is_dropped = part.decision.kind is BatchKind.DROPPED
        self._count(part.decision if is_dropped else fetched_batches.TRANSFORMED)
        self._transforming += 1
        self._transforming_bytes += size
        self._opened_bytes += held_bytes

        def done(outcome: Outcome) -> None:
            self._transforming -= 1
            self._transforming_bytes -= size
            self._opened_bytes -= held_bytes
            if not (self._is_ending or self.stopped):
                if not self._met_untransformable:
                    self._take_outcome(part, outcome)
                self._stop_after_last()
            transform.ready(self)

        transform.submit(self.plan, part.records, done)

    def _take_outcome(self, part: Opened, outcome: Outcome) -> None:
        kept: list[records.Record] = []
        skips: list[Skip] = []
        for before, after in zip(part.records, outcome, strict=True):
            if isinstance(after, Untransformable):
                if after.stops or not self._skip_refused:
                    self._met_untransformable = True
                    self._put(kept, part.codec, before.offset, part.leader_epoch, skips)
                    self.stop_reading(_untransformable(self.plan, before, after), UNTRANSFORMABLE, None, QUARANTINED)
                    return
                log.warning(
                    "source %s: left out the record at offset %d: %s", self.plan.source, before.offset, after.reason
                )
                add_skip(skips, before.offset, error_codes.NOT_TRANSFORMED)
            elif after is None:
                self._dropped += 1
            else:
                self._changed += after != before
                kept.append(after)
        self._put(kept, part.codec, part.following, part.leader_epoch, skips)

    def _stop_after_last(self) -> None:
        # Records that are still being transformed must be copied first.
        if self._met_untransformable or not self._transforming:
            super()._stop_after_last()


def _held_bytes(record: records.Record) -> int:
    """Return the approximate memory of a decoded record."""
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _untransformable(plan: PartitionPlan, record: records.Record, unfit: Untransformable) -> str:
    advice = "" if unfit.stops else "; errors.tolerance = all leaves such records out"
    return f"source {plan.source}: the record at offset {record.offset} cannot be transformed: {unfit.reason}{advice}"
