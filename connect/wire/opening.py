"""Payloads of compressed batches opened within a bound, so that one that expands a thousandfold costs no memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import cramjam
import zstandard

from connect.wire import batch as wire

_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(5)
_INTO: Final = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
#: Of one batch, or eight times its payload if that is more. Java's producer fills a batch by how well records have
#: compressed before, so that more than 100 MiB come to 1 MiB seldom.
MOST_BYTES: Final = 128 * 1024 * 1024
#: Records seldom compress better: what does is opened once more, with room for so many times more.
_TIMES: Final = 8
_LEAST_BYTES: Final = 4096
#: What Java's producer puts before blocks of raw snappy, each behind its size.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_BYTES: Final = 16
#: The byte of a header with the codec.
_ATTRIBUTES_AT: Final = 22
_SIZE: Final = struct.Struct(">i")
#: Frames that ask for more memory are left to the other library, which keeps none.
_MOST_WINDOW_BYTES: Final = 8 * 1024 * 1024

Zstd = zstandard.ZstdDecompressor


class TooLarge(ValueError):
    """A payload that is larger than it may be, or that is damaged: the libraries do not tell which."""


def zstd() -> Zstd:
    """What one thread opens many payloads with: a new one for each takes five times as long as to open some records."""
    return zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)


def opened(payload: bytes, codec: int, most_bytes: int, many: Zstd | None = None) -> memoryview:
    """The records of a batch's ``payload``, at most ``most_bytes``; ``many`` is of :func:`zstd`.

    Raises:
        TooLarge: They are more, or cannot be read.
    """
    room = max(_TIMES * len(payload), _LEAST_BYTES)
    while room < most_bytes:
        with suppress(TooLarge):
            return _opened(payload, codec, room, many)
        room *= _TIMES
    return _opened(payload, codec, most_bytes, many)


def opened_batch(batch: bytes) -> bytes:
    """The batch of magic 2 with its records uncompressed; of its header the codec changes alone. Raises TooLarge."""
    attributes = batch[_ATTRIBUTES_AT]
    if not attributes & wire.CODEC_MASK:
        return batch
    header = bytearray(batch[: wire.HEADER_BYTES])
    header[_ATTRIBUTES_AT] = attributes & ~wire.CODEC_MASK
    return b"".join((header, opened_payload(batch[wire.HEADER_BYTES :], attributes & wire.CODEC_MASK)))


def opened_payload(payload: bytes, codec: int) -> memoryview:
    """As :func:`opened`, with as much room as a batch may ever need."""
    return opened(payload, codec, max(MOST_BYTES, _TIMES * len(payload)))


def _opened(payload: bytes, codec: int, room: int, many: Zstd | None) -> memoryview:
    try:
        if codec == _SNAPPY:
            return _snappy(payload, room)
        if codec == _ZSTD and many is not None and (found := _one_frame(payload, room, many)) is not None:
            return memoryview(found)
        out = bytearray(max(room, 0))
        return memoryview(out)[: _INTO[codec](payload, out)]
    except cramjam.DecompressionError as error:
        raise TooLarge(f"a payload is damaged, or more than {room} bytes: {error}") from error


def _one_frame(payload: bytes, room: int, many: Zstd) -> bytes | None:
    """None leaves what is larger, damaged or several frames to the other library."""
    try:
        if zstandard.frame_content_size(payload) > room:
            return None
        return many.decompress(payload, max(room, 1), allow_extra_data=False)
    except zstandard.ZstdError:
        return None


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
