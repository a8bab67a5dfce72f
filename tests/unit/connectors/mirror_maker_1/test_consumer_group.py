"""What a member stores in its group, with the coordinator's answers in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.committed_offsets import Committed
from connectors.formats.types import TopicPartition
from connectors.mirror_maker_1.consumer_group import GroupOffsets

SHORT, LONG = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Coordinator:
    """Takes texts of up to ten characters; ``codes`` are its answers otherwise."""

    name = "source"

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, Committed] = {}
        self.code = 0
        self.asked = 0
        self.forgotten: list[int] = []

    async def coordinator(self, _: str, __: str) -> Coordinator:
        return self

    def forget_coordinator(self, _: str, __: str, code: int) -> None:
        self.forgotten.append(code)

    async def call(self, request: Any, *, at_most: int) -> Any:
        self.asked += 1
        return SimpleNamespace(
            topics=[
                SimpleNamespace(name=topic.name, partitions=[self._answer(topic.name, one) for one in topic.partitions])
                for topic in request.topics
            ]
        )

    def _answer(self, topic: str, one: Any) -> Any:
        code = self.code or (12 if len(one.committed_metadata) > 10 else 0)
        if not code:
            partition = TopicPartition(topic, one.partition_index)
            self.stored[partition] = Committed(one.committed_offset, one.committed_metadata)
        return SimpleNamespace(partition_index=one.partition_index, error_code=code)


def offsets_of(coordinator: Coordinator) -> GroupOffsets:
    return GroupOffsets(cast(Cluster, coordinator), "g", lambda: (1, "member"))


async def test_a_text_that_is_too_long_is_left_out_of_its_partition_alone(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    offsets = offsets_of(coordinator)
    await offsets.write({SHORT: Committed(5, "short"), LONG: Committed(6, "much too long")})
    assert coordinator.stored == {SHORT: (5, "short"), LONG: (6, "")}
    assert "orders-1" in caplog.text and "orders-0" not in caplog.text
    await offsets.write({SHORT: Committed(7, "short"), LONG: Committed(8, "much too long")})
    assert coordinator.stored == {SHORT: (7, "short"), LONG: (8, "")}
    assert coordinator.asked == 3, "it is known by then"


async def test_a_group_that_goes_on_without_us_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    coordinator.code = 27
    with pytest.raises(RetriableError, match="committing offsets of group g"):
        await offsets_of(coordinator).write({SHORT: Committed(5)})
    assert coordinator.forgotten == [27], "a code may say that another broker coordinates it"
