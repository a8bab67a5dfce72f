"""Sends the records of a task at least once, and stores source offsets after their acknowledgements.

Records are sent as they come (Kafka's ``WorkerSourceTask``); acknowledgements come in any order (Kafka's
``SubmittedRecords``). Invariant: the offset of a record is committable once it and all records of its source partition
that were submitted before it have been acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from connect.api.source import Fields, RecordMetadata, SourceRecord
from connect.core.errors import PermanentError
from connect.core.model import TaskId
from connect.kafka.concurrency import Scope
from connect.runtime.task.connector_offsets import ConnectorOffsets, PendingOffsets, encoded_key
from connect.runtime.task.record_conversion import ErrorHandler, Stage
from connect.runtime.task.record_delivery import (
    BatchRefused,
    OutgoingRecord,
    RecordProducer,
    SendFailed,
    TaskCallbacks,
    TopicsInUse,
)
from connect.runtime.task.task_control import TaskCounters


@dataclass(eq=False, slots=True)
class Submitted:
    """One record that was passed to the producer."""

    key: bytes
    offset: Fields
    acked: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Committable:
    """Offsets that may be stored, by the key of their source partition. ``messages`` counts the records that they
    cover, ``pending`` the records that cannot be committed yet."""

    offsets: Mapping[bytes, Fields] = field(default_factory=dict)
    messages: int = 0
    pending: int = 0


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

    def committable(self) -> Committable:
        """Remove and return what has become committable since the last call."""
        offsets: dict[bytes, Fields] = {}
        messages = pending = 0
        for key, queue in list(self._queues.items()):
            while queue and queue[0].acked:
                offsets[key] = queue.popleft().offset
                messages += 1
            pending += len(queue)
            if not queue:
                del self._queues[key]
        return Committable(offsets, messages, pending)


log = logging.getLogger(__name__)

#: Maximum number of records in flight; at the maximum, sends wait for acknowledgements.
_UNACKED_AT_MOST: Final = 10_000


@dataclass(eq=False)
class AtLeastOnceDelivery:
    """Implements :class:`connect.runtime.task.record_delivery.Delivery`.

    Args:
        flush_interval_ms: Time between two flushes of offsets.
        flush_timeout_ms: Time limit of a flush, and of the wait for acknowledgements at the end.
    """

    task: TaskId
    producer: RecordProducer
    offsets: ConnectorOffsets
    callbacks: TaskCallbacks
    topics: TopicsInUse
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
            raise SendFailed("Unrecoverable exception from producer send callback") from self._failure

    async def send(self, record: SourceRecord, outgoing: OutgoingRecord) -> None:
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
                raise SendFailed("Unrecoverable exception trying to send") from error
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
            self.topics.used(topic)
        elif self._closed:
            return
        elif self.errors.tolerates_all and not isinstance(error, BatchRefused):
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
        for key, offset in self._submitted.committable().offsets.items():
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
