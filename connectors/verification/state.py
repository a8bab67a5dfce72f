"""What a verification has reached, stored next to the positions of the flow: a killed run continues there, and the next
one reads only what is new. Workers see it too.

A record is JSON behind a version, by source partition, in the topic of the offset map.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from connect.kafka.cluster import Cluster
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.position import KeyKind, text
from connectors.formats.types import TopicPartition, Wired
from connectors.internal_topics import RecordKind, read_records, record_settings
from connectors.verification.ranges import RangeResult
from connectors.verification.report import NAMED_DIFFERENCES, ExplainedRange, PartitionResult, RangeReason

_INT32: Final = struct.Struct(">i")
#: Explained ranges of a partition that are kept; the last one then stands for all behind it.
_KEPT_RANGES: Final = 200


@dataclass(frozen=True, slots=True)
class Verified(Wired):
    """How far a partition is verified: ``result`` so far, and where the next range begins in the target.

    ``ids``: of source and target topic; another id means another log.
    """

    result: PartitionResult
    target_to: int
    source_id: str
    target_id: str

    def is_of(self, source_id: str, target_id: str) -> bool:
        return (self.source_id, self.target_id) == (source_id, target_id)

    def with_range(self, found: RangeResult, now_ms: int) -> Verified:
        """Add the next range of the partition."""
        before = self.result
        # What was not copied yet is in a range by now.
        explained = (one for one in before.explained if one.reason is not RangeReason.NOT_COPIED)
        result = replace(
            before,
            records=before.records + found.records,
            bytes=before.bytes + found.bytes,
            same_bytes=before.same_bytes + found.same_bytes,
            verified_to=found.verified_to,
            verified_ms=now_ms,
            differences=(*before.differences, *found.differences)[:NAMED_DIFFERENCES],
            differences_total=before.differences_total + found.differences_total,
            explained=joined((*explained, *found.explained)),
        )
        return Verified(result, found.target_to, self.source_id, self.target_id)


def joined(ranges: tuple[ExplainedRange, ...]) -> tuple[ExplainedRange, ...]:
    """Join ranges of one side and reason that follow each other, and those behind :data:`_KEPT_RANGES`."""
    found: dict[tuple[str, str], list[ExplainedRange]] = {}
    for one in ranges:
        some = found.setdefault((one.side, one.reason), [])
        if some and (some[-1].last + 1 >= one.first or len(some) >= _KEPT_RANGES):
            last = some[-1]
            records = -1 if min(last.records, one.records) < 0 else last.records + one.records
            some[-1] = replace(last, last=max(last.last, one.last), records=records)
        else:
            some.append(one)
    return tuple(sorted((one for some in found.values() for one in some), key=lambda one: (one.first, one.side)))


VERIFIED: Final[RecordKind[TopicPartition, Verified]] = RecordKind(
    KeyKind.VERIFIED,
    b"verified",
    lambda connector, one: text(connector) + text(one.topic) + _INT32.pack(one.partition),
    lambda reader: (reader.text(), TopicPartition(reader.text(), reader.int32())),
    lambda value: orjson.dumps(value.to_wire()),
    lambda reader: Verified.from_wire(orjson.loads(reader.rest())),
)


async def verification_report(settings: MirrorSourceSettings, store: Cluster) -> dict[str, Any]:
    """Return what ``heliograph verify`` has found so far; ``verified_ms``: of the partition whose last range was
    compared the longest ago, -1 if none was. Errors as :func:`read_records`."""
    stored = await read_records(store, record_settings(settings), VERIFIED)
    results = [stored[one].result for one in sorted(stored)]
    return {
        "connector": settings.name,
        "flow": settings.flow,
        "verified_ms": min((one.verified_ms for one in results if one.verified_ms), default=-1),
        "differences": sum(one.differences_total for one in results),
        "partitions": [one.to_wire() for one in results],
    }
