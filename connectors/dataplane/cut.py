"""Fetched bytes as batches, each checked and decided: the one way in, for copying and for resuming alike."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import crc32c

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import PlainRun, plain_run
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


class Cut(NamedTuple):
    """A batch, its header and what to do with it. Below magic 2: a run of messages of one codec, and no header.

    With ``run`` it is several batches that may travel as one, ``header`` that of the first.
    """

    batch: memoryview
    header: wire.BatchHeader | None
    decision: shape.Decision
    run: PlainRun | None = None


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
    run_limits: Callable[[int], tuple[int, int]] = lambda codec: (0, 0),
) -> Iterator[Cut]:
    """Every whole batch of a fetch answer, its checksum verified before anybody changes a byte.

    ``position``: the offset that was fetched. ``aborted``: (producer id, first offset) as the answer lists them,
    None when the copy is read_uncommitted. The aborted state is built anew from each answer's list and never
    carried over; a producer id leaves it at its abort marker, since the same id may commit later in the same
    answer (Kafka ``CompletedFetch``). Small batches of one codec that follow one another come together: ``run_limits``
    says of a codec up to how many bytes one is small, and how many they are together.
    Raises :class:`CorruptBatch` where it meets one.
    """
    transactions = None if aborted is None else _Transactions(aborted)
    at = 0
    if fetched and not wire.whole_batch(fetched, 0):
        raise CorruptBatch(position, _BAD_LENGTH)
    while size := wire.whole_batch(fetched, at):
        if fetched[at + 16] < 2:
            end = _end_of_old(fetched, at)
            yield Cut(fetched[at:end], None, shape.OLD_MAGIC)
            at = end
            continue
        batch = fetched[at : at + size]
        header = wire.read_header(batch)
        if header.crc != crc32c.crc32c(batch[21:]):
            raise CorruptBatch(header.base_offset)
        is_aborted = transactions is not None and transactions.aborts(header, batch)
        decision = shape.decide(header, position, is_aborted, max_message_bytes)
        run = None
        if decision is shape.SHALLOW and not header.attributes & ~wire.CODEC_MASK:
            small_bytes, most_bytes = run_limits(header.codec)
            if size <= small_bytes:
                run = plain_run(fetched, at, header, small_bytes, most_bytes)
        if run is not None and run.batches > 1:
            yield Cut(fetched[at : run.end], header, decision, run)
            at = run.end
        else:
            yield Cut(batch, header, decision)
            at += size


def _end_of_old(fetched: memoryview, at: int) -> int:
    """Where the run of messages below magic 2 and of one codec ends that begins at ``at``: copied one by one, records
    would become a batch each, where they are no compressed sets. Raises :class:`CorruptBatch` at a damaged first."""
    codec = fetched[at + _OLD_ATTRIBUTES_AT] & wire.CODEC_MASK
    end = at
    while size := wire.whole_batch(fetched, end):
        message = fetched[end : end + size]
        if message[16] >= 2 or message[_OLD_ATTRIBUTES_AT] & wire.CODEC_MASK != codec:
            break
        if _OLD_CRC.unpack_from(message, 12)[0] != zlib.crc32(message[16:]):
            if end == at:
                raise CorruptBatch(_OLD_OFFSET.unpack_from(message)[0])
            break
        end += size
    return end


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
