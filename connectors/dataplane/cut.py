"""Fetched bytes as batches, each checked and decided: the one way in, for copying and for resuming alike."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import crc32c

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import shape

#: Damage on the way heals with a new fetch; damage in the source's log does not.
CORRUPT_TRIES: Final = 3
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT_MARKER: Final = 0
_OLD_CRC: Final = struct.Struct(">I")
_OLD_OFFSET: Final = struct.Struct(">q")
_OLD_ATTRIBUTES_AT: Final = 17
#: A length is not under the checksum. Nothing else explains it: where a batch does not fit into an answer, brokers send
#: it whole all the same, or no byte of it (from Fetch 3 on).
_BAD_LENGTH: Final = "the batch that holds source offset {}, or follows it, has a wrong length"

#: A batch, its header and what to do with it. Below magic 2: a run of messages of one codec, and None.
Cut = tuple[memoryview, wire.BatchHeader | None, shape.Decision]


class CorruptBatch(Exception):
    """A fetched batch that is damaged: never repaired, never copied."""

    def __init__(self, base_offset: int, what: str = "the checksum of the batch at source offset {} is wrong") -> None:
        super().__init__(what.format(base_offset))
        self.base_offset = base_offset


def cut(
    fetched: memoryview,
    position: int,
    aborted: Iterable[tuple[int, int]] | None,
    max_message_bytes: int,
    *,
    compresses: bool = False,
) -> Iterator[Cut]:
    """Every whole batch of a fetch answer, its checksum verified before anybody changes a byte.

    ``position``: the offset that was fetched. ``aborted``: (producer id, first offset) as the answer lists them,
    None when the copy is read_uncommitted. The aborted state is built anew from each answer's list and never
    carried over; a producer id leaves it at its abort marker, since the same id may commit later in the same
    answer (Kafka ``CompletedFetch``). ``compresses``: as for :func:`shape.decide`. Raises :class:`CorruptBatch` where
    it meets one.
    """
    transactions = None if aborted is None else _Transactions(aborted)
    if fetched and next(wire.extents(fetched), None) is None:
        raise CorruptBatch(position, _BAD_LENGTH)
    for batch in _batches(fetched):
        if batch[16] < 2:
            yield batch, None, shape.OLD_MAGIC
            continue
        header = wire.read_header(batch)
        if header.crc != crc32c.crc32c(batch[21:]):
            raise CorruptBatch(header.base_offset)
        is_aborted = transactions is not None and transactions.aborts(header, batch)
        yield batch, header, shape.decide(header, position, is_aborted, max_message_bytes, compresses)


def _batches(fetched: memoryview) -> Iterator[memoryview]:
    """Each batch of magic 2 by itself; messages below it, which are records or compressed sets, in runs of one codec:
    copied one by one, they would become one batch a record."""
    begin = end = codec = 0
    for start, size, magic in wire.extents(fetched):
        message = fetched[start : start + size]
        own = message[_OLD_ATTRIBUTES_AT] & wire.CODEC_MASK if magic < 2 else -1
        is_damaged = magic < 2 and _OLD_CRC.unpack_from(message, 12)[0] != zlib.crc32(message[16:])
        if begin < end and (own != codec or is_damaged):
            yield fetched[begin:end]
            begin = end
        if is_damaged:
            raise CorruptBatch(_OLD_OFFSET.unpack_from(message)[0])
        codec, end = own, start + size
        if magic >= 2:
            yield message
            begin = end
    if begin < end:
        yield fetched[begin:end]


class _Transactions:
    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda entry: entry[1]))
        self._aborting: set[int] = set()

    def aborts(self, header: wire.BatchHeader, batch: memoryview) -> bool:
        last = header.last_offset
        while self._waiting and self._waiting[0][1] <= last:
            self._aborting.add(self._waiting.popleft()[0])
        if header.is_control:
            if _is_abort_marker(batch):
                self._aborting.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborting


def _is_abort_marker(batch: memoryview) -> bool:
    marker = next(records.decode(batch, 2), None)
    return bool(marker and marker.key and _CONTROL_KEY.unpack_from(marker.key)[1] == _ABORT_MARKER)
