"""Which partitions of a flow are not copied, and why: kept on the target, in the topic of the offset map.

A task notes it of its partitions, so that every worker can tell, whether the task still runs or not. A partition
without a record is copied wherever its task runs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from connect.kafka.cluster import Cluster
from connectors.dataplane.plan import TopicPartition
from connectors.gaps import Gap, pack_gap, unpack_gap
from connectors.positions import VERSION, Kind, Reader, check_version, front, text
from connectors.record_settings import RecordKind, Records, RecordSettings, read_records

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_BOOLEAN: Final = struct.Struct(">?")
_LONGEST_REASON: Final = 4_000


@dataclass(frozen=True, slots=True)
class PartitionState:
    """``state`` and ``reason`` as those of ``PartitionView``, with ``gap`` where a log is not what it was; ``since_ms``
    is when it was noted, since 1970."""

    state: str
    reason: str
    target_topic: str
    since_ms: int
    gap: Gap | None = None

    def is_as(self, other: PartitionState | None) -> bool:
        """Whether both say the same, whenever they were noted."""
        mine = (self.state, self.reason, self.target_topic, self.gap)
        return other is not None and mine == (other.state, other.reason, other.target_topic, other.gap)

    def to_json(self) -> dict[str, Any]:
        gap = None
        if self.gap is not None:
            gap = {**self.gap.to_wire(), "kind": self.gap.kind.label, "lost_offsets": self.gap.lost_offsets}
        return {"state": self.state, "reason": self.reason, "since_ms": self.since_ms, "gap": gap}


def encode_state_key(connector: str, partition: TopicPartition) -> bytes:
    return front(Kind.STATE) + text(connector) + text(partition.topic) + _INT32.pack(partition.partition)


def decode_state_key(key: bytes) -> tuple[str, TopicPartition]:
    """Connector and source partition. Raises UnknownFormat."""
    reader = Reader(key, len(front(Kind.STATE)))
    connector, partition = reader.text(), TopicPartition(reader.text(), reader.int32())
    reader.end()
    return connector, partition


def encode_state(state: PartitionState) -> bytes:
    gap = b"" if state.gap is None else pack_gap(state.gap)
    texts = text(state.state) + text(state.reason[:_LONGEST_REASON]) + text(state.target_topic)
    return bytes((VERSION,)) + _INT64.pack(state.since_ms) + texts + bytes((state.gap is not None,)) + gap


def decode_state(value: bytes) -> PartitionState:
    """Raises UnknownFormat."""
    check_version(value, "partition state")
    reader = Reader(value, 1)
    since_ms = reader.fixed(_INT64)[0]
    state, reason, target_topic = reader.text(), reader.text(), reader.text()
    gap = unpack_gap(reader) if reader.fixed(_BOOLEAN)[0] else None
    reader.end()
    return PartitionState(state, reason, target_topic, since_ms, gap)


StateRecords = Records[TopicPartition, PartitionState]
PARTITION_STATES: Final[RecordKind[TopicPartition, PartitionState]] = RecordKind(
    Kind.STATE, b"states", encode_state_key, decode_state_key, encode_state, decode_state
)


async def read_states(cluster: Cluster, settings: RecordSettings) -> dict[TopicPartition, PartitionState]:
    """What is noted, by source partition. Raises as :func:`connectors.record_settings.read_all_records`."""
    return await read_records(cluster, settings, PARTITION_STATES)
