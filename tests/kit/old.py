"""Messages of magic 0 and 1 as old segments hold them, built by hand (Kafka ``LegacyRecord``)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode

LOG_APPEND_TIME = 0x08
_LZ4 = 3
_CODECS = {1: gzip_encode, 2: snappy_encode, 3: lz4_encode}


def message(
    magic: int, offset: int, key: bytes | None, value: bytes | None, *, timestamp_ms: int = -1, attributes: int = 0
) -> bytes:
    """One message; ``timestamp_ms`` is for magic 1."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp_ms)
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(magic: int, messages: Sequence[bytes], codec: int, *, timestamp_ms: int = -1, attributes: int = 0) -> bytes:
    """A compressed set: bears the offset of its last message; those inside count from 0 with magic 1 (KIP-31)."""
    last = struct.unpack_from(">q", messages[-1])[0]
    first = struct.unpack_from(">q", messages[0])[0]
    inner = b"".join(
        struct.pack(">q", struct.unpack_from(">q", one)[0] - (first if magic == 1 else 0)) + one[8:] for one in messages
    )
    value = _CODECS[codec](inner)
    if magic == 0 and codec == _LZ4:
        value = value[:6] + bytes((value[6] ^ 0x5A,)) + value[7:]  # as Kafka wrote them: KAFKA-3160
    return message(magic, last, None, value, timestamp_ms=timestamp_ms, attributes=attributes | codec)
