"""The control link carries versioned JSON messages over TCP between a worker, which listens, and its slices.

Messages: the dataclasses here define the content, :class:`Wired` the format. The worker refuses a slice of
another version, so fields may change with ``LINK_VERSION``.

Frames: a message is sent as one or more frames of bounded size, so that no message is too long for the link. Senders
split lists of partitions into messages with :func:`pieces`, so that one message keeps neither loop busy for long.

Secrets: a slice authenticates with a token and gets its configuration here, secrets included, so that plans, closures
and Spark event logs hold no secret. Off loopback the link uses TLS, and the slice knows the worker's certificate from
the job's payload before it sends the token.

Warnings: a slice sends its warnings over the link into the worker's log, because operators do not read the output of
executors and need to know of a lost broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Self, TypeVar
from uuid import UUID

import orjson

from connect.core.errors import RetriableError
from connect.kafka.error_causes import cause_of
from connectors.formats import types
from connectors.formats.gap import Gap

LINK_VERSION: Final = 16

#: The default of Java's consumer (``max.partition.fetch.bytes``).
_LEAST_PARTITION_BYTES: Final = 1024 * 1024
#: Enough to keep a near broker busy.
_MOST_FETCH_BYTES: Final = 8 * 1024 * 1024
#: Enough to keep a broker busy over a round trip of 100 ms.
_MOST_HELD_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartitionPlan(types.Wired):
    """One partition pair of a slice, and where to continue.

    ``next_source_offset`` is the offset of the next source record, ``last_source_epoch`` the leader epoch of the
    batch before it (-1 unknown), ``target_end`` the offset after the last record known to be ours.
    ``pipelined``: whether the target's leader already knows the producer id here, by an acknowledged batch or
    the marker of a fence: only then may several batches be in flight. ``max_message_bytes`` is the target topic's.
    ``producer`` writes the partition, if it is not the slice's.
    """

    source: types.TopicPartition
    source_topic_id: UUID | None
    target: types.TopicPartition
    target_topic_id: UUID | None
    next_source_offset: int
    last_source_epoch: int
    target_end: int
    next_sequence: int
    pipelined: bool
    max_message_bytes: int = types.DEFAULT_MAX_MESSAGE_BYTES
    proof: types.ResumeProof | None = None
    producer: types.ProducerIdAndEpoch | None = None
    ways: types.Ways = types.ONE_WAY


@dataclass(frozen=True, slots=True)
class SliceSettings(types.Wired):
    """How a slice copies; bytes and milliseconds. ``flow`` and the aliases are for messages. ``source``/``target`` are
    ConnectionSettings in wire format, secrets included: they are sent over the control link only. ``rack``: the
    preferred one to read from. ``skip_refused``: skip records that the target refuses permanently. ``compression``: for
    batches that are not compressed at the source. ``transform_sql`` (empty for none), then ``chain`` (a ChainPlan in
    wire format, secrets included), transform the records. ``by_key``: whether the slice copies by key; then ``handler``
    (a HandlerPlan's fields), if any, chooses the targets of records."""

    flow: str
    task: int
    source: dict[str, Any] = field(repr=False)
    target: dict[str, Any] = field(repr=False)
    read_committed: bool = False
    lease_ms: int = 5000
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int | None = None
    buffer_bytes: int = 48 * 1024 * 1024
    batch_bytes: int = types.DEFAULT_BATCH_BYTES
    in_flight_requests: int = 64
    in_flight_bytes: int = 16 * 1024 * 1024
    progress_interval_ms: int = 100
    rack: str = ""
    skip_refused: bool = False
    compression: types.Compression = types.NO_COMPRESSION
    transform_sql: str = ""
    chain: dict[str, Any] | None = field(default=None, repr=False)
    by_key: bool = False
    handler: dict[str, Any] | None = field(default=None, repr=False)
    source_alias: str = ""
    target_alias: str = ""

    def partition_held_bytes(self, partitions: int) -> int:
        """Return the buffered bytes up to which a partition is fetched again, if the slice copies ``partitions``. All
        partitions together hold half of ``buffer_bytes``, so that slow ones leave room for the others. With few
        partitions this is more than one fetch each, so that none waits for its next one."""
        if self.partition_max_bytes is not None:
            return 2 * self.partition_max_bytes
        share = self.buffer_bytes // 2 // max(partitions, 1)
        return min(max(share, _LEAST_PARTITION_BYTES), _MOST_HELD_BYTES)

    def partition_fetch_bytes(self, partitions: int, *, is_far: bool = False) -> int:
        """Return how many bytes one fetch of a partition may return, if the slice copies ``partitions``."""
        if self.partition_max_bytes is not None:
            return self.partition_max_bytes
        return min(self.partition_held_bytes(partitions), _MOST_HELD_BYTES if is_far else _MOST_FETCH_BYTES)


@dataclass(frozen=True, slots=True)
class TransactionTerms(types.Wired):
    """How a slice fills transactions. ``version`` is the target's finalised ``transaction.version``. A transaction ends
    once all that was read is acknowledged, but not within ``spacing_ms`` of the previous one; or once it has lasted
    ``length_ms``."""

    transactional_id: str
    version: int
    spacing_ms: int
    length_ms: int

    @property
    def adds_implicitly(self) -> bool:
        """Whether Produce adds partitions to the transaction (KIP-890); else the slice asks the worker to do so."""
        return self.version >= _IMPLICIT_FROM


_IMPLICIT_FROM: Final = 2


@dataclass(slots=True)
class PartitionProgress:
    """What a slice did to one partition since its last report, and its position now.

    ``runs`` (upstream, downstream, count), ``skips`` and ``batches``, counted by reason, are those since the last
    report; positions are those of acknowledged batches only. ``state`` is ``RUNNING``, ``STOPPED`` or ``QUARANTINED``,
    the latter two with a ``reason`` for operators, and with ``gap`` if a log was truncated, recreated or deleted.
    """

    source: types.TopicPartition
    next_source_offset: int
    last_source_epoch: int
    target_end: int
    next_sequence: int
    high_watermark: int
    log_start_offset: int
    timestamp_ms: int
    records: int
    bytes: int
    batches: dict[str, int]
    runs: list[types.Run] = field(default_factory=list)
    skips: list[types.Skip] = field(default_factory=list)
    dropped: int = 0
    changed: int = 0
    state: str = types.RUNNING
    reason: str = ""
    error: str = ""
    gap: Gap | None = None

    def to_wire(self) -> list[Any]:
        gap = self.gap.to_wire() if self.gap else None
        return [gap, list(self.source), *_progress_of(self)]

    @classmethod
    def from_wire(cls, data: list[Any]) -> Self:
        gap, source, *values = data  # by index, because a worker gets thousands a second
        one = cls(types.TopicPartition(*source), *values)
        one.runs = [(upstream, downstream, count) for upstream, downstream, count in one.runs]
        one.skips = [(first, last, code) for first, last, code in one.skips]
        one.gap = Gap.from_wire(gap) if gap else None
        return one


_progress_of: Final = attrgetter(*(one.name for one in fields(PartitionProgress) if one.name not in ("source", "gap")))


_LENGTH: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 1024 * 1024
#: A bit in a frame's length: the message continues in the next frame.
_CONTINUES: Final = 1 << 31
_OPEN_TIMEOUT_S: Final = 10.0
#: The most list entries in one message.
MAX_ENTRIES: Final = 500

Message = dict[str, Any]
T = TypeVar("T")


class LinkClosed(RetriableError):
    """The other side closed the control link, or was lost."""


class LinkUnreachable(LinkClosed):
    """No worker answers at its address, or another server does."""


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where a worker listens. ``certificate``: the PEM of the only certificate to trust there; empty for plain TCP."""

    host: str
    port: int
    certificate: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Link:
    """One side of an open link; messages are dicts with a ``type``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: LinkAddress, hello: Message) -> Self:
        """Connect as a slice and send ``hello``. Raises :class:`LinkUnreachable` if no worker answers."""
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                reader, writer = await _open(address)
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {_OPEN_TIMEOUT_S:.0f} s"
            raise LinkUnreachable(f"no worker answers on the control link {address}: {reason}") from error
        link = cls(reader, writer)
        link.send({"type": "hello", "version": LINK_VERSION, **hello})
        return link

    @property
    def peer(self) -> str:
        """Host and port of the other side."""
        name = self._writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "an address unknown"

    def send(self, message: Message) -> None:
        """Queue a message; a closed link drops it, because :meth:`receive` reports the end."""
        if not self._writer.is_closing():
            data = memoryview(orjson.dumps(message))
            while len(data) > MAX_FRAME_BYTES:
                self._writer.writelines((_LENGTH.pack(_CONTINUES | MAX_FRAME_BYTES), data[:MAX_FRAME_BYTES]))
                data = data[MAX_FRAME_BYTES:]
            self._writer.writelines((_LENGTH.pack(len(data)), data))

    async def receive(self, max_bytes: int | None = None) -> Message:
        """Return the next message. ``max_bytes`` limits a peer that is not authenticated yet. Raises
        :class:`LinkClosed` at the end of the link, and if a frame or a message is too long."""
        data = bytearray()
        try:
            continues = True
            while continues:
                (head,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                continues, length = bool(head & _CONTINUES), head & ~_CONTINUES
                if length > MAX_FRAME_BYTES or (max_bytes is not None and len(data) + length > max_bytes):
                    raise LinkClosed(f"a frame of {length} bytes on the control link is over the limit")
                data += await self._reader.readexactly(length)
            message = orjson.loads(data)
            if not isinstance(message, dict):
                raise LinkClosed("a frame on the control link is not a message")
            return message
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            raise LinkClosed("the other side closed the control link") from error
        except orjson.JSONDecodeError as error:
            raise LinkClosed(f"a frame on the control link is not JSON: {error}") from error

    async def close(self) -> None:
        """Flush and close."""
        self.end()
        with contextlib.suppress(ConnectionError, OSError):
            await self._writer.wait_closed()

    def end(self) -> None:
        """Close once all messages are sent, without waiting for that."""
        self._writer.close()

    def abort(self) -> None:
        """Close at once; messages that are not sent yet are lost."""
        self._writer.transport.abort()


def pieces(entries: Iterable[T]) -> Iterator[list[T]]:
    """Split ``entries`` into lists for one message each, of at most :data:`MAX_ENTRIES`; none without entries."""
    left = iter(entries)
    while piece := list(islice(left, MAX_ENTRIES)):
        yield piece


async def _open(address: LinkAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not address.certificate:
        return await asyncio.open_connection(address.host, address.port)
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=_trusting(address.certificate), server_hostname=address.host
    )
    # Because the trust store alone would also accept certificates that this one has signed.
    presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if presented != ssl.PEM_cert_to_DER_cert(address.certificate):
        writer.transport.abort()
        raise ssl.SSLCertVerificationError("the server there has another certificate than the worker")
    return reader, writer


def _trusting(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts one certificate, with any host name or address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


#: Interval of warnings of one kind, because each partition may repeat it several times a second.
EVERY_S: Final = 5.0
_LOGGERS: Final = ("connect", "connectors")


class LogForwarder(logging.Handler):
    """Passes warnings and errors to ``report`` as messages of the link; only for the thread of the slice's loop. Of
    each kind (one log statement, with any arguments) it sends one every ``every_s``, with the number of the others."""

    def __init__(
        self,
        report: Callable[[dict[str, Any]], None],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._every_s = every_s
        self._clock = clock
        self._reported_s: dict[str, float] = {}
        self._unreported: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind, now_s = str(record.msg), self._clock()
        if kind in self._reported_s and now_s - self._reported_s[kind] < self._every_s:
            self._unreported[kind] = self._unreported.get(kind, 0) + 1
            return
        self._reported_s[kind] = now_s
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {type(error).__name__}: {error}"
        if unreported := self._unreported.pop(kind, 0):
            text += f" (and {unreported} more like it)"
        cause = cause_of(record)
        reported = None if cause is None else [cause.text, sorted(cause.addresses)]
        self._report({"type": "log", "level": record.levelno, "text": text, "cause": reported})


@contextmanager
def forwarding_logs(report: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Within the context, send warnings of our modules with ``report``."""
    forwarder = LogForwarder(report)
    with contextlib.ExitStack() as stack:
        for logger in map(logging.getLogger, _LOGGERS):
            logger.addHandler(forwarder)
            stack.callback(logger.removeHandler, forwarder)
        yield
