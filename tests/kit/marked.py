"""Records with their partition, number and time in themselves: a copy can be judged without the original at hand."""

from __future__ import annotations

import random
import struct
from typing import Final

Headers = list[tuple[str, bytes | None]]

KEY: Final = struct.Struct(">iq")
_TIMESTAMP: Final = struct.Struct(">q")
_POOL: Final = random.Random(20).randbytes(1 << 16)
_STRIDE: Final = 7919
_HEADER_EVERY: Final = 8
_NO_HEADERS: Final[Headers] = []

Marked = tuple[bytes, bytes, Headers]


def make(partition: int, sequence: int, value_bytes: int, timestamp_ms: int) -> Marked:
    """Key, value (never under 8 bytes) and headers of one record."""
    return (
        KEY.pack(partition, sequence),
        _TIMESTAMP.pack(timestamp_ms) + payload(sequence, value_bytes - _TIMESTAMP.size),
        headers(sequence),
    )


def payload(sequence: int, size_bytes: int) -> bytes:
    """Looks random, and half of it compresses."""
    start = sequence * _STRIDE % len(_POOL)
    noise = _POOL[start : start + size_bytes // 2]
    return noise + b"." * (size_bytes - len(noise))


def headers(sequence: int) -> Headers:
    return [("sequence", b"%d" % sequence), ("none", None)] if sequence % _HEADER_EVERY == 0 else _NO_HEADERS


def damage(sequence: int, value: bytes | None, timestamp_ms: int, found: Headers) -> str:
    """What is not as :func:`make` made it; empty if all is."""
    if value is None or len(value) < _TIMESTAMP.size:
        return f"value {value!r:.40} is too short"
    if value[_TIMESTAMP.size :] != payload(sequence, len(value) - _TIMESTAMP.size):
        return f"value {value!r:.40} is not this record's"
    if _TIMESTAMP.unpack_from(value)[0] != timestamp_ms:
        return f"timestamp is {timestamp_ms}, was {_TIMESTAMP.unpack_from(value)[0]}"
    if found != headers(sequence):
        return f"headers are {found!r:.60}"
    return ""
