"""Follows a compacted topic: reads it from its beginning, then each record that any client writes.

Works as Kafka's ``KafkaBasedLog``. Progress is a position, not a record: a log may end in markers or in offsets that
were compacted away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, TopicPartition

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.concurrency import Backoff, Pauses, Scope
from connect.kafka.log.compacted_topic import LogRecord, check_reads, log_record, progressing, reader, reading
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.kafka.long_log import Row

log = logging.getLogger(__name__)

#: How long a fetch waits at the broker for records: an idle log costs one request in that time.
_LONG_POLL_MS: Final = 3_000
#: A broker that is silent for longer is given up: it may hang while another one leads.
_SILENCE_MS: Final = 10_000
#: The same for the process that reads a long log, which takes seconds to start.
_NO_PROGRESS_S: Final = 30.0
#: How soon the tail notices that it must read again; records do not wait for it.
_LOOK_UP_MS: Final = 1_000
#: How often the topic's id is compared: fetches of this protocol version name topics, so they do not show that a topic
#: was recreated if the new log has the next offset by then.
_IDENTITY_S: Final = 10.0
#: Records passed on in one go, before other tasks on the loop run.
_AT_ONCE: Final = 500
_FETCH_BYTES: Final = 4 * 1024 * 1024
#: How often ``read_to_end`` checks the tail's position: new records usually arrive within milliseconds.
_WATCH_FIRST_S: Final = 0.001
_WATCH_LAST_S: Final = 0.02
_BACKOFF_FIRST_MS: Final = 100
_BACKOFF_LAST_MS: Final = 2_000


class _Identity(NamedTuple):
    """The identity of a log: a recreated topic is another log. ``topic_id`` is None if brokers are too old for ids."""

    topic_id: UUID | None
    partitions: int

    def became(self, later: _Identity) -> bool:
        """Return whether ``later`` may be the same log."""
        return len({self.topic_id, later.topic_id} - {None}) < 2 and later.partitions >= self.partitions


class CompactedLog:
    """Follows one topic in its own task from ``start`` to ``stop``, and writes to it.

    ``on_record`` gets every record in the loop, those of a partition in order; with ``read_committed`` without those of
    open and aborted transactions. If the topic was recreated or the log truncated, a warning is logged and all records
    are passed on again; before that ``on_reset`` is called, because the state built from the earlier records is
    invalid. After ``stop`` it may be started again and continues at its position. The caller owns the cluster's
    connections. ``only_last``: as in :func:`connect.kafka.log.compacted_topic.read_to_end`.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        on_record: Callable[[LogRecord], None],
        on_reset: Callable[[], None],
        *,
        read_committed: bool = False,
        only_last: bool = False,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._on_record = on_record
        self._on_reset = on_reset
        self._read_committed = read_committed
        self._only_last = only_last
        self._where = f"cluster {cluster.name}: topic {topic}"
        self._writer = PlainWriter(cluster, timeout_s=_SILENCE_MS / 1000)
        self._writing = asyncio.Lock()
        self._scope = Scope(self._where)
        self._tail: asyncio.Task[None] | None = None
        #: Why reading has ended: an ACL is missing, a record is damaged, or ``on_record`` has raised this error.
        #: Retriable errors do not end it.
        self.failure: Exception | None = None
        self._identity: _Identity | None = None
        self._positions: dict[int, int] = {}  # by partition: the offset after the last record passed on
        self._readings = 0
        self._consumer: AIOKafkaConsumer | None = None

    async def ended(self) -> Exception | None:
        """Wait until reading has ended, and return ``failure``; None after ``stop``."""
        if self._tail is not None:
            await asyncio.wait({self._tail})
        return self.failure

    async def start(self, timeout_s: float = 60.0, *, committed_only: bool = False) -> None:
        """Read to the end as ``read_to_end``, then follow. The topic must exist. On an error, which is one of
        ``read_to_end``, nothing runs."""
        self._scope = Scope(self._where)
        self._tail = self._scope.spawn(self._follow(), f"tail of {self.topic}")
        self._scope.spawn(self._compare_identity(), f"identity of {self.topic}")
        try:
            await self.read_to_end(timeout_s, committed_only=committed_only)
        except BaseException:
            await self.stop()
            raise

    async def read_to_end(self, timeout_s: float = 60.0, *, committed_only: bool = False) -> None:
        """Return when every record appended before the call was passed on. The end includes all appended records, so
        with ``read_committed`` this waits for open transactions: no record that they commit is missed. With
        ``committed_only`` the first open transaction is the end. Raises RetriableError if the end was not reached
        within ``timeout_s``, ``failure``, or an error of the cluster."""
        waiting = self._backoff()
        reason = ""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._reach(await self._ends(committed_only))
                    except _ReadAgain:
                        reason = "it is read again"
                    except RetriableError as error:
                        reason = str(error)
                        await waiting.after(error)
        except TimeoutError as error:
            open_one = "a transaction may be open in it" if self._read_committed else "no answer"
            raise RetriableError(
                f"{self._where} could not be read to its end within {timeout_s:g} s; {reason or open_one}"
            ) from error

    async def write(self, records: Iterable[OutRecord], timeout_s: float = 30.0) -> None:
        """Append records (acks=all), those of a partition in order and after those of earlier calls. Retries while
        leaders move or do not answer. Then records may be duplicated, in order. ``records`` is iterated again at each
        attempt, and may have become fewer. Raises SecurityError if an ACL is missing, which the message names. After a
        RetriableError, which means not within ``timeout_s``, some records may be written; write the same records
        again."""
        waiting, reason = self._backoff("writing"), "no answer"
        try:
            async with asyncio.timeout(timeout_s), self._writing:
                while True:
                    try:
                        return await self._writer.write(records)
                    except RetriableError as error:
                        reason = str(error)
                        await waiting.after(error)
        except TimeoutError as error:
            raise RetriableError(f"{self._where} could not be written within {timeout_s:g} s; {reason}") from error

    async def stop(self) -> None:
        """Stop following. Harmless when repeated."""
        await self._scope.close()

    # -- the tail ------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        waiting = self._backoff()
        while True:
            try:
                with reading(self._cluster, self.topic):
                    await self._read(waiting)
            except _ReadAgain:
                continue
            except (RetriableError, OSError) as error:
                await waiting.after(error)
            except Exception as error:
                self.failure = error
                return

    async def _read(self, waiting: Backoff) -> None:
        """Follow with one consumer from the positions; ends only with an error."""
        await self._place()
        readings = self._readings
        if self._only_last:
            await self._read_long(readings)
        places = {TopicPartition(self.topic, partition): offset for partition, offset in self._positions.items()}
        silence_ms = min(_SILENCE_MS, self._cluster.settings.request_timeout_ms)
        reading_on = reader(
            self._cluster,
            read_committed=self._read_committed,
            auto_offset_reset="none",
            request_timeout_ms=silence_ms,
            fetch_max_wait_ms=min(_LONG_POLL_MS, silence_ms // 3),
            fetch_max_bytes=_FETCH_BYTES,
            consumer_timeout_ms=_LOOK_UP_MS,
        )
        try:
            async with reading_on as consumer:
                consumer.assign(list(places))
                for partition, offset in places.items():
                    consumer.seek(partition, offset)
                try:
                    await self._hand_over(consumer, readings, waiting)
                finally:
                    self._consumer = None
        except aiokafka.errors.OffsetOutOfRangeError as error:
            self._reset_log("no longer has the next record")
            raise _ReadAgain from error

    async def _read_long(self, readings: int) -> None:
        """Let another process read a long log, up to the first open transaction."""
        partitions = [(self.topic, partition) for partition in self._positions]
        isolation = READ_COMMITTED if self._read_committed else READ_UNCOMMITTED
        ends = await list_offsets(self._cluster, partitions, LATEST, isolation)
        spans = {partition: (first, ends[self.topic, partition]) for partition, first in self._positions.items()}

        def take(row: Row) -> None:
            if self._readings != readings:
                raise _ReadAgain
            self._on_record(LogRecord._make(row))

        logs = self._cluster.long_logs
        try:
            async with progressing(_NO_PROGRESS_S) as progressed:
                at = await logs.read(self._cluster, self.topic, spans, take, self._read_committed, progressed)
        except TimeoutError as error:
            raise RetriableError(f"{self._where}: nothing came for {_NO_PROGRESS_S:g} s") from error
        if self._readings == readings:
            self._positions |= at

    async def _hand_over(self, consumer: AIOKafkaConsumer, readings: int, waiting: Backoff) -> None:
        while self._readings == readings:
            self._consumer = consumer
            batches = await consumer.getmany(timeout_ms=_LOOK_UP_MS, max_records=_AT_ONCE)
            if self._readings != readings:
                break
            for partition, records in batches.items():
                for record in records:
                    self._on_record(log_record(partition, record))
            await self._note_positions()
            if batches:
                waiting.over()
            else:
                check_reads(consumer, self._where)
            await asyncio.sleep(0)
        raise _ReadAgain

    async def _place(self) -> None:
        partitions, metadata = await self._partitions()
        missing = [(topic, partition) for topic, partition in partitions if partition not in self._positions]
        if missing:
            begins = await list_offsets(self._cluster, missing, EARLIEST, metadata=metadata)
            self._positions |= {partition: begin for (_, partition), begin in begins.items()}

    # -- positions -----------------------------------------------------------------------------------------------------

    async def _ends(self, committed_only: bool) -> dict[int, int]:
        """Return the end of each partition, with open transactions, or before the first of them."""
        partitions, metadata = await self._partitions()
        before = dict(self._positions)
        isolation = READ_COMMITTED if committed_only else READ_UNCOMMITTED
        reported = await list_offsets(self._cluster, partitions, LATEST, isolation, metadata=metadata)
        ends = {partition: end for (_, partition), end in reported.items()}
        if any(ends.get(partition, 0) < position for partition, position in before.items()):
            self._reset_log("was truncated")
        return ends

    async def _compare_identity(self) -> None:
        while True:
            await asyncio.sleep(_IDENTITY_S)
            with suppress(HeliographError):  # the tail's own requests show what lasts
                await self._partitions()

    async def _reach(self, ends: dict[int, int]) -> None:
        readings, pauses = self._readings, Pauses(_WATCH_FIRST_S, _WATCH_LAST_S)
        while True:
            if self.failure is not None:
                raise _as_heliograph(self._where, self.failure)
            await self._note_positions()
            if self._readings != readings:
                raise _ReadAgain
            if all(self._positions.get(partition, -1) >= end for partition, end in ends.items()):
                return
            await pauses.wait()

    async def _note_positions(self) -> None:
        """Copy the consumer's positions. A position also moves past markers without a record, and past a record in the
        same step of the loop that passes the record on."""
        if (consumer := self._consumer) is not None:
            for partition in self._positions:
                self._positions[partition] = await consumer.position(TopicPartition(self.topic, partition))

    async def _partitions(self) -> tuple[list[tuple[str, int]], ClusterMetadata]:
        """Return the current partitions and their leaders, after checking that this is still the same log and that
        every partition is read."""
        metadata = await self._cluster.topics({self.topic})
        topic = metadata.topics[self.topic]
        identity, before = _Identity(topic.topic_id, len(topic.partitions)), self._identity
        self._identity = identity
        if before is not None and not before.became(identity):
            self._reset_log("was recreated")
        elif before is not None and before.partitions < identity.partitions:
            self._reopen_consumer()
        return [(self.topic, partition) for partition in range(identity.partitions)], metadata

    def _reset_log(self, why: str) -> None:
        log.warning("%s %s: reading it from the beginning", self._where, why)
        self._positions = {}
        self._reopen_consumer()
        self._on_reset()

    def _reopen_consumer(self) -> None:
        """Make the tail take another consumer, from the positions; records of the current one are dropped."""
        self._readings += 1
        self._consumer = None

    def _backoff(self, what: str = "reading") -> Backoff:
        return Backoff(log, f"{what} {self.topic}", _BACKOFF_FIRST_MS, _BACKOFF_LAST_MS)


class _ReadAgain(Exception):
    """Another consumer reads now, and the awaited position may no longer come."""


def _as_heliograph(where: str, failure: Exception) -> HeliographError:
    if isinstance(failure, HeliographError):
        return failure
    error = PermanentError(f"{where}: a record could not be applied: {failure!r}")
    error.__cause__ = failure
    return error
