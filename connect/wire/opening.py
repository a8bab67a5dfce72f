"""Payloads of compressed batches opened within a bound, so that one that expands a thousandfold costs no memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import cramjam

_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(5)
_INTO: Final = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
#: Records seldom compress better; what does is not opened here.
_MOST_TIMES: Final = 64
_LEAST_BYTES: Final = 4096
#: What Java's producer puts before blocks of raw snappy, each behind its size.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_BYTES: Final = 16
_SIZE: Final = struct.Struct(">i")


class TooLarge(ValueError):
    """A payload that is larger than it may be, or that is damaged: the libraries do not tell which."""


def opened(payload: bytes, codec: int, most_bytes: int) -> memoryview:
    """The records of a batch's ``payload``, at most ``most_bytes`` and 64 times its size.

    Raises:
        TooLarge: They are more, or cannot be read.
    """
    most_bytes = min(most_bytes, max(_MOST_TIMES * len(payload), _LEAST_BYTES))
    try:
        if codec == _SNAPPY:
            return _snappy(payload, most_bytes)
        out = bytearray(max(most_bytes, 0))
        return memoryview(out)[: _INTO[codec](payload, out)]
    except cramjam.DecompressionError as error:
        raise TooLarge(f"a payload is damaged, or more than {most_bytes} bytes: {error}") from error


def _snappy(payload: bytes, most_bytes: int) -> memoryview:
    blocks = list(_blocks(payload)) if payload.startswith(_XERIAL) else [payload]
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > most_bytes:
        raise TooLarge(f"a payload is more than {most_bytes} bytes")
    return memoryview(b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks))


def _blocks(payload: bytes) -> Iterator[bytes]:
    at = _XERIAL_BYTES
    while at + _SIZE.size <= len(payload):
        end = at + _SIZE.size + _SIZE.unpack_from(payload, at)[0]
        if not at + _SIZE.size <= end <= len(payload):
            raise TooLarge("a block of snappy does not end where it says")
        yield payload[at + _SIZE.size : end]
        at = end
