"""Creates compacted topics, reads them from beginning to end, and skips unreadable records.

* Topics are read as logs (Kafka's ``KafkaBasedLog``) and are created if they are missing.
* Fetched bytes are parsed here and not by aiokafka, because aiokafka's consumers fail on header keys that are not UTF-8
  and decompress without a limit. Here such a key is decoded as in :mod:`connect.wire.batch`. aiokafka does the rest.
* An unreadable record of an internal topic is logged once and skipped, and so is a batch whose records cannot be read
  or exceed the limit of :mod:`connect.wire.records`. Every client with write access can write one, and a worker that
  fails on it fails again at each start, together with all other workers of its group.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
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
from connect.kafka.concurrency import Backoff, Scope, retried, until
from connect.kafka.log.active_producers import active_producers
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.topic_admin import Admin, ConfigsRefused, TopicExists, known_topic
from connect.kafka.long_log import Row, Spans
from connect.wire import batch as wire
from connect.wire.records import Headers, Record, messages_inside, opened_batch, read_fast


class FetchedRecords:
    """Replaces aiokafka's ``MemoryRecords``."""

    def __init__(self, data: bytes) -> None:
        self.partition = TopicPartition("unknown", -1)  # NamedRecords knows it
        self._data = data
        self._records = MemoryRecords(data)
        self._extents = wire.extents(data)

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def next_batch(self) -> Any:
        start, size, magic = next(self._extents)
        return _Batch(self._records.next_batch(), bytes(self._data[start : start + size]), magic, self.partition)


@dataclass(eq=False, repr=False, slots=True)
class _Batch:
    _batch: Any
    _data: bytes
    _magic: int
    _partition: TopicPartition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(iter(self))

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._read()
        except MemoryError:
            raise  # because it says nothing about the batch
        except Exception as error:  # because aiokafka's readers trust lengths and codecs
            offset, reason = (
                int.from_bytes(self._data[:8]),
                f"its batch cannot be read: {type(error).__name__}: {error}",
            )
            pass_over(f"topic {self._partition.topic}", self._partition.partition, offset, reason)

    def _read(self) -> Iterator[Any]:
        if self._magic < 2:
            messages_inside(self._data, self._magic)  # raises if the message exceeds the limit
            yield from self._batch
            return
        for record in read_fast(opened_batch(self._data)):
            if isinstance(record, Record):
                offset, time_ms, key, value, headers = record
                yield _Fetched(offset, time_ms, self._batch.timestamp_type, key, value, headers)
            else:
                yield record


class _Fetched(NamedTuple):
    """A record in the form that aiokafka's consumer expects."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    checksum: None = None


class NamedRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # no marker for its types
    """Replaces aiokafka's ``PartitionRecords``: messages about a batch name its partition."""

    def __init__(self, partition: TopicPartition, records: FetchedRecords, *more: Any) -> None:
        records.partition = partition
        super().__init__(partition, records, *more)


class RecordsAsRead(NamedRecords):
    def _consumer_record(self, _: TopicPartition, record: Any) -> Any:
        return record


def teach_consumers() -> None:
    """Make every consumer of this process parse records as this module does."""
    fetcher.MemoryRecords = FetchedRecords
    if not issubclass(fetcher.PartitionRecords, NamedRecords):
        fetcher.PartitionRecords = NamedRecords


def give_records_as_read() -> None:
    """Make every consumer of this process return records as parsed: key, value, headers, offset and timestamp.
    Creating ConsumerRecords takes longer than parsing."""
    fetcher.PartitionRecords = RecordsAsRead


log = logging.getLogger(__name__)

#: Limit on the lines logged for one topic in the life of this process.
_MOST_NAMED: Final = 100
_LONGEST_REASON: Final = 300

_named: dict[str, set[tuple[int, int]]] = {}


def pass_over(where: str, partition: int, offset: int, reason: str) -> None:
    """Log a skipped record, once even if it is read often. ``where`` identifies its topic."""
    named, place = _named.setdefault(where, set()), (partition, offset)
    if place in named or len(named) > _MOST_NAMED:
        return
    named.add(place)
    if len(named) > _MOST_NAMED:
        log.warning("%s: more than %d records cannot be read; further ones are not logged", where, _MOST_NAMED)
        return
    shown = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
    log.warning("%s, partition %d, offset %d is skipped: %s", where, *place, shown)


_CLEANUP_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_POLL_MS: Final = 250
#: Records passed to ``apply`` before other tasks on the loop run: 10 ms at 20 us per record.
_POLL_RECORDS: Final = 500
#: Of attempts to create a topic.
_FIRST_RETRY_MS: Final = 250
_LAST_RETRY_MS: Final = 10_000
#: Without progress. Brokers abort a killed writer's open transaction a minute after it began, and check every ten
#: seconds; until then it blocks readers.
_TIMEOUT_S: Final = 90.0
#: How long brokers may take to report what kept a reader from the end.
_LOOK_S: Final = 5.0
#: How long a connection attempt may delay the end of a reader.
_OPENING_S: Final = 3.0


class LogRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


class NewestByKey:
    """Tells which records of one topic count. If partitions were added, the later records of a key are in another one,
    and partitions are read in no order: then the later timestamp counts."""

    def __init__(self) -> None:
        self._newest: dict[bytes | None, tuple[int, int]] = {}  # partition and timestamp

    def counts(self, record: LogRecord) -> bool:
        partition, timestamp_ms = self._newest.get(record.key, (record.partition, -1))
        if partition != record.partition and record.timestamp_ms < timestamp_ms:
            return False
        self._newest[record.key] = record.partition, record.timestamp_ms
        return True


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
    """Pass every record of ``topic`` to ``apply``, each partition in order, up to its current end. A record for which
    ``apply`` raises UnreadableRecord is logged and skipped.

    ``partitions`` None reads all. ``after``: where to start in partitions that were read before. ``only_last``: records
    that a later record of their key replaces may be left out, as compaction removes them sooner or later; then another
    process reads long logs (:mod:`connect.kafka.long_log`).

    With ``read_committed`` the end still includes all appended records, so this waits for open transactions: no record
    that they commit is missed. Return the end of each partition; empty ones are left out.

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


async def read_if_exists(cluster: Cluster, topic: str, apply: Callable[[LogRecord], None], **options: Any) -> None:
    """Read as :func:`read_to_end`; nothing if there is no such topic. Raises also NotAuthorized without DESCRIBE."""
    if await known_topic(cluster, topic) is not None:
        await read_to_end(cluster, topic, apply, **options)


@asynccontextmanager
async def progressing(timeout_s: float) -> AsyncIterator[Callable[[], None]]:
    """Yield a function to call on progress. Raises TimeoutError after ``timeout_s`` without a call."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(timeout_s) as limit:

        def progressed() -> None:
            if not limit.expired():
                limit.reschedule(clock() + timeout_s)

        yield progressed


async def open_in(cluster: Cluster, topic: str) -> str:
    """Describe the open transaction that blocks read_committed consumers, as far as brokers report it."""
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
    return f"{found[0]}; kafka-transactions.sh describes it, and aborts it if its producer no longer runs"


@contextmanager
def reading(cluster: Cluster, topic: str) -> Iterator[None]:
    """Translate aiokafka's errors while ``topic`` is read into this project's; see ``read_to_end``."""
    try:
        yield
    except (aiokafka.errors.TopicAuthorizationFailedError, aiokafka.errors.GroupAuthorizationFailedError) as error:
        raise SecurityError(
            f"cluster {cluster.name}: access to topic {topic} is denied; grant READ on topic {topic}"
        ) from error
    except aiokafka.errors.CorruptRecordException as error:
        raise PermanentError(f"cluster {cluster.name}: a record of topic {topic} is damaged: {error}") from error
    except aiokafka.errors.KafkaConnectionError as error:
        raise ClusterUnreachable(f"cluster {cluster.name}: topic {topic} cannot be read: {error}") from error
    except aiokafka.errors.KafkaError as error:
        raise RetriableError(f"cluster {cluster.name}: topic {topic} cannot be read: {error!r}") from error


async def ensure_compacted_topic(admin: Admin, topic: NewTopic, *, timeout_s: float = 60.0) -> None:
    """Create ``topic`` as compacted if it is missing, and reject one that loses records by age or size. If a cluster
    rejects its ``configs``, create the topic without those of CLEANED_SOON; what a user chose is never left out.
    Retries while brokers are missing or do not answer (as Kafka's ``TopicAdmin``), until ``timeout_s`` has passed in
    all. If this client may not create or describe the topic, it is assumed to exist and to be right. Raises ConfigError
    if the topic's ``cleanup.policy`` is not just ``compact``, SecurityError if the cluster rejects this client, and
    RetriableError or PermanentError if the topic could not be created."""
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
    """Create a topic and return True; False if it exists, or if this client may not create it and assumes that it does.
    Retries retriable errors, without end unless ``timeout_s`` is given, and raises other errors. ``tried`` is set after
    the first attempt."""
    clock = asyncio.get_running_loop().time
    until_s = math.inf if timeout_s is None else clock() + timeout_s
    waiting = Backoff(log, f"creating topic {topic.name}", _FIRST_RETRY_MS, _LAST_RETRY_MS)
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
            log.warning("%s; continuing as if the topic existed", outcome)
            return False
        # INVALID_REPLICATION_FACTOR: brokers that are starting count as missing.
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
    """Run a consumer that commits nothing, without a group unless ``arguments`` name one. ``arguments`` are aiokafka's
    and override the cluster's."""
    # aiokafka logs each attempt as an error, even when a broker ended its session (KIP-368) and it just reconnects.
    # Lasting failures also arrive as exceptions or timeouts.
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
    """Raise RetriableError if the fetching task has ended, which aiokafka does not report."""
    if consumer._fetcher.error_future.done():
        raise RetriableError(f"{where}: its consumer has stopped fetching")


async def _stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer once it is not opening a connection, or after a limit: aiokafka forgets to close one."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_OPENING_S):
            await consumer._client._get_conn_lock.acquire()
    await consumer.stop()


def log_record(partition: TopicPartition, record: ConsumerRecord[bytes | None, bytes | None]) -> LogRecord:
    return LogRecord(
        record.key, record.value, partition.partition, record.offset, record.timestamp, tuple(record.headers)
    )


async def partition_count(cluster: Cluster, topic: str, *, timeout_s: float = 60.0) -> int:
    """Return the number of partitions of a topic that may have been created just now. Raises RetriableError if no
    broker knows the topic within ``timeout_s``, and SecurityError if DESCRIBE on the topic is missing."""

    async def attempt() -> int:
        return len((await cluster.topics({topic})).topics[topic].partitions)

    return await until(timeout_s, f"counting the partitions of topic {topic}", attempt)


async def _spans(
    cluster: Cluster, topic: str, wanted: Collection[int] | None, after: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return the (first offset to read, end) of each partition that has records there. Retries without limit: if the
    topic was created just now, or has no leaders, brokers catch up within moments."""

    async def attempt() -> dict[int, tuple[int, int]]:
        metadata = await cluster.topics({topic})
        partitions = [(topic, each) for each in metadata.topics[topic].partitions if wanted is None or each in wanted]
        begins = await list_offsets(cluster, partitions, EARLIEST)
        ends = await list_offsets(cluster, partitions, LATEST)
        firsts = {partition: max(begin, after.get(partition[1], 0)) for partition, begin in begins.items()}
        return {partition[1]: (firsts[partition], end) for partition, end in ends.items() if end > firsts[partition]}

    backoff = Backoff(log, f"looking for the end of topic {topic}", _FIRST_RETRY_MS, _FIRST_RETRY_MS)
    return await retried(attempt, backoff.after)


async def drain(
    consumer: AIOKafkaConsumer,
    topic: str,
    spans: Spans,
    take: Callable[[TopicPartition, Sequence[Any]], None],
    progressed: Callable[[], None],
    at_once: int,
) -> dict[int, int]:
    """Read ``spans`` of a topic with a consumer; ``take`` gets at most ``at_once`` records of a partition at a time.
    Return how far it has read, by partition."""
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
            # The position, not the last record: the log may end in markers, or in offsets that were compacted away.
            position = await consumer.position(partition)
            if position > positions.get(partition.partition, -1):
                positions[partition.partition] = position
                progressed()
            if position >= end:
                del behind[partition]
                consumer.pause(partition)
        await asyncio.sleep(0)  # because nothing above waits while the consumer has records
    return positions
