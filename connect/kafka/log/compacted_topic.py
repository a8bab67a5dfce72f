"""Creates compacted topics, reads them from beginning to end, and skips records that cannot be read.

* Topics are read as logs (Kafka's ``KafkaBasedLog``) and are created if they are missing.
* The fetched bytes are parsed here and not by aiokafka, because aiokafka's consumers raise at header keys that are not
  UTF-8 and decompress without a bound. Here such a key is decoded as :mod:`connect.wire.batch` does it, and a batch
  that exceeds the bound raises :class:`connect.wire.records.TooLarge`. All else is aiokafka's.
* A record of an internal topic that cannot be read is logged once and skipped. Every client with write access can put
  such a record there, and a worker that fails at a record fails again at each start, together with all other workers of
  its group.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import ConsumerRecord

from connect.core.errors import (
    ClusterUnreachable,
    ConfigError,
    HeliographError,
    PermanentError,
    RetriableError,
    SecurityError,
    UnreadableRecord,
)
from connect.core.model import CLEANED_SOON, NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Patience, Scope
from connect.kafka.log.active_producers import active_producers
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.topic_admin import Admin, ConfigsRefused, TopicExists
from connect.kafka.long_log import Row, Spans
from connect.wire import batch as wire
from connect.wire import records as wire_records
from connect.wire.records import Headers, messages_inside, opened_batch


class FetchedRecords:
    """In the place of aiokafka's ``MemoryRecords``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._records = MemoryRecords(data)
        self._extents = wire.extents(data)

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        start, size, magic = next(self._extents)
        data = bytes(self._data[start : start + size])
        if magic >= 2:
            return _Batch(batch, data)
        messages_inside(data, magic)  # what is more than a message may hold does not come further
        return batch


class _Batch:
    def __init__(self, batch: Any, data: bytes) -> None:
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        given = 0
        try:
            for record in DefaultRecordBatch(opened_batch(self._data)):
                yield record
                given += 1
        except Exception as error:
            if not wire_records.is_of_a_key(error):
                raise
            time_type = self._batch.timestamp_type
            for offset, time_ms, key, value, headers in islice(wire_records.read(self._data), given, None):
                yield _Fetched(offset, time_ms, time_type, key, value, headers)


class _Fetched(NamedTuple):
    """A record as aiokafka's consumer takes it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    checksum: None = None


class RecordsAsRead(fetcher.PartitionRecords):  # type: ignore[misc]  # no marker for its types
    """In the place of aiokafka's ``PartitionRecords``."""

    def _consumer_record(self, _: TopicPartition, record: Any) -> Any:
        return record


def teach_consumers() -> None:
    """From now on every consumer of this process reads such records."""
    fetcher.MemoryRecords = FetchedRecords


def give_records_as_read() -> None:
    """From now on every consumer of this process gives what aiokafka reads: key, value, headers, offset and timestamp.
    To make a ConsumerRecord of them takes longer than to read them."""
    fetcher.PartitionRecords = RecordsAsRead


log = logging.getLogger(__name__)

#: Lines for one topic in the life of this process.
_MOST_NAMED: Final = 100
_LONGEST_REASON: Final = 300

_named: dict[str, set[tuple[int, int]]] = {}


def pass_over(where: str, partition: int, offset: int, reason: str) -> None:
    """Name a record that is left out, once, though it may be read often. ``where`` names its topic."""
    named, place = _named.setdefault(where, set()), (partition, offset)
    if place in named or len(named) > _MOST_NAMED:
        return
    named.add(place)
    if len(named) > _MOST_NAMED:
        log.warning("%s: more than %d records cannot be read; the others are not named", where, _MOST_NAMED)
        return
    shown = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
    log.warning("%s, partition %d, offset %d is passed over: %s", where, *place, shown)


_CLEANUP_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_POLL_MS: Final = 250
#: Handed to ``apply`` before others on the loop have their turn: 10 ms at 20 us a record.
_POLL_RECORDS: Final = 500
_RETRY_S: Final = 0.25
#: Of attempts to make a topic.
_FIRST_RETRY_MS: Final = 250
_LAST_RETRY_MS: Final = 10_000
#: Without progress. What a killed writer left open is aborted a minute after it began, by brokers that look every ten
#: seconds, and nobody reads past it until then.
_TIMEOUT_S: Final = 90.0
#: How long brokers may take to tell what kept a reader from the end.
_LOOK_S: Final = 5.0
#: How long a connection that is being opened may hold up the end of a reader.
_OPENING_S: Final = 3.0


class LogRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


async def read_to_end(
    cluster: Cluster,
    topic: str,
    apply: Callable[[LogRecord], None],
    *,
    partitions: Collection[int] | None = None,
    after: Mapping[int, int] | None = None,
    read_committed: bool = False,
    only_last: bool = False,
    timeout_s: float = _TIMEOUT_S,
) -> dict[int, int]:
    """Hand every record of ``topic`` to ``apply``, each partition in order, up to where it ends now. One of which it
    raises UnreadableRecord is named in the log and passed over.

    ``partitions`` None reads all. ``after``: where to begin in partitions that were read before. ``only_last``: records
    that a later one of their key replaces may be left out, as the topic's cleaner leaves them out sooner or later; then
    another process reads what is long (:mod:`connect.kafka.long_log`).

    With ``read_committed`` the end is still that of everything appended, so transactions that are open now are waited
    for: what they commit is not missed. Return where each partition ended; empty ones are left out.

    Raises:
        RetriableError: nothing was read for ``timeout_s``, or the cluster did not answer.
        SecurityError: READ on the topic is missing.
        PermanentError: a record is damaged.
    """
    where = f"cluster {cluster.name}: topic {topic}"

    def take(record: LogRecord) -> None:
        try:
            apply(record)
        except UnreadableRecord as error:
            pass_over(where, record.partition, record.offset, str(error))

    def take_row(row: Row) -> None:
        take(LogRecord._make(row))

    try:
        with reading(cluster, topic):
            async with progressing(timeout_s) as progressed:
                rest = spans = await _spans(cluster, topic, partitions, after or {})
                if only_last:
                    at = await cluster.long_logs.read(cluster, topic, spans, take_row, read_committed, progressed)
                    rest = {one: (at[one], end) for one, (_, end) in spans.items() if at[one] < end}
                if rest:
                    await _read(cluster, topic, rest, take, read_committed, progressed)
                return {partition: end for partition, (_, end) in spans.items()}
    except TimeoutError as error:
        line = f"{where} could not be read to its end: nothing came for {timeout_s:g} s"
        raise RetriableError(f"{line}; {await open_in(cluster, topic)}" if read_committed else line) from error


@asynccontextmanager
async def progressing(timeout_s: float) -> AsyncIterator[Callable[[], None]]:
    """Yield what is to be called while something comes. Raises TimeoutError after ``timeout_s`` without."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(timeout_s) as limit:

        def progressed() -> None:
            if not limit.expired():
                limit.reschedule(clock() + timeout_s)

        yield progressed


async def open_in(cluster: Cluster, topic: str) -> str:
    """What stands in the way of who reads what is committed, as far as the brokers tell, for people."""
    try:
        partitions = [(topic, index) for index in (await cluster.topics({topic})).topics[topic].partitions]
        producers = await active_producers(cluster, partitions, timeout_s=_LOOK_S)
    except HeliographError as error:
        return f"a transaction may be open in it ({error})"
    found = [
        f"a transaction of producer id {producer_id} is open in {topic}-{index} since offset {one.open_since}"
        for (_, index), of_partition in sorted(producers.items())
        for producer_id, one in of_partition.items()
        if one.open_since >= 0
    ]
    if not found:
        return "no transaction is open in it any more"
    return f"{found[0]}; kafka-transactions.sh describes it, and aborts it where its producer is gone"


@contextmanager
def reading(cluster: Cluster, topic: str) -> Iterator[None]:
    """Turn what aiokafka raises while ``topic`` is read into errors of ours; see ``read_to_end``."""
    try:
        yield
    except (
        aiokafka.errors.TopicAuthorizationFailedError,
        aiokafka.errors.GroupAuthorizationFailedError,
    ) as error:
        raise SecurityError(
            f"cluster {cluster.name} refuses to let us read {topic}; grant READ on topic {topic}"
        ) from error
    except aiokafka.errors.CorruptRecordException as error:
        raise PermanentError(f"cluster {cluster.name}: a record of topic {topic} is damaged: {error}") from error
    except aiokafka.errors.KafkaConnectionError as error:
        raise ClusterUnreachable(f"cluster {cluster.name}: topic {topic} cannot be read: {error}") from error
    except aiokafka.errors.KafkaError as error:
        raise RetriableError(f"cluster {cluster.name}: topic {topic} cannot be read: {error!r}") from error


async def ensure_compacted_topic(admin: Admin, topic: NewTopic, *, timeout_s: float = 60.0) -> None:
    """Make ``topic`` compacted where it is missing, and refuse one that loses records by age or size. A cluster that
    refuses its ``configs`` gets the topic without those of CLEANED_SOON; what a user chose is never left out.

    Too few brokers at the moment, or none that answers in time, is tried again (as Kafka's ``TopicAdmin`` does), until
    ``timeout_s`` has passed in all. A topic that we may not make or look at is taken to be there and right.

    Raises:
        ConfigError: the topic's ``cleanup.policy`` is not just ``compact``.
        SecurityError: the cluster refuses us.
        RetriableError, PermanentError: it could not be made.
    """
    clock = asyncio.get_running_loop().time
    until_s = clock() + timeout_s
    whole = replace(topic, configs={**topic.configs, _CLEANUP_POLICY: _COMPACT})
    chosen = dict(whole.configs.items() - CLEANED_SOON.items())
    try:
        is_made = await make_topic(admin, whole, timeout_s=timeout_s)
    except ConfigsRefused as error:
        if chosen == whole.configs:
            raise
        log.warning("%s; creating it without %s", error, ", ".join(sorted(whole.configs.keys() - chosen.keys())))
        is_made = await make_topic(admin, replace(whole, configs=chosen), timeout_s=max(0.0, until_s - clock()))
    if not is_made:
        await _check_compact(admin, topic.name)


async def make_topic(
    admin: Admin, topic: NewTopic, *, timeout_s: float | None = None, tried: asyncio.Event | None = None
) -> bool:
    """Make a topic and return True; False if it was there already, or we may not make it and take it to be there.

    What may pass is tried again, for as long as it takes unless ``timeout_s`` is given; ``tried`` is set after the
    first attempt. Raises what does not pass.
    """
    clock = asyncio.get_running_loop().time
    until_s = math.inf if timeout_s is None else clock() + timeout_s
    waiting = Patience(log, f"making topic {topic.name}", _FIRST_RETRY_MS, _LAST_RETRY_MS)
    while True:
        try:
            outcome = (await admin.create_topics([topic]))[topic.name]
        except RetriableError as error:
            outcome = error
        finally:
            if tried is not None:
                tried.set()
        if outcome is None:
            return True
        if isinstance(outcome, TopicExists):
            return False
        if isinstance(outcome, SecurityError):
            log.warning("%s; going on as if it were there", outcome)
            return False
        # INVALID_REPLICATION_FACTOR: brokers that are just starting count as missing.
        may_pass = isinstance(outcome, RetriableError) or "INVALID_REPLICATION_FACTOR" in str(outcome)
        if not may_pass or clock() > until_s:
            raise outcome
        await waiting.after(outcome)


async def _check_compact(admin: Admin, topic: str) -> None:
    policy = (await admin.describe_topic_configs([topic])).get(topic, {}).get(_CLEANUP_POLICY)
    if policy is not None and policy != _COMPACT:
        raise ConfigError(
            f"cluster {admin.name}: topic {topic} has {_CLEANUP_POLICY}={policy} and would lose what is stored in it; "
            f"set it to {_COMPACT}",
            _CLEANUP_POLICY,
        )


async def _read(
    cluster: Cluster,
    topic: str,
    spans: Spans,
    apply: Callable[[LogRecord], None],
    read_committed: bool,
    progressed: Callable[[], None],
) -> None:
    def take(partition: TopicPartition, records: Sequence[ConsumerRecord[bytes | None, bytes | None]]) -> None:
        for record in records:
            apply(log_record(partition, record))

    async with reader(cluster, read_committed=read_committed, auto_offset_reset="earliest") as consumer:
        await drain(consumer, topic, spans, take, progressed, _POLL_RECORDS)


@asynccontextmanager
async def reader(cluster: Cluster, *, read_committed: bool, **arguments: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer that commits nothing, started, without a group unless ``arguments`` name one: these are aiokafka's,
    and win over the cluster's."""
    # It tells of each attempt as an error, also where a broker ended its session (KIP-368) and it just comes again;
    # what does not pass arrives as an exception or a time-out as well.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    teach_consumers()
    consumer = AIOKafkaConsumer(
        enable_auto_commit=False,
        isolation_level="read_committed" if read_committed else "read_uncommitted",
        **{"group_id": None, **cluster.settings.aiokafka_arguments(), **arguments},
    )
    scope = Scope(f"a reader of cluster {cluster.name}")
    starting = scope.spawn(consumer.start(), f"start a reader of cluster {cluster.name}")
    try:
        await asyncio.shield(starting)
        yield consumer
    finally:
        await asyncio.wait({starting}, timeout=_OPENING_S)
        await scope.close()
        await _stop(consumer)


def check_reads(consumer: AIOKafkaConsumer, where: str) -> None:
    """Raise RetriableError if the task that fetches has ended, which aiokafka does not report."""
    if consumer._fetcher.error_future.done():
        raise RetriableError(f"{where}: its consumer has stopped fetching")


async def _stop(consumer: AIOKafkaConsumer) -> None:
    """aiokafka forgets a connection that it is just opening: stop it when it is not, or when that takes long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_OPENING_S):
            await consumer._client._get_conn_lock.acquire()
    await consumer.stop()


def log_record(partition: TopicPartition, record: ConsumerRecord[bytes | None, bytes | None]) -> LogRecord:
    """What aiokafka's consumer hands out, as a record of ours."""
    return LogRecord(
        record.key, record.value, partition.partition, record.offset, record.timestamp, tuple(record.headers)
    )


async def partition_count(cluster: Cluster, topic: str, *, timeout_s: float = 60.0) -> int:
    """How many partitions a topic has that was perhaps made just now.

    Raises:
        RetriableError: no broker has heard of it within ``timeout_s``.
        SecurityError: DESCRIBE on the topic is missing.
    """
    give_up_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            return len((await cluster.topics({topic})).topics[topic].partitions)
        except RetriableError as error:
            if asyncio.get_running_loop().time() > give_up_s:
                raise
            log.info("%s; trying again", error)
        await asyncio.sleep(_RETRY_S)


async def _spans(
    cluster: Cluster, topic: str, wanted: Collection[int] | None, after: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """(first to read, end) of each partition that holds anything there."""
    while True:
        try:
            metadata = await cluster.topics({topic})
            partitions = [
                (topic, each) for each in metadata.topics[topic].partitions if wanted is None or each in wanted
            ]
            begins = await list_offsets(cluster, partitions, EARLIEST)
            ends = await list_offsets(cluster, partitions, LATEST)
        except RetriableError as error:
            log.info("%s; trying again", error)
        else:
            firsts = {partition: max(begin, after.get(partition[1], 0)) for partition, begin in begins.items()}
            return {
                partition[1]: (firsts[partition], end) for partition, end in ends.items() if end > firsts[partition]
            }
        await asyncio.sleep(_RETRY_S)  # just made, or without leaders: brokers learn of it within moments


async def drain(
    consumer: AIOKafkaConsumer,
    topic: str,
    spans: Spans,
    take: Callable[[TopicPartition, Sequence[Any]], None],
    progressed: Callable[[], None],
    at_once: int,
) -> dict[int, int]:
    """Have a consumer read ``spans`` of a topic; ``take`` gets records of a partition, ``at_once`` at most. Return how
    far it has come, by partition."""
    places = {TopicPartition(topic, partition): span for partition, span in spans.items()}
    consumer.assign(list(places))
    for partition, (first, _) in places.items():
        consumer.seek(partition, first)
    behind, positions = dict(places), dict[int, int]()
    while behind:
        batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=at_once)
        for partition, records in batches.items():
            take(partition, records)
        for partition, (_, end) in list(behind.items()):
            # The position, not the last record: the log may end in markers, or in offsets compacted away.
            position = await consumer.position(partition)
            if position > positions.get(partition.partition, -1):
                positions[partition.partition] = position
                progressed()
            if position >= end:
                del behind[partition]
                consumer.pause(partition)
        await asyncio.sleep(0)  # because nothing above waits while the consumer has records
    return positions
