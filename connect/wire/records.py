"""Reads and writes the records inside a batch, for the few batches that must be opened.

* aiokafka's record classes read most batches.
* Batches of magic 2 with header keys that are not UTF-8 are read and written in plain Python, because aiokafka's record
  classes fail on them. Layout: Kafka's ``DefaultRecord``.
* In compressed messages of magic 0, Kafka until 0.10 computed the header checksum of lz4 frames over the frame's magic
  number too (KAFKA-3160). Kafka does not check it, but libraries do, so it is corrected first.
* Decompression is limited, so that a batch that expands a thousandfold does not exhaust memory.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import cramjam
import zstandard
from aiokafka.codec import lz4_encode, snappy_encode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.util import decode_varint, encode_varint

from connect.wire import batch as wire
from connect.wire.batch import NO_TIMESTAMP, bytes_of, is_text, key_of

_NONE, _GZIP, SNAPPY, _LZ4, ZSTD = range(5)
_INTO: Final = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
#: Limit for one batch, or eight times its payload if that is more. Java's producer sizes a batch by how well earlier
#: records compressed, so 1 MiB seldom holds more than 100 MiB of records.
MOST_BYTES: Final = 128 * 1024 * 1024
#: Records seldom compress better than by this factor; if they do, they are decompressed again with that much more room.
_TIMES: Final = 8
_LEAST_BYTES: Final = 4096
#: Java's producer writes this before blocks of raw snappy; each block follows its size.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_BYTES: Final = 16
#: The byte of the header that holds the codec.
_ATTRIBUTES_AT: Final = 22
_SIZE: Final = struct.Struct(">i")


class TooLarge(ValueError):
    """A payload that exceeds its limit or is damaged; the libraries do not distinguish the two."""


def open_payload(payload: bytes, codec: int, most_bytes: int | None = None) -> bytes:
    """Decompress the ``payload`` of a batch, to at most ``most_bytes``, by default as :data:`MOST_BYTES` says. Raises
    TooLarge if the records exceed that or cannot be read."""
    if most_bytes is None:
        most_bytes = max(MOST_BYTES, _TIMES * len(payload))
    room = max(_TIMES * len(payload), _LEAST_BYTES)
    while room < most_bytes:
        try:
            return _opened(payload, codec, room)
        except TooLarge:
            room *= _TIMES
    return _opened(payload, codec, most_bytes)


def opened_batch(batch: bytes) -> bytes:
    """Return a batch of magic 2 with uncompressed records; in its header only the codec changes. Raises TooLarge."""
    attributes = batch[_ATTRIBUTES_AT]
    if not attributes & wire.CODEC_MASK:
        return batch
    header = bytearray(batch[: wire.HEADER_BYTES])
    header[_ATTRIBUTES_AT] = attributes & ~wire.CODEC_MASK
    return b"".join((header, open_payload(batch[wire.HEADER_BYTES :], attributes & wire.CODEC_MASK)))


def _opened(payload: bytes, codec: int, room: int) -> bytes:
    try:
        if codec == SNAPPY:
            return _snappy(payload, room)
        out = bytearray(max(room, 0))
        return bytes(memoryview(out)[: _INTO[codec](payload, out)])
    except cramjam.DecompressionError as error:
        raise TooLarge(f"a payload is damaged or exceeds {room} bytes: {error}") from error


def _snappy(payload: bytes, most_bytes: int) -> bytes:
    blocks = list(_blocks(payload)) if payload.startswith(_XERIAL) else [payload]
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > most_bytes:
        raise TooLarge(f"a payload exceeds {most_bytes} bytes")
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _blocks(payload: bytes) -> Iterator[bytes]:
    at = _XERIAL_BYTES
    while at + _SIZE.size <= len(payload):
        end = at + _SIZE.size + _SIZE.unpack_from(payload, at)[0]
        if not at + _SIZE.size <= end <= len(payload):
            raise TooLarge("a snappy block is truncated, or its length is wrong")
        yield payload[at + _SIZE.size : end]
        at = end


Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record with its offset and timestamp (ms) as a consumer of the log sees them. A header key that is not UTF-8
    holds lone surrogates: see :mod:`connect.wire.batch`."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def read(batch: bytes) -> Iterator[Record]:
    """Yield the records of an opened batch of magic 2, with any header keys. Raises CorruptRecordException."""
    header = wire.read_header(batch)
    reader = _RecordReader(batch[wire.HEADER_BYTES :])
    for _ in range(header.record_count):
        end = reader.varint() + reader.position
        reader.position += 1  # the attributes, which are unused
        time_ms = header.base_timestamp + reader.varint()
        offset = header.base_offset + reader.varint()
        key, value = reader.nullable(), reader.nullable()
        headers = [(key_of(reader.nullable() or b""), reader.nullable()) for _ in range(reader.varint())]
        if reader.position != end:
            raise CorruptRecordException(f"the record at offset {offset} does not match its length")
        yield Record(offset, header.max_timestamp if header.is_log_append_time else time_ms, key, value, headers)


class _RecordReader:
    def __init__(self, payload: bytes) -> None:
        self._payload = bytearray(payload)
        self.position = 0

    def varint(self) -> int:
        try:
            value, self.position = decode_varint(self._payload, self.position)
        except (IndexError, ValueError) as error:
            raise CorruptRecordException(f"the number at byte {self.position} of the records is invalid") from error
        return int(value)

    def nullable(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        start, self.position = self.position, self.position + length
        if self.position > len(self._payload):
            raise CorruptRecordException(f"the records are truncated within the {length} bytes from byte {start}")
        return bytes(self._payload[start : self.position])


def payload(records: Iterable[Record]) -> bytes:
    """Return the uncompressed records section of a batch, with dense offset deltas; the first record has the base
    timestamp. Raises UnicodeEncodeError for a header key with surrogates that represent no byte."""
    out = bytearray()
    first_ms: int | None = None
    for delta, (_, timestamp_ms, key, value, headers) in enumerate(records):
        first_ms = timestamp_ms if first_ms is None else first_ms
        one = bytearray(1)
        _put(one, timestamp_ms - first_ms, delta)
        _put_bytes(one, key, value)
        _put(one, len(headers))
        for name, content in headers:
            _put_bytes(one, bytes_of(name), content)
        _put(out, len(one))
        out += one
    return bytes(out)


def _put(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        encode_varint(number, out.append)


def _put_bytes(out: bytearray, *fields: bytes | None) -> None:
    for one in fields:
        _put(out, -1 if one is None else len(one))
        out += one or b""


_OLD_ATTRIBUTES_AT: Final = 17
#: By magic; in magic 1 a timestamp precedes the key.
_KEY_AT: Final = (18, 26)
_MAGIC_BYTES: Final = 4
_DESCRIPTOR_BYTES: Final = 2
_CONTENT_SIZE: Final = 0x08
_CONTENT_SIZE_BYTES: Final = 8
_MASK: Final = 0xFFFFFFFF
_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)


def codec_of(message: bytes) -> int:
    """Return the codec number of a message, 0 for none."""
    return message[_OLD_ATTRIBUTES_AT] & wire.CODEC_MASK


def messages_inside(wrapper: bytes, magic: int) -> wire.Buffer:
    """Return the messages in a compressed message of magic 0 or 1; none if it is not compressed. Raises TooLarge."""
    codec = codec_of(wrapper)
    if not codec:
        return b""
    key_length = _SIZE.unpack_from(wrapper, _KEY_AT[magic])[0]
    value_at = _KEY_AT[magic] + _SIZE.size + max(key_length, 0)
    length = _SIZE.unpack_from(wrapper, value_at)[0]
    payload = bytearray(wrapper[value_at + _SIZE.size : value_at + _SIZE.size + length])
    if magic == 0 and codec == _LZ4:
        end = _MAGIC_BYTES + _DESCRIPTOR_BYTES + (_CONTENT_SIZE_BYTES if payload[_MAGIC_BYTES] & _CONTENT_SIZE else 0)
        payload[end] = header_checksum(payload[_MAGIC_BYTES:end])
    return open_payload(bytes(payload), codec)


def header_checksum(descriptor: bytes | bytearray) -> int:
    """Return the second byte of the descriptor's xxHash32; a descriptor has fewer than 16 bytes."""
    first, second, third, fourth, fifth = _PRIMES
    value, at = fifth + len(descriptor), 0
    while at + 4 <= len(descriptor):
        lane = int.from_bytes(descriptor[at : at + 4], "little")
        value = _rotated(value + lane * third, 17) * fourth & _MASK
        at += 4
    for byte in descriptor[at:]:
        value = _rotated(value + byte * fifth, 11) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return (value ^ value >> 16) >> 8 & 0xFF


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK


_UNLIMITED: Final = 2**31 - 1
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMPS: Final = struct.Struct(">qq")  # base and max
_CRC: Final = struct.Struct(">I")


#: Java's lz4 has a fast compressor for its default level alone (Kafka ``Lz4BlockOutputStream``).
_LZ4_DEFAULT: Final = 9
_ENCODERS: Final[dict[int, Callable[[bytes, int | None], bytes]]] = {
    1: lambda payload, level: gzip.compress(payload, 6 if level in (None, -1) else level, mtime=0),
    2: lambda payload, level: snappy_encode(payload),
    3: lambda payload, level: lz4_encode(payload, 0 if level in (None, _LZ4_DEFAULT) else level),
    4: lambda payload, level: zstandard.ZstdCompressor(3 if level is None else level).compress(payload),
}


def compress(payload: bytes, codec: int, level: int | None = None) -> bytes:
    """Compress the records of a batch; a ``level`` of None is Kafka's default: 9 for lz4, 3 for zstd."""
    return _ENCODERS[codec](payload, level)


def decode(batch: wire.Buffer, magic: int) -> Iterator[Record]:
    """Yield the records of one batch, or of a run of messages of magic 0 and 1, with absolute offsets. With
    LogAppendTime every record has the batch's max timestamp, as consumers see it. Raises :class:`TooLarge` before more
    is decompressed than a batch may hold, and CorruptRecordException if the records cannot be read."""
    try:
        if magic >= 2:
            yield from map(_record, read_fast(opened_batch(bytes(batch))))
        else:
            for message in _old_messages(batch):
                yield from map(_record, message)
    except (CorruptRecordException, MemoryError, TooLarge):
        raise
    except Exception as error:  # because the readers of aiokafka trust lengths and codecs
        raise CorruptRecordException(f"the records cannot be read: {type(error).__name__}: {error}") from error


def read_fast(batch: bytes) -> Iterator[Any]:
    """Yield the records of an opened batch of magic 2: those of aiokafka, and from the first one with a header key that
    is not UTF-8 on those of :func:`read`. Raises aiokafka's errors."""
    given = 0
    try:
        for record in DefaultRecordBatch(batch):
            yield record
            given += 1
    except Exception as error:
        # aiokafka's reader in plain Python, used without the compiled one, reports such a key in the error's cause.
        if not isinstance(error, UnicodeDecodeError) and not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        yield from islice(read(batch), given, None)


def _record(record: Any) -> Record:
    if isinstance(record, Record):
        return record
    timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
    return Record(record.offset, timestamp, record.key, record.value, list(record.headers))


def _old_messages(messages: wire.Buffer) -> Iterator[LegacyRecordBatch]:
    for start, size, magic in wire.extents(messages):
        message = bytes(messages[start : start + size])
        inside = messages_inside(message, magic)
        if magic == 0 and codec_of(message) == _LZ4:
            for at, inner_size, inner_magic in wire.extents(inside):
                inner = bytes(inside[at : at + inner_size])
                if codec_of(inner):  # Kafka refuses it too, and each level would multiply the size
                    raise CorruptRecordException("a compressed message holds a compressed message")
                yield LegacyRecordBatch(inner, inner_magic)
        else:  # it decompresses the message again, because it knows the offsets and timestamps inside
            yield LegacyRecordBatch(message, magic)


def build(
    records: Sequence[Record],
    codec: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    level: int | None = None,
) -> bytearray:
    """Return a magic 2 CreateTime batch of ``records`` with base offset 0 and dense offset deltas. ``codec`` is the
    number in a batch's attributes; ``level`` is as in :func:`compress`. Gaps between the
    records' own offsets are not kept, because a broker rejects them in a produced batch."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, producer_epoch, base_sequence, _UNLIMITED)
    # The builder treats a first timestamp of -1 as none, and counts from the first that is not -1.
    shift_ms = 1 if records[0].timestamp_ms == NO_TIMESTAMP else 0
    is_plain = all(is_text(key) for record in records for key, _ in record.headers)
    for delta, record in enumerate(records):
        headers = record.headers if is_plain else []
        builder.append(delta, record.timestamp_ms + shift_ms, record.key, record.value, headers)
    built: bytearray = builder.build()
    if not is_plain:
        built[wire.HEADER_BYTES :] = payload(records)
    if shift_ms:
        base_ms, max_ms = _TIMESTAMPS.unpack_from(built, 27)
        _TIMESTAMPS.pack_into(built, 27, base_ms - shift_ms, max_ms - shift_ms)
    if codec:
        built[wire.HEADER_BYTES :] = compress(bytes(built[wire.HEADER_BYTES :]), codec, level)
        _ATTRIBUTES.pack_into(built, 21, codec)
    if codec or not is_plain:
        _SIZE.pack_into(built, 8, len(built) - wire.LOG_OVERHEAD_BYTES)
    if shift_ms or codec or not is_plain:
        _CRC.pack_into(built, 17, wire.checksum(built))
    return built
