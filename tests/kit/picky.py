"""A target partition that takes some records never: too large, without a key, too old."""

from __future__ import annotations

from dataclasses import dataclass, field

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane.batches.error_codes import Refusal
from tests.kit.logs import TargetPartition

MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
INVALID_RECORD = 87


@dataclass
class PickyTarget(TargetPartition):
    """Kafka's ``LogValidator``; ``max_bytes`` without codec if ``inflates``; Produce 8 ``lists_records``."""

    max_bytes: int = 2**30
    inflates: bool = False
    compacted: bool = False
    oldest_ms: int = -1
    lists_records: bool = True
    refusals: list[Refusal] = field(default_factory=list)

    def append(self, batch: bytes) -> tuple[int, int]:
        refusal = self._refusal(batch)
        if refusal is None:
            return super().append(batch)
        self.refusals.append(refusal)
        return refusal.code, -1

    def takes(self, record: records.Record) -> bool:
        """Whether it would take a record by itself."""
        return self._refusal(bytes(records.build([record], 0, 1, 0, 0))) is None

    def _refusal(self, batch: bytes) -> Refusal | None:
        opened = list(records.decode(batch, 2))
        size = len(records.build(opened, 0, -1, -1, -1)) if self.inflates else len(batch)
        if size > self.max_bytes:
            return Refusal(MESSAGE_TOO_LARGE)
        old = [index for index, record in enumerate(opened) if record.timestamp_ms < self.oldest_ms]
        keyless = [index for index, record in enumerate(opened) if self.compacted and record.key is None]
        if old or keyless:
            listed = tuple(sorted({*old, *keyless})) if self.lists_records else ()
            return Refusal(INVALID_TIMESTAMP if old else INVALID_RECORD, listed)
        return None


def is_data(batch: bytes) -> bool:
    return not wire.read_header(batch).is_control
