"""What to do with a fetched batch: one table, read from its header alone.

The rules are what brokers accept: a produced batch has dense offset deltas, no control bit, at least one
record, magic 2 and fits ``max.message.bytes`` (Kafka ``LogValidator``, ``UnifiedLog``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connect.wire.batch import BatchHeader


class Kind(StrEnum):
    """How a batch travels: as it is, in one with others, rebuilt from its records, or not at all."""

    SHALLOW = "shallow"
    MERGED = "merged"
    REBUILT = "rebuilt"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Decision:
    kind: Kind
    reason: str


SHALLOW: Final = Decision(Kind.SHALLOW, "as it is")
#: What becomes of a shallow one that waits, or is small; and of one that goes alone, where the producer has a codec.
MERGED: Final = Decision(Kind.MERGED, "merged with others")
COMPRESSED: Final = Decision(Kind.REBUILT, "compressed as the producer is told")
OLD_MAGIC: Final = Decision(Kind.REBUILT, "old magic")
TRIMMED: Final = Decision(Kind.REBUILT, "start inside the batch")
GAPS: Final = Decision(Kind.REBUILT, "compacted gaps")
APPEND_TIME: Final = Decision(Kind.REBUILT, "log append time")
TRANSFORMED: Final = Decision(Kind.REBUILT, "transformed")
TOO_LARGE: Final = Decision(Kind.REBUILT, "larger than the target takes")
CONTROL: Final = Decision(Kind.DROPPED, "control batch")
ABORTED: Final = Decision(Kind.DROPPED, "aborted transaction")
EMPTY: Final = Decision(Kind.DROPPED, "no records")
BEHIND: Final = Decision(Kind.DROPPED, "wholly before the position")

DECISIONS: Final = (
    SHALLOW,
    MERGED,
    COMPRESSED,
    OLD_MAGIC,
    TRIMMED,
    GAPS,
    APPEND_TIME,
    TRANSFORMED,
    TOO_LARGE,
    CONTROL,
    ABORTED,
    EMPTY,
    BEHIND,
)


def decide(header: BatchHeader, position: int, aborted: bool, max_message_bytes: int) -> Decision:
    """The decision for a magic 2 batch fetched at ``position``.

    ``aborted``: its producer is inside an aborted transaction here and the copy is read_committed.
    LogAppendTime is opened because the target would show the client's own older create times instead.
    """
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
