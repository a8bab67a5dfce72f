"""Choose the target partition of each record of a copy by key, with or without a user's message handler, and send it.

The handler is created from its name, and its answer is checked before any record is sent.
"""

from __future__ import annotations

import asyncio
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiokafka.errors
from aiokafka import AIOKafkaProducer

from connect.api.message_handler import MessageHandler, MirroredRecord
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.log.aiokafka_producer import BuiltBatch, cut_off, make_producer
from connect.kafka.log.producer import partition_of
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire import records as wire_records
from connect.wire.batch import is_text, readable
from connect.wire.records import Record
from connectors.dataplane.batches import error_codes
from connectors.dataplane.log_divergence import known_topics
from connectors.formats.types import Compression, TopicPartition

_NO_TIMESTAMP: Final = -1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class HandlerUnusable(PermanentError):
    """A message handler or a listener cannot be created in this process."""


def make_object(what: str, reference: str, args: str | None) -> Any:
    """Create an instance of ``package.module:Class``, with ``args`` if they are given; ``what`` begins the message.
    Raises HandlerUnusable, which names a user's error by type: its text may hold secrets."""
    try:
        found = pkgutil.resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise HandlerUnusable(
            f"{what} {reference} cannot be imported ({type(error).__name__}); write package.module:Class, of a Python "
            "package that is installed wherever it runs"
        ) from error
    try:
        return found() if args is None else found(args)
    except MemoryError:  # because it says nothing about the class
        raise
    except Exception as error:
        raise HandlerUnusable(f"{what} {reference} cannot be created: {type(error).__name__}") from error


class NoTarget(PermanentError):
    """A record cannot be sent to its target."""


@dataclass(frozen=True, slots=True)
class HandlerPlan:
    """A message handler's class, as ``package.module:Class``, and its argument, if any."""

    reference: str
    args: str | None = None

    def make(self) -> MessageHandler:
        """Create the handler. Raises HandlerUnusable."""
        handler: MessageHandler = make_object("message handler", self.reference, self.args)
        if not callable(getattr(handler, "handle", None)):
            raise HandlerUnusable(f"message handler {self.reference} has no method handle(record)")
        return handler


def answers(handler: MessageHandler, record: MirroredRecord) -> list[MirroredRecord]:
    """Return what is sent instead of a record. Raises NoTarget if the handler raises or returns no list of records. It
    sees header keys as text, as in Java; headers that it returns unchanged keep their bytes."""
    shown = tuple((readable(key), value) for key, value in record.headers)
    own = {id(one): header for one, header in zip(shown, record.headers, strict=True)}
    try:
        given: Any = handler.handle(record._replace(headers=shown))
        found = [] if isinstance(given, MirroredRecord) else list(given)
    except MemoryError:  # because it says nothing about the record
        raise
    except Exception as error:  # a user's, whose message may quote the record
        raise NoTarget(f"the message handler raised {type(error).__name__}, or returned no list of records") from error
    if isinstance(given, MirroredRecord):
        raise NoTarget("the message handler returned a record instead of a list of records")
    for one in found:
        if (wrong := _wrong(one)) is not None:
            raise NoTarget(f"the message handler returned {wrong}")
    return [one._replace(headers=tuple(own.get(id(header), header) for header in one.headers)) for one in found]


def _wrong(given: object) -> str | None:
    """Return what is wrong with one record of an answer, without its values, because they are the user's."""
    if not isinstance(given, MirroredRecord):
        return f"an object of type {type(given).__name__} instead of a MirroredRecord"
    said: dict[str, Any] = given._asdict()  # a user's, which may not have the declared types
    expected = {
        "topic": ("a name", isinstance(said["topic"], str) and said["topic"] != ""),
        "partition": ("a number or None", said["partition"] is None or _is_within(said["partition"], 0, _INT32_MAX)),
        "timestamp_ms": ("milliseconds, or -1", _is_within(said["timestamp_ms"], _NO_TIMESTAMP, _INT64_MAX)),
        "key": ("bytes or None", isinstance(said["key"], bytes | None)),
        "value": ("bytes or None", isinstance(said["value"], bytes | None)),
        "headers": ("pairs of str and bytes or None", _are_headers(said["headers"])),
    }
    for name, (what, is_so) in expected.items():
        if not is_so:
            return f"a record whose {name} ({type(said[name]).__name__}) is not {what}"
    return None


def _is_within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_headers(headers: object) -> bool:
    return isinstance(headers, list | tuple) and all(
        isinstance(one, tuple | list)
        and len(one) == 2
        and (isinstance(one[0], str) and is_text(one[0]))
        and isinstance(one[1], bytes | None)
        for one in headers
    )


log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
#: How long to wait for a topic that a message handler names, because it may have been created just now.
_APPEAR_S: Final = 10.0
_MOST_MISSING: Final = 1_024
#: Below the default of ``max.message.bytes``.
_BATCH_BYTES: Final = 256 * 1024
_RECORD_OVERHEAD_BYTES: Final = 20
#: What a slow link (0.1 MB/s) transfers before a request times out.
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
#: After this time a batch no longer counts as in flight, because a partition without a leader must not block others.
_STALLED_S: Final = 20.0
#: Refusals that no retry changes.
_NEVER: Final[Mapping[int, str]] = {
    error_codes.INVALID_TOPIC: "{topic} cannot be the name of a topic",
    error_codes.TOPIC_AUTHORIZATION_FAILED: "the right to DESCRIBE and WRITE target topic {topic} is missing; grant it",
}
#: Errors after which only another producer can write to the partition. None of them means that a batch was written.
_PRODUCER_SPENT: Final = (
    aiokafka.errors.OutOfOrderSequenceNumber,
    aiokafka.errors.UnknownProducerId,
    aiokafka.errors.InvalidProducerEpoch,
    aiokafka.errors.ProducerFenced,
    aiokafka.errors.ProducerClosed,
)


@dataclass(frozen=True, slots=True, eq=False)
class Destinations:
    """The partitions of target topics, in the number that each topic had when it was first looked up."""

    target: Cluster
    flow: str
    _counts: dict[str, int] = field(default_factory=dict)
    #: Missing topics that a record has waited for; later records do not wait again.
    _waited_for: set[str] = field(default_factory=set)

    async def of(self, record: MirroredRecord, turn: int) -> TopicPartition:
        """Return the partition that a record goes to: the one it names, else its key's (Java's ``BuiltInPartitioner``),
        else by ``turn``. Raises NoTarget."""
        count = self._counts.get(record.topic) or await self._look_up(record.topic)
        if record.partition is None:
            index = turn % count if record.key is None else partition_of(record.key, count)
        elif record.partition < count:
            index = record.partition
        else:
            raise NoTarget(f"target topic {record.topic} has no partition {record.partition}")
        return TopicPartition(record.topic, index)

    async def _look_up(self, topic: str) -> int:
        """Return a topic's number of partitions; wait through errors that may pass. Raises NoTarget."""
        wait_s = 0 if topic in self._waited_for else _APPEAR_S
        while True:
            try:
                found = (await known_topics(self.target, {topic}, wait_s)).get(topic)
            except RetriableError as error:
                trouble = str(error)
            else:
                if found is None:
                    if len(self._waited_for) >= _MOST_MISSING:
                        self._waited_for.clear()
                    self._waited_for.add(topic)
                    raise NoTarget(f"there is no target topic {topic}; create it")
                if found.error_code in _NEVER:
                    raise NoTarget(_NEVER[found.error_code].format(topic=topic))
                if not found.error_code and found.partitions:
                    self._counts[topic] = len(found.partitions)
                    return self._counts[topic]
                trouble = error_codes.code_name(found.error_code)
            log.warning("%s: target topic %s: %s; retrying in %g s", self.flow, topic, trouble, _RETRY_S)
            await asyncio.sleep(_RETRY_S)


class Refused(PermanentError):
    """The target refuses a batch permanently. ``is_of_records``: because of some of its records."""

    def __init__(self, code: int, target: TopicPartition, records: Sequence[Record]) -> None:
        first, last = records[0].offset, records[-1].offset
        one, several = f"the record of source offset {first}", f"records of source offsets {first} to {last}"
        super().__init__(error_codes.explained(code, target, one if first == last else several))
        self.code = code
        self.is_of_records = code in error_codes.OF_RECORDS


@dataclass(eq=False, repr=False)
class Sender:
    """An idempotent producer. Batches for one partition are sent in the order of the calls if each call is awaited.

    The library leaves a gap in its sequences after a refused batch, so each refusal needs a new producer.
    ``check_lease`` raises RetriableError when nothing may be sent any more, because a slice that was frozen must not
    send what its successor has sent.
    """

    connection: ConnectionSettings
    compression: Compression
    check_lease: Callable[[], None]
    #: The last producer is in use, the others wait for answers.
    _producers: list[AIOKafkaProducer] = field(default_factory=list)
    _replacing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _scope: Scope = field(default_factory=lambda: Scope("target of a copy by key"))
    _batch_bytes: dict[str, int] = field(default_factory=dict)
    _in_flight_bytes: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Connect. Raises RetriableError."""
        producer = make_producer(self.connection, float("inf"), self.check_lease, enable_idempotence=True)
        try:
            await producer.start()
        except BaseException as error:
            await producer.stop()
            if not isinstance(error, aiokafka.errors.KafkaError):
                raise
            refused = isinstance(error, aiokafka.errors.ClusterAuthorizationFailedError)
            grant = "; grant IDEMPOTENT_WRITE on the target cluster" if refused else ""
            raise RetriableError(f"target: cannot start a producer: {error}{grant}") from error
        self._producers.append(producer)

    async def stop(self) -> None:
        """Disconnect at once; batches without an answer may still be written."""
        await self._scope.close()
        for producer in self._producers:
            await cut_off(producer)

    def batches(self, topic: str, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Split records into batches of a size that the topic is known to accept."""
        limit_bytes = self._batch_bytes.get(topic, _BATCH_BYTES)
        first = size_bytes = 0
        for at, record in enumerate(records):
            of_record = _size(record)
            if at > first and size_bytes + of_record > limit_bytes:
                yield records[first:at]
                first, size_bytes = at, 0
            size_bytes += of_record
        yield records[first:]

    async def send(self, target: TopicPartition, records: Sequence[Record]) -> None:
        """Send one batch and wait until all in-sync replicas have it, however long that takes. Raises Refused."""
        size_bytes = sum(map(_size, records))
        while True:
            producer = self._producers[-1]
            try:
                await self._sent(producer, target, records, size_bytes)
                return
            except aiokafka.errors.KafkaTimeoutError:
                continue  # because the previous batch has no answer yet, and this one was not queued
            except aiokafka.errors.KafkaError as error:
                await self._replace(producer)
                code = getattr(error, "errno", None) or error_codes.UNKNOWN_SERVER_ERROR
                if isinstance(error, _PRODUCER_SPENT):
                    log.debug("target %s: %r; sending with another producer", target, error)
                elif code not in error_codes.RETRIABLE | {error_codes.UNKNOWN_SERVER_ERROR}:
                    if code in error_codes.TOO_LARGE and len(records) > 1:
                        self._batch_bytes[target.topic] = max(size_bytes // 2, 1)
                    raise Refused(code, target, records) from error
                else:
                    raise RetriableError(f"target {target}: {error!r}") from error

    async def _sent(
        self, producer: AIOKafkaProducer, target: TopicPartition, records: Sequence[Record], size_bytes: int
    ) -> None:
        while self._in_flight_bytes >= _IN_FLIGHT_BYTES:
            self._room.clear()
            await self._room.wait()
        self._in_flight_bytes += size_bytes
        codec, level = self.compression

        def build(producer_id: int, epoch: int, sequence: int) -> bytes:
            return bytes(wire_records.build(records, codec, producer_id, epoch, sequence, level))

        batch = BuiltBatch(len(records), build)
        scope = Scope(f"target {target}")
        sending = scope.spawn(_send(producer, target, batch), f"send {target}")
        try:
            await asyncio.wait({sending}, timeout=_STALLED_S)
            self._give(size_bytes)
            size_bytes = 0
            while not sending.done():
                log.warning("target %s: nothing is acknowledged for %g s or longer; still retrying", target, _STALLED_S)
                await asyncio.wait({sending}, timeout=_STALLED_S)
            await sending
        finally:
            self._give(size_bytes)
            await scope.close()

    def _give(self, size_bytes: int) -> None:
        self._in_flight_bytes -= size_bytes
        self._room.set()

    async def _replace(self, spent: AIOKafkaProducer) -> None:
        """Start another producer, unless one was. Raises RetriableError."""
        async with self._replacing:
            if self._producers[-1] is spent:
                await self.start()
                self._scope.spawn(self._end(spent), "end a producer")

    async def _end(self, spent: AIOKafkaProducer) -> None:
        """Stop a producer once its batches in flight for other partitions are answered."""
        await spent.stop()
        self._producers.remove(spent)


async def _send(producer: AIOKafkaProducer, target: TopicPartition, batch: BuiltBatch) -> None:
    await (await producer.send_batch(batch, target.topic, partition=target.partition))


def _size(record: Record) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES
