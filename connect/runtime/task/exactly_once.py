"""Sends records and their offsets in one transaction (KIP-618, Kafka's ``ExactlyOnceWorkerSourceTask``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from connect.api.source import RecordMetadata, SourceRecord
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import TaskId
from connect.kafka.concurrency import Backoff, retried
from connect.runtime.task.connector_offsets import ConnectorOffsets, PendingOffsets, Values, encoded_key
from connect.runtime.task.record_delivery import (
    OutgoingRecord,
    ProducerFenced,
    RecordProducer,
    SendFailed,
    TaskCallbacks,
    TopicsInUse,
)
from connect.runtime.task.source_config import Boundaries, Ending
from connect.runtime.task.task_control import ClaimChecks, TaskCounters

log = logging.getLogger(__name__)

_RETRY_MS: Final = 100
_TIMED_OUT: Final = (
    "was unable to finish writing records to Kafka before its producer transaction expired. It may be necessary to "
    "reconfigure this connector in order for it to run healthily with exactly-once support. Options for this include: "
    "tune the connector's producer configuration for higher throughput, increase the transaction timeout for the "
    "connector's producers, decrease the offset commit interval (if using interval-based transaction boundaries), or "
    "use the 'poll' transaction boundary (if the connector is not already configured to use it). Or another worker has "
    "taken the task over."
)


@dataclass(eq=False)
class ExactlyOnceDelivery:
    """Implements :class:`connect.runtime.task.record_delivery.Delivery`."""

    task: TaskId
    producer: RecordProducer
    offsets: ConnectorOffsets
    callbacks: TaskCallbacks
    topics: TopicsInUse
    boundaries: Boundaries
    counters: TaskCounters
    checks: ClaimChecks
    _pending: PendingOffsets = field(default_factory=PendingOffsets, init=False)
    _open: bool = field(default=False, init=False)
    _records: int = field(default=0, init=False)
    _outstanding: int = field(default=0, init=False)
    _settled: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _failure: Exception | None = field(default=None, init=False)
    _committable: list[tuple[SourceRecord, RecordMetadata | None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.offsets.written_by(self._write_offsets)

    async def start(self) -> None:
        await self.checks.may_claim()
        await self.producer.start()
        if self.checks.after is not None:
            await self.checks.after()

    def enter(self) -> None:
        self.boundaries.begin(_now_ms())

    def before_poll(self) -> None:
        """Do nothing: a failed record fails the commit of its transaction."""

    async def send(self, record: SourceRecord, outgoing: OutgoingRecord) -> None:
        if outgoing.topic == self.offsets.primary_topic:
            # The task could not read its offsets again: the read waits for the transaction, which waits for the task.
            raise PermanentError(
                "Source tasks may not produce to their own offsets topics when exactly-once support is enabled"
            )
        key = encoded_key(self.task.connector, record.source_partition)
        try:
            await self._begin()
            await self._hand_over(outgoing, partial(self._sent, record, outgoing.topic))
        except RetriableError:
            raise
        except PermanentError as error:
            raise self._worded(error, "Unrecoverable exception trying to send") from error
        self._pending.put(key, record.source_offset)
        self._records += 1
        await self._end(self.boundaries.after_record(record))

    async def dropped(self, record: SourceRecord) -> None:
        self.counters.record_done(written=False)
        self._committable.append((record, None))
        await self._end(self.boundaries.after_record(record))

    async def batch_done(self) -> None:
        await self._end(self.boundaries.after_batch(_now_ms()))

    async def pause(self) -> None:
        # Otherwise the transaction would time out during the pause and fail the task.
        await self._end(self.boundaries.at_end())

    async def finish(self, *, failed: bool) -> None:
        if not failed:
            await self._end(self.boundaries.at_end())

    async def close(self, timeout_s: float) -> None:
        await self.producer.close(timeout_s)
        await self.offsets.close(timeout_s)

    async def _begin(self) -> None:
        if not self._open:
            await self.producer.begin()
            self._open = True

    async def _hand_over(
        self, outgoing: OutgoingRecord, done: Callable[[RecordMetadata | None, Exception | None], None]
    ) -> None:
        self._outstanding += 1
        try:
            await self.producer.send(outgoing, done)
        except BaseException:
            self._outstanding -= 1
            raise

    def _sent(self, record: SourceRecord, topic: str, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self._settle(metadata, error)
        if error is None:
            self.counters.record_done(written=True)
            self.topics.used(topic)
            self._committable.append((record, metadata))

    def _settle(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self._outstanding -= 1
        if error is not None:
            self._failure = self._failure or error
        self._settled.set()

    async def _end(self, ending: Ending) -> None:
        if ending is Ending.ABORT:
            log.info("task %s: aborting its transaction as the connector requested", self.task)
            await self._abort()
        if ending is not Ending.NONE:
            # The offsets of aborted records are stored too, or the task would read the same records again.
            await self._commit()

    async def _abort(self) -> None:
        if not self._open:
            log.warning("task %s: nothing to abort: its transaction is empty", self.task)
            return
        self._open = False
        self._records = 0
        await self.producer.end(commit=False)
        await self._nothing_outstanding()
        # Failures of aborted records do not matter.
        self._failure = None

    async def _commit(self) -> None:
        began_ms = _now_ms()
        try:
            values = self._pending.begin_flush()
            if values or self._open:
                await self._begin()
                await self.offsets.store(values)
                await self._all_settled()
                await self.producer.end(commit=True)
        except Exception as error:
            self.counters.commit_failed()
            raise self._worded(error, f"Failed to flush offsets and/or records for task {self.task}") from error
        self._pending.flushed()
        if values:
            self.offsets.stored(values)
        if self._open:
            self.counters.transaction_committed(self._records)
            self._open, self._records = False, 0
        self.counters.committed(_now_ms() - began_ms)
        committed, self._committable = self._committable, []
        for record, metadata in committed:
            await self.callbacks.commit_record(record, metadata)
        await self.callbacks.commit()

    async def _write_offsets(self, topic: str, values: Values) -> None:
        backoff = Backoff(log, f"task {self.task}: its offsets cannot be written yet", _RETRY_MS, _RETRY_MS)
        for key, value in values.items():
            await retried(partial(self._hand_over, OutgoingRecord(topic, key, value), self._settle), backoff.after)

    async def _all_settled(self) -> None:
        """Wait for the outcome of all sent records; raise the first failure."""
        await self._nothing_outstanding()
        if self._failure is not None:
            raise self._failure

    async def _nothing_outstanding(self) -> None:
        while self._outstanding:
            self._settled.clear()
            await self._settled.wait()

    def _worded(self, error: Exception, message: str) -> SendFailed:
        fenced = isinstance(error, ProducerFenced) or isinstance(error.__cause__, ProducerFenced)
        return SendFailed(f"The task {self.task} {_TIMED_OUT}" if fenced else message)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
