"""Sends the records of a task and stores their source offsets, at least once or exactly once.

At least once, records are sent as they come (Kafka's ``WorkerSourceTask``), and offsets are stored after the
acknowledgements, which come in any order (Kafka's ``SubmittedRecords``). Invariant: the offset of a record is
committable once it and all records of its source partition that were submitted before it have been acknowledged.

Exactly once, records and their offsets are sent in one transaction (KIP-618, Kafka's ``ExactlyOnceWorkerSourceTask``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from connect.api.source import Fields, RecordMetadata, SourceRecord
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import TaskId
from connect.kafka.concurrency import Backoff, Scope, retried
from connect.runtime.task import record_delivery
from connect.runtime.task.connector_offsets import ConnectorOffsets, PendingOffsets, Values, encoded_key
from connect.runtime.task.record_conversion import ErrorHandler, Stage
from connect.runtime.task.source_config import Boundaries, Ending
from connect.runtime.task.task_control import ClaimChecks, TaskCounters

log = logging.getLogger(__name__)

#: Maximum number of records in flight; at the maximum, sends wait for acknowledgements.
_UNACKED_AT_MOST: Final = 10_000
#: Pause between two attempts to write offsets in a transaction.
_RETRY_MS: Final = 100
_TIMED_OUT: Final = (
    "was unable to finish writing records to Kafka before its producer transaction expired. It may be necessary to "
    "reconfigure this connector in order for it to run healthily with exactly-once support. Options for this include: "
    "tune the connector's producer configuration for higher throughput, increase the transaction timeout for the "
    "connector's producers, decrease the offset commit interval (if using interval-based transaction boundaries), or "
    "use the 'poll' transaction boundary (if the connector is not already configured to use it). Or another worker has "
    "taken the task over."
)


@dataclass(eq=False, slots=True)
class Submitted:
    """One record that was passed to the producer."""

    key: bytes
    offset: Fields
    acked: bool = field(default=False, init=False)


class SubmittedRecords:
    """Records in flight, by source partition in the order of submission."""

    def __init__(self) -> None:
        self.unacked = 0
        self._queues: dict[bytes, deque[Submitted]] = {}

    def submit(self, key: bytes, offset: Fields) -> Submitted:
        """Register a record before it is sent; ``key`` is that of its source partition."""
        record = Submitted(key, offset)
        self._queues.setdefault(key, deque()).append(record)
        self.unacked += 1
        return record

    def ack(self, record: Submitted) -> None:
        """Mark a record as acknowledged or skipped; may be called again."""
        if not record.acked:
            record.acked = True
            self.unacked -= 1

    def drop(self, record: Submitted) -> None:
        """Remove the last record of its partition: the producer did not take it, and it will be submitted again."""
        queue = self._queues[record.key]
        assert queue[-1] is record and not record.acked
        queue.pop()
        if not queue:
            del self._queues[record.key]
        self.unacked -= 1

    def committable(self) -> dict[bytes, Fields]:
        """Remove and return the offsets that have become committable since the last call, by partition."""
        offsets: dict[bytes, Fields] = {}
        for key, queue in list(self._queues.items()):
            while queue and queue[0].acked:
                offsets[key] = queue.popleft().offset
            if not queue:
                del self._queues[key]
        return offsets


@dataclass(eq=False)
class AtLeastOnceDelivery:
    """Implements :class:`connect.runtime.task.record_delivery.Delivery`. ``flush_interval_ms``: time between two
    flushes of offsets. ``flush_timeout_ms``: time limit of a flush, and of the wait for acknowledgements at the end."""

    task: TaskId
    producer: record_delivery.RecordProducer
    offsets: ConnectorOffsets
    callbacks: record_delivery.TaskCallbacks
    topic_used: Callable[[str], None]
    errors: ErrorHandler
    counters: TaskCounters
    flush_interval_ms: int
    flush_timeout_ms: int
    _submitted: SubmittedRecords = field(default_factory=SubmittedRecords, init=False)
    _pending: PendingOffsets = field(default_factory=PendingOffsets, init=False)
    _flushing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _failure: Exception | None = field(default=None, init=False)
    _outstanding: int = field(default=0, init=False)
    _acked: deque[tuple[SourceRecord, RecordMetadata | None, Submitted]] = field(default_factory=deque, init=False)
    _progress: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _entered: bool = field(default=False, init=False)
    _connected: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._flush_interval_s = max(self.flush_interval_ms, 1) / 1000
        self._flush_timeout_s = self.flush_timeout_ms / 1000
        self._scope = Scope(f"task {self.task}")

    async def start(self) -> None:
        """Do nothing: the producer connects for the first record, because thousands of tasks may have none."""

    def enter(self) -> None:
        if self._entered:
            return
        self._entered = True
        self._scope.spawn(self._flush_regularly(), f"offsets of {self.task}")
        if self.callbacks.wants_records:
            self._scope.spawn(self._acknowledge(), f"acknowledgements of {self.task}")

    def before_poll(self) -> None:
        if self._failure is not None:
            raise record_delivery.SendFailed("Unrecoverable exception from producer send callback") from self._failure

    async def send(self, record: SourceRecord, outgoing: record_delivery.OutgoingRecord) -> None:
        self.before_poll()
        while self._submitted.unacked >= _UNACKED_AT_MOST:
            await self._next_progress()
            self.before_poll()
        key = encoded_key(self.task.connector, record.source_partition)
        if not self._connected:
            await self.producer.start()
            self._connected = True
        submitted = self._submitted.submit(key, record.source_offset)
        self._outstanding += 1
        try:
            await self.producer.send(outgoing, partial(self._done, record, outgoing.topic, submitted))
        except BaseException as error:
            self._outstanding -= 1
            self._submitted.drop(submitted)
            if isinstance(error, PermanentError):
                raise record_delivery.SendFailed("Unrecoverable exception trying to send") from error
            raise

    async def dropped(self, record: SourceRecord) -> None:
        self.counters.record_done(written=False)
        await self.callbacks.commit_record(record, None)

    async def batch_done(self) -> None:
        pass

    async def pause(self) -> None:
        pass

    async def finish(self, *, failed: bool) -> None:
        if self._closed:
            # The task's new owner may have stored newer offsets.
            return
        # Also after an error, so that acknowledged records are not sent again.
        try:
            async with asyncio.timeout(self._flush_timeout_s):
                while self._outstanding or self._acked:
                    await self._next_progress()
        except TimeoutError:
            log.warning(
                "task %s: %d records were not acknowledged and will be sent again by its successor",
                self.task,
                self._submitted.unacked,
            )
        await self._commit()

    async def close(self, timeout_s: float) -> None:
        self._closed = True
        await self.producer.close(timeout_s)
        await self.offsets.close(timeout_s)
        # Last, because they may be in callbacks of the task, which may continue although cancelled.
        await self._scope.close()

    def _done(
        self,
        record: SourceRecord,
        topic: str,
        submitted: Submitted,
        metadata: RecordMetadata | None,
        error: Exception | None,
    ) -> None:
        """Handle a record's outcome. After an untolerated failure its partition's later offsets are not committed."""
        self._outstanding -= 1
        self._progress.set()
        if error is None:
            self.counters.record_done(written=True)
            self.topic_used(topic)
        elif self._closed:
            return
        elif self.errors.tolerates_all and not isinstance(error, record_delivery.BatchRefused):
            self.counters.record_done(written=False)
            self.errors.failed(Stage.KAFKA_PRODUCE, self.producer, record, error)
        else:
            log.error("task %s: a record for topic %s could not be sent: %s", self.task, topic, error)
            self._failure = self._failure or error
            return
        if self.callbacks.wants_records:
            self._acked.append((record, metadata, submitted))
        else:
            self._submitted.ack(submitted)

    async def _acknowledge(self) -> None:
        """Call the task's ``commit_record`` for one record after the other; only then their offsets may be stored."""
        while not self._closed:
            if not self._acked:
                await self._next_progress()
                continue
            record, metadata, submitted = self._acked[0]
            await self.callbacks.commit_record(record, metadata)
            self._submitted.ack(submitted)
            self._acked.popleft()
            self._progress.set()

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    async def _flush_regularly(self) -> None:
        while not self._closed:
            await asyncio.sleep(self._flush_interval_s)
            if self._failure is None:
                await self._commit()

    async def _commit(self) -> None:
        """Store the offsets that may be stored; keep those that cannot be for the next flush."""
        clock = asyncio.get_running_loop().time
        async with self._flushing:
            began_s = clock()
            if not await self._flush():
                self.counters.commit_failed()
                return
            self.counters.committed((clock() - began_s) * 1000)
        await self.callbacks.commit()

    async def _flush(self) -> bool:
        for key, offset in self._submitted.committable().items():
            self._pending.put(key, offset)
        try:
            values = self._pending.begin_flush()
            if values:
                async with asyncio.timeout(self._flush_timeout_s):
                    await self.offsets.store(values)
                self.offsets.stored(values)
            self._pending.flushed()
        except TimeoutError:
            log.error(
                "task %s: its offsets were not stored within %g s; will be retried", self.task, self._flush_timeout_s
            )
        except Exception as error:
            log.error("task %s: its offsets could not be stored, will be retried: %s", self.task, error)
        else:
            return True
        finally:
            self._pending.cancel_flush()
        return False


@dataclass(eq=False)
class ExactlyOnceDelivery:
    """Implements :class:`connect.runtime.task.record_delivery.Delivery`."""

    task: TaskId
    producer: record_delivery.RecordProducer
    offsets: ConnectorOffsets
    callbacks: record_delivery.TaskCallbacks
    topic_used: Callable[[str], None]
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

    async def send(self, record: SourceRecord, outgoing: record_delivery.OutgoingRecord) -> None:
        if outgoing.topic == self.offsets.primary.topic:
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
        self, outgoing: record_delivery.OutgoingRecord, done: Callable[[RecordMetadata | None, Exception | None], None]
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
            self.topic_used(topic)
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
            await retried(
                partial(self._hand_over, record_delivery.OutgoingRecord(topic, key, value), self._settle), backoff.after
            )

    async def _all_settled(self) -> None:
        """Wait for the outcome of all sent records; raise the first failure."""
        await self._nothing_outstanding()
        if self._failure is not None:
            raise self._failure

    async def _nothing_outstanding(self) -> None:
        while self._outstanding:
            self._settled.clear()
            await self._settled.wait()

    def _worded(self, error: Exception, message: str) -> record_delivery.SendFailed:
        fenced = isinstance(error, record_delivery.ProducerFenced) or isinstance(
            error.__cause__, record_delivery.ProducerFenced
        )
        return record_delivery.SendFailed(f"The task {self.task} {_TIMED_OUT}" if fenced else message)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
