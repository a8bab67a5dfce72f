"""The target of a copy by key: which partition a record goes to, and the producer that sends it there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import aiokafka.errors
from aiokafka import AIOKafkaProducer

from connect.api.message_handler import MirroredRecord
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.library_producer import BuiltBatch, cut_off, make_producer
from connect.kafka.producer import partition_of
from connect.kafka.settings import ConnectionSettings
from connect.wire import records as wire_records
from connect.wire.records import Record
from connectors.dataplane import codes, refusals
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import Compression, TopicPartition
from connectors.repartition.message_handler import NoTarget

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
#: How long a topic is waited for that a message handler names: it may have been created just now.
_APPEAR_S: Final = 10.0
_MOST_MISSING: Final = 1_024
#: Below the default of ``max.message.bytes``.
_BATCH_BYTES: Final = 256 * 1024
_RECORD_OVERHEAD_BYTES: Final = 20
#: What a slow link (0.1 MB/s) delivers before a request times out.
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
#: After this time a batch no longer counts as in flight: a partition without a leader must not hold up the others.
_STALLED_S: Final = 20.0
#: Refusals that no retry changes.
_NEVER: Final[Mapping[int, str]] = {
    codes.INVALID_TOPIC: "{topic} cannot be the name of a topic",
    codes.TOPIC_AUTHORIZATION_FAILED: "the right to DESCRIBE and WRITE target topic {topic} is missing; grant it",
}
#: Errors after which only another producer can write to the partition. None of them says that a batch was written.
_PRODUCER_SPENT: Final = (
    aiokafka.errors.OutOfOrderSequenceNumber,
    aiokafka.errors.UnknownProducerId,
    aiokafka.errors.InvalidProducerEpoch,
    aiokafka.errors.ProducerFenced,
    aiokafka.errors.ProducerClosed,
)


class Destinations:
    """The partitions of target topics, as many as each had when it was first looked up.

    Args:
        target: The target cluster.
        flow: Names the copy in the log.
    """

    def __init__(self, target: Cluster, flow: str) -> None:
        self._target = target
        self._flow = flow
        self._counts: dict[str, int] = {}
        #: Missing topics that a record has waited for; later records do not wait.
        self._waited_for: set[str] = set()

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
        """Wait for whatever may pass. Raises NoTarget."""
        wait_s = 0 if topic in self._waited_for else _APPEAR_S
        while True:
            try:
                found = (await known_topics(self._target, {topic}, wait_s)).get(topic)
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
                trouble = codes.name(found.error_code)
            log.warning("%s: target topic %s: %s; retrying in %g s", self._flow, topic, trouble, _RETRY_S)
            await asyncio.sleep(_RETRY_S)


class Refused(PermanentError):
    """The target refuses a batch for good. ``is_of_records``: because of some of its records."""

    def __init__(self, code: int, target: TopicPartition, records: Sequence[Record]) -> None:
        first, last = records[0].offset, records[-1].offset
        what = (
            f"the record of source offset {first}" if first == last else f"records of source offsets {first} to {last}"
        )
        super().__init__(refusals.explained(code, target, what))
        self.code = code
        self.is_of_records = code in codes.OF_RECORDS


class Sender:
    """An idempotent producer. Batches for one partition are sent in the order of the calls, if each call is awaited.

    The library's sequence numbers have a gap behind a refused batch, so each refusal costs a new producer.
    ``check_lease`` raises RetriableError when nothing may be sent any more: a slice that was frozen must not send what
    its successor has sent already.
    """

    def __init__(
        self, connection: ConnectionSettings, compression: Compression, check_lease: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._compression = compression
        self._check_lease = check_lease
        #: The last one is in use, the others wait for answers.
        self._producers: list[AIOKafkaProducer] = []
        self._replacing = asyncio.Lock()
        self._scope = Scope("target of a copy by key")
        self._batch_bytes: dict[str, int] = {}
        self._in_flight_bytes = 0
        self._room = asyncio.Event()

    async def start(self) -> None:
        """Connect. Raises RetriableError."""
        producer = make_producer(self._connection, float("inf"), self._check_lease, enable_idempotence=True)
        try:
            await producer.start()
        except aiokafka.errors.KafkaError as error:
            await producer.stop()
            refused = isinstance(error, aiokafka.errors.ClusterAuthorizationFailedError)
            grant = "; grant IDEMPOTENT_WRITE on the target cluster" if refused else ""
            raise RetriableError(f"target: no producer can be started: {error}{grant}") from error
        except BaseException:
            await producer.stop()
            raise
        self._producers.append(producer)

    async def stop(self) -> None:
        """Disconnect at once; what has no answer yet may still be written."""
        await self._scope.close()
        for producer in self._producers:
            await cut_off(producer)

    def batches(self, topic: str, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Split records into batches of a size that the topic is known to take."""
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
                continue  # the batch in front of it has no answer yet, and this one was not taken
            except aiokafka.errors.KafkaError as error:
                await self._replace(producer)
                code = getattr(error, "errno", None) or codes.UNKNOWN_SERVER_ERROR
                if isinstance(error, _PRODUCER_SPENT):
                    log.debug("target %s: %r; sending with another producer", target, error)
                elif code not in codes.RETRIABLE | {codes.UNKNOWN_SERVER_ERROR}:
                    if code in codes.TOO_LARGE and len(records) > 1:
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
        codec, level = self._compression

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
        """Raises RetriableError."""
        async with self._replacing:
            if self._producers[-1] is spent:
                await self.start()
                self._scope.spawn(self._end(spent), "end a producer")

    async def _end(self, spent: AIOKafkaProducer) -> None:
        """What it has in flight for other partitions is still answered."""
        await spent.stop()
        self._producers.remove(spent)


async def _send(producer: AIOKafkaProducer, target: TopicPartition, batch: BuiltBatch) -> None:
    await (await producer.send_batch(batch, target.topic, partition=target.partition))


def _size(record: Record) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES
