"""Source offsets of connectors: read, kept until they can be stored, and stored (Kafka's ``OffsetStorageReader``,
``OffsetStorageWriter`` and ``ConnectorOffsetBackingStore``).

A connector's offsets are in the worker's offset topic, in one of its own (``offsets.storage.topic``), or in both; the
own one is primary: it is written first and wins when read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from connect.api.convert import DataError
from connect.api.source import Fields
from connect.core import status_and_offset_topics
from connect.core.errors import PermanentError, RetriableError, SecurityError
from connect.core.status_and_offset_topics import SourceOffsets
from connect.kafka.concurrency import Scope
from connect.kafka.log.compacted_topic import LogRecord, pass_over
from connect.kafka.log.producer import OutRecord

log = logging.getLogger(__name__)

#: Key bytes to value bytes; None is a tombstone.
Values = Mapping[bytes, bytes | None]
#: Writes offsets into the primary topic in a way of its own: within a task's transaction.
Write = Callable[[str, Values], Awaitable[None]]

_READ_WAIT_S: Final = 30.0


class OffsetLog(Protocol):
    """A compacted topic that is followed (:class:`connect.kafka.log.compacted_log.CompactedLog`)."""

    async def start(self, timeout_s: float, *, committed_only: bool = False) -> None: ...

    async def read_to_end(self, timeout_s: float, *, committed_only: bool = False) -> None: ...

    async def write(self, records: Iterable[OutRecord]) -> None:
        """Append; ``records`` are asked for anew at each attempt."""
        ...

    async def stop(self) -> None: ...

    async def ended(self) -> Exception | None: ...


class _Write(NamedTuple):
    """What one caller waits for; ``written`` is over as soon as nobody does."""

    records: list[OutRecord]
    written: asyncio.Future[None]


class _Together:
    """Writes that go out at once. Who gave up waiting is left out of the next attempt: somebody else may have stored
    newer offsets meanwhile."""

    def __init__(self, writes: Sequence[_Write]) -> None:
        self._writes = writes

    def __iter__(self) -> Iterator[OutRecord]:
        return (record for each in self._writes if not each.written.done() for record in each.records)


class OffsetTopic:
    """One topic of source offsets, followed and folded.

    Args:
        topic: Its name.
        open_log: Makes the log that hands each record to the first function it is given, and calls the second before it
            hands over all of them once more.
        write: How records are appended, where another client than the log's is to do that.
    """

    def __init__(
        self,
        topic: str,
        open_log: Callable[[Callable[[LogRecord], None], Callable[[], None]], OffsetLog],
        write: Callable[[Iterable[OutRecord]], Awaitable[None]] | None = None,
    ) -> None:
        self.topic = topic
        self._state = SourceOffsets()
        self._log = open_log(self._apply, self._begin_anew)
        self._append = write or self._log.write
        self._next: list[_Write] = []
        self._scope = Scope(f"offsets to {self.topic}")
        self._writing: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Read the topic and follow it from then on; what is open in it is waited for by whoever asks for offsets.

        A task that was killed may have left its transaction open, and nobody aborts that sooner than the task which is
        started in its place: it fences first and reads offsets then (Kafka's ``AbstractWorkerSourceTask``).
        """
        await self._log.start(timeout_s, committed_only=True)

    async def ended(self) -> Exception | None:
        """Wait until nothing is read any more, and return why; None after :meth:`stop`."""
        return await self._log.ended()

    async def stop(self) -> None:
        """Stop to follow; what is being written by then may be written or not, and whoever waits for it is told so."""
        await self._scope.close()
        self._settle(self._next, self._stopped())
        await self._log.stop()

    async def read_to_end(self, *, committed_only: bool = False) -> None:
        """Wait until everything that was written before the call is known; an open transaction is waited for, unless
        ``committed_only``: then it and what was written behind it are not."""
        while True:
            try:
                return await self._log.read_to_end(_READ_WAIT_S, committed_only=committed_only)
            except RetriableError as error:
                log.warning("offsets: %s; still waiting", error)

    def get(self, key: bytes) -> dict[str, Any] | None:
        """What is known of a key."""
        return self._state.offsets.get(key)

    def of_connector(self, connector: str) -> dict[bytes, tuple[dict[str, Any], dict[str, Any]]]:
        """What is known of a connector: key to source partition and offset."""
        partitions = self._state.partitions.get(connector, {})
        return {key: (partition, self._state.offsets[key]) for key, partition in partitions.items()}

    async def write(self, values: Values) -> None:
        """Append; all is acknowledged when this returns.

        What comes while something is being written goes out together after it: thousands of tasks may store their
        offsets at the same time. Who no longer waits takes nothing away from the others, and writes nothing more.
        """
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
            # One that can never be written, for its size perhaps, is in nobody's way but its own.
            middle = len(waiting) // 2
            await self._write_group(waiting[:middle])
            await self._write_group(waiting[middle:])
        else:
            self._settle(waiting, None)

    @staticmethod
    def _settle(writes: Iterable[_Write], error: Exception | None) -> None:
        for each in writes:
            if each.written.done():
                continue
            if error is None:
                each.written.set_result(None)
            else:
                each.written.set_exception(error)
                # Perhaps nobody waits any more.
                each.written.exception()

    def _stopped(self) -> RetriableError:
        return RetriableError(f"topic {self.topic} is let go of: the offsets may be written or not")

    def _begin_anew(self) -> None:
        self._state = SourceOffsets()

    def _apply(self, record: LogRecord) -> None:
        passed_over = status_and_offset_topics.apply(self._state, record.key, record.value)
        if passed_over is not None:
            pass_over(f"topic {self.topic}", record.partition, record.offset, passed_over)


class ConnectorOffsets:
    """The offsets of one connector; what a connector and its tasks see as their ``offset_reader``.

    Args:
        connector: Its name.
        primary: Where its offsets are written first and read with precedence.
        secondary: The worker's topic, where the primary is another.
        release: Called when these offsets are closed.
    """

    def __init__(
        self,
        connector: str,
        primary: OffsetTopic,
        secondary: OffsetTopic | None = None,
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._connector = connector
        self._release = release
        self._write: Write | None = None
        self._primary = primary
        self._secondary = secondary
        self._behind: dict[bytes, bytes | None] = {}
        self._scope = Scope(f"offsets of {connector}")
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def primary_topic(self) -> str:
        return self._primary.topic

    async def offset(self, partition: Fields) -> Fields | None:
        """The last stored offset of a source partition."""
        return (await self.offsets([partition]))[0]

    async def offsets(self, partitions: Sequence[Fields]) -> Sequence[Fields | None]:
        """The last stored offsets of source partitions, in their order. Raises DataError for a malformed one."""
        keys = [encoded_key(self._connector, partition) for partition in partitions]
        await self._read()
        return [self._get(key) for key in keys]

    async def all(self, *, committed_only: bool = False) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Every source partition that has an offset, and that offset; see :meth:`OffsetTopic.read_to_end`."""
        await self._read(committed_only)
        found = self._secondary.of_connector(self._connector) if self._secondary is not None else {}
        return list({**found, **self._primary.of_connector(self._connector)}.values())

    def written_by(self, write: Write) -> None:
        """From now on the primary is written so."""
        self._write = write

    async def store(self, values: Values) -> None:
        """Write offsets: tombstones to the worker's topic first, then all to the primary.

        The worker's topic gets the rest with :meth:`stored`.
        """
        removed = {key: value for key, value in values.items() if value is None}
        if self._secondary is not None and removed:
            # Else a tombstone in the primary would bring back what the secondary still has.
            await self._secondary.write(removed)
        await (self._primary.write(values) if self._write is None else self._write(self._primary.topic, values))

    def stored(self, values: Values) -> None:
        """What :meth:`store` wrote holds: the worker's topic gets it too, which is not waited for."""
        if self._secondary is None or self._scope.is_closed:
            return
        self._behind.update((key, value) for key, value in values.items() if value is not None)
        if self._behind and (self._catching_up is None or self._catching_up.done()):
            name = f"offsets of {self._connector} to {self._secondary.topic}"
            self._catching_up = self._scope.spawn(self._catch_up(self._secondary), name)

    async def close(self, timeout_s: float = 0.0) -> None:
        """Let go of the topics, after ``timeout_s`` also with offsets that the worker's topic has not got yet."""
        if self._catching_up is not None:
            await asyncio.wait({self._catching_up}, timeout=timeout_s)
        await self._scope.close()
        release, self._release = self._release, None
        if release is not None:
            await release()

    async def _catch_up(self, secondary: OffsetTopic) -> None:
        while self._behind:
            values, self._behind = self._behind, {}
            try:
                await secondary.write(values)
            except Exception as error:
                log.warning(
                    "connector %s: its offsets could not be written to the worker's topic %s as well: %s",
                    self._connector,
                    secondary.topic,
                    error,
                )

    async def _read(self, committed_only: bool = False) -> None:
        if self._secondary is not None:
            await self._secondary.read_to_end(committed_only=committed_only)
        await self._primary.read_to_end(committed_only=committed_only)

    def _get(self, key: bytes) -> dict[str, Any] | None:
        found = self._primary.get(key)
        if found is None and self._secondary is not None:
            found = self._secondary.get(key)
        return found


class PendingOffsets:
    """Offsets that are to be stored, the newest of each source partition; pure.

    A flush that fails keeps them for the next one, where newer ones have not replaced them.
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, Fields] = {}
        self._flushing: dict[bytes, Fields] | None = None

    def put(self, key: bytes, offset: Fields) -> None:
        self._waiting[key] = offset

    def begin_flush(self) -> dict[bytes, bytes | None]:
        """What is to be stored now; empty: nothing, and no flush has begun. Raises DataError for a malformed offset."""
        assert self._flushing is None
        if not self._waiting:
            return {}
        values: dict[bytes, bytes | None] = {key: encoded_offset(offset) for key, offset in self._waiting.items()}
        self._flushing, self._waiting = self._waiting, {}
        return values

    def flushed(self) -> None:
        """It is stored."""
        self._flushing = None

    def cancel_flush(self) -> None:
        """It is not, or nobody knows."""
        if self._flushing is not None:
            self._waiting = {**self._flushing, **self._waiting}
            self._flushing = None


def encoded_key(connector: str, partition: Fields) -> bytes:
    """The key of a source partition. Raises DataError for what is none."""
    _check(partition)
    return status_and_offset_topics.encode_key(connector, partition)


def encoded_offset(offset: Fields | None) -> bytes | None:
    """The value of an offset; None stays None, a tombstone. Raises DataError for what is none."""
    if offset is None:
        return None
    _check(offset)
    return status_and_offset_topics.encode_value(offset)


def _check(fields: object) -> None:
    """Kafka's ``OffsetUtils.validateFormat``."""
    if not isinstance(fields, Mapping):
        raise DataError("Offsets must be specified as a Map")
    for name, value in fields.items():
        if not isinstance(name, str):
            raise DataError("Offsets may only use String keys")
        if not isinstance(value, str | int | float | bool | None):
            raise DataError(
                f"Offsets may only contain primitive types as values, but field {name} contains {type(value).__name__}"
            )
