"""Copy by key, at least once, with a consumer and an idempotent producer of aiokafka in the loop of a slice.

Used when a target topic has another number of partitions than the source's, or a message handler chooses where records
go. Each source partition is copied in rounds: read some records, send the records made from each, wait until the target
has acknowledged them all. So a position covers acknowledged records only, and the records that a source partition sends
to one target partition keep their order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Library

from connect.api.message_handler import MessageHandler, MirroredRecord
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.log.compacted_topic import check_reads, reader, reading
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire.batch import NO_TIMESTAMP
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan, PartitionProgress, SliceSettings
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import UNTRANSFORMABLE
from connectors.dataplane.batches.error_codes import add_skip
from connectors.dataplane.batches.outgoing_batches import halves
from connectors.dataplane.by_key_producer import Destinations, HandlerPlan, NoTarget, Refused, Sender, answers
from connectors.formats.types import QUARANTINED, RUNNING, STOPPED, TopicPartition

log = logging.getLogger(__name__)

_ROUND_RECORDS: Final = 2_000
_LEAST_ROUND_RECORDS: Final = 50
#: A round that takes longer is followed by a smaller one, so that a clean end need not wait for long.
_ROUND_S: Final = 1.0
_WAIT_MS: Final = 500
#: How long one partition may keep the loop to itself.
_TURN_S: Final = 0.01
#: Smaller than in the plain copy, because an answer must arrive before the request times out on a slow link (0.1 MB/s).
_FETCH_BYTES: Final = 2 * 1024 * 1024


class Stop(Exception):
    """A partition stops before ``offset``."""

    def __init__(self, offset: int, reason: str, error: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.error = error


class ByKey:
    """A copy by key of the partitions of one slice, between the source and target of ``clusters``. ``on_round`` is
    called after each round; ``check_lease`` raises RetriableError when nothing may be sent any more; ``fail`` ends the
    slice."""

    def __init__(
        self,
        clusters: tuple[Cluster, Cluster],
        settings: SliceSettings,
        on_round: Callable[[], None],
        check_lease: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.source, target = clusters
        self.settings = settings
        self.on_round = on_round
        self._fail = fail
        self.destinations = Destinations(target, settings.flow)
        self.sender = Sender(ConnectionSettings.from_wire(settings.target), settings.compression, check_lease)
        self._handler: MessageHandler | None = None
        self._thread = ThreadPoolExecutor(1, "message handler")
        self._opened = AsyncExitStack()
        self._scope = Scope("copy by key")
        self.consumer: AIOKafkaConsumer

    async def open(self) -> None:
        """Connect to both clusters. Raises RetriableError, and HandlerUnusable."""
        settings = self.settings
        if settings.handler is not None:
            self._handler = HandlerPlan(**settings.handler).make()
        arguments: dict[str, Any] = {
            "auto_offset_reset": "none",
            "fetch_max_bytes": min(settings.fetch_max_bytes, _FETCH_BYTES),
            "max_partition_fetch_bytes": min(settings.partition_max_bytes or _FETCH_BYTES, _FETCH_BYTES),
            "fetch_max_wait_ms": settings.fetch_max_wait_ms,
            "fetch_min_bytes": settings.fetch_min_bytes,
            "client_rack": settings.rack or None,
        }
        with reading(self.source, "any topic"):
            opening = reader(self.source, read_committed=settings.read_committed, **arguments)
            self.consumer = await self._opened.enter_async_context(opening)
        await self.sender.start()

    def start(self, plans: Sequence[PartitionPlan]) -> list[KeyedPartition]:
        """Copy these partitions until :meth:`stop`."""
        partitions = [KeyedPartition(plan, self) for plan in plans]
        self.consumer.assign([Library(*plan.source) for plan in plans])
        for plan in plans:
            self.consumer.seek(Library(*plan.source), plan.next_source_offset)
        for partition in partitions:
            self._scope.spawn(partition.run(), f"copy {partition.plan.source} by key", self._fail)
        return partitions

    async def stop(self) -> None:
        """Disconnect at once."""
        await self._scope.close()
        self._thread.shutdown(wait=False)
        await self.sender.stop()
        await self._opened.aclose()

    async def answers(self, records: Sequence[Any]) -> list[list[MirroredRecord] | NoTarget]:
        """Return what is sent instead of each record. A handler may block, so it runs in its own thread."""
        if (handler := self._handler) is None:
            return [[_mirrored(record, None)] for record in records]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: [_answer(handler, record) for record in records])


class KeyedPartition:
    """One source partition of a slice; see the module."""

    def __init__(self, plan: PartitionPlan, copy: ByKey) -> None:
        self.plan = plan
        self._copy = copy
        self._source = Library(*plan.source)
        self._skips_refused = copy.settings.skip_refused
        self._is_ending = False
        self._in_round = False
        #: Grows during a round too, unlike the position.
        self.acknowledged_batches = 0
        self._turns = 0
        self._round_records = _ROUND_RECORDS
        self._progress = PartitionProgress(
            plan.source, plan.next_source_offset, -1, -1, 0, -1, -1, NO_TIMESTAMP, records=0, bytes=0, batches={}
        )
        self._reported: PartitionProgress | None = None

    @property
    def holds_up_end(self) -> bool:
        """Whether something sent has no answer yet."""
        return self._in_round

    @property
    def next_source_offset(self) -> int:
        """The offset behind the last record whose copies are acknowledged."""
        return self._progress.next_source_offset

    def discard_unsent(self) -> None:
        """Begin no further round."""
        self._is_ending = True

    async def run(self) -> None:
        """Copy until :meth:`discard_unsent` or a stop. Raises RetriableError when the slice must end."""
        consumer, source = self._copy.consumer, self._source
        while not self._is_ending and self._progress.state == RUNNING:
            try:
                with reading(self._copy.source, source.topic):
                    found = await consumer.getmany(source, timeout_ms=_WAIT_MS, max_records=self._round_records)
            except RetriableError as error:
                self._stop(STOPPED, str(error), "")
                break
            except PermanentError as error:
                self._stop(QUARANTINED, str(error), type(error).__name__)
                break
            check_reads(consumer, f"source {self.plan.source}")
            following = await consumer.position(source)
            records = found.get(source, [])
            if records and not self._is_ending:
                await self._round(records, following)
            elif not records:
                self._progress.next_source_offset = following

    def report(self) -> PartitionProgress | None:
        """Return what happened since the last report; None if nothing did."""
        progress = self._progress
        progress.high_watermark = self._copy.consumer.highwater(self._source) or -1
        if progress == self._reported:
            return None
        self._progress = replace(progress, records=0, bytes=0, skips=[])
        self._reported = replace(self._progress, skips=[])
        return progress

    async def _round(self, records: Sequence[Any], following: int) -> None:
        self._in_round = True
        began_s = time.monotonic()
        try:
            shares, stop = await self._shared_out(records)
            sending = (self._deliver(target, share) for target, share in shares.items())
            outcomes = [stop, *await asyncio.gather(*sending, return_exceptions=True)]
            for outcome in outcomes:
                if isinstance(outcome, BaseException) and not isinstance(outcome, Stop):
                    raise outcome
            stops = [outcome for outcome in outcomes if isinstance(outcome, Stop)]
            first = min(stops, key=lambda one: one.offset, default=None)
            progress = self._progress
            progress.next_source_offset = first.offset if first else following
            copied = [record for record in records if record.offset < progress.next_source_offset]
            progress.records += len(copied)
            progress.bytes += sum(len(record.key or b"") + len(record.value or b"") for record in copied)
            progress.timestamp_ms = max([progress.timestamp_ms, *(one.timestamp or NO_TIMESTAMP for one in copied)])
            if first:
                self._stop(QUARANTINED, str(first), first.error)
        finally:
            self._in_round = False
            self._copy.on_round()
        is_long = time.monotonic() - began_s > _ROUND_S
        wanted = self._round_records // 2 if is_long else self._round_records * 2
        self._round_records = min(max(wanted, _LEAST_ROUND_RECORDS), _ROUND_RECORDS)

    async def _shared_out(self, records: Sequence[Any]) -> tuple[dict[TopicPartition, list[Record]], Stop | None]:
        """Return the records for each target partition; every record made from one is known before any is sent."""
        shares: dict[TopicPartition, list[Record]] = {}
        self._turns += 1
        until_s = time.monotonic() + _TURN_S
        for record, answer in zip(records, await self._copy.answers(records), strict=True):
            try:
                if isinstance(answer, NoTarget):
                    raise answer
                placed = [(await self._copy.destinations.of(one, self._turns), one) for one in answer]
            except NoTarget as error:
                reported = f"source {self.plan.source}: the record at offset {record.offset} cannot be sent: {error}"
                if not self._skips_refused:
                    return shares, Stop(record.offset, reported, UNTRANSFORMABLE)
                log.warning("%s; it is left out", reported)
                add_skip(self._progress.skips, record.offset, error_codes.NOT_TRANSFORMED)
                continue
            for target, one in placed:
                sent = Record(record.offset, one.timestamp_ms, one.key, one.value, list(one.headers))
                shares.setdefault(target, []).append(sent)
            if time.monotonic() > until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + _TURN_S
        return shares, None

    async def _deliver(self, target: TopicPartition, share: Sequence[Record]) -> None:
        """Send in order; halve a batch refused because of some records until each is alone. Raises Stop."""
        sender = self._copy.sender
        waiting = deque(sender.batches(target.topic, share))
        while waiting:
            batch = waiting.popleft()
            try:
                await sender.send(target, batch)
                self.acknowledged_batches += 1
            except Refused as refused:
                if refused.is_of_records and len(batch) > 1:
                    waiting.extendleft(reversed(halves(batch)))
                elif refused.is_of_records and self._skips_refused:
                    add_skip(self._progress.skips, batch[0].offset, refused.code)
                else:
                    raise Stop(batch[0].offset, str(refused), error_codes.code_name(refused.code)) from refused

    def _stop(self, state: str, reason: str, error: str) -> None:
        self._progress.state, self._progress.reason, self._progress.error = state, reason, error


def _mirrored(record: Any, partition: int | None) -> MirroredRecord:
    """Return a consumer's record as message handlers see it."""
    timestamp_ms = NO_TIMESTAMP if record.timestamp is None else record.timestamp
    return MirroredRecord(
        record.topic, partition, record.offset, timestamp_ms, record.key, record.value, record.headers
    )


def _answer(handler: MessageHandler, record: Any) -> list[MirroredRecord] | NoTarget:
    try:
        return answers(handler, _mirrored(record, record.partition))
    except NoTarget as error:
        return error
