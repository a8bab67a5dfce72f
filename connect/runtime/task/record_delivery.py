"""Sends the records of a task to Kafka, at least once or exactly once, and reports the outcome of each.

* The producer is aiokafka's, with errors that name a remedy. Kafka Connect's producers wait without limit for metadata
  and acknowledgements (``max.block.ms``, ``delivery.timeout.ms``); so does this one, until it is closed.
* A protocol covers the differences between at-least-once and exactly-once.
* The task and the listener get a callback for each record. An error in a callback is only logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiokafka.errors
from aiokafka import AIOKafkaProducer
from aiokafka.structs import RecordMetadata as Acknowledged

from connect.api.source import RecordMetadata, SourceRecord, SourceTask
from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import TaskId
from connect.kafka.concurrency import Backoff, retried
from connect.kafka.log.aiokafka_producer import cut_off, make_producer, retrieve_errors
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import SecretMask, plugin_call
from connect.runtime.task.client_configs import ProducerSettings

log = logging.getLogger(__name__)

_START_RETRY_FIRST_MS: Final = 100
_START_RETRY_LAST_MS: Final = 5000
_ABORT_S: Final = 5.0
#: Kafka's ``Topic.validate``.
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_TOO_LARGE: Final = (aiokafka.errors.MessageSizeTooLargeError, aiokafka.errors.RecordListTooLargeError)
#: aiokafka asserts that a producer is not used after a fatal error.
_FAILED: Final = (aiokafka.errors.KafkaError, AssertionError)


class ProducerFenced(PermanentError):
    """The cluster refuses further writes with this producer's epoch."""


class BatchRefused(PermanentError):
    """A batch is refused because of its size, although the record alone might be accepted."""


class _RecordRefused(PermanentError):
    """This record is refused; others may not be."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record as bytes. ``partition`` None: by key, or any; ``timestamp_ms`` None: now."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


#: Called once per accepted record: with its position (None with ``acks=0``) or the error. Must not raise.
Done = Callable[[RecordMetadata | None, Exception | None], None]


class RecordProducer:
    """A producer that keeps the order in a partition. With a transactional id it sends only within transactions."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._in_transaction = False
        self._closed = False

    async def start(self) -> None:
        """Connect, and with a transactional id fence its previous user; wait until the cluster answers. Raises
        SecurityError or PermanentError if a retry cannot help or the producer is closed."""
        self._check_open()
        backoff = Backoff(
            log, f"producer {self._settings.connection.client_id}", _START_RETRY_FIRST_MS, _START_RETRY_LAST_MS
        )
        self._producer = await retried(self._connected, backoff.after)

    async def _connected(self) -> AIOKafkaProducer:
        producer = self._made()
        try:
            await producer.start()
            # The producer may have been closed meanwhile.
            self._check_open()
        except BaseException as error:
            await producer.stop()
            if isinstance(error, aiokafka.errors.KafkaError):
                raise self._translated(error) from error
            raise
        return producer

    async def send(self, record: OutgoingRecord, done: Done) -> None:
        """Send a record, after waiting for space and metadata; ``done`` receives the outcome. It is called before this
        returns if the record is refused for its size, its topic, or missing authorization to write there. Raises
        RetriableError if the record was not accepted and a retry may succeed, and PermanentError if this producer
        accepts no more records, or the topic has no such partition."""
        producer = self._started()
        try:
            self._check_topic(record.topic)
            partitions = await producer.partitions_for(record.topic)
            if record.partition is not None and record.partition not in partitions:
                raise PermanentError(
                    f"topic {record.topic} has no partition {record.partition}, it has {len(partitions)}. Have the "
                    "connector name another partition, or none."
                )
            sent = await self._send(producer, record)
        except _RecordRefused as refused:
            done(None, refused)
        except aiokafka.errors.KafkaError as error:
            translated = self._translated(error, record)
            if not isinstance(translated, _RecordRefused | SecurityError):
                raise translated from error
            translated.__cause__ = error
            done(None, translated)
        else:
            sent.add_done_callback(lambda outcome: self._settle(outcome, done, record))

    async def begin(self) -> None:
        """Begin a transaction; errors as :meth:`send`."""
        try:
            await self._started().begin_transaction()
        except _FAILED as error:
            raise self._translated(error) from error
        self._in_transaction = True

    async def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction. Wait for acknowledgements of all its records before a commit, because
        aiokafka commits the rest of a transaction with failed records. Raises ProducerFenced if another producer has
        the transactional id, or the transaction timed out, and PermanentError or RetriableError if it is unknown
        whether the transaction ended."""
        producer = self._started()
        self._in_transaction = False
        try:
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        except _FAILED as error:
            raise self._translated(error) from error

    async def close(self, timeout_s: float) -> None:
        """Send queued records and disconnect within ``timeout_s``; abort an open transaction. Final."""
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                if self._in_transaction:
                    await self._abort_quietly(producer)
                await producer.stop()
        except TimeoutError:
            log.warning("producer %s was closed with records in flight", self._settings.connection.client_id)
            await cut_off(producer)
        except aiokafka.errors.KafkaError as error:
            # The failure was reported when it happened.
            log.debug("producer %s: closing: %r", self._settings.connection.client_id, error)
            await cut_off(producer)
        except asyncio.CancelledError:
            await cut_off(producer)
            raise
        finally:
            retrieve_errors(producer)

    async def _abort_quietly(self, producer: AIOKafkaProducer) -> None:
        """Abort, because an open transaction blocks readers of committed records until it times out."""
        try:
            async with asyncio.timeout(_ABORT_S):
                await producer.abort_transaction()
        except (*_FAILED, TimeoutError) as error:
            # The broker aborts the transaction of a producer that has failed.
            log.debug("producer %s: no abort: %r", self._settings.connection.client_id, error)

    def _made(self) -> AIOKafkaProducer:
        settings = self._settings
        return make_producer(
            settings.connection,
            settings.delivery_timeout_ms / 1000,
            acks=settings.acks,
            max_batch_size=settings.batch_bytes,
            compression_type=settings.compression,
            enable_idempotence=settings.idempotent,
            linger_ms=settings.linger_ms,
            max_request_size=settings.max_request_bytes,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            transactional_id=settings.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
        )

    async def _send(self, producer: AIOKafkaProducer, record: OutgoingRecord) -> asyncio.Future[Any]:
        if record.key is not None or record.value is not None:
            sent: asyncio.Future[Any] = await producer.send(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, list(record.headers)
            )
            return sent
        # aiokafka refuses single records without key and value, but accepts them in a batch.
        partitions = await producer.partitions_for(record.topic)
        batch = producer.create_batch()
        batch.append(timestamp=record.timestamp_ms, key=None, value=None, headers=list(record.headers))
        batch.close()
        partition = record.partition if record.partition is not None else min(partitions)
        whole: asyncio.Future[Any] = await producer.send_batch(batch, record.topic, partition=partition)
        return whole

    def _settle(self, outcome: asyncio.Future[Any], done: Done, record: OutgoingRecord) -> None:
        if outcome.cancelled():
            return
        error = outcome.exception()
        if error is None:
            sent: Acknowledged | None = outcome.result()
            done(sent and RecordMetadata(sent.topic, sent.partition, sent.offset, sent.timestamp), None)
        elif isinstance(error, aiokafka.errors.KafkaError):
            done(None, self._of_batch(error, record) or self._translated(error, record))
        else:
            done(None, PermanentError(f"producer {self._settings.connection.client_id}: {error!r}"))

    def _started(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise self._is_closed()
        return self._producer

    def _check_open(self) -> None:
        if self._closed:
            raise self._is_closed()

    def _is_closed(self) -> PermanentError:
        return PermanentError(f"producer {self._settings.connection.client_id} is closed")

    def _of_batch(self, error: Exception, record: OutgoingRecord) -> BatchRefused | None:
        """Return the error if the broker refused the batch as too large, because only Java's producer splits it."""
        if not isinstance(error, _TOO_LARGE) or _size(record) >= self._settings.batch_bytes:
            return None
        return BatchRefused(
            f"producer {self._settings.connection.client_id}: topic {record.topic} refuses a batch of "
            f"{self._settings.batch_bytes} bytes: {error}. Set the connector's producer.override.batch.size below "
            "max.message.bytes of the topic."
        )

    def _check_topic(self, topic: str) -> None:
        """Refuse an invalid topic name, because aiokafka would wait for the topic to be created."""
        if _TOPIC.fullmatch(topic) is None:
            raise _RecordRefused(
                f"producer {self._settings.connection.client_id}: {topic!r} is not a valid topic name: 1 to 249 of "
                "a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..'. The connector or a transform chose it."
            )

    def _translated(self, error: Exception, record: OutgoingRecord | None = None) -> HeliographError:
        who = f"producer {self._settings.connection.client_id}"
        topic = record.topic if record is not None else "?"
        match error:
            case aiokafka.errors.ProducerFenced() | aiokafka.errors.InvalidProducerEpoch():
                return ProducerFenced(f"{who}: another producer has taken over {self._settings.transactional_id}")
            case aiokafka.errors.UnknownTopicOrPartitionError():
                return RetriableError(f"{who}: topic {topic} does not exist. Create it, or let it be created.")
            case aiokafka.errors.TopicAuthorizationFailedError():
                return SecurityError(f"{who} may not write to topic {topic}. Grant WRITE on topic {topic}.")
            case aiokafka.errors.TransactionalIdAuthorizationFailed():
                transactional_id = self._settings.transactional_id
                return SecurityError(
                    f"{who} may not use transactional id {transactional_id}. Grant WRITE and DESCRIBE on it."
                )
            case _ if isinstance(error, _TOO_LARGE):
                return _RecordRefused(
                    f"{who}: a record for topic {topic} is too large: {error}. Raise max.request.size of the producer "
                    "and max.message.bytes of the topic."
                )
            case aiokafka.errors.KafkaTimeoutError():
                return RetriableError(f"{who}: topic {topic}: its records did not fit into the buffer in time: {error}")
            case aiokafka.errors.KafkaConnectionError():
                return ClusterUnreachable(f"{who}: no broker answers: {error}")
        where = f" (topic {topic})" if record is not None else ""
        kind = RetriableError if getattr(error, "retriable", False) else PermanentError
        return kind(f"{who}{where}: {error!r}")


def _size(record: OutgoingRecord) -> int:
    """Return the bytes of a record's content, slightly less than it takes in a batch."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


#: Time for the producer to send its records when a task ends, as in Kafka.
CLOSE_S: Final = 30.0


class SendFailed(HeliographError):
    """A record could not be sent; the cause is the reason."""


class Delivery(Protocol):
    """How a task's loop sends records to Kafka and stores their offsets."""

    async def start(self) -> None:
        """Prepare the task's start: connect, and under exactly-once fence predecessors."""

    def enter(self) -> None:
        """Note that the loop begins, at first or after a pause."""

    def before_poll(self) -> None:
        """Raise a fatal error of records sent before."""

    async def send(self, record: SourceRecord, outgoing: OutgoingRecord) -> None:
        """Send a record, given as the task returned it and as it is sent. Raises RetriableError if it may be sent
        again, PermanentError if not."""

    async def dropped(self, record: SourceRecord) -> None:
        """Note that a record is skipped."""

    async def batch_done(self) -> None:
        """Note that all records of one poll, perhaps none, were passed on."""

    async def pause(self) -> None:
        """Note that the task pauses."""

    async def finish(self, *, failed: bool) -> None:
        """Store the offsets that can be stored; no more records come. ``failed``: an error ended the loop."""

    async def close(self, timeout_s: float) -> None:
        """Close everything, after sending what can be sent within ``timeout_s``. Other methods may be running; none of
        them sends or stores anything afterwards."""


@dataclass(eq=False)
class TaskCallbacks:
    """The calls of one task's ``commit_record`` and ``commit``."""

    task_id: TaskId
    task: SourceTask
    secrets: SecretMask
    thread: PluginThread

    def __post_init__(self) -> None:
        #: Whether the task overrides ``commit_record``.
        self.wants_records = type(self.task).commit_record is not SourceTask.commit_record

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """Notify the task that a record was acknowledged or, with None, skipped."""
        if not self.wants_records:
            return
        try:
            with plugin_call("commit_record"):
                await self.thread.call(self.task.commit_record, record, metadata)
        except Exception as error:
            log.error("task %s: its commit_record raised an error\n%s", self.task_id, self.secrets.trace(error))

    async def commit(self) -> None:
        """Notify the task that offsets were stored, or that there were none."""
        try:
            with plugin_call("commit"):
                await self.thread.call(self.task.commit)
        except Exception as error:
            log.error("task %s: its commit raised an error\n%s", self.task_id, self.secrets.trace(error))
