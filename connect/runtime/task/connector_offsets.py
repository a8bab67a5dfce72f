"""Reads, buffers and stores source offsets of connectors (Kafka's ``OffsetStorageReader``, ``OffsetStorageWriter`` and
``ConnectorOffsetBackingStore``).

A connector's offsets are in the worker's offset topic, in a topic of its own (``offsets.storage.topic``), or in both.
Its own topic is primary: it is written first and takes precedence when read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from connect.api.convert import DataError
from connect.api.source import Fields
from connect.core import status_and_offset_topics
from connect.core.errors import PermanentError, RetriableError, SecurityError
from connect.core.status_and_offset_topics import SourceOffsets
from connect.kafka.concurrency import Scope, settle
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import LogRecord, NewestByKey, pass_over
from connect.kafka.log.producer import OutRecord

log = logging.getLogger(__name__)

#: Key bytes to value bytes; None is a tombstone.
Values = Mapping[bytes, bytes | None]
#: Writes offsets into the primary topic within a task's transaction.
Write = Callable[[str, Values], Awaitable[None]]

_READ_WAIT_S: Final = 30.0


class _Write(NamedTuple):
    """One caller's write; ``written`` is done as soon as the caller stops waiting."""

    records: list[OutRecord]
    written: asyncio.Future[None]


class _Together:
    """Writes sent together. A retry skips writes whose caller stopped waiting: newer offsets may be stored by then."""

    def __init__(self, writes: Sequence[_Write]) -> None:
        self._writes = writes

    def __iter__(self) -> Iterator[OutRecord]:
        return (record for each in self._writes if not each.written.done() for record in each.records)


class OffsetTopic:
    """One topic of source offsets and its current content. ``topic``: the topic's name. ``open_log``: creates the log.
    It passes each record to the first function, and calls the second one before it passes all records again. ``write``:
    appends records; by default the log does."""

    def __init__(
        self,
        topic: str,
        open_log: Callable[[Callable[[LogRecord], None], Callable[[], None]], CompactedLog],
        write: Callable[[Iterable[OutRecord]], Awaitable[None]] | None = None,
    ) -> None:
        self.topic = topic
        self._state, self._newest = SourceOffsets(), NewestByKey()
        self.followed = open_log(self._apply, self._reset_log)
        self._append = write or self.followed.write
        self._next: list[_Write] = []
        self._scope = Scope(f"offsets to {self.topic}")
        self._writing: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Read the topic and follow it; reads of offsets wait for its open transactions. A killed task may have left
        its transaction open. The task that replaces it aborts that soonest: it fences first and reads offsets then
        (Kafka's ``AbstractWorkerSourceTask``)."""
        await self.followed.start(timeout_s, committed_only=True)

    async def stop(self) -> None:
        """Stop following; pending writes may or may not be written, and fail with an error that says so."""
        await self._scope.close()
        self._settle(self._next, self._stopped())
        await self.followed.stop()

    async def read_to_end(self, *, committed_only: bool = False) -> None:
        """Wait until everything written before the call is read. With ``committed_only`` do not wait for an open
        transaction, and skip it and what was written after it."""
        while True:
            try:
                return await self.followed.read_to_end(_READ_WAIT_S, committed_only=committed_only)
            except RetriableError as error:
                log.warning("offsets: %s; still waiting", error)

    def get(self, key: bytes) -> dict[str, Any] | None:
        return self._state.offsets.get(key)

    def of_connector(self, connector: str) -> dict[bytes, tuple[dict[str, Any], dict[str, Any]]]:
        """Return a connector's offsets: key to source partition and offset."""
        partitions = self._state.partitions.get(connector, {})
        return {key: (partition, self._state.offsets[key]) for key, partition in partitions.items()}

    async def write(self, values: Values) -> None:
        """Append, and return when all is acknowledged. Writes that come during a write go out together after it,
        because thousands of tasks may store offsets at the same time. A caller that stops waiting does not affect the
        others, and its offsets are not written."""
        if self._scope.is_closed:
            raise self._stopped()
        records = [OutRecord(self.topic, key, value) for key, value in values.items()]
        one = _Write(records, asyncio.get_running_loop().create_future())
        self._next.append(one)
        if self._writing is None or self._writing.done():
            self._writing = self._scope.spawn(self._write_groups(), f"offsets to {self.topic}")
        await one.written

    async def _write_groups(self) -> None:
        while self._next:
            group, self._next = self._next, []
            try:
                await self._write_group(group)
            finally:
                self._settle(group, self._stopped())

    async def _write_group(self, group: Sequence[_Write]) -> None:
        waiting = [each for each in group if not each.written.done()]
        if not waiting:
            return
        try:
            await self._append(_Together(waiting))
        except Exception as error:
            if len(waiting) == 1 or isinstance(error, SecurityError) or not isinstance(error, PermanentError):
                self._settle(waiting, error)
                return
            # One write may never succeed, perhaps because of its size: it must not prevent the others.
            middle = len(waiting) // 2
            await self._write_group(waiting[:middle])
            await self._write_group(waiting[middle:])
        else:
            self._settle(waiting, None)

    @staticmethod
    def _settle(writes: Iterable[_Write], error: Exception | None) -> None:
        for each in writes:
            settle(each.written, None, error)
            if not each.written.cancelled():
                each.written.exception()  # marks it as retrieved, in case nothing awaits it

    def _stopped(self) -> RetriableError:
        return RetriableError(f"topic {self.topic} was closed: the offsets may or may not have been written")

    def _reset_log(self) -> None:
        self._state, self._newest = SourceOffsets(), NewestByKey()

    def _apply(self, record: LogRecord) -> None:
        if not self._newest.counts(record):
            return
        passed_over = status_and_offset_topics.apply(self._state, record.key, record.value)
        if passed_over is not None:
            pass_over(f"topic {self.topic}", record.partition, record.offset, passed_over)


@dataclass(eq=False)
class ConnectorOffsets:
    """The offsets of one connector; the ``offset_reader`` of the connector and its tasks. ``primary``: the topic that
    is written first and takes precedence when read. ``secondary``: the worker's topic, if the primary is another one.
    ``release``: called when these offsets are closed."""

    connector: str
    primary: OffsetTopic
    secondary: OffsetTopic | None = None
    release: Callable[[], Awaitable[None]] | None = None
    _write: Write | None = field(default=None, init=False)
    _behind: dict[bytes, bytes | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._scope = Scope(f"offsets of {self.connector}")
        self._catching_up: asyncio.Task[None] | None = None

    async def offset(self, partition: Fields) -> Fields | None:
        return (await self.offsets([partition]))[0]

    async def offsets(self, partitions: Sequence[Fields]) -> Sequence[Fields | None]:
        """Return the last stored offsets of source partitions, in order. Raises DataError for a malformed one."""
        keys = [encoded_key(self.connector, partition) for partition in partitions]
        await self._read()
        return [self._get(key) for key in keys]

    async def all(self, *, committed_only: bool = False) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return every source partition with its offset; see :meth:`OffsetTopic.read_to_end`."""
        await self._read(committed_only)
        found = self.secondary.of_connector(self.connector) if self.secondary is not None else {}
        return list({**found, **self.primary.of_connector(self.connector)}.values())

    def written_by(self, write: Write) -> None:
        """Use ``write`` for the primary topic from now on."""
        self._write = write

    async def store(self, values: Values) -> None:
        """Write offsets: tombstones to the worker's topic first, then all to the primary. The worker's topic gets the
        rest with :meth:`stored`."""
        removed = {key: value for key, value in values.items() if value is None}
        if self.secondary is not None and removed:
            # Otherwise, after a tombstone in the primary, reads would return the secondary's old offset.
            await self.secondary.write(removed)
        await (self.primary.write(values) if self._write is None else self._write(self.primary.topic, values))

    def stored(self, values: Values) -> None:
        """Queue offsets that :meth:`store` wrote for the worker's topic too, without waiting."""
        if self.secondary is None or self._scope.is_closed:
            return
        self._behind.update((key, value) for key, value in values.items() if value is not None)
        if self._behind and (self._catching_up is None or self._catching_up.done()):
            name = f"offsets of {self.connector} to {self.secondary.topic}"
            self._catching_up = self._scope.spawn(self._catch_up(self.secondary), name)

    async def close(self, timeout_s: float = 0.0) -> None:
        """Close the topics; wait up to ``timeout_s`` for offsets queued for the worker's topic."""
        if self._catching_up is not None:
            await asyncio.wait({self._catching_up}, timeout=timeout_s)
        await self._scope.close()
        release, self.release = self.release, None
        if release is not None:
            await release()

    async def _catch_up(self, secondary: OffsetTopic) -> None:
        while self._behind:
            values, self._behind = self._behind, {}
            try:
                await secondary.write(values)
            except Exception as error:
                log.warning(
                    "connector %s: its offsets could not be copied to the worker's topic %s: %s",
                    self.connector,
                    secondary.topic,
                    error,
                )

    async def _read(self, committed_only: bool = False) -> None:
        if self.secondary is not None:
            await self.secondary.read_to_end(committed_only=committed_only)
        await self.primary.read_to_end(committed_only=committed_only)

    def _get(self, key: bytes) -> dict[str, Any] | None:
        found = self.primary.get(key)
        if found is None and self.secondary is not None:
            found = self.secondary.get(key)
        return found


class PendingOffsets:
    """Offsets to store, the newest of each source partition. A failed flush keeps its offsets for the next one, unless
    newer ones have replaced them."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Fields] = {}
        self._flushing: dict[bytes, Fields] | None = None

    def put(self, key: bytes, offset: Fields) -> None:
        self._waiting[key] = offset

    def begin_flush(self) -> dict[bytes, bytes | None]:
        """Return the offsets to store; if empty, no flush begins. Raises DataError for a malformed offset."""
        assert self._flushing is None
        if not self._waiting:
            return {}
        values: dict[bytes, bytes | None] = {key: encoded_offset(offset) for key, offset in self._waiting.items()}
        self._flushing, self._waiting = self._waiting, {}
        return values

    def flushed(self) -> None:
        self._flushing = None

    def cancel_flush(self) -> None:
        """Note that the flush failed or its outcome is unknown."""
        if self._flushing is not None:
            self._waiting = {**self._flushing, **self._waiting}
            self._flushing = None


def encoded_key(connector: str, partition: Fields) -> bytes:
    """Return the key of a source partition. Raises DataError if it is malformed."""
    _check(partition)
    return status_and_offset_topics.encode_key(connector, partition)


def encoded_offset(offset: Fields | None) -> bytes | None:
    """Return the value of an offset; None stays None, a tombstone. Raises DataError if it is malformed."""
    if offset is None:
        return None
    _check(offset)
    return status_and_offset_topics.encode_value(offset)


def _check(fields: object) -> None:
    """Check the format as Kafka's ``OffsetUtils.validateFormat``."""
    if not isinstance(fields, Mapping):
        raise DataError("Offsets must be specified as a Map")
    for name, value in fields.items():
        if not isinstance(name, str):
            raise DataError("Offsets may only use String keys")
        if not isinstance(value, str | int | float | bool | None):
            raise DataError(
                f"Offsets may only contain primitive types as values, but field {name} contains {type(value).__name__}"
            )
