"""What a flow tells whoever watches it: a frozen picture, taken at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition pair. ``state`` is ``starting``, ``running``, ``stopped`` or ``QUARANTINED`` (the target refuses
    for good), the last two with a ``reason``. ``records``, ``bytes``, ``batches`` (by kind: shallow, deep, dropped) and
    ``skipped`` (records left out, as the target refuses them) count since the task began; ``lag_ms`` is the age of the
    last copied record while records are waiting, 0 when none are."""

    source_topic: str
    source_partition: int
    target_topic: str
    target_partition: int
    state: str
    records: int
    bytes: int
    batches: Mapping[str, int]
    next_source_offset: int
    source_end_offset: int
    lag_records: int
    lag_ms: int
    reason: str = ""
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """One flow: ``state`` is ``starting``, ``running``, ``recovering``, ``stopped`` or ``failed``."""

    flow: str
    state: str
    spark_epoch: int
    partitions: tuple[PartitionView, ...]

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.partitions)

    @property
    def skipped(self) -> int:
        return sum(one.skipped for one in self.partitions)

    @property
    def lag_records(self) -> int:
        return sum(one.lag_records for one in self.partitions)
