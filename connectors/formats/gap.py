"""Describe, as data, how a log lost what it held, and encode the record that stores it.

A gap names offsets that a partition's copy can no longer provide, or has in addition to what the source has now. If a
policy lets the copy continue, its record is stored with the new position, in the offset map's topic, so that losses can
be listed without a log. :mod:`connectors.dataplane.log_divergence` says the same in sentences.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from connectors.formats.position import VERSION, KeyKind, Reader, UnknownFormat, check_version, front, text, topic_id
from connectors.formats.types import Wired

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
#: kind, first, last, target first, target last, leader epoch, go on at
_VALUE: Final = struct.Struct(">bqqqqiq")
UNKNOWN: Final = -1


class GapKind(IntEnum):
    """What happened. The number is stored; the label is used in states, metrics and logs."""

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


#: States of partitions that a gap stopped.
STATES: Final = frozenset(kind.label for kind in GapKind)


@dataclass(frozen=True, slots=True)
class Gap(Wired):
    """What one partition lost; an unknown offset is -1.

    ``first`` to ``last``: source offsets that the target lacks, or that the source lost after they were copied
    (``SOURCE_TRUNCATED``); none are known if ``last`` is lower. ``target_first`` to ``target_last``: target offsets of
    the records that the source lost (``SOURCE_TRUNCATED``) or that the target lost (``TARGET_TRUNCATED``).
    ``go_on_at``: the source offset at which the copy can continue. ``leader_epoch``: the last epoch that both logs
    agree on, if a log was truncated. ``old_id``: of the copied topic, if it was recreated or deleted; ``new_id``: of
    the topic there now.
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
        """The state of a partition that this gap stopped."""
        return self.kind.label

    @property
    def is_of_source(self) -> bool:
        return self.kind.label.startswith("source-")

    @property
    def lost_offsets(self) -> int:
        """The number of source offsets that the target permanently lacks, as far as known; at most as many records."""
        if self.kind in (GapKind.SOURCE_TRUNCATED, GapKind.TARGET_TRUNCATED):
            return 0  # the target has more than the source, or is copied again
        return max(self.last - self.first + 1, 0) if self.first >= 0 else 0


class OnSourceGap(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class OnTopicRecreated(StrEnum):
    FAIL = "fail"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class GapPolicy:
    """The settings ``on.source.gap`` and ``on.topic.recreated``."""

    on_source_gap: OnSourceGap = OnSourceGap.FAIL
    on_topic_recreated: OnTopicRecreated = OnTopicRecreated.FAIL

    def goes_on(self, gap: Gap) -> bool:
        """Return whether a partition continues behind a gap by itself."""
        match gap.kind:
            case GapKind.TARGET_TRUNCATED:
                return True
            case GapKind.SOURCE_GAP | GapKind.SOURCE_TRUNCATED:
                return self.on_source_gap is OnSourceGap.SKIP and gap.go_on_at >= 0
            case GapKind.SOURCE_RECREATED | GapKind.TARGET_RECREATED:
                return self.on_topic_recreated is OnTopicRecreated.RESTART
        return False


class GapRecord(NamedTuple):
    """A passed gap; ``found_ms`` (since 1970) distinguishes the gaps of a partition."""

    connector: str
    source_topic: str
    source_partition: int
    found_ms: int
    gap: Gap
    target_topic: str


def pack_gap(gap: Gap) -> bytes:
    """Encode a gap without its partition."""
    offsets = gap.first, gap.last, gap.target_first, gap.target_last
    value = _VALUE.pack(gap.kind, *offsets, gap.leader_epoch, gap.go_on_at)
    return value + topic_id(gap.old_id) + topic_id(gap.new_id)


def unpack_gap(reader: Reader) -> Gap:
    """Decode a gap without its partition. Raises UnknownFormat."""
    kind, first, last, target_first, target_last, leader_epoch, go_on_at = reader.fixed(_VALUE)
    ids = reader.topic_id(), reader.topic_id()
    if kind not in tuple(GapKind):
        raise UnknownFormat(f"gap of kind {kind} in the offset map")
    return Gap(GapKind(kind), first, last, target_first, target_last, go_on_at, leader_epoch, *ids)


def encode_gap(record: GapRecord) -> tuple[bytes, bytes]:
    key = front(KeyKind.GAP) + text(record.connector) + text(record.source_topic)
    key += _INT32.pack(record.source_partition) + _INT64.pack(record.found_ms)
    return key, bytes((VERSION,)) + pack_gap(record.gap) + text(record.target_topic)


def decode_gap(key: bytes, value: bytes) -> GapRecord:
    """Decode a gap's record. Raises UnreadableRecord."""
    check_version(value, "gap")
    of = Reader(key, len(front(KeyKind.GAP)))
    connector, topic, partition = of.text(), of.text(), of.fixed(_INT32)[0]
    reader = Reader(value, 1)
    return GapRecord(connector, topic, partition, of.fixed(_INT64)[0], unpack_gap(reader), reader.text())
