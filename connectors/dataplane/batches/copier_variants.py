"""Vary the copier of a partition: copy its batches in transactions, transform its records, or do both.

Under exactly-once the worker begins and ends the transactions, and the slice goes through these states::

    open     batches are sent; the first of them begins the transaction
    closing  no batch is sent for the first time; those in flight are answered, or sent again until they are
    ended    all is acknowledged and reported as ``drained``; nothing is sent until the worker says ``begin``

The worker commits on ``drained`` only, because a commit succeeds even if batches of the transaction were refused
(tested). Fetching continues meanwhile, so that the next transaction finds batches waiting.

When records are transformed, fetched batches are opened, and new batches are built from the transformed records. The
guarantees of the base class hold. Dropped records have no sequence, so a position passes them with the batch before
them, and the offset map gets a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from connect.core.errors import RetriableError
from connect.wire import batch as wire
from connect.wire import records
from connectors.control_link.protocol import Message, PartitionPlan, SliceSettings, TransactionTerms
from connectors.dataplane.batches import error_codes, fetched_batches
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.error_codes import add_skip
from connectors.dataplane.batches.fetched_batches import cut
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.formats.types import QUARANTINED, ProducerIdAndEpoch, Skip
from connectors.transforms.smt_chain import Done, Outcome, Unfit

_LOOK_S: Final = 0.01
#: How long a position may move past markers and left-out records alone before it is stored.
_IDLE_S: Final = 1.0


class TransactionLost(RetriableError):
    """The open transaction can no longer be committed: the worker aborts it and takes over."""


class _State(Enum):
    OPEN = auto()
    CLOSING = auto()
    ENDED = auto()


class TransactionalCopier(PartitionCopier):
    """A copier of transactional batches, under a producer id and epoch that may change with each transaction."""

    marks = wire.TRANSACTIONAL

    def __init__(
        self, plan: PartitionPlan, producer: ProducerIdAndEpoch, settings: SliceSettings, filling: Filling
    ) -> None:
        super().__init__(
            plan,
            producer,
            read_committed=settings.read_committed,
            skip_refused=settings.skip_refused,
            compression=settings.compression,
            batch_bytes=settings.batch_bytes,
        )
        self._filling = filling

    def next_batch(self, saved_s: float = 0.0) -> Outgoing | None:
        if not self._queue or self.stopped:
            return None  # so that its partition stays out of the transaction
        if not self._queue[0].sent and not self._filling.admits(self):
            return None
        outgoing = super().next_batch(saved_s)
        if outgoing is not None:
            self._filling.sends(self)
        return outgoing

    @property
    def is_settled(self) -> bool:
        """Whether it is known of every batch of the transaction if it is in the log."""
        return not self.unanswered and not self.faulted and not self.has_unacknowledged

    @property
    def holds_up_end(self) -> bool:
        """True for a stopped partition too, because its batches in flight may still join the transaction."""
        return self.unanswered > 0 or super().holds_up_end

    @property
    def is_in_doubt(self) -> bool:
        """Whether it is unknown, once the partition is stopped, which of its batches are in the log."""
        waiting = (*self._in_flight, *self._queue)
        return any(one.is_doubtful or one.base_offset is not None for one in waiting if one.sent)

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

    def _nothing_written(self) -> bool:
        return self.next_sequence == 0


class Filling:
    """Decides when a transaction is worth ending, and tells the worker once it is drained.

    Args:
        send: Sends a message to the worker.
        collect: Returns the copiers' reports since the last call, as the link carries them.
        offer: Called with copiers that may have batches to send.
    """

    def __init__(
        self,
        terms: TransactionTerms,
        *,
        send: Callable[[Message], None],
        collect: Callable[[], list[Any]],
        offer: Callable[[Iterable[PartitionCopier]], None],
    ) -> None:
        self._terms = terms
        self._send = send
        self._collect = collect
        self._offer = offer
        self._state = _State.OPEN
        self._copiers: list[TransactionalCopier] = []
        self._filled: set[TransactionalCopier] = set()
        self._stored: dict[TransactionalCopier, int] = {}
        self._enlisted: set[TransactionalCopier] = set()
        self._wanted: set[TransactionalCopier] = set()
        self._began_s = self._ended_s = 0.0
        self._sent = asyncio.Event()
        self._answered = asyncio.Event()
        self._begun = asyncio.Event()

    def add(self, copiers: Iterable[TransactionalCopier]) -> None:
        """Include these copiers in the transactions."""
        for copier in copiers:
            self._stored[copier] = copier.next_source_offset
            self._copiers.append(copier)

    @property
    def is_idle(self) -> bool:
        """Whether the copiers' reports are true even if the transaction is aborted."""
        return self._state is _State.OPEN and not self._filled

    def admits(self, copier: TransactionalCopier) -> bool:
        """Return whether a batch of the copier may be sent for the first time."""
        if self._state is not _State.OPEN:
            return False
        if self._terms.adds_implicitly or copier in self._enlisted:
            return True
        if copier not in self._wanted:
            if not self._wanted:
                asyncio.get_running_loop().call_soon(self._ask_to_enlist)
            self._wanted.add(copier)
        return False

    def sends(self, copier: TransactionalCopier) -> None:
        if not self._filled:
            self._began_s = time.monotonic()
            self._sent.set()
        self._filled.add(copier)

    def answered(self) -> None:
        """Look again: answers came, or a partition was stopped."""
        self._answered.set()

    def enlisted(self, targets: Collection[tuple[str, int]], refused: Collection[tuple[str, int]] = ()) -> None:
        """Send to target partitions that the worker added to the transaction; quarantine the ``refused`` ones."""
        copiers = [copier for copier in self._copiers if copier.plan.target in targets]
        unwritable = [copier for copier in self._copiers if copier.plan.target in refused]
        for copier in unwritable:
            code, target = error_codes.TOPIC_AUTHORIZATION_FAILED, copier.plan.target
            copier.quarantine(
                error_codes.explained(code, target, "to be part of a transaction"), error_codes.code_name(code)
            )
        self._wanted.difference_update(copiers, unwritable)
        self._enlisted.update(copiers)
        self._ask_to_enlist()  # for copiers that came after the request
        self._offer(copiers)

    def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
        """Fill the next transaction, after the worker ended the last one."""
        self._filled.clear()
        self._enlisted.clear()
        self._wanted.clear()
        self._sent.clear()
        self._state = _State.OPEN
        for copier in self._copiers:
            if not copier.stopped:
                copier.begin(producer, restarts=restarts)
        self._begun.set()
        self._offer([copier for copier in self._copiers if copier.has_unsent])

    async def run(self) -> None:
        """Fill one transaction after the other, until cancelled. Raises TransactionLost."""
        while True:
            await self._until_worth_ending()
            await self._drain()
            await self._begun.wait()

    def finish(self) -> None:
        """Report the last transaction for a clean end, once :meth:`run` is cancelled and every batch is answered."""
        if self._state is not _State.ENDED:
            self._give_up_stopped()
            if self._filled or self._has_moved():
                self._tell_drained()

    async def _until_worth_ending(self) -> None:
        while not self._filled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_S):
                    await self._sent.wait()
            if not self._filled and self._has_moved():
                return
        while True:
            now_s = time.monotonic()
            if now_s - self._began_s >= self._terms.length_ms / 1000:
                return
            if now_s - self._ended_s >= self._terms.spacing_ms / 1000 and self._is_quiet():
                return
            await asyncio.sleep(_LOOK_S)

    def _is_quiet(self) -> bool:
        """Return whether the source has nothing more for this transaction at the moment."""
        return not any(copier.has_unsent or not copier.is_settled for copier in self._filled if not copier.stopped)

    def _has_moved(self) -> bool:
        return any(copier.next_source_offset != self._stored[copier] for copier in self._copiers)

    async def _drain(self) -> None:
        self._state = _State.CLOSING
        while True:
            self._give_up_stopped()
            if all(copier.is_settled for copier in self._filled):
                break
            self._answered.clear()
            await self._answered.wait()
        self._tell_drained()

    def _tell_drained(self) -> None:
        self._begun.clear()
        self._ended_s = time.monotonic()
        self._state = _State.ENDED
        self._stored = {copier: copier.next_source_offset for copier in self._copiers}
        self._send({"type": "drained", "partitions": self._collect()})

    def _give_up_stopped(self) -> None:
        """Take stopped partitions out of the transaction; it is lost if their batches may be in the log."""
        stopped = [one for one in self._filled if one.stopped and not one.unanswered and not one.is_settled]
        for copier in stopped:
            if copier.is_in_doubt:
                # Because the successor would otherwise try the same again.
                self._send({"type": "progress", "partitions": self._collect()})
                raise TransactionLost(
                    f"target {copier.plan.target}: {copier.stopped_reason}; it may hold batches without acknowledgement"
                )
        self._filled.difference_update(stopped)

    def _ask_to_enlist(self) -> None:
        if self._wanted and self._state is _State.OPEN:
            self._send({"type": "enlist", "partitions": [list(copier.plan.target) for copier in self._wanted]})


log = logging.getLogger(__name__)

#: The error of a partition that such a record stopped.
UNFIT: Final = "not-transformed"
_ANY_SIZE: Final = wire.SEQUENCE_MODULUS
#: Takes records of a partition and a callback for their outcome; outcomes come in the order of the calls.
Submit = Callable[[PartitionPlan, Sequence[records.Record], Done], None]
#: Memory of a record's objects without their contents, as measured.
_RECORD_BYTES: Final = 300


@dataclass(frozen=True, slots=True)
class Opened:
    """The records of one source batch that are to be copied, and the source offset behind it. ``bytes`` as on the wire;
    ``held_bytes``: approximate memory of the decoded records."""

    records: Sequence[records.Record]
    codec: int
    following: int
    leader_epoch: int
    bytes: int
    held_bytes: int
    decision: fetched_batches.Decision


def opened(fetched: memoryview, position: int, aborted: Iterable[tuple[int, int]] | None) -> Iterable[Opened]:
    """Yield the records of fetched batches from ``position`` on. Raises :class:`CorruptBatch`."""
    for batch, header, decision, _ in cut(fetched, position, aborted, _ANY_SIZE):
        is_dropped = decision.kind is fetched_batches.BatchKind.DROPPED
        found = [] if is_dropped else list(records.decode(batch, batch[16]))
        kept = [record for record in found if record.offset >= position]
        held_bytes = sum(map(_held_bytes, kept))
        if header is None:
            following = max((record.offset + 1 for record in found), default=position)
            yield Opened(
                kept, batch[17] & wire.CODEC_MASK, following, -1, len(batch), held_bytes, fetched_batches.TRANSFORMED
            )
        else:
            following = header.last_offset + 1
            reason = decision if is_dropped else fetched_batches.TRANSFORMED
            yield Opened(kept, header.codec, following, header.leader_epoch, len(batch), held_bytes, reason)
        position = max(position, following)


class RecordsCopier(PartitionCopier):
    """A copier of transformed records; the arguments of its base come first. ``submit`` transforms records. ``ready``
    is called when an outcome came: there may be batches to send, or only room."""

    def __init__(self, *args: Any, submit: Submit, ready: Callable[[PartitionCopier], None], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._submit = submit
        self._ready = ready
        #: number of source batches that are being transformed
        self._transforming = 0
        self._transforming_bytes = self._opened_bytes = 0
        #: Whether a record was found that must not be left out; nothing behind it is copied.
        self._met_unfit = False

    @property
    def buffered_bytes(self) -> int:
        return self._queued_bytes + self._transforming_bytes

    @property
    def held_bytes(self) -> int:
        return self.buffered_bytes + self._opened_bytes

    def give_back(self, keep: int) -> None:
        """Keep all, because one source record may have become several of which some may have been sent."""

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
                add_skip(skips, before.offset, error_codes.NOT_TRANSFORMED)
            elif after is None:
                self._dropped += 1
            else:
                self._changed += after != before
                kept.append(after)
        self._put(kept, part.codec, part.following, part.leader_epoch, skips)

    def _stop_after_last(self) -> None:
        # Records that are still being transformed must be copied first.
        if self._met_unfit or not self._transforming:
            super()._stop_after_last()


class TransactionalRecordsCopier(RecordsCopier, TransactionalCopier):
    """A records copier under exactly-once; records still being transformed belong to a later transaction."""


def _held_bytes(record: records.Record) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _unfit(plan: PartitionPlan, record: records.Record, unfit: Unfit) -> str:
    advice = "" if unfit.stops else "; errors.tolerance = all leaves such records out"
    return f"source {plan.source}: the record at offset {record.offset} cannot be transformed: {unfit.reason}{advice}"
