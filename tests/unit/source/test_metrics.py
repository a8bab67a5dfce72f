"""Metrics of many partitions leave the loop to others in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from connectors.contact import NOTHING_KNOWN
from connectors.dataplane.plan import TopicPartition
from connectors.source.metrics import mirror_metrics
from connectors.source.progress import PartitionMeter

PARTITIONS = 1_000


def host() -> Any:
    meters = {TopicPartition("orders", number): PartitionMeter(records=number) for number in range(PARTITIONS)}
    task = SimpleNamespace(
        flow="us->eu",
        meters=SimpleNamespace(partitions=meters),
        target_topic=lambda source: f"us.{source.topic}",
        view=lambda _: [],
    )
    return SimpleNamespace(running={("mirror", 0): task}, contact=lambda _: NOTHING_KNOWN, seen={})


async def test_others_have_their_turn_while_many_partitions_are_looked_at() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 2:
                # What the flow does meanwhile disturbs nothing.
                mirror.running[("mirror", 0)].meters.partitions[TopicPartition("new", 0)] = PartitionMeter()
            await asyncio.sleep(0)

    mirror = host()
    beside = asyncio.create_task(other(), name="other work")
    families = {family.name: family for family in await mirror_metrics([mirror], 1000)}
    beside.cancel()
    counts = families["kafka_connect_mirror_MirrorSourceConnector_record_count"].samples
    assert sum(sample.value for sample in counts) == PARTITIONS * (PARTITIONS - 1) / 2
    assert turns >= PARTITIONS // 100
