"""What a flow's partitions are measured by (Kafka's ``MirrorSourceMetrics``), fed by the progress of slices."""

from __future__ import annotations

from dataclasses import dataclass, field

from connect.core.measures import Windowed
from connectors.dataplane.plan import PartitionProgress, TopicPartition


@dataclass(slots=True)
class PartitionMeter:
    """Counts since the task began, and windows. A batch's age and latency are those of its newest record when it was
    heard to be acknowledged: batches are copied whole, so a record is read and acknowledged with its batch."""

    records: int = 0
    bytes: int = 0
    record_rate: Windowed = field(default_factory=Windowed)
    byte_rate: Windowed = field(default_factory=Windowed)
    age_ms: Windowed = field(default_factory=Windowed)


class Meters:
    """Of one task, by source partition."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionMeter] = {}

    def apply(self, progress: PartitionProgress, now_ms: int) -> None:
        """Take in what a slice reports; ``now_ms`` since 1970, as record timestamps are."""
        meter = self.partitions.setdefault(progress.source, PartitionMeter())
        if not progress.records:
            return
        meter.records += progress.records
        meter.bytes += progress.bytes
        meter.record_rate.record(progress.records, now_ms)
        meter.byte_rate.record(progress.bytes, now_ms)
        if progress.timestamp_ms >= 0:
            meter.age_ms.record(max(now_ms - progress.timestamp_ms, 0), now_ms)
