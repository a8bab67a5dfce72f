"""Partitions that leave and join a task, with slice, store and take-over in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, TopicPartition
from connectors.positions import Position
from connectors.source import reconfiguring
from connectors.source.ledger import Ledger, Pair
from connectors.source.reach import Waiting
from connectors.source.reconfiguring import Reconfiguring
from connectors.source.slice import SliceHandle, SliceLost
from connectors.source.store import PositionStore, Start

OURS, THEIRS = "g-mirror-0", "g-mirror-1"
A, B, C = (TopicPartition("t", index) for index in range(3))
PRODUCER = ProducerIdentity(7, 2)


def pair(source: TopicPartition) -> Pair:
    return Pair(source, None, TopicPartition(f"us.{source.topic}", source.partition), None)


def position(
    source: TopicPartition, writer: str, *, handed_over: bool, sequence: int = 11, atomic: bool = False
) -> Position:
    return Position(
        source_topic=source.topic,
        source_partition=source.partition,
        source_topic_id=None,
        next_source_offset=50,
        source_leader_epoch=3,
        target_topic=f"us.{source.topic}",
        target_partition=source.partition,
        target_topic_id=None,
        target_end=60,
        transactional_id=writer,
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.epoch,
        next_sequence=sequence,
        is_handed_over=handed_over,
        is_atomic=atomic,
    )


class World:
    """Everything around a reconfiguration; ``said`` is what happened, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.plans: list[PartitionPlan] = []
        self.stored: dict[TopicPartition, Start] = {}
        #: What others stored before they were shut out.
        self.stored_since: dict[TopicPartition, Start] = {}
        self.unclean: list[TopicPartition] = []
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.unknown: set[TopicPartition] = set()
        self.refusals: list[Exception] = []
        self.waiting = Waiting(*cast(Any, (None, None)))
        self.ledger = Ledger([pair(A), pair(B)])
        for source in (A, B):
            self.ledger.begin(source, position(source, OURS, handed_over=False))
        self.ledger.take_commits()
        self.changes = Reconfiguring(
            "us->eu task 0", OURS, self.ledger, cast(PositionStore, self), self.waiting, self, self._commit
        )

    # the slice

    async def remove(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        self.said.append(f"remove {names(partitions)}")
        await self.may_leave.wait()
        return self.unclean

    def add(self, plans: Sequence[PartitionPlan]) -> None:
        self.said.append(f"add {names(plan.source for plan in plans)}")
        self.plans += plans

    # the store

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        return {one: self.stored.get(one, Start(None, None, False)) for one in partitions}

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        self.said.append(f"load {names(partitions)}")
        return await self.load(partitions)

    async def _commit(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        stored = [commit.position for commit in self.ledger.take_commits()]
        self.said.append("store " + ",".join(f"{one.source_partition}{'!' * one.is_handed_over}" for one in stored))

    # the task

    async def find(self, partitions: Collection[TopicPartition]) -> list[Pair]:
        return [pair(one) for one in partitions if one not in self.unknown]

    async def shut_out(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        others = [one for one, start in starts.items() if start.position and start.position.transactional_id == THEIRS]
        if others := [one for one in others if not cast(Position, starts[one].position).is_handed_over]:
            self.said.append(f"shut out {names(others)}")
        return {source: self.stored_since.get(source, start) for source, start in starts.items()}

    async def left(self, sources: Collection[TopicPartition]) -> None:
        self.said.append(f"sync {names(sources)}")

    async def join(self, _: SliceHandle, joining: Ledger, starts: Mapping[TopicPartition, Start]) -> None:
        self.said.append(f"join {names(joining.entries)}")
        for source in joining.entries:
            begin = PartitionPlan(source, None, pair(source).target, None, 50, 3, 60, 0, pipelined=False)
            following = self.changes.continued(begin, PRODUCER).next_sequence
            joining.begin(source, position(source, OURS, handed_over=False, sequence=following))
        joining.take_commits()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        keeping = asyncio.create_task(self.changes.keep(cast(SliceHandle, self)))
        yield keeping
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    async def change(self, *wanted: TopicPartition) -> None:
        """One change of the config, until nothing is under way for it."""
        self.changes.want(wanted)
        await until(lambda: set(self.ledger.entries) == set(wanted))


def names(partitions: Any) -> str:
    return ",".join(str(one.partition) for one in partitions)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for name, seconds in (("_LOOK_S", 0.001), ("_RETRY_S", 0.001), ("HAND_OVER_S", 60.0)):
        monkeypatch.setattr(reconfiguring, name, seconds)
    return World()


async def test_one_leaves_and_another_joins_and_the_rest_is_not_touched(world: World) -> None:
    async with world.running():
        await world.change(A, C)
    assert world.said == ["remove 1", "sync 1", "store 1!", "load 2", "join 2", "add 2"]
    assert [plan.source for plan in world.ledger.plans()] == [A, C]


async def test_who_is_wanted_again_before_it_is_stored_that_it_left_is_copied_again(world: World) -> None:
    world.refusals = [RetriableError("no answer")]
    async with world.running():
        world.changes.want((A,))
        await until(lambda: not world.refusals)
        world.stored[B] = Start(position(B, OURS, handed_over=True), 49, False)
        world.changes.want((A, B))
        await until(lambda: bool(world.plans))
    assert world.said == ["remove 1", "sync 1", "sync 1", "store 1!", "load 1", "join 1", "add 1"]
    assert [plan.source for plan in world.ledger.plans()] == [A, B]


async def test_who_comes_back_goes_on_under_the_sequence_that_its_leader_waits_for(world: World) -> None:
    """The leader has our id and epoch there; it would take another batch 0 for one that it has."""
    async with world.running():
        await world.change(A)
        world.stored[B] = Start(position(B, THEIRS, handed_over=True), 49, False)
        await world.change(A, B)
    assert [plan.next_sequence for plan in world.plans] == [11]
    world.changes.producer_changed(is_fencing=True)
    begin = PartitionPlan(B, None, pair(B).target, None, 50, 3, 60, 0, pipelined=False)
    assert world.changes.continued(begin, PRODUCER).next_sequence == 0, "in another epoch sequences begin anew"


async def test_another_task_is_waited_for_until_it_has_handed_over(world: World) -> None:
    world.stored[C] = Start(position(C, THEIRS, handed_over=False), 49, False)
    async with world.running():
        world.changes.want((A, B, C))
        await until(lambda: world.said.count("load 2") > 3)
        assert "join 2" not in world.said
        world.stored[C] = Start(position(C, THEIRS, handed_over=True), 49, False)
        await until(lambda: C in world.ledger.entries)
    assert world.said[-2:] == ["join 2", "add 2"]


async def test_another_task_that_does_not_hand_over_is_not_waited_for_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconfiguring, "HAND_OVER_S", 0.05)
    world.stored[C] = Start(position(C, THEIRS, handed_over=False), 49, False)
    async with world.running():
        await world.change(A, B, C)
    assert world.said[-2:] == ["join 2", "add 2"]
    starts = await world.changes.wait_for_others(await world.load([C]))
    assert not cast(Position, starts[C].position).is_handed_over


async def test_another_task_is_shut_out_of_the_store_and_what_it_stored_until_then_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconfiguring, "HAND_OVER_S", 0.0)
    world.stored[C] = Start(position(C, THEIRS, handed_over=False), None, False)
    world.stored_since[C] = Start(position(C, OURS, handed_over=False), 49, False)
    async with world.running():
        await world.change(A, B, C)
        await until(lambda: world.ledger.entries.get(C) is not None)
    assert world.said == ["load 2", "shut out 2"], "it was ours by then, so it waits for the end of the epoch"
    assert world.ledger.entries[C].is_waiting


async def test_a_start_waits_for_the_other_task_and_stops_where_the_partition_was_taken_away(
    world: World,
) -> None:
    world.stored[C] = Start(position(C, THEIRS, handed_over=False), 49, False)
    loading = asyncio.create_task(world.changes.wait_for_others(await world.load([C])))
    await until(lambda: world.said.count("load 2") > 2)
    world.changes.want((A,))
    world.stored[C] = Start(position(C, THEIRS, handed_over=True), 49, False)
    with pytest.raises(RetriableError, match="changed before it began"):
        await asyncio.wait_for(loading, 60)


@pytest.mark.parametrize(("writer", "handed_over"), [(OURS, False), ("", False), ("", True)])
async def test_what_was_written_under_our_producer_waits_for_the_end_of_the_epoch(
    world: World, writer: str, handed_over: bool
) -> None:
    """Uncleanly, or without our transactional id: then its epoch may be above ours."""
    world.stored[C] = Start(position(C, writer, handed_over=handed_over), 49, False)
    async with world.running():
        await world.change(A, B, C)
    assert world.said == ["load 2"]
    assert world.ledger.entries[C].is_waiting
    assert world.waiting.is_back
    assert world.waiting.starts == {C: world.stored[C]}


@pytest.mark.parametrize("why", ["our id was refused", "it was stopped here in this epoch"])
async def test_neither_joins_a_running_slice_where_sequences_may_stand_for_other_records(
    world: World, why: str
) -> None:
    if why == "our id was refused":
        world.changes.producer_changed(is_fencing=False)
    world.ledger.entries[B].stop("the target is full")
    async with world.running():
        await world.change(A)
        assert world.said == ["remove 1", "sync 1", "store "], "its position is left as it is"
        await world.change(A, B)
    assert world.ledger.entries[B].is_waiting
    assert world.waiting.is_back


async def test_a_partition_that_does_not_leave_cleanly_ends_the_slice(world: World) -> None:
    world.unclean = [B]
    world.changes.want((A,))
    async with world.running() as keeping:
        with pytest.raises(SliceLost, match="last batches of t-1"):
            await asyncio.wait_for(keeping, 60)
    assert not world.ledger.entries[B].is_leaving, "the next take-over fences it"


async def test_once_marked_as_handed_over_it_is_copied_here_no_more_even_if_it_is_not_stored_yet(world: World) -> None:
    world.refusals = [RetriableError("the target does not answer")]
    world.changes.want((A,))
    async with world.running():
        await until(lambda: not world.refusals)
        assert [plan.source for plan in world.ledger.plans()] == [A]
        await until(lambda: B not in world.ledger.entries)
    assert world.said == ["remove 1", "sync 1", "sync 1", "store 1!"]


async def test_a_step_that_is_interrupted_is_made_again(world: World) -> None:
    world.may_leave.clear()
    world.changes.want((A, C))
    async with world.running():
        await until(lambda: bool(world.said))
    assert [plan.source for plan in world.ledger.plans()] == [A, B], "as long as nobody knows that it has left"
    world.may_leave.set()
    async with world.running():
        await until(lambda: set(world.ledger.entries) == {A, C})
    assert world.said == ["remove 1", "remove 1", "sync 1", "store 1!", "load 2", "join 2", "add 2"]


async def test_what_a_cluster_does_not_know_yet_joins_later(world: World) -> None:
    world.unknown = {C}
    async with world.running():
        world.changes.want((A, C))
        await until(lambda: B not in world.ledger.entries)
        await asyncio.wait_for(world.changes.pause(()), 60)
        world.unknown.clear()
        await until(lambda: C in world.ledger.entries)
