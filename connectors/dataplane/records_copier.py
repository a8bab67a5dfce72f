"""A partition whose records are transformed on their way: fetched bytes are opened, and batches built of what comes
back.

What the base class promises holds here too. Records that a query drops take no place in the sequence, so a position
passes them with the batch before, and the offset map gets a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import codes, shape
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.cut import cut
from connectors.dataplane.plan import QUARANTINED, PartitionPlan, Skip
from connectors.dataplane.refusals import add_skip
from connectors.dataplane.transactional import TransactionalCopier
from connectors.transforms.smt_chain import Done, Outcome, Unfit

log = logging.getLogger(__name__)

#: What a partition that met such a record is stopped by.
UNFIT: Final = "not-transformed"
_ANY_SIZE: Final = wire.SEQUENCE_MODULUS
#: Gets records of a partition, and what takes their outcome, after those of all calls before.
Submit = Callable[[PartitionPlan, Sequence[records.Record], Done], None]
#: Of a record's objects, beside what is in them: measured.
_RECORD_BYTES: Final = 300


@dataclass(frozen=True, slots=True)
class Opened:
    """The records of one source batch that are to be copied, and where the source goes on behind it.

    ``bytes`` as on the wire; ``held_bytes`` is how much memory the records take beside, about.
    """

    records: Sequence[records.Record]
    codec: int
    following: int
    leader_epoch: int
    bytes: int
    held_bytes: int
    decision: shape.Decision


def opened(fetched: memoryview, position: int, aborted: Iterable[tuple[int, int]] | None) -> Iterable[Opened]:
    """Fetched batches taken apart, without what is before ``position``. Raises :class:`cut.CorruptBatch`."""
    for batch, header, decision, _ in cut(fetched, position, aborted, _ANY_SIZE):
        is_dropped = decision.kind is shape.Kind.DROPPED
        found = [] if is_dropped else list(records.decode(batch, batch[16]))
        kept = [record for record in found if record.offset >= position]
        held_bytes = sum(map(_held_bytes, kept))
        if header is None:
            following = max((record.offset + 1 for record in found), default=position)
            yield Opened(kept, batch[17] & wire.CODEC_MASK, following, -1, len(batch), held_bytes, shape.TRANSFORMED)
        else:
            following = header.last_offset + 1
            reason = decision if is_dropped else shape.TRANSFORMED
            yield Opened(kept, header.codec, following, header.leader_epoch, len(batch), held_bytes, reason)
        position = max(position, following)


class RecordsCopier(PartitionCopier):
    """See the module. ``submit`` transforms, ``ready`` is told when something came back: to be sent, or only as room.

    The arguments of its base come first.
    """

    def __init__(self, *args: Any, submit: Submit, ready: Callable[[PartitionCopier], None], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._submit = submit
        self._ready = ready
        #: source batches whose records are on their way through the transformation
        self._transforming = 0
        self._transforming_bytes = self._opened_bytes = 0
        #: Whether a record was found that is not to be left out; nothing behind it is copied.
        self._met_unfit = False

    @property
    def buffered_bytes(self) -> int:
        return self._queued_bytes + self._transforming_bytes

    @property
    def held_bytes(self) -> int:
        return self.buffered_bytes + self._opened_bytes

    def give_back(self, keep: int) -> None:
        """Keep all: one source record may have become several, and part of them may have been sent."""

    def taking(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[None]:
        for part in opened(fetched, self.fetch_offset, aborted if self._read_committed else None):
            reason = part.decision.reason
            self._batches[reason] = self._batches.get(reason, 0) + 1
            self._transforming_bytes += part.bytes
            self.fetch_offset = max(self.fetch_offset, part.following)
            self.last_fetched_epoch = part.leader_epoch
            self._transforming += 1
            self._opened_bytes += part.held_bytes
            self._submit(self.plan, part.records, self._taker(part))
            yield

    def _taker(self, part: Opened) -> Callable[[Outcome], None]:
        return lambda outcome: self._transformed(part, outcome)

    def _transformed(self, part: Opened, outcome: Outcome) -> None:
        self._transforming_bytes -= part.bytes
        self._transforming -= 1
        self._opened_bytes -= part.held_bytes
        if not (self._is_ending or self.stopped):
            if not self._met_unfit:
                self._take_outcome(part, outcome)
            self._stop_after_last()
        self._ready(self)

    def _take_outcome(self, part: Opened, outcome: Outcome) -> None:
        kept: list[records.Record] = []
        skips: list[Skip] = []
        for before, after in zip(part.records, outcome, strict=True):
            if isinstance(after, Unfit):
                if after.stops or not self._skip_refused:
                    self._met_unfit = True
                    self._put(kept, part.codec, before.offset, part.leader_epoch, skips)
                    self.stop_reading(_unfit(self.plan, before, after), UNFIT, None, QUARANTINED)
                    return
                log.warning(
                    "source %s: left out the record at offset %d: %s", self.plan.source, before.offset, after.reason
                )
                add_skip(skips, before.offset, codes.NOT_TRANSFORMED)
            elif after is None:
                self._dropped += 1
            else:
                self._changed += after != before
                kept.append(after)
        self._put(kept, part.codec, part.following, part.leader_epoch, skips)

    def _stop_after_last(self) -> None:
        # What was read and is not transformed yet is still to be copied.
        if self._met_unfit or not self._transforming:
            super()._stop_after_last()


class TransactionalRecordsCopier(RecordsCopier, TransactionalCopier):
    """The same under exactly-once: what is still being transformed belongs to a later transaction."""


def _held_bytes(record: records.Record) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _unfit(plan: PartitionPlan, record: records.Record, unfit: Unfit) -> str:
    advice = "" if unfit.stops else "; errors.tolerance = all leaves such records out"
    return f"source {plan.source}: the record at offset {record.offset} cannot be transformed: {unfit.reason}{advice}"
