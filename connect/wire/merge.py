"""Several batches made one. Of a record only what stands before its key changes::

    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key, value and headers

Lengths and deltas are zigzag varints (Kafka ``DefaultRecord``), deltas count from the batch that a record is in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.hot import uvarint

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_COUNT_AND_TIMES: Final = struct.Struct(">hiqq")  # attributes, last offset delta, base and max timestamp
_AT: Final = 21
_CRC: Final = struct.Struct(">I")

#: Of the records of compressed batches.
MOST_OPENED_BYTES: Final = 16 * 1024 * 1024

_DECODERS: Final[dict[int, Callable[[bytes], bytes]]] = {
    1: gzip_decode,
    2: snappy_decode,
    3: lz4_decode,
    4: zstd_decode,
}


class Unmergeable(ValueError):
    """A batch whose records cannot be read, or are too many bytes."""


def zigzag(number: int) -> bytes:
    """A signed number as a varint, of up to ten bytes."""
    return uvarint(((number << 1) ^ (number >> 63)) & 0xFFFF_FFFF_FFFF_FFFF)


_SMALL: Final = tuple(map(zigzag, range(16384)))
_MANY: Final = len(_SMALL)


def merge(
    batches: Sequence[wire.Buffer], codec: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytearray:
    """One batch of all records of ``batches``, ready to be produced.

    ``batches`` are of magic 2 and CreateTime, all of this ``codec``, which is the result's; their offsets are dense.
    Raises :class:`Unmergeable`; the batches are as they were.
    """
    try:
        return _merged(batches, codec, producer_id, producer_epoch, base_sequence)
    except (MemoryError, Unmergeable):
        raise
    except Exception as error:  # each codec has errors of its own
        raise Unmergeable(f"{type(error).__name__}: {error}") from error


def _merged(
    batches: Sequence[wire.Buffer], codec: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytearray:
    first_ms = max_ms = _COUNT_AND_TIMES.unpack_from(batches[0], _AT)[2]
    parts: list[bytes | memoryview] = [b""]
    offset = opened_bytes = 0
    for batch in batches:
        _, last_delta, base_ms, latest_ms = _COUNT_AND_TIMES.unpack_from(batch, _AT)
        if latest_ms > max_ms:
            max_ms = latest_ms
        if codec:
            payload: wire.Buffer = _DECODERS[codec](bytes(batch[wire.HEADER_BYTES :]))
            at = 0
            opened_bytes += len(payload)
            if opened_bytes > MOST_OPENED_BYTES:
                raise Unmergeable(f"more than {MOST_OPENED_BYTES} bytes")
        else:
            payload, at = batch, wire.HEADER_BYTES
        _append(parts, payload, at, last_delta + 1, offset, base_ms - first_ms)
        offset += last_delta + 1
    if codec:
        parts = [b"", records.compress(b"".join(parts), codec)]
    length = wire.HEADER_BYTES - wire.LOG_OVERHEAD_BYTES + sum(map(len, parts))
    fields = (length, -1, 2, 0, codec, offset - 1, first_ms, max_ms, producer_id, producer_epoch, base_sequence)
    parts[0] = _HEADER.pack(0, *fields, offset)
    merged = bytearray().join(parts)
    _CRC.pack_into(merged, 17, wire.checksum(merged))
    return merged


def _append(
    parts: list[bytes | memoryview], payload: wire.Buffer, at: int, count: int, offset: int, shift_ms: int
) -> None:
    """Add the ``count`` records that begin at ``at``, of offset deltas from ``offset`` on and timestamps that are
    ``shift_ms`` later than they say."""
    view = memoryview(payload)
    small, many, add = _SMALL, _MANY, parts.append
    for delta in range(offset, offset + count):
        # The length: never negative, so half of what stands there. Inlined: a call takes as long as the rest.
        byte = view[at]
        at += 1
        length, bits = byte & 0x7F, 7
        while byte >= 0x80:
            byte = view[at]
            at += 1
            length |= (byte & 0x7F) << bits
            bits += 7
        end = at + (length >> 1)
        attributes = view[at]
        at += 1
        byte = view[at]
        at += 1
        time, bits = byte & 0x7F, 7
        while byte >= 0x80:
            byte = view[at]
            at += 1
            time |= (byte & 0x7F) << bits
            bits += 7
        later = shift_ms + ((time >> 1) ^ -(time & 1))
        while view[at] >= 0x80:  # the offset delta that it had
            at += 1
        at += 1
        deltas = (small[later] if 0 <= later < many else zigzag(later)) + (
            small[delta] if delta < many else zigzag(delta)
        )
        length = end - at + len(deltas) + 1
        add((small[length] if length < many else zigzag(length)) + attributes.to_bytes() + deltas)
        add(view[at:end])
        at = end
