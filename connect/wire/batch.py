"""Reads and rewrites the header of a record batch, and decodes the keys of record headers.

Layout of magic 2 (Kafka ``DefaultRecordBatch``), 61 bytes, big endian::

    0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 CRC u32 | 21 attributes i16
    23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 | 43 producer id i64
    51 producer epoch i16 | 53 base sequence i32 | 57 record count i32 | 61 records

The CRC-32C covers byte 21 to the end. The magic byte is at byte 16 in every format, so it is read first.

Kafka's protocol defines header keys as text, but producers other than Java's write any bytes. Brokers keep these bytes;
Java's consumer replaces bytes that are not UTF-8 with U+FFFD. Here each such byte becomes a lone surrogate (PEP 383),
so that no byte is lost. Plugins get the keys that Java's consumer returns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import crc32c

#: The timestamp of records of magic 0 and of records produced without one.
NO_TIMESTAMP: Final = -1
HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
#: The fewest bytes that include the magic byte, in any format.
MAGIC_END: Final = 17
SEQUENCE_MODULUS: Final = 2**31

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_EXTENT: Final = struct.Struct(">qi")
_CRC: Final = struct.Struct(">I")
_FRONT: Final = struct.Struct(">qii")  # base offset, length, leader epoch
_PRODUCER: Final = struct.Struct(">qhi")
_ATTRIBUTES: Final = struct.Struct(">h")

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The thirteen header fields of a magic 2 batch, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


def add_sequence(sequence: int, increment: int) -> int:
    """Return the sequence ``increment`` records later; 2**31 - 1 is followed by 0 (Kafka ``DefaultRecordBatch``)."""
    return (sequence + increment) % SEQUENCE_MODULUS


def read_header(buffer: Buffer, start: int = 0) -> BatchHeader:
    """Return the header of the magic 2 batch at ``start``. Raises ``struct.error`` for fewer than 61 bytes."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, start))


def extents(buffer: Buffer) -> Iterator[tuple[int, int, int]]:
    """Yield every whole batch in ``buffer`` as (start, size in bytes, magic). A truncated last batch is left out,
    because a fetch response may end inside a batch (Kafka ``FileRecords``)."""
    position = 0
    while size := whole_batch(buffer, position):
        yield position, size, buffer[position + 16]
        position += size


def whole_batch(buffer: Buffer, start: int) -> int:
    """Return the size in bytes of the batch at ``start``; 0 if the buffer holds no whole batch there."""
    left = len(buffer) - start
    if left < MAGIC_END:
        return 0
    size: int = _EXTENT.unpack_from(buffer, start)[1] + LOG_OVERHEAD_BYTES
    return size if MAGIC_END <= size <= left else 0


def checksum(batch: Buffer) -> int:
    """Return the CRC-32C of a whole magic 2 batch, for comparison with its header."""
    return crc32c.crc32c(memoryview(batch)[21:])


def rewrite(batch: memoryview, attributes: int, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Turn a fetched batch into one that a broker accepts from a producer, in place. Sets base offset 0, leader epoch
    -1, ``attributes`` (the caller keeps only the codec bits), the producer's id, epoch and sequence, and a new CRC.
    Verify the fetched CRC first, because a new one hides damage."""
    _FRONT.pack_into(batch, 0, 0, len(batch) - LOG_OVERHEAD_BYTES, -1)
    _ATTRIBUTES.pack_into(batch, 21, attributes)
    _PRODUCER.pack_into(batch, 43, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, 17, crc32c.crc32c(batch[21:]))


def key_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def bytes_of(key: str) -> bytes:
    """Return the bytes of a header key. Raises UnicodeEncodeError for surrogates that represent no byte."""
    return key.encode("utf-8", "surrogateescape")


def is_text(key: str) -> bool:
    """Return whether a header key is UTF-8 on the wire."""
    if key.isascii():
        return True
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(key: str) -> str:
    """Return a header key as Java's consumer returns it."""
    return key if is_text(key) else bytes_of(key).decode(errors="replace")
