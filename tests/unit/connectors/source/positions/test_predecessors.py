"""Who may still store positions of a partition while several successors take it over."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.log.transactions import Superseded, TransactionalIdRefused
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions import stored_positions
from connectors.source.positions.stored_positions import MissingRights, Predecessors, Start

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
        self.names_written_under: list[str] = []
        coordinator = self

        class Writer:
            def __init__(self, _: object, name: str) -> None:
                self.name = name

            async def open(self) -> None:
                self.epoch = coordinator.claim(self.name)

            def check(self) -> None:
                if self.epoch != coordinator.epochs[self.name]:
                    raise Superseded(f"{self.name} was claimed")

        async def init_producer_id(_: object, name: str) -> None:
            self.claim(name)

        monkeypatch.setattr(stored_positions, "TransactionalWriter", Writer)
        monkeypatch.setattr(stored_positions, "init_producer_id", init_producer_id)

    def claim(self, name: str) -> int:
        if name in self.refused:
            raise TransactionalIdRefused(f"grant WRITE on {name}")
        if (position := self.last_words.pop(name, None)) is not None:
            self.store(position)
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return self.epochs[name]

    def store(self, *positions: Position) -> None:
        places = {one: TopicPartition(one.source_topic, one.source_partition) for one in positions}
        self.stored |= {place: Start(one, 0, False) for one, place in places.items()}

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Start]:
        return {one: self.stored[one] for one in partitions}

    def successor(self, own: str, *, is_atomic: bool = False) -> Predecessors:
        return Predecessors(cast(Cluster, None), f"{own}-commit", MissingRights(), is_atomic=is_atomic)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    found = Coordinator(monkeypatch)
    found.store(BEFORE)
    return found


async def take(coordinator: Coordinator, own: str, *, freezes: asyncio.Event | None = None) -> Position:
    """Let a task shut others out, and freeze before it names itself if told so."""

    async def claim(writer: Any, sources: Collection[TopicPartition]) -> None:
        coordinator.names_written_under.append(writer.name)
        if freezes is not None:
            await freezes.wait()
        writer.check()
        for source in sources:
            coordinator.stored[source] = replace(coordinator.stored[source], claimant=f"{own}-commit")

    starts = await coordinator.read([SOURCE])
    position = (await coordinator.successor(own).fence_predecessors(starts, coordinator.read, claim))[SOURCE].position
    assert position is not None
    return position


async def test_of_two_successors_one_that_froze_before_it_named_itself_is_refused(coordinator: Coordinator) -> None:
    """It would write beside the second one when it thaws."""
    thaws = asyncio.Event()
    first = asyncio.create_task(take(coordinator, "mm2-1", freezes=thaws))
    await asyncio.sleep(0)
    assert await take(coordinator, "mm2-2") == BEFORE
    thaws.set()
    with pytest.raises(Superseded):
        await first
    assert coordinator.stored[SOURCE].claimant == "mm2-2-commit"


@pytest.mark.parametrize("own", ["mm2-2", "mm2-0"])
async def test_a_successor_that_named_itself_is_shut_out_before_it_stores(coordinator: Coordinator, own: str) -> None:
    """Also by the writer that it takes over from, when that is started again."""
    await take(coordinator, "mm2-1")
    assert await take(coordinator, own) == BEFORE
    assert {"mm2-1", "mm2-1-commit"} <= coordinator.epochs.keys()


async def test_a_task_that_is_the_claimant_already_claims_nobody_again(coordinator: Coordinator) -> None:
    """Else two tasks that have partitions of each other interrupt each other until they fail."""
    await take(coordinator, "mm2-1")
    claimed = dict(coordinator.epochs)
    assert await take(coordinator, "mm2-1") == BEFORE
    assert coordinator.epochs == claimed
    assert coordinator.names_written_under == ["mm2-0-commit"]


async def test_a_writer_that_finds_another_claimant_names_itself(coordinator: Coordinator) -> None:
    """Else that claimant would take itself for the owner when it starts again, and copy at the same time."""
    await take(coordinator, "mm2-1")
    assert await take(coordinator, "mm2-0") == BEFORE
    assert coordinator.stored[SOURCE].claimant == "mm2-0-commit"
    await take(coordinator, "mm2-1")
    assert coordinator.epochs["mm2-0-commit"] == 2


@pytest.mark.parametrize("own", ["mm2-2", "mm2-0"])
async def test_a_task_does_not_name_itself_if_the_claimant_started_again(coordinator: Coordinator, own: str) -> None:
    """The claimant reads its own name and claims nobody, so its start has to shut us out."""
    await take(coordinator, "mm2-1")
    thaws = asyncio.Event()
    successor = asyncio.create_task(take(coordinator, own, freezes=thaws))
    await asyncio.sleep(0)
    coordinator.claim("mm2-1-commit")
    assert await take(coordinator, "mm2-1") == BEFORE
    thaws.set()
    with pytest.raises(Superseded):
        await successor
    assert coordinator.stored[SOURCE].claimant == "mm2-1-commit"


async def test_a_claimant_without_exactly_once_ends_a_transaction_of_its_own_last_run(coordinator: Coordinator) -> None:
    coordinator.stored[SOURCE] = Start(replace(BEFORE, is_atomic=True), 0, False, claimant="mm2-1-commit")
    await take(coordinator, "mm2-1")
    assert coordinator.epochs == {"mm2-1": 1}


async def test_a_successor_that_stored_before_that_is_seen_and_shut_out_too(coordinator: Coordinator) -> None:
    newer = replace(BEFORE, transactional_id="mm2-1", next_source_offset=120)
    newest = replace(newer, next_source_offset=140)
    coordinator.last_words = {"mm2-0-commit": newer, "mm2-1-commit": newest}
    assert await take(coordinator, "mm2-2") == newest
    assert coordinator.epochs == {"mm2-0-commit": 1, "mm2-1-commit": 1}


@pytest.mark.parametrize(
    "position", [replace(BEFORE, is_handed_over=True), replace(BEFORE, transactional_id=""), BEFORE]
)
async def test_a_task_that_can_store_no_more_is_not_claimed(coordinator: Coordinator, position: Position) -> None:
    coordinator.store(position)
    assert await take(coordinator, "mm2-0") == position
    assert coordinator.epochs == {}


@pytest.mark.parametrize(
    ("own", "claimed"), [("mm2-0", {"mm2-0"}), ("mm2-1", {"mm2-0", "mm2-0-commit"})], ids=["own", "another"]
)
async def test_what_no_open_transaction_holds_counts(coordinator: Coordinator, own: str, claimed: set[str]) -> None:
    coordinator.store(replace(BEFORE, is_atomic=True))
    coordinator.last_words = {"mm2-0": replace(BEFORE, is_atomic=True, next_source_offset=130)}
    found = await take(coordinator, own)
    assert found.next_source_offset == 130
    assert coordinator.epochs.keys() == claimed


async def test_without_rights_nobody_is_shut_out(coordinator: Coordinator) -> None:
    coordinator.refused = {"mm2-0-commit"}
    assert await take(coordinator, "mm2-1") == BEFORE
    assert coordinator.stored[SOURCE].claimant == ""


@pytest.mark.parametrize("partitions", [(0, 3), (3, 0)])
async def test_an_owner_of_several_is_claimed_once(coordinator: Coordinator, partitions: Sequence[int]) -> None:
    """It wrote one and has claimed the other: with two writers under its id the second shuts the first one out."""
    claimed = TopicPartition("orders", 3)
    written = replace(BEFORE, source_partition=3, transactional_id="mm2-1")
    coordinator.stored[claimed] = Start(written, 0, False, claimant="mm2-0-commit")

    async def claim(writer: Any, sources: Collection[TopicPartition]) -> None:
        writer.check()
        for source in sources:
            coordinator.stored[source] = replace(coordinator.stored[source], claimant="mm2-1-commit")

    starts = {one: coordinator.stored[one] for one in (TopicPartition("orders", index) for index in partitions)}
    await coordinator.successor("mm2-1").fence_predecessors(starts, coordinator.read, claim)
    assert {one.claimant for one in coordinator.stored.values()} == {"mm2-1-commit"}
    assert coordinator.epochs == {"mm2-0": 1, "mm2-0-commit": 1}
