"""Read the data batches of one partition, fetching ahead, without control batches and, for a committed view, aborted
ones. It shares only the limit for decompressed batches with the copy, so that a fault there cannot hide itself:
requests and answers are kafka-python's, records are decoded by aiokafka's parser."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

import crc32c
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.util import decode_varint
from kafka.errors import for_code
from kafka.protocol.consumer.fetch import FetchRequest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset, list_offsets
from connect.wire.records import opened_batch
from connectors.formats.types import TopicPartition

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_EXTENT: Final = struct.Struct(">qi")
_OVERHEAD_BYTES: Final = 12
_HEADER_BYTES: Final = 61
_MAGIC_AT: Final = 16
_CRC_FROM: Final = 21
_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
#: The type in the key of a control record, behind its version.
_ABORT: Final = b"\x00\x00"

_OUT_OF_RANGE: Final = 1
_WITHOUT_IDS: Final = 12
_WAIT_MS: Final = 500
_PAUSE_S: Final = 0.2
#: Without a new offset for this time a log counts as unreadable.
_STALLED_S: Final = 60.0
_NO_ID: Final = UUID(int=0)

#: Returns records as the flow writes them, without those that it drops.
Transform = Callable[[list[Any]], Awaitable[list[Any]]]


class AnyKeyRecord(NamedTuple):
    """A record whose header keys are not UTF-8: aiokafka's parser reads all others. Same fields as its records."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LogBatch(NamedTuple):
    """One batch of magic 2, or one message of an older format, with its place in the fetched ``raw`` bytes."""

    first: int
    last: int
    records: int
    raw: bytes
    begin: int
    end: int
    magic: int
    attributes: int
    base_ms: int
    max_ms: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def is_same(source: LogBatch, target: LogBatch) -> bool:
    """Whether two batches hold the same records without a look inside: same codec, count, times and payload."""
    return (
        source.magic == target.magic == 2
        and source.records == target.records
        and source.last - source.first == target.last - target.first
        and source.attributes & _CODEC == target.attributes & _CODEC
        and source.base_ms == target.base_ms
        # A log with its own time has another latest time, and times inside a batch that no reader sees.
        and source.max_ms == target.max_ms
        and source.is_log_append_time == target.is_log_append_time
        and source.raw[source.begin + _HEADER_BYTES : source.end]
        == target.raw[target.begin + _HEADER_BYTES : target.end]
    )


def decoded(batch: LogBatch, where: str) -> list[Any]:
    """Return the records of a batch, as aiokafka's records. Raises PermanentError if they cannot be read."""
    data = batch.raw[batch.begin : batch.end]
    try:
        if batch.magic < 2:
            return list(LegacyRecordBatch(data, batch.magic))
        (crc,) = struct.unpack_from(">I", data, 17)
        if crc32c.crc32c(data[_CRC_FROM:]) != crc:
            raise ValueError("its checksum is wrong")
        opened_batch(data)  # for its limit only, because aiokafka's parser has none
        opened = DefaultRecordBatch(data)
        try:
            return list(opened)
        except Exception as error:
            # The parser in plain Python reports such a key in the error's cause.
            if not isinstance(error, UnicodeDecodeError) and not isinstance(error.__cause__, UnicodeDecodeError):
                raise
            return list(_with_any_keys(batch, bytes(opened._buffer)))
    except Exception as error:
        raise PermanentError(f"{where}: the batch at offset {batch.first} cannot be read: {error}") from error


def _with_any_keys(batch: LogBatch, opened: bytes) -> Iterator[AnyKeyRecord]:
    at, data = _HEADER_BYTES, bytearray(opened)

    def number() -> int:
        nonlocal at
        value, at = decode_varint(data, at)
        return int(value)

    def nullable() -> bytes | None:
        nonlocal at
        length = number()
        if length < 0:
            return None
        at += length
        return bytes(data[at - length : at])

    own_time = batch.is_log_append_time
    for _ in range(batch.records):
        number()
        at += 1
        time_ms, offset = batch.base_ms + number(), batch.first + number()
        key, value = nullable(), nullable()
        headers = [((nullable() or b"").decode("utf-8", "surrogateescape"), nullable()) for _ in range(number())]
        yield AnyKeyRecord(offset, batch.max_ms if own_time else time_ms, int(own_time), key, value, headers)


class ReadLimit:
    """Limits the bytes a second that one task reads; 0 is unlimited."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_s = 0.0

    async def took(self, count: int) -> None:
        if self._bytes_s <= 0:
            return
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s) + count / self._bytes_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


class LogReader:
    """The data batches of ``partition`` with an offset from ``begin`` up to ``end`` (exclusive). ``is_committed``: pass
    over aborted batches; ``end`` is then at most the last stable offset. ``fetch_bytes``: of one request; two are held
    at a time. ``topic_id``: a topic with another id is not read; empty if it is not known. ``pace``: counts what is
    read; None if it is not limited."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        begin: int,
        end: int,
        *,
        is_committed: bool,
        fetch_bytes: int,
        topic_id: str = "",
        pace: ReadLimit | None = None,
    ) -> None:
        self.where = f"cluster {cluster.name}: {partition}"
        self.begin, self.end = begin, end
        #: First offsets, and those behind the last, that were deleted while, or before, they were read.
        self.deleted: list[tuple[int, int]] = []
        self.bytes = 0
        #: Return control batches and aborted ones too.
        self.is_whole = False
        self._cluster, self._partition, self._is_committed = cluster, partition, is_committed
        self._fetch_bytes, self._pace, self._position = fetch_bytes, pace, begin
        self._leader: tuple[int, UUID | None] | None = None
        self._topic_id = UUID(topic_id) if topic_id else None
        self._batches: deque[LogBatch] = deque()
        self._scope = Scope(f"read {partition}")
        self._ahead: asyncio.Task[tuple[int, list[LogBatch]]] | None = None

    async def next(self) -> LogBatch | None:
        """Return the next data batch; None at the end. Raises RetriableError, PermanentError or SecurityError."""
        while not self._batches:
            if self._position >= self.end:
                return None
            if self._ahead is None:
                self._ahead = self._scope.spawn(self._fetched(self._position), f"fetch {self._partition}")
            self._position, found = await self._ahead
            self._batches.extend(found)
            self._ahead = None
            if self._position < self.end:
                self._ahead = self._scope.spawn(self._fetched(self._position), f"fetch {self._partition}")
        return self._batches.popleft()

    async def extend(self) -> None:
        """Read up to where the log ends now. Raises RetriableError if its leader does not say it for a minute."""
        isolation = READ_COMMITTED if self._is_committed else READ_UNCOMMITTED
        clock = asyncio.get_running_loop().time
        until_s = clock() + _STALLED_S
        while True:
            try:
                ends = await list_offsets(self._cluster, [self._partition], LATEST, isolation)
            except RetriableError as error:  # its leader moves, or has just started
                if clock() >= until_s:
                    raise self._unreadable("its end", str(error)) from error
                await asyncio.sleep(_PAUSE_S)
                continue
            self.end = max(self.end, ends[self._partition])
            return

    async def aclose(self) -> None:
        await self._scope.close()

    async def _fetched(self, position: int) -> tuple[int, list[LogBatch]]:
        """Fetch until an offset behind ``position`` is reached; return it, and the data batches before it."""
        clock = asyncio.get_running_loop().time
        until_s, why = clock() + _STALLED_S, "its leader sends nothing"
        while clock() < until_s:
            try:
                row = await self._fetch(position)
                start = -1
                if row.error_code == _OUT_OF_RANGE:
                    start = await list_offset(self._cluster, self._partition, EARLIEST)
            except RetriableError as error:
                why, self._leader = str(error), None
                await asyncio.sleep(_PAUSE_S)
                continue
            if row.error_code == _OUT_OF_RANGE:
                if start <= position:
                    raise RetriableError(f"{self.where} has lost offset {position}; run this again")
                self.deleted.append((position, start))
                return start, []
            if row.error_code:
                why, self._leader = for_code(row.error_code).__name__, None
                await asyncio.sleep(_PAUSE_S)
                continue
            if row.records:
                raw = bytes(row.records)
                following, found = self._cut(raw, position, row.aborted_transactions or ())
                self.bytes += len(raw)
                if self._pace is not None:
                    await self._pace.took(len(raw))
                if found and self.deleted and found[0].first < self.deleted[-1][1] == position:
                    # A log that begins inside a batch still has all of it.
                    first, _ = self.deleted.pop()
                    if first < found[0].first:
                        self.deleted.append((first, found[0].first))
                if following > position:
                    return following, found
        raise self._unreadable(f"offset {position}", why)

    def _unreadable(self, what: str, why: str) -> RetriableError:
        return RetriableError(
            f"{self.where}: {what} could not be read for {_STALLED_S:g} s: {why}; check that the cluster's brokers "
            "answer, then run this again"
        )

    async def _fetch(self, position: int) -> Any:
        topic, index = self._partition
        leader, topic_id = self._leader or await self._found_leader()
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=int(self._is_committed),
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    topic_id=topic_id or _NO_ID,
                    partitions=[
                        FetchRequest.FetchTopic.FetchPartition(
                            partition=index,
                            current_leader_epoch=-1,
                            fetch_offset=position,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=self._fetch_bytes,
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        connection = await self._cluster.connection(leader, "verify")
        answer = await connection.call(request, at_most=None if topic_id else _WITHOUT_IDS)
        if not answer.responses:
            raise RetriableError(f"{self.where}: {for_code(answer.error_code).__name__}")
        return answer.responses[0].partitions[0]

    async def _found_leader(self) -> tuple[int, UUID | None]:
        topic, index = self._partition
        metadata = await self._cluster.topics([topic])
        leader = metadata.leader(topic, index)
        if leader is None:
            raise RetriableError(f"{self.where} has no leader now")
        topic_id = metadata.topics[topic].topic_id
        if self._topic_id not in (None, topic_id):
            raise PermanentError(f"{self.where} was recreated since the run began; run this again")
        self._topic_id = topic_id
        self._leader = leader, topic_id
        return self._leader

    def _cut(self, raw: bytes, position: int, aborted: Any) -> tuple[int, list[LogBatch]]:
        """Return the offset behind the whole batches of ``raw``, and those with data from ``position`` to the end."""
        found: list[LogBatch] = []
        open_aborts = deque(sorted((one.first_offset, one.producer_id) for one in aborted))
        aborting: set[int] = set()
        at, following = 0, position
        while at + _MAGIC_AT < len(raw):
            first, length = _EXTENT.unpack_from(raw, at)
            begin, at = at, at + length + _OVERHEAD_BYTES
            if at > len(raw) or length <= 0:
                break
            magic = raw[begin + _MAGIC_AT]
            if magic < 2:
                # Of a compressed message the offset is the last one inside.
                batch = LogBatch(first, first, -1, raw, begin, at, magic, 0, 0, 0)
                producer = -1
            else:
                header = _HEADER.unpack_from(raw, begin)
                attributes, producer = header[5], header[9]
                batch = LogBatch(
                    first, first + header[6], header[12], raw, begin, at, magic, attributes, header[7], header[8]
                )
                while open_aborts and open_aborts[0][0] <= batch.last:
                    aborting.add(open_aborts.popleft()[1])
                if attributes & _CONTROL:
                    if is_abort(batch, self.where):
                        aborting.discard(producer)
                    if not self.is_whole:
                        following = max(following, batch.last + 1)
                        continue
            following = max(following, batch.last + 1)
            if batch.last < position or batch.first >= self.end:
                continue
            is_aborted = bool(batch.attributes & _TRANSACTIONAL) and producer in aborting
            if batch.records and (self.is_whole or not is_aborted):
                found.append(batch)
        return following, found


def is_abort(batch: LogBatch, where: str) -> bool:
    """Whether a control batch ends a transaction that was aborted."""
    return any(record.key is not None and record.key[2:4] == _ABORT for record in decoded(batch, where))


class Cursor:
    """A log's records, batch by batch; ``records`` from ``at`` are decoded and not compared yet."""

    def __init__(self, reader: LogReader, transform: Transform | None = None) -> None:
        self.reader = reader
        self.records: list[Any] = []
        self.at = 0
        #: The next batch, if none of it is decoded.
        self.batch: LogBatch | None = None
        #: Source offset behind everything taken.
        self.position = reader.begin
        self.filtered = 0
        #: Of all batches taken or decoded.
        self.bytes = 0
        self._transform = transform
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to decode."""
        return self._is_over and self.batch is None

    @property
    def is_between_batches(self) -> bool:
        return self.at == len(self.records)

    async def peek(self) -> LogBatch | None:
        """Return the next batch without decoding it, if it is wholly in the range and no transform needs it."""
        if self.batch is None and not self._is_over:
            self.batch = await self.reader.next()
            self._is_over = self.batch is None
        batch = self.batch
        if batch is None or self._transform is not None:
            return None
        return batch if batch.first >= self.reader.begin and batch.last < self.reader.end else None

    def pass_over(self) -> None:
        assert self.batch is not None
        self.position = self.batch.last + 1
        self.bytes += self.batch.bytes
        self.batch = None

    async def fill(self) -> bool:
        """Decode until there is a record; return whether there is one."""
        while self.is_between_batches:
            if not await self._decode_next():
                return False
        return True

    async def window(self, count: int, most_bytes: int) -> list[Any]:
        """Return up to ``count`` records, fewer if batches of ``most_bytes`` hold fewer, or at the end."""
        limit = self.bytes + most_bytes
        while len(self.records) - self.at < count and self.bytes < limit and await self._decode_next():
            pass
        return self.records[self.at : self.at + count]

    def take(self, count: int) -> None:
        if count:
            self.at += count
            self.position = self.records[self.at - 1].offset + 1

    def take_all(self) -> list[Any]:
        """Take and return the records that are decoded."""
        records = self.records[self.at :]
        self.take(len(records))
        return records

    async def _decode_next(self) -> bool:
        await self.peek()
        batch, self.batch = self.batch, None
        if batch is None:
            return False
        self.bytes += batch.bytes
        begin, end = self.reader.begin, self.reader.end
        found = decoded(batch, self.reader.where)
        if batch.first < begin or batch.last >= end or batch.magic < 2:
            found = [one for one in found if begin <= one.offset < end]
        if self._transform is not None:
            before = len(found)
            found = await self._transform(found)
            self.filtered += before - len(found)
        self.records = found if self.is_between_batches else self.records[self.at :] + found
        self.at = 0
        return True
