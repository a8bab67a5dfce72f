"""What partitions are measured by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.control_link.protocol import PartitionProgress
from connectors.flow_progress import Meters
from connectors.formats.types import TopicPartition

ONE = TopicPartition("orders", 1)
PROGRESS = PartitionProgress(
    source=ONE,
    next_source_offset=10,
    last_source_epoch=0,
    target_end=10,
    next_sequence=10,
    high_watermark=12,
    log_start_offset=0,
    timestamp_ms=9_000,
    records=10,
    bytes=500,
    batches={},
)


def test_records_bytes_and_the_age_of_the_newest_are_measured() -> None:
    meters = Meters()
    meters.apply(PROGRESS, 10_000)
    meters.apply(replace(PROGRESS, records=5, bytes=100, timestamp_ms=10_500), 11_000)
    meter = meters.partitions[ONE]
    assert (meter.records, meter.bytes) == (15, 600)
    assert (meter.age_ms.last, meter.age_ms.least(11_000), meter.age_ms.most(11_000)) == (500, 500, 1000)
    assert meter.record_rate.rate(11_000) == pytest.approx(15 / 31)


def test_a_report_without_records_is_no_measurement_but_shows_the_partition() -> None:
    meters = Meters()
    meters.apply(replace(PROGRESS, records=0, bytes=0), 10_000)
    assert meters.partitions[ONE].records == 0
    assert meters.partitions[ONE].age_ms.mean(10_000) != meters.partitions[ONE].age_ms.mean(10_000), "no number"


def test_clocks_that_disagree_and_records_without_a_time_give_no_negative_age() -> None:
    meters = Meters()
    meters.apply(replace(PROGRESS, timestamp_ms=10_001), 10_000)
    assert meters.partitions[ONE].age_ms.last == 0
    meters.apply(replace(PROGRESS, timestamp_ms=-1), 20_000)
    assert meters.partitions[ONE].age_ms.last == 0
