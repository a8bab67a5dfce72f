"""The task under exactly-once: what it commits on, and what it trusts after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.log.transactions import FenceRefused, TopicsRefused
from connect.kafka.log.transactions import ProducerIdentity as Identity
from connectors.config.client_config import Rhythm
from connectors.control_link.protocol import PartitionPlan, PartitionProgress, SliceSettings, TransactionTerms
from connectors.formats.types import FlowName, ProducerIdAndEpoch, ResumeProof, TopicPartition
from connectors.source import exactly_once_task, slice_handle, task
from connectors.source.exactly_once_task import ExactlyOnceTask
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair
from connectors.source.positions.stored_positions import Commit, PositionStore, Start
from connectors.source.positions.takeover import Takeover
from connectors.source.slice_handle import SliceLost, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask

SOURCE = TopicPartition("orders", 0)
PAIR = PartitionPair(SOURCE, None, TopicPartition("us.orders", 0), None)


class Transactions:
    """A transactional id whose every commit raises the epoch."""

    transactional_id = "mm2-0"
    version = 2
    restarts = True

    def __init__(self) -> None:
        self.identity = Identity(5, 0)
        self.unwritable: frozenset[TopicPartition] = frozenset()
        self.added: set[TopicPartition] = set()

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """As AddPartitionsToTxn below version 4: all or none."""
        if refused := self.unwritable & frozenset(partitions):
            raise TopicsRefused("grant WRITE", refused)
        self.added |= set(partitions)

    def adopt(self, producer_id: int, epoch: int) -> None:
        self.identity = Identity(producer_id, epoch)


class World:
    """Slices, store and takeover in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transactions = Transactions()
        self.stored: Start = Start(None, None, False)
        self.commits: list[Commit] = []
        self.loads = 0
        self.fails: Exception | None = None
        self.proof: ResumeProof | None = None
        self.slices: list[Any] = []
        self._changed = asyncio.Event()
        world = self

        class Slice:
            def __init__(self, _engine: object, _links: object, _settings: object, epoch: int, _: object) -> None:
                self.epoch = epoch
                self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self.on_transaction: Callable[[dict[str, Any]], None] | None = None
                self.went: list[tuple[int, list[PartitionPlan]]] = []
                self.began: list[int] = []
                self.enlistings: list[tuple[set[TopicPartition], set[TopicPartition]]] = []
                world.slices.append(self)

            async def open(self, _: object) -> None:
                """It comes up at once."""

            async def renewed(self) -> None:
                await asyncio.Event().wait()

            async def go(
                self, producer: ProducerIdAndEpoch, plans: Iterable[PartitionPlan], _: TransactionTerms | None
            ) -> None:
                self.went.append((producer.epoch, list(plans)))
                world.changed()

            def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
                assert restarts
                self.began.append(producer.epoch)
                world.changed()

            def enlisted(self, targets: Collection[TopicPartition], refused: Collection[TopicPartition]) -> None:
                self.enlistings.append((set(targets), set(refused)))
                world.changed()

            def give_up(self, error: Exception) -> None:
                self.ended.set_result(error)

            async def stop(self) -> list[TopicPartition]:
                if not self.ended.done():
                    self.ended.set_result(None)
                if error := self.ended.result():
                    raise error
                return []

            async def close(self) -> None:
                """Nothing is open."""

            def drained(self, next_source_offset: int) -> None:
                progress = PartitionProgress(SOURCE, next_source_offset, 0, 50, 0, 100, 0, 0, 1, 1, {})
                assert self.on_transaction is not None
                self.on_transaction({"type": "drained", "partitions": [progress.to_wire()]})

        async def claimed(*_: object) -> None:
            """Nobody else claims anything here."""

        monkeypatch.setattr(task, "SliceHandle", Slice)
        monkeypatch.setattr(task, "take_over", self._take_over)
        monkeypatch.setattr(slice_handle, "_RETRY_S", 0.001)
        monkeypatch.setattr(exactly_once_task, "init_producer_id", claimed)
        monkeypatch.setattr(MirrorSourceTask, "_pairs", lambda _: self._pairs())

    def task(self) -> ExactlyOnceTask:
        settings = TaskSettings(
            FlowName("us", "eu"), "mm2-0", (SOURCE,), "us.{}".format, SliceSettings("us->eu", 0, {}, {})
        )
        services = TaskServices(*cast(Any, (None, None, Clusters(*cast(Any, (None, None))), None)))
        store, transactions = cast(PositionStore, self), cast(Any, self.transactions)
        return ExactlyOnceTask(settings, services, store, transactions, Rhythm(0, 0), "mm2-0-commit", None)

    def changed(self) -> None:
        self._changed.set()

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not happened():
                await self._changed.wait()
                self._changed.clear()

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        self.loads += 1
        return dict.fromkeys(partitions, self.stored)

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        return starts

    async def commit(self, commits: Sequence[Commit]) -> None:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        self.commits += commits
        (commit,) = commits
        self.stored = Start(commit.position, commit.position.next_source_offset - 1, False)
        self.transactions.adopt(5, self.transactions.identity.epoch + 1)

    async def runs_of(self, *_: object) -> list[Any]:
        return []

    async def _pairs(self) -> list[PartitionPair]:
        return [PAIR]

    async def _take_over(self, _: object, own: str, __: Sequence[Entry], starts: Any, **___: object) -> Takeover:
        position = starts[SOURCE].position
        offset = position.next_source_offset if position else 0
        plan = PartitionPlan(SOURCE, None, PAIR.target, None, offset, -1, 0, 0, pipelined=False, proof=self.proof)
        return Takeover(ProducerIdAndEpoch(5, 100 * (1 + self.loads)), (plan,), own)


@asynccontextmanager
async def copying(world: World) -> AsyncIterator[tuple[ExactlyOnceTask, Any]]:
    """A task and its first slice, which copies; it is stopped at the end."""
    one = world.task()
    running = asyncio.create_task(one.run())
    await world.until(lambda: world.slices and world.slices[0].went)
    yield one, world.slices[0]
    one.stop()
    await asyncio.wait_for(running, 60)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_it_commits_what_is_drained_and_nothing_else(world: World) -> None:
    async with copying(world) as (_, slice_):
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
    async with copying(world) as (_, slice_):
        world.fails = error
        slice_.drained(7)
        await world.until(lambda: len(world.slices) == 2 and world.slices[1].went)
        assert world.loads == 2
        assert world.slices[1].went[0][1][0].next_source_offset == 0
        assert [commit.position.next_source_offset for commit in world.commits] == [0, 0]


async def test_a_topic_without_the_right_to_write_is_told_and_the_others_are_taken_in(world: World) -> None:
    fine, refused = TopicPartition("us.orders", 0), TopicPartition("us.bills", 0)
    world.transactions.unwritable = frozenset({refused})
    async with copying(world) as (_, slice_):
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
    async with copying(world) as (one, slice_):
        one._progressed(PartitionProgress(SOURCE, 3, 0, 50, 0, 100, 0, 0, 0, 0, {}))  # told while nothing was filled
        slice_.give_up(SliceLost("killed"))
    assert len(world.commits) == 1, "a transaction may be open, and a commit would end it"
