"""The task under exactly-once: what it commits on, and what it trusts after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.log.transactions import FenceRefused, TopicsRefused
from connect.kafka.log.transactions import ProducerIdentity as Identity
from connectors.config.client_config import Rhythm
from connectors.control_link.protocol import PartitionPlan, PartitionProgress, TransactionTerms
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof, TopicPartition
from connectors.source import exactly_once_task
from connectors.source.exactly_once_task import ExactlyOnceTask
from connectors.source.positions.partition_pairs import PartitionPair
from connectors.source.positions.stored_positions import Commit, PositionStore, Start
from connectors.source.slice_handle import SliceLost, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask
from tests.unit.connectors.source import world as around
from tests.unit.connectors.source.world import SOURCE, copying


class Transactions:
    """A transactional id whose every commit raises the epoch."""

    transactional_id = "mm2-0"
    version = 2
    restarts = True

    def __init__(self) -> None:
        self.identity = Identity(5, 100)
        self.unwritable: frozenset[TopicPartition] = frozenset()
        self.added: set[TopicPartition] = set()

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """As AddPartitionsToTxn below version 4: all or none."""
        if refused := self.unwritable & frozenset(partitions):
            raise TopicsRefused("grant WRITE", refused)
        self.added |= set(partitions)

    def adopt(self, producer_id: int, epoch: int) -> None:
        self.identity = Identity(producer_id, epoch)


class Slice(around.Slice):
    """A slice whose transactions the test ends."""

    def __init__(self, world: around.World, epoch: int) -> None:
        super().__init__(world, epoch)
        self.on_transaction: Callable[[dict[str, Any]], None] | None = None
        self.went: list[tuple[int, list[PartitionPlan]]] = []
        self.began: list[int] = []
        self.enlistings: list[tuple[set[TopicPartition], set[TopicPartition]]] = []

    async def go(
        self, producer: ProducerIdAndEpoch, plans: Iterable[PartitionPlan], _: TransactionTerms | None = None
    ) -> None:
        self.went.append((producer.epoch, list(plans)))
        await super().go(producer, self.went[-1][1])

    def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
        assert restarts
        self.began.append(producer.epoch)
        self._world.changed()

    def enlisted(self, targets: Collection[TopicPartition], refused: Collection[TopicPartition]) -> None:
        self.enlistings.append((set(targets), set(refused)))
        self._world.changed()

    def give_up(self, error: SliceLost) -> None:
        self.ended.set_result(error)

    async def stop(self) -> list[TopicPartition]:
        await super().stop()
        if error := self.ended.result():
            raise error
        return []

    def drained(self, next_source_offset: int) -> None:
        progress = PartitionProgress(SOURCE, next_source_offset, 0, 50, 0, 100, 0, 0, 1, 1, {})
        assert self.on_transaction is not None
        self.on_transaction({"type": "drained", "partitions": [progress.to_wire()]})


class World(around.World):
    kind = Slice

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.transactions = Transactions()
        self.loads = 0
        self.fails: Exception | None = None
        self.proof: ResumeProof | None = None

        async def claimed(*_: object) -> None:
            """Nobody else claims anything here."""

        monkeypatch.setattr(exactly_once_task, "init_producer_id", claimed)

    def make(self, settings: TaskSettings, services: TaskServices) -> MirrorSourceTask:
        store, transactions = cast(PositionStore, self), cast(Any, self.transactions)
        return ExactlyOnceTask(settings, services, store, transactions, Rhythm(0, 0), "mm2-0-commit", None)

    async def load(self, partitions: Collection[TopicPartition]) -> Any:
        self.loads += 1
        return await super().load(partitions)

    async def commit(self, commits: Sequence[Commit]) -> None:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        await super().commit(commits)
        (commit,) = commits
        self.stored[SOURCE] = Start(commit.position, commit.position.next_source_offset - 1, False)
        self.transactions.adopt(5, self.transactions.identity.epoch + 1)

    def plan(self, pair: PartitionPair, start: Start) -> PartitionPlan:
        offset = start.position.next_source_offset if start.position else 0
        return replace(pair.plan(offset, -1, 0, pipelined=False), proof=self.proof)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_it_commits_what_is_drained_and_nothing_else(world: World) -> None:
    async with copying(world):
        slice_ = world.slices[0]
        assert [commit.position.next_source_offset for commit in world.commits] == [0], "where it begins"
        assert slice_.went[0][0] == world.transactions.identity.epoch, "as whom that commit has left it"
        slice_.drained(7)
        await world.until(lambda: slice_.began)
        assert world.commits[-1].position.next_source_offset == 7
        assert world.commits[-1].position.is_atomic
        assert slice_.began == [world.transactions.identity.epoch]
    assert world.commits[-1].position.is_handed_over


@pytest.mark.parametrize("error", [RetriableError("no answer to EndTxn"), KeyError("a mistake of ours")])
async def test_what_is_stored_counts_when_a_commit_fails(world: World, error: Exception) -> None:
    """The answer may be what was lost, so memory says nothing."""
    async with copying(world):
        slice_ = world.slices[0]
        world.fails = error
        slice_.drained(7)
        await world.until(lambda: len(world.slices) == 2 and world.slices[1].went)
        assert world.loads == 2
        assert world.slices[1].went[0][1][0].next_source_offset == 0
        assert [commit.position.next_source_offset for commit in world.commits] == [0, 0]


async def test_a_topic_without_the_right_to_write_is_told_and_the_others_are_taken_in(world: World) -> None:
    fine, refused = TopicPartition("us.orders", 0), TopicPartition("us.bills", 0)
    world.transactions.unwritable = frozenset({refused})
    async with copying(world):
        slice_ = world.slices[0]
        slice_.on_transaction({"type": "enlist", "partitions": [list(fine), list(refused)]})
        await world.until(lambda: slice_.enlistings or slice_.ended.done())
        assert slice_.enlistings == [({fine}, {refused})]
        assert world.transactions.added == {fine}


async def test_it_does_not_begin_while_the_writer_before_it_cannot_be_fenced(world: World) -> None:
    """Only a raised epoch shuts that one out, and a transaction has the epoch of its own id."""
    world.proof = ResumeProof(ProducerIdAndEpoch(9, 2), 4, is_fenced=False)
    with pytest.raises(FenceRefused, match=r"us\.orders-0 .* Start the flow once without"):
        await asyncio.wait_for(world.task().run(), 60)
    assert not world.commits


async def test_a_slice_that_is_lost_leaves_nothing_to_commit(world: World) -> None:
    async with copying(world) as one:
        slice_ = world.slices[0]
        one._progressed(PartitionProgress(SOURCE, 3, 0, 50, 0, 100, 0, 0, 0, 0, {}))  # told while nothing was filled
        slice_.give_up(SliceLost("killed"))
    assert len(world.commits) == 1, "a transaction may be open, and a commit would end it"
