"""Rewrites records of several batches as records of one: the loops over batches and records, in Python.

``_rebase.pyx`` holds the same functions, compiled if the installation has a compiler; ``merge`` prefers them. Only the
fields before a record's key change::

    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key, value and headers

Lengths and deltas are zigzag varints (Kafka ``DefaultRecord``). Deltas are relative to the batch of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

import crc32c

from connect.wire.fetch_produce import uvarint

#: Of these functions: a compiled module of another version is not used.
VERSION: Final = 5
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES: Final = 61
_LOG_OVERHEAD_BYTES: Final = 12
_AT_CRC_END: Final = 21
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
#: Of a varint of nine bytes: the sum of two such numbers fits in 64 bits.
_MOST_BITS: Final = 63
_MOST_SHIFT_MS: Final = 2**61
#: How much a record may grow through its deltas in a merged batch, unless its timestamp is years away.
MORE_BYTES: Final = 8


def zigzag(number: int) -> bytes:
    """Return a signed number as a varint of up to ten bytes."""
    return uvarint(((number << 1) ^ (number >> 63)) & _MASK)


_SMALL: Final = tuple(map(zigzag, range(16384)))
_MANY: Final = len(_SMALL)


def plain_run(
    view: memoryview, at: int, room: int, attributes: int, epoch: int, following: int, most_batch_bytes: int
) -> tuple[int, int, int, int]:
    """Follow whole batches of these attributes and this leader epoch from ``at``, as long as there is ``room``. A batch
    takes its own size from ``room``, and ``MORE_BYTES`` per record. The offsets continue from ``following`` without a
    gap, the checksums are valid and no batch exceeds ``most_batch_bytes``. Returns the end of the batches, their
    number, the next offset and the latest timestamp (the least integer if there is none)."""
    latest_ms, number, end = -(2**63), 0, len(view)
    unpack, checksum = _HEADER.unpack_from, crc32c.crc32c
    while at + _HEADER_BYTES <= end:
        base, length, its_epoch, magic, crc, its_attributes, last, _, its_ms, _, _, _, count = unpack(view, at)
        behind = at + length + _LOG_OVERHEAD_BYTES
        room -= behind - at + MORE_BYTES * count
        if (
            room < 0
            or behind - at > most_batch_bytes
            or behind > end
            or length < _HEADER_BYTES - _LOG_OVERHEAD_BYTES
            or magic != 2
            or its_attributes != attributes
            or base != following
            or its_epoch != epoch
            or last + 1 != count
            or count < 1
            or checksum(view[at + _AT_CRC_END : behind]) != crc
        ):
            break
        if its_ms > latest_ms:
            latest_ms = its_ms
        following += count
        number += 1
        at = behind
    return at, number, following, latest_ms


def rebased(
    regions: Sequence[memoryview], first_ms: int, opened: Callable[[list[bytes]], tuple[bytes, bytes]] | None = None
) -> tuple[bytearray, int, int]:
    """Return the records of the batches in ``regions`` behind 61 bytes for a header, their number, and the latest
    timestamp in the headers. Timestamps are relative to ``first_ms``.

    ``opened`` decompresses the payloads of all batches: it returns the records, with a mark behind those of each batch,
    and the mark. Raises ValueError (or IndexError) if the lengths in batches or records are wrong, and what ``opened``
    raises.
    """
    parts: list[bytes | memoryview] = [bytes(_HEADER_BYTES)]
    batches: list[tuple[memoryview, int, int]] = []
    count, latest_ms = 0, -(2**63)
    for view in regions:
        at, end = 0, len(view)
        while at < end:
            if at + _HEADER_BYTES > end:
                raise ValueError("a batch is truncated, or its length is wrong")
            _, length, _, _, _, _, last, base_ms, its_ms, _, _, _, _ = _HEADER.unpack_from(view, at)
            behind = at + length + _LOG_OVERHEAD_BYTES
            if not at + _HEADER_BYTES <= behind <= end:
                raise ValueError("a batch is truncated, or its length is wrong")
            if its_ms > latest_ms:
                latest_ms = its_ms
            batches.append((view[at + _HEADER_BYTES : behind], last + 1, base_ms - first_ms))
            at = behind
    at, mark, whole = 0, b"", memoryview(b"")
    if opened is not None:
        body, mark = opened([bytes(payload) for payload, _, _ in batches])
        whole = memoryview(body)
    for payload, number, shift_ms in batches:
        if opened is None:
            at, whole = 0, payload
        at = _rebase_records(parts, whole, at, count, count + number, shift_ms)
        end = at + len(mark)
        if whole[at:end] != mark or (opened is None and end != len(whole)):
            raise ValueError("the records of a batch do not match its header")
        at = end
        count += number
    if at != len(whole):
        raise ValueError("the records of the batches do not match their headers")
    return bytearray().join(parts), count, latest_ms


def _rebase_records(
    parts: list[bytes | memoryview], view: memoryview, at: int, offset: int, following: int, shift_ms: int
) -> int:
    """Append the records of ``view`` from ``at`` on, with offset deltas from ``offset`` to ``following`` (exclusive)
    and timestamps moved by ``shift_ms``; return their end. Raises ValueError or IndexError if they exceed ``view``."""
    behind = len(view)
    if not -_MOST_SHIFT_MS < shift_ms < _MOST_SHIFT_MS:
        raise ValueError("timestamps are too far apart")
    small, many, add = _SMALL, _MANY, parts.append
    for delta in range(offset, following):
        # The length is never negative, so it is half the number. Inlined: a call takes as long as the rest.
        byte = view[at]
        at += 1
        length, bits = byte & 0x7F, 7
        while byte >= 0x80 and bits <= _MOST_BITS:
            byte = view[at]
            at += 1
            length |= (byte & 0x7F) << bits
            bits += 7
        if bits > _MOST_BITS or length & 1:
            raise ValueError("a record has an invalid length")
        end = at + (length >> 1)
        attributes = view[at]
        at += 1
        byte = view[at]
        at += 1
        time, bits = byte & 0x7F, 7
        while byte >= 0x80 and bits <= _MOST_BITS:
            byte = view[at]
            at += 1
            time |= (byte & 0x7F) << bits
            bits += 7
        if bits > _MOST_BITS:
            raise ValueError("a record has an invalid timestamp delta")
        later = shift_ms + ((time >> 1) ^ -(time & 1))
        while at < end and view[at] >= 0x80:  # the old offset delta
            at += 1
        at += 1
        if not at <= end <= behind:
            raise ValueError("the fields of a record exceed its length")
        deltas = (small[later] if 0 <= later < many else zigzag(later)) + (
            small[delta] if delta < many else zigzag(delta)
        )
        length = end - at + len(deltas) + 1
        add((small[length] if length < many else zigzag(length)) + attributes.to_bytes() + deltas)
        add(view[at:end])
        at = end
    return at
