"""Merges several batches into one. Only the fields before a record's key change (``rebase.py``)."""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Final, NamedTuple

from connect.wire import batch as wire
from connect.wire import rebase as in_python
from connect.wire import records
from connect.wire.rebase import MORE_BYTES


def _fastest() -> ModuleType:
    """Return ``rebase`` compiled if the installation had a compiler; executors that run from an archive have it not."""
    try:
        compiled = importlib.import_module("connect.wire._rebase")
    except ImportError:
        return in_python
    return compiled if getattr(compiled, "VERSION", None) == in_python.VERSION else in_python


rebase: ModuleType = _fastest()
IS_COMPILED: Final = rebase is not in_python

#: The checksum, of what follows it, is written last.
_HEADER: Final = struct.Struct(">qiib4xhiqqqhii")
_CRC: Final = struct.Struct(">I")

#: Limit on the decompressed records of one merge: several times what a core compresses in the time that one may take.
MOST_OPENED_BYTES: Final = 16 * 1024 * 1024
_MARK_BYTES: Final = 16


class Unmergeable(ValueError):
    """A batch whose records cannot be read or are too large."""


class PlainRun(NamedTuple):
    """Consecutive whole batches of a fetch response, up to its byte ``end``."""

    end: int
    batches: int
    next_offset: int
    max_timestamp_ms: int


def plain_run(
    fetched: memoryview, start: int, header: wire.BatchHeader, most_batch_bytes: int, most_bytes: int
) -> PlainRun:
    """Return the run of batches from ``start`` that can be merged; the first one's ``header`` must allow merging. All
    have the same attributes and leader epoch, contiguous offsets, valid checksums and at most ``most_batch_bytes``
    each; the merged batch has at most ``most_bytes``. The first batch that differs ends the run, whatever the
    reason."""
    room = most_bytes - header.size_bytes - MORE_BYTES * header.record_count
    at, number, following, latest_ms = rebase.plain_run(
        fetched,
        start + header.size_bytes,
        room,
        header.attributes,
        header.leader_epoch,
        header.last_offset + 1,
        most_batch_bytes,
    )
    return PlainRun(at, number + 1, following, max(latest_ms, header.max_timestamp))


def merge(
    regions: Sequence[wire.Buffer],
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    level: int | None = None,
) -> bytearray:
    """Return one batch of all records of ``regions``, ready to be produced. Each region holds consecutive batches of
    magic 2 and CreateTime with dense offset deltas, all of one codec. ``attributes`` are the result's and include its
    codec; ``level`` is as in ``records.compress``. Raises :class:`Unmergeable`; the regions are never modified."""
    try:
        return _merged(regions, attributes, producer_id, producer_epoch, base_sequence, level)
    except (MemoryError, Unmergeable):
        raise
    except Exception as error:  # because each codec has its own errors
        raise Unmergeable(f"{type(error).__name__}: {error}") from error


def _merged(
    regions: Sequence[wire.Buffer],
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    level: int | None,
) -> bytearray:
    codec, first = attributes & wire.CODEC_MASK, wire.read_header(regions[0])
    opener = partial(_opened, first.codec) if first.codec else None
    views = [memoryview(region) for region in regions]
    merged: bytearray
    merged, count, latest_ms = rebase.rebased(views, first.base_timestamp, opener)
    if codec:
        merged[wire.HEADER_BYTES :] = records.compress(bytes(memoryview(merged)[wire.HEADER_BYTES :]), codec, level)
    length = len(merged) - wire.LOG_OVERHEAD_BYTES
    times, producer = (first.base_timestamp, latest_ms), (producer_id, producer_epoch, base_sequence)
    _HEADER.pack_into(merged, 0, 0, length, -1, 2, attributes, count - 1, *times, *producer, count)
    _CRC.pack_into(merged, 17, wire.checksum(merged))
    return merged


def _opened(codec: int, payloads: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Decompress the records of batches, at most :data:`MOST_OPENED_BYTES` in all; return them, with a mark behind each
    batch's, and the mark. Frames may follow one another except those of snappy, so one call opens all: a call for each
    would take longer than a few records. The mark is random, because what a producer puts behind its frame, which
    brokers ignore, may make a decoder skip the payload of another producer."""
    mark, room = os.urandom(_MARK_BYTES), MOST_OPENED_BYTES + _MARK_BYTES * len(payloads)
    if codec != records.SNAPPY:
        frame = records.compress(mark, codec)
        return records.open_payload(frame.join([*payloads, b""]), codec, room), mark
    found: list[bytes] = []
    for payload in payloads:
        found += records.open_payload(payload, codec, room), mark
        room -= len(found[-2])
    return b"".join(found), mark
