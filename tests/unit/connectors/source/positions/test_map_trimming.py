"""What the map may let go of is told by the target's log alone, and never by another log under its name."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connect.kafka.concurrency import Scope
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions import ledger as trimming
from connectors.source.positions.ledger import Ledger, note_log_starts, trim_forever
from connectors.source.positions.partition_pairs import Entry, PartitionPair
from tests.kit.virtual_time import in_virtual_time

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
PAIR = PartitionPair(SOURCE, UUID(int=1), TARGET, UUID(int=2))


def position(target_end: int) -> Position:
    return Position(*SOURCE, UUID(int=1), 60, 0, *TARGET, UUID(int=2), target_end, "mm2-0", 5, 1, 8)


class Target:
    """Answers with one topic id after the other, and one log start."""

    def __init__(self, *topic_ids: int, leader: int = 1) -> None:
        self.topic_ids = list(topic_ids)
        self.leader = leader

    async def metadata(self, topics: Collection[str]) -> ClusterMetadata:
        assert set(topics) == {TARGET.topic}
        topic_id = self.topic_ids.pop(0)
        partitions = {0: PartitionMetadata(self.leader, 0, (), 0)}
        known = TopicMetadata(TARGET.topic, UUID(int=topic_id), 0, partitions)
        return ClusterMetadata(None, 1, {}, {TARGET.topic: known})


@pytest.fixture(autouse=True)
def log_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_offsets(cluster: object, partitions: Collection[TopicPartition], at: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, 40)

    monkeypatch.setattr(trimming, "list_offsets", list_offsets)


@pytest.mark.parametrize(
    ("target", "target_end", "is_asked", "reported"),
    [
        (Target(2, 2), 50, True, 40),
        (Target(2, 3), 50, True, None),  # made anew while it was asked
        (Target(3, 3), 50, False, None),
        (Target(2, 2, leader=-1), 50, False, None),
        (Target(2, 2), 40, True, 40),
        (Target(2, 2), 39, True, None),  # behind all that was ever acknowledged
    ],
)
async def test_log_starts_of_the_pairs_topic(
    target: Target, target_end: int, is_asked: bool, reported: int | None
) -> None:
    entry = Entry(PAIR, position(target_end))
    assert await note_log_starts(cast("Cluster", target), [entry, Entry(PAIR)]) is is_asked
    assert entry.target_log_start == reported


async def test_a_partition_that_begins_anew_is_not_told_of_its_old_log(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(PAIR, position(50))

    async def remade(cluster: object, partitions: Collection[TopicPartition], at: int) -> dict[Any, int]:
        entry.pair = PartitionPair(SOURCE, UUID(int=1), TARGET, UUID(int=3))
        return dict.fromkeys(partitions, 40)

    monkeypatch.setattr(trimming, "list_offsets", remade)
    await note_log_starts(cast("Cluster", Target(2, 3)), [entry])
    assert entry.target_log_start is None


def test_it_goes_along_with_commits_until_the_partition_begins_anew() -> None:
    ledger = Ledger([PAIR])
    ledger.begin(SOURCE, position(50))
    entry = ledger.entries[SOURCE]
    entry.target_log_start = 40
    assert [commit.target_log_start for commit in ledger.take_commits()] == [40]
    ledger.begin(SOURCE, position(50))
    assert [commit.target_log_start for commit in ledger.take_commits()] == [None]


@in_virtual_time
async def test_it_asks_again_where_it_could_not_and_then_of_what_has_moved_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(PAIR, source=TopicPartition("orders", 1))  # it is not copied
    ledger, clock = Ledger([PAIR, other]), asyncio.get_running_loop().time
    ledger.begin(SOURCE, position(50))
    asked_s: list[float] = []

    async def note(target: object, entries: list[Entry]) -> bool:
        assert [entry.pair for entry in entries] == [PAIR]
        asked_s.append(clock())
        if len(asked_s) < 3:
            raise RetriableError("no leader now")
        return True

    monkeypatch.setattr(trimming, "note_log_starts", note)
    async with Scope("test") as scope:
        trimmed = scope.spawn(trim_forever(cast("Cluster", None), ledger, "us->eu task 0"), "trim")
        await asyncio.sleep(499)
        assert asked_s == [0, 2, 4]
        ledger.begin(SOURCE, position(60))
        await asyncio.sleep(500)
        assert asked_s == [0, 2, 4, 500]
        trimmed.cancel()
