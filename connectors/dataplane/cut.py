"""Fetched bytes as batches, each checked and decided: the one way in, for copying and for resuming alike."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import crc32c

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import shape

_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT_MARKER: Final = 0

#: A batch, its header (None below magic 2) and what to do with it.
Cut = tuple[memoryview, wire.BatchHeader | None, shape.Decision]


class CorruptBatch(Exception):
    """A fetched batch whose CRC is wrong: never repaired, never copied."""

    def __init__(self, base_offset: int) -> None:
        super().__init__(f"CRC-32C of the batch at source offset {base_offset} is wrong")
        self.base_offset = base_offset


def cut(
    fetched: memoryview, position: int, aborted: Iterable[tuple[int, int]] | None, max_message_bytes: int
) -> Iterator[Cut]:
    """Every whole batch of a fetch answer, its CRC verified before anybody changes a byte.

    ``position``: the offset that was fetched. ``aborted``: (producer id, first offset) as the answer lists them,
    None when the copy is read_uncommitted. The aborted state is built anew from each answer's list and never
    carried over; a producer id leaves it at its abort marker, since the same id may commit later in the same
    answer (Kafka ``CompletedFetch``). Raises :class:`CorruptBatch` where it meets one.
    """
    transactions = None if aborted is None else _Transactions(aborted)
    for start, size, magic in wire.extents(fetched):
        batch = fetched[start : start + size]
        if magic < 2:
            yield batch, None, shape.OLD_MAGIC
            continue
        header = wire.read_header(batch)
        if header.crc != crc32c.crc32c(batch[21:]):
            raise CorruptBatch(header.base_offset)
        is_aborted = transactions is not None and transactions.aborts(header, batch)
        yield batch, header, shape.decide(header, position, is_aborted, max_message_bytes)


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
