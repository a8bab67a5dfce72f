"""What is said of partitions that begin at the end of their log."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import EARLIEST
from connectors.formats.types import TopicPartition
from connectors.topic_sync import partition_assignment
from connectors.topic_sync.partition_assignment import warn_of_skipped_backlog


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its logs begin at offset 5."""

    async def list_offsets(_: object, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        assert at == EARLIEST
        return dict.fromkeys(partitions, 5)

    monkeypatch.setattr(partition_assignment, "list_offsets", list_offsets)
    return cast(Cluster, SimpleNamespace(name="source"))


async def test_records_that_are_left_out_are_told_in_one_line(
    source: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    ends = {TopicPartition("orders", number): 7 + number for number in range(8)} | {TopicPartition("empty", 0): 5}
    await warn_of_skipped_backlog(source, ends)
    (reported,) = caplog.messages
    assert reported == (
        "cluster source: no offset is stored for 8 partitions that have records, and auto.offset.reset = latest skips "
        "these records: orders-0 at offset 7, orders-1 at offset 8, orders-2 at offset 9, orders-3 at offset 10, "
        "orders-4 at offset 11 and 3 more; with earliest they would be copied"
    )


async def test_nothing_is_told_of_logs_without_records(source: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await warn_of_skipped_backlog(source, {TopicPartition("empty", 0): 5})
    await warn_of_skipped_backlog(source, {})
    assert not caplog.messages
