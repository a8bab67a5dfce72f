"""Who may still store positions of a partition while several successors take it over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.transactions import Superseded, TransactionalIdRefused
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.source import predecessors
from connectors.source.predecessors import Predecessors
from connectors.source.store import Commit, Start
from connectors.source.unfenced import MissingRights

SOURCE = TopicPartition("orders", 0)
BEFORE = Position(*SOURCE, None, 100, 3, "us.orders", 0, None, 50, "mm2-0", 5, 1, 8)


class Coordinator:
    """Counts claims of transactional ids, and lets only the last one write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epochs: dict[str, int] = {}
        self.refused: set[str] = set()
        self.stored: dict[TopicPartition, Start] = {}
        #: What a writer stores before it is claimed, by its id.
        self.last_words: dict[str, Position] = {}
        coordinator = self

        class Writer:
            def __init__(self, _: object, name: str) -> None:
                self.name = name

            async def open(self) -> None:
                self.epoch = coordinator.claim(self.name)

            async def write(self, positions: Collection[Position]) -> None:
                if self.epoch != coordinator.epochs[self.name]:
                    raise Superseded(f"{self.name} was claimed")
                coordinator.store(*positions)

        async def init_producer_id(_: object, name: str) -> None:
            self.claim(name)

        monkeypatch.setattr(predecessors, "TransactionalWriter", Writer)
        monkeypatch.setattr(predecessors, "init_producer_id", init_producer_id)

    def claim(self, name: str) -> int:
        if name in self.refused:
            raise TransactionalIdRefused(f"grant WRITE on {name}")
        if (position := self.last_words.pop(name, None)) is not None:
            self.store(position)
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return self.epochs[name]

    def store(self, *positions: Position) -> None:
        self.stored |= {
            TopicPartition(one.source_topic, one.source_partition): Start(one, 0, False) for one in positions
        }

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Start]:
        return {one: self.stored[one] for one in partitions}

    def successor(self, own: str, *, is_atomic: bool = False) -> Predecessors:
        return Predecessors(cast(Cluster, None), f"{own}-commit", MissingRights(), is_atomic=is_atomic)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    found = Coordinator(monkeypatch)
    found.store(BEFORE)
    return found


async def take(coordinator: Coordinator, successor: Predecessors) -> Position:
    position = (await successor.shut_out(await coordinator.read([SOURCE]), coordinator.read))[SOURCE].position
    assert position is not None
    return position


async def store(successor: Predecessors, position: Position) -> bool:
    """Whether a predecessor's id wrote it; False: it is left to the store's own writer."""
    commits = [Commit(position)]
    ((writer, group),) = successor.by_writer(commits)
    assert group == commits
    if writer is not None:
        await writer.write(cast(Any, [position]))
    successor.stored(commits)
    return writer is not None


async def test_of_two_successors_of_one_writer_only_the_last_one_stores(coordinator: Coordinator) -> None:
    """The first one freezes after its fence, and would write beside the second when it thaws."""
    first, second = coordinator.successor("mm2-1"), coordinator.successor("mm2-2")
    assert await take(coordinator, first) == BEFORE
    assert await take(coordinator, second) == BEFORE
    with pytest.raises(Superseded):
        await store(first, replace(BEFORE, transactional_id="mm2-1"))
    assert await store(second, replace(BEFORE, transactional_id="mm2-2"))
    assert coordinator.stored[SOURCE].position == replace(BEFORE, transactional_id="mm2-2")


async def test_a_successor_that_stored_before_it_was_shut_out_is_seen_and_shut_out_too(
    coordinator: Coordinator,
) -> None:
    newer = replace(BEFORE, transactional_id="mm2-1", next_source_offset=120)
    newest = replace(newer, next_source_offset=140)
    coordinator.last_words = {"mm2-0-commit": newer, "mm2-1-commit": newest}
    assert await take(coordinator, coordinator.successor("mm2-2")) == newest
    assert coordinator.epochs == {"mm2-0-commit": 1, "mm2-1-commit": 1}


async def test_only_the_first_position_is_stored_under_the_id_of_the_predecessor(coordinator: Coordinator) -> None:
    successor = coordinator.successor("mm2-1")
    await take(coordinator, successor)
    assert await store(successor, replace(BEFORE, transactional_id="mm2-1"))
    assert not await store(successor, replace(BEFORE, transactional_id="mm2-1", next_source_offset=110))


@pytest.mark.parametrize(
    "position", [replace(BEFORE, is_handed_over=True), replace(BEFORE, transactional_id=""), BEFORE]
)
async def test_a_task_that_can_store_no_more_is_not_claimed(coordinator: Coordinator, position: Position) -> None:
    coordinator.store(position)
    successor = coordinator.successor("mm2-0")
    assert await take(coordinator, successor) == position
    assert coordinator.epochs == {}
    assert not await store(successor, position)


@pytest.mark.parametrize(
    ("own", "claimed"), [("mm2-0", {"mm2-0"}), ("mm2-1", {"mm2-0", "mm2-0-commit"})], ids=["own", "another"]
)
async def test_what_was_stored_with_its_records_counts_once_no_transaction_of_it_is_open(
    coordinator: Coordinator, own: str, claimed: set[str]
) -> None:
    coordinator.store(replace(BEFORE, is_atomic=True))
    coordinator.last_words = {"mm2-0": replace(BEFORE, is_atomic=True, next_source_offset=130)}
    found = await take(coordinator, coordinator.successor(own))
    assert found.next_source_offset == 130
    assert coordinator.epochs.keys() == claimed


async def test_without_rights_the_stores_own_writer_is_used(coordinator: Coordinator) -> None:
    coordinator.refused = {"mm2-0-commit"}
    successor = coordinator.successor("mm2-1")
    assert await take(coordinator, successor) == BEFORE
    assert not await store(successor, BEFORE)
