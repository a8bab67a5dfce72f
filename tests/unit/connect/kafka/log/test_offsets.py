"""First and last offsets of many partitions, of leaders that are far away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from connect.kafka.log.offsets import LATEST, known_offsets, list_offsets
from tests.kit import virtual_time

ROUND_TRIP_S = 0.05
PARTITIONS = [("orders", index) for index in range(3_000)]


class Cluster:
    """Of two brokers; each request takes a round trip, and others may be under way at the same time."""

    name = "eu"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def metadata(self, _: object) -> Cluster:
        return self

    async def connection(self, _: int) -> Cluster:
        return self

    def leader(self, _: str, partition: int) -> int:
        return partition % 2

    def leader_epoch(self, *_: object) -> int:
        return 5

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(ROUND_TRIP_S)
        self.sizes.append(sum(len(topic.partitions) for topic in request.topics))
        rows = [
            SimpleNamespace(partition_index=one.partition_index, offset=one.partition_index, error_code=0)
            for one in request.topics[0].partitions
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=rows)])


@pytest.mark.parametrize("is_reported", [True, False])
def test_offsets_of_many_partitions_take_one_round_trip(is_reported: bool) -> None:
    cluster: Any = Cluster()

    async def ask() -> tuple[dict[tuple[str, int], int], float]:
        began_s = asyncio.get_running_loop().time()
        if is_reported:
            found, missing = await known_offsets(cluster, PARTITIONS, LATEST, leader_s=10)
            assert not missing
        else:
            found = await list_offsets(cluster, PARTITIONS, LATEST)
        return found, asyncio.get_running_loop().time() - began_s

    found, took_s = virtual_time.run(ask())
    assert found == {one: one[1] for one in PARTITIONS}
    assert took_s == pytest.approx(ROUND_TRIP_S)
    assert cluster.sizes == [500] * 6
