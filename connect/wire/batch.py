"""Reads and rewrites the header of a record batch, and decodes the keys of record headers.

Layout of magic 2 (Kafka ``DefaultRecordBatch``), 61 bytes, big endian::

    0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 CRC u32 | 21 attributes i16
    23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 | 43 producer id i64
    51 producer epoch i16 | 53 base sequence i32 | 57 record count i32 | 61 records

The CRC-32C covers byte 21 to the end. Magic stands at byte 16 in every format, so it is looked at first.

Kafka's protocol says that a header key is text, but producers other than Java's write any bytes. Brokers keep these
bytes; Java's consumer replaces bytes that are not UTF-8 by U+FFFD. Here each such byte becomes a lone surrogate (PEP
383), so that no byte is lost. Plugins see what Java's consumer would give them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import crc32c

#: What records of magic 0 have, and whatever was produced without a time.
NO_TIMESTAMP: Final = -1
HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
#: The least that any format needs to show its magic byte.
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
        """The whole batch, from its base offset to its last record."""
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
    """The sequence ``increment`` records later; after 2**31 - 1 comes 0 (Kafka ``DefaultRecordBatch``)."""
    return (sequence + increment) % SEQUENCE_MODULUS


def read_header(buffer: Buffer, start: int = 0) -> BatchHeader:
    """The header of the magic 2 batch at ``start``; ``struct.error`` if fewer than 61 bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, start))


def extents(buffer: Buffer) -> Iterator[tuple[int, int, int]]:
    """Every whole batch in ``buffer`` as (start, size in bytes, magic).

    A last batch that an answer cut off is left out, as a fetch may end inside one (Kafka ``FileRecords``).
    """
    position = 0
    while size := whole_batch(buffer, position):
        yield position, size, buffer[position + 16]
        position += size


def whole_batch(buffer: Buffer, start: int) -> int:
    """The size in bytes of the batch at ``start``; 0 if none lies there as a whole."""
    left = len(buffer) - start
    if left < MAGIC_END:
        return 0
    size: int = _EXTENT.unpack_from(buffer, start)[1] + LOG_OVERHEAD_BYTES
    return size if MAGIC_END <= size <= left else 0


def checksum(batch: Buffer) -> int:
    """CRC-32C of a whole magic 2 batch, as its header ought to state it."""
    return crc32c.crc32c(memoryview(batch)[21:])


def rewrite(batch: memoryview, attributes: int, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Make a fetched batch one that a broker takes from a producer, in place.

    Base offset 0, leader epoch -1, ``attributes`` as given (the caller keeps the codec bits only), own
    producer id, epoch and sequence, a new CRC. Verify the CRC of what arrived before: a fresh one hides damage.
    """
    _FRONT.pack_into(batch, 0, 0, len(batch) - LOG_OVERHEAD_BYTES, -1)
    _ATTRIBUTES.pack_into(batch, 21, attributes)
    _PRODUCER.pack_into(batch, 43, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, 17, crc32c.crc32c(batch[21:]))


def key_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def bytes_of(key: str) -> bytes:
    """Raises UnicodeEncodeError for halves of surrogate pairs that stand for no byte."""
    return key.encode("utf-8", "surrogateescape")


def is_text(key: str) -> bool:
    """Whether it is UTF-8 on the wire."""
    if key.isascii():
        return True
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(key: str) -> str:
    """As Java reads it."""
    return key if is_text(key) else bytes_of(key).decode(errors="replace")
