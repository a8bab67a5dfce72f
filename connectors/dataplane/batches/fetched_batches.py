"""Cut fetched bytes into batches, check each, and decide from its header alone what the copy does with it.

The rules are those of brokers: a produced batch has dense offset deltas, no control bit, at least one record, magic 2,
and fits ``max.message.bytes`` (Kafka ``LogValidator``, ``UnifiedLog``). Both the copy and a resume read batches here.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import crc32c

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.batch import BatchHeader
from connect.wire.merge import PlainRun, plain_run


class BatchKind(StrEnum):
    """How a batch is copied: unchanged, merged with others, rebuilt from its records, or not at all."""

    SHALLOW = "shallow"
    MERGED = "merged"
    REBUILT = "rebuilt"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Decision:
    kind: BatchKind
    reason: str


SHALLOW: Final = Decision(BatchKind.SHALLOW, "as it is")
#: A shallow batch may be merged if it waits or is small; one sent alone is compressed if the producer has a codec.
MERGED: Final = Decision(BatchKind.MERGED, "merged with others")
COMPRESSED: Final = Decision(BatchKind.REBUILT, "compressed with the producer's codec")
OLD_MAGIC: Final = Decision(BatchKind.REBUILT, "old magic")
TRIMMED: Final = Decision(BatchKind.REBUILT, "start inside the batch")
GAPS: Final = Decision(BatchKind.REBUILT, "compacted gaps")
APPEND_TIME: Final = Decision(BatchKind.REBUILT, "log append time")
TRANSFORMED: Final = Decision(BatchKind.REBUILT, "transformed")
TOO_LARGE: Final = Decision(BatchKind.REBUILT, "larger than the target takes")
CONTROL: Final = Decision(BatchKind.DROPPED, "control batch")
ABORTED: Final = Decision(BatchKind.DROPPED, "aborted transaction")
EMPTY: Final = Decision(BatchKind.DROPPED, "no records")
BEHIND: Final = Decision(BatchKind.DROPPED, "wholly before the position")

_REBUILT: Final = (COMPRESSED, OLD_MAGIC, TRIMMED, GAPS, APPEND_TIME, TRANSFORMED, TOO_LARGE)
_DROPPED: Final = (CONTROL, ABORTED, EMPTY, BEHIND)
KIND_OF_REASON: Final = {one.reason: str(one.kind) for one in (SHALLOW, MERGED, *_REBUILT, *_DROPPED)}


def decide(header: BatchHeader, position: int, aborted: bool, max_message_bytes: int) -> Decision:
    """Return the decision for a magic 2 batch fetched at ``position``. ``aborted``: the copy is read_committed, and the
    batch's producer is inside an aborted transaction. A LogAppendTime batch is rebuilt because the target would
    otherwise show the older create times of the client."""
    attributes = header.attributes
    if attributes & 0x20:
        return CONTROL
    if aborted and attributes & 0x10:
        return ABORTED
    if header.record_count == 0:
        return EMPTY
    base, delta = header.base_offset, header.last_offset_delta
    if base < position:
        return TRIMMED if base + delta >= position else BEHIND
    if delta + 1 != header.record_count:
        return GAPS
    if attributes & 0x08:
        return APPEND_TIME
    if header.length + 12 > max_message_bytes:
        return TOO_LARGE
    return SHALLOW


#: A new fetch corrects damage on the network, but not damage in the source's log.
CORRUPT_TRIES: Final = 3
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT_MARKER: Final = 0
_OLD_CRC: Final = struct.Struct(">I")
_OLD_OFFSET: Final = struct.Struct(">q")
_OLD_ATTRIBUTES_AT: Final = 17
#: The checksum does not cover the length. No other cause is possible: a broker sends a batch larger than the answer's
#: limit whole, or no byte of it (from Fetch 3 on).
_BAD_LENGTH: Final = "the batch that holds source offset {}, or follows it, has a wrong length"


class Cut(NamedTuple):
    """A batch, its header and the decision. Below magic 2: consecutive messages of one codec, and no header. With
    ``run``: several batches that may be sent as one, and the header of the first."""

    batch: memoryview
    header: wire.BatchHeader | None
    decision: Decision
    run: PlainRun | None = None


class CorruptBatch(Exception):
    """A fetched batch is damaged. It is never repaired or copied."""

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
    """Yield every whole batch of a fetch answer, its checksum verified before any byte is changed.

    ``position``: the offset that was fetched. ``aborted``: (producer id, first offset) as the answer lists them; None
    if the copy is read_uncommitted. The aborted state comes from this answer's list alone. A producer id leaves it at
    its abort marker, because the same id may commit later in the same answer (Kafka ``CompletedFetch``). Consecutive
    small batches of one codec come together: ``run_limits`` returns for a codec the largest size of a small batch, and
    of a run, in bytes. Raises :class:`CorruptBatch` at a damaged batch.
    """
    transactions = None if aborted is None else _Transactions(aborted)
    at = 0
    if fetched and not wire.whole_batch(fetched, 0):
        raise CorruptBatch(position, _BAD_LENGTH)
    while size := wire.whole_batch(fetched, at):
        if fetched[at + 16] < 2:
            end = _end_of_old(fetched, at)
            yield Cut(fetched[at:end], None, OLD_MAGIC)
            at = end
            continue
        batch = fetched[at : at + size]
        header = wire.read_header(batch)
        if header.crc != crc32c.crc32c(batch[21:]):
            raise CorruptBatch(header.base_offset)
        is_aborted = transactions is not None and transactions.aborts(header, batch)
        decision = decide(header, position, is_aborted, max_message_bytes)
        run = None
        if decision is SHALLOW and not header.attributes & ~wire.CODEC_MASK:
            small_bytes, most_bytes = run_limits(header.codec)
            if size <= small_bytes:
                run = plain_run(fetched, at, header, small_bytes, most_bytes)
        if run is not None:
            yield Cut(fetched[at : run.end], header, decision, run)
            at = run.end
        else:
            yield Cut(batch, header, decision)
            at += size


class Opened(NamedTuple):
    """The records of one source batch that are to be copied, the source offset behind the batch, and the decision."""

    records: Sequence[records.Record]
    codec: int
    following: int
    leader_epoch: int
    decision: Decision


def open_batch(batch: memoryview, header: wire.BatchHeader | None, decision: Decision, position: int) -> Opened:
    """Decode what :func:`cut` yielded, from ``position`` on; nothing of a dropped batch."""
    found = [] if decision.kind is BatchKind.DROPPED else list(records.decode(batch, batch[16]))
    kept = [record for record in found if record.offset >= position]
    if header is None:
        following = max((record.offset + 1 for record in found), default=position)
        return Opened(kept, batch[_OLD_ATTRIBUTES_AT] & wire.CODEC_MASK, following, -1, decision)
    return Opened(kept, header.codec, header.last_offset + 1, header.leader_epoch, decision)


def opened(fetched: memoryview, position: int, aborted: Iterable[tuple[int, int]] | None) -> Iterator[Opened]:
    """Yield the records of fetched batches from ``position`` on, whatever their size. Raises :class:`CorruptBatch`."""
    for batch, header, decision, _ in cut(fetched, position, aborted, wire.SEQUENCE_MODULUS):
        part = open_batch(batch, header, decision, position)
        yield part
        position = max(position, part.following)


def _end_of_old(fetched: memoryview, at: int) -> int:
    """Return the end of the run of messages of one codec, below magic 2, that begins at ``at``; copied one by one, each
    uncompressed message would become a batch. Raises :class:`CorruptBatch` if the first is damaged."""
    codec, end = fetched[at + _OLD_ATTRIBUTES_AT] & wire.CODEC_MASK, at
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
        if header.is_control and _is_abort_marker(header, batch):
            self._aborting.discard(header.producer_id)
        return header.is_transactional and header.producer_id in self._aborting


def _is_abort_marker(header: wire.BatchHeader, batch: memoryview) -> bool:
    marker = next(records.decode(batch, header.magic), None)
    return bool(marker and marker.key and _CONTROL_KEY.unpack_from(marker.key)[1] == _ABORT_MARKER)
