"""Records inside a batch, through aiokafka's record classes: for the few batches that must be opened."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatch

from connect.wire import batch as wire
from connect.wire import old_lz4, opening, plain_records
from connect.wire.batch import NO_TIMESTAMP as NO_TIMESTAMP
from connect.wire.header_keys import is_text
from connect.wire.plain_records import Headers

_UNLIMITED: Final = 2**31 - 1
_LENGTH: Final = struct.Struct(">i")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMPS: Final = struct.Struct(">qq")  # base and max
_CRC: Final = struct.Struct(">I")


class Record(NamedTuple):
    """One record with its offset and timestamp (ms) as a consumer of the log sees them.

    A header's key that is no UTF-8 holds lone surrogates: see :mod:`connect.wire.header_keys`.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


#: Kafka's default levels: gzip's own (6), 9 for lz4 and 3 for zstd; snappy has none (KIP-390).
_ENCODERS: Final[dict[int, Callable[[bytes, int | None], bytes]]] = {
    1: lambda payload, level: gzip_encode(payload, 6 if level in (None, -1) else level),
    2: lambda payload, level: snappy_encode(payload),
    3: lambda payload, level: lz4_encode(payload, 9 if level is None else level),
    4: lambda payload, level: zstd_encode(payload, 3 if level is None else level),
}


def compress(payload: bytes, codec: int, level: int | None = None) -> bytes:
    """The records of a batch under ``codec``; ``level`` None is Kafka's default."""
    return _ENCODERS[codec](payload, level)


def decode(batch: wire.Buffer, magic: int) -> Iterator[Record]:
    """The records of one batch, or of a run of messages of magic 0 and 1, with absolute offsets.

    With LogAppendTime every record carries the batch's max timestamp, as consumers see it. Raises
    :class:`connect.wire.opening.TooLarge` before more is opened than a batch may hold.
    """
    if magic >= 2:
        yield from _decode(opening.opened_batch(bytes(batch)))
        return
    for message in _old_messages(batch):
        yield from map(_record, message)


def _decode(batch: bytes) -> Iterator[Record]:
    given = 0
    try:
        for record in DefaultRecordBatch(batch):
            yield _record(record)
            given += 1
    except (UnicodeDecodeError, CorruptRecordException) as error:
        if not is_of_a_key(error):
            raise
        yield from map(Record._make, islice(plain_records.read(batch), given, None))


def is_of_a_key(error: Exception) -> bool:
    """Whether aiokafka could not read a record for a header's key that is no UTF-8. Its reader in plain Python, in use
    where the built one is missing, tells so in the error's cause."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


def _record(record: Any) -> Record:
    timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
    return Record(record.offset, timestamp, record.key, record.value, list(record.headers))


def _old_messages(messages: wire.Buffer) -> Iterator[LegacyRecordBatch]:
    for start, size, magic in wire.extents(messages):
        message = bytes(messages[start : start + size])
        inside = old_lz4.messages_inside(message, magic)
        if magic == 0 and old_lz4.codec_of(message) == old_lz4.LZ4:
            yield from _old_messages(inside)
        else:  # which opens it again, since it knows the offsets and the times of what is inside
            yield LegacyRecordBatch(message, magic)


def build(
    records: Sequence[Record],
    codec: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    level: int | None = None,
) -> bytearray:
    """A magic 2 CreateTime batch of ``records`` with base offset 0 and dense offset deltas.

    ``codec`` by its number in a batch's attributes; ``level`` is how hard it tries, None for Kafka's default.

    Gaps between the records' own offsets are not kept: a broker refuses them in a produced batch.
    """
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, producer_epoch, base_sequence, _UNLIMITED)
    # The builder takes a first timestamp of -1 for none, and counts the others from the first that is not -1.
    shift_ms = 1 if records[0].timestamp_ms == NO_TIMESTAMP else 0
    is_plain = all(is_text(key) for record in records for key, _ in record.headers)
    for delta, record in enumerate(records):
        headers = record.headers if is_plain else []
        builder.append(delta, record.timestamp_ms + shift_ms, record.key, record.value, headers)
    built: bytearray = builder.build()
    if not is_plain:
        built[wire.HEADER_BYTES :] = plain_records.payload(records)
    if shift_ms:
        base_ms, max_ms = _TIMESTAMPS.unpack_from(built, 27)
        _TIMESTAMPS.pack_into(built, 27, base_ms - shift_ms, max_ms - shift_ms)
    if codec:
        built[wire.HEADER_BYTES :] = compress(bytes(built[wire.HEADER_BYTES :]), codec, level)
        _ATTRIBUTES.pack_into(built, 21, codec)
    if codec or not is_plain:
        _LENGTH.pack_into(built, 8, len(built) - wire.LOG_OVERHEAD_BYTES)
    if shift_ms or codec or not is_plain:
        _CRC.pack_into(built, 17, wire.checksum(built))
    return built
