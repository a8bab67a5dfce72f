"""Topics that come back: what is said of partitions that stopped as they were gone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connectors.dataplane import log_divergence
from connectors.formats.gap import GapKind
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions import gap_policy
from connectors.source.positions.gap_policy import is_gone, judged, look_for_recreated, returned
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair

OLD, NEW = UUID(int=1), UUID(int=2)
SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
POSITION = Position(*SOURCE, OLD, 20, 3, *TARGET, OLD, 20, "mm2-0", 5, 1, 8)


def stopped(side: str) -> Entry:
    entry = Entry(PartitionPair(SOURCE, OLD, TARGET, OLD), POSITION, high_watermark=30)
    topic = SOURCE.topic if side == "source" else TARGET.topic
    verdict = log_divergence.deleted(side, topic, SOURCE, POSITION.next_source_offset)
    entry.stop(verdict.reason, gap=verdict.gap)
    return entry


def topic(name: str, topic_id: UUID | None, *partitions: int) -> TopicMetadata:
    return TopicMetadata(name, topic_id, 0, {index: PartitionMetadata(1, 0, (1,), 0) for index in partitions})


@pytest.mark.parametrize(("side", "kind"), [("source", GapKind.SOURCE_RECREATED), ("target", GapKind.TARGET_RECREATED)])
def test_a_topic_that_is_back_was_made_anew(side: str, kind: GapKind) -> None:
    entry = stopped(side)
    assert is_gone(entry)
    verdict = judged(entry, topic("orders" if side == "source" else "us.orders", NEW, 0))
    assert verdict is not None and verdict.gap is not None
    assert (verdict.gap.kind, verdict.gap.old_id, verdict.gap.new_id) == (kind, OLD, NEW)
    assert "was recreated" in verdict.reason


@pytest.mark.parametrize(
    "found", [None, topic("orders", NEW), topic("orders", NEW, 1), topic("orders", OLD, 0), topic("orders", None, 0)]
)
def test_nothing_new_is_said(found: TopicMetadata | None) -> None:
    assert judged(stopped("source"), found) is None


class OneTopic:
    """A cluster with one topic."""

    def __init__(self, known: TopicMetadata) -> None:
        self._known = known

    async def metadata(self, names: Collection[str]) -> ClusterMetadata:
        return ClusterMetadata(None, 1, {}, {name: self._known for name in names if name == self._known.name})


SITE = Clusters(cast(Cluster, OneTopic(topic("orders", NEW, 0))), cast(Cluster, OneTopic(topic("us.orders", NEW, 0))))


async def test_each_deleted_topic_is_looked_for_in_its_own_cluster() -> None:
    gone = [stopped("source"), stopped("target")]
    still_gone = replace(stopped("source"), pair=PartitionPair(TopicPartition("mail", 0), OLD, TARGET, OLD))
    running = replace(stopped("source"), state="running")
    found = await returned(SITE.source, SITE.target, [*gone, still_gone, running])
    kinds = (GapKind.SOURCE_RECREATED, GapKind.TARGET_RECREATED)
    assert [(entry, verdict.gap and verdict.gap.kind) for entry, verdict in found] == list(
        zip(gone, kinds, strict=True)
    )


async def test_a_partition_whose_topic_is_back_stops_with_the_new_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_policy, "_LOOK_S", 0)
    entry, left = stopped("source"), stopped("source")
    reported = asyncio.Queue[Entry]()
    looks = iter([[entry, left]])
    task = asyncio.create_task(look_for_recreated(SITE, lambda: next(looks, [entry]), reported.put_nowait))
    assert await reported.get() is entry
    assert entry.gap is not None
    assert entry.gap.kind is GapKind.SOURCE_RECREATED
    for _ in range(9):
        await asyncio.sleep(0)
    assert reported.empty()
    assert is_gone(left)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_others_are_not_looked_at() -> None:
    entry = stopped("source")
    assert not is_gone(replace(entry, state="running", gap=None))
    assert not is_gone(replace(entry, position=None))
    damaged = replace(entry, gap=None)
    damaged.stop("damaged")
    assert not is_gone(damaged)
