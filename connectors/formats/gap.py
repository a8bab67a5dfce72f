"""What became of a log that no longer holds what it held, as data (pure), and the record that keeps it.

A gap names what a partition's copy cannot give any more, or holds beside what the source has now. Where a policy lets
the copy go on all the same, its record is stored with the new position, in the topic of the offset map: whoever lists
what was lost needs no log. :mod:`connectors.dataplane.log_divergence` has the same in sentences.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from connectors.formats.position import VERSION, KeyKind, Reader, UnknownFormat, check_version, front, text, topic_id

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
#: kind, first, last, target first, target last, leader epoch, go on at
_VALUE: Final = struct.Struct(">bqqqqiq")
UNKNOWN: Final = -1


class GapKind(IntEnum):
    """What happened; the number is the stored one, the label that of states, metrics and logs."""

    SOURCE_GAP = 1
    SOURCE_TRUNCATED = 2
    SOURCE_RECREATED = 3
    SOURCE_DELETED = 4
    TARGET_TRUNCATED = 5
    TARGET_RECREATED = 6
    TARGET_DELETED = 7

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


#: States of partitions that stopped of one.
STATES: Final = frozenset(kind.label for kind in GapKind)


@dataclass(frozen=True, slots=True)
class Gap:
    """What one partition lost; an offset that nobody knows is -1.

    Args:
        first: First source offset that the target lacks, or that the source lost after it was copied
            (``SOURCE_TRUNCATED``); with ``last`` before it, nothing is known to be lost.
        last: The last such offset.
        target_first: First target offset concerned: of the records that the source lost (``SOURCE_TRUNCATED``) or of
            those that the target lost (``TARGET_TRUNCATED``); with ``target_last``.
        go_on_at: The source offset at which a copy can go on.
        leader_epoch: The last one that both logs agree on, where a log was truncated.
        old_id: Of the topic that was copied, where it was made anew or deleted; ``new_id`` of the one there now.
    """

    kind: GapKind
    first: int = UNKNOWN
    last: int = UNKNOWN
    target_first: int = UNKNOWN
    target_last: int = UNKNOWN
    go_on_at: int = UNKNOWN
    leader_epoch: int = UNKNOWN
    old_id: UUID | None = None
    new_id: UUID | None = None

    @property
    def state(self) -> str:
        """What a partition's state is called that stopped of it."""
        return self.kind.label

    @property
    def is_of_source(self) -> bool:
        return self.kind.label.startswith("source-")

    @property
    def lost_offsets(self) -> int:
        """How many source offsets the target lacks for good, as far as known: an upper bound of records."""
        if self.kind in (GapKind.SOURCE_TRUNCATED, GapKind.TARGET_TRUNCATED):
            return 0  # the one has more than the source, the other is copied again
        return max(self.last - self.first + 1, 0) if self.first >= 0 else 0

    def to_wire(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _PLAIN}
        return {**values, "old_id": _id_text(self.old_id), "new_id": _id_text(self.new_id)}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        ids = (UUID(data[name]) if data[name] else None for name in ("old_id", "new_id"))
        return cls(GapKind(data["kind"]), *(data[name] for name in _PLAIN[1:]), *ids)


#: In the order of the fields.
_PLAIN: Final = ("kind", "first", "last", "target_first", "target_last", "go_on_at", "leader_epoch")


def _id_text(value: UUID | None) -> str | None:
    return str(value) if value else None


class OnSourceGap(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class OnTopicRecreated(StrEnum):
    FAIL = "fail"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class GapPolicy:
    """The two settings."""

    on_source_gap: OnSourceGap = OnSourceGap.FAIL
    on_topic_recreated: OnTopicRecreated = OnTopicRecreated.FAIL

    def goes_on(self, gap: Gap) -> bool:
        """Whether a partition goes on behind a gap by itself."""
        if gap.kind is GapKind.TARGET_TRUNCATED:
            return True
        if gap.kind in (GapKind.SOURCE_GAP, GapKind.SOURCE_TRUNCATED):
            return self.on_source_gap is OnSourceGap.SKIP and gap.go_on_at >= 0
        if gap.kind in (GapKind.SOURCE_RECREATED, GapKind.TARGET_RECREATED):
            return self.on_topic_recreated is OnTopicRecreated.RESTART
        return False


class GapKey(NamedTuple):
    """One record for each gap that was passed: ``found_ms`` (since 1970) tells those of a partition apart."""

    connector: str
    source_topic: str
    source_partition: int
    found_ms: int


class GapRecord(NamedTuple):
    key: GapKey
    gap: Gap
    target_topic: str


def pack_gap(gap: Gap) -> bytes:
    """Without what it is a gap of."""
    value = _VALUE.pack(
        gap.kind, gap.first, gap.last, gap.target_first, gap.target_last, gap.leader_epoch, gap.go_on_at
    )
    return value + topic_id(gap.old_id) + topic_id(gap.new_id)


def unpack_gap(reader: Reader) -> Gap:
    """The reverse. Raises UnknownFormat."""
    kind, first, last, target_first, target_last, leader_epoch, go_on_at = reader.fixed(_VALUE)
    ids = reader.topic_id(), reader.topic_id()
    if kind not in tuple(GapKind):
        raise UnknownFormat(f"gap of kind {kind} in the offset map")
    return Gap(GapKind(kind), first, last, target_first, target_last, go_on_at, leader_epoch, *ids)


def encode_gap(record: GapRecord) -> tuple[bytes, bytes]:
    """Key and value of its record."""
    key = record.key
    encoded = front(KeyKind.GAP) + text(key.connector) + text(key.source_topic)
    return (
        encoded + _INT32.pack(key.source_partition) + _INT64.pack(key.found_ms),
        bytes((VERSION,)) + pack_gap(record.gap) + text(record.target_topic),
    )


def decode_gap(key: bytes, value: bytes) -> GapRecord:
    """Raises UnknownFormat."""
    reader = Reader(key, len(front(KeyKind.GAP)))
    gap_key = GapKey(reader.text(), reader.text(), reader.int32(), reader.fixed(_INT64)[0])
    reader.end()
    check_version(value, "gap")
    reader = Reader(value, 1)
    gap, target_topic = unpack_gap(reader), reader.text()
    reader.end()
    return GapRecord(gap_key, gap, target_topic)
