"""Partitions that leave and join a task from one slice to the next, with store and takeover in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connectors.formats.position import Position
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from connectors.source import epochs
from connectors.source.epochs import Reconfiguring
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import STARTING, Entry, PartitionPair
from connectors.source.positions.position_checks import UnavailablePartitions
from connectors.source.positions.stored_positions import PositionStore, Start
from connectors.source.slice_handle import SliceHandle
from tests.kit import virtual_time

OURS, THEIRS = "g-mirror-0", "g-mirror-1"
A, B, C = (TopicPartition("t", index) for index in range(3))
PRODUCER = ProducerIdAndEpoch(7, 2)


def pair(source: TopicPartition) -> PartitionPair:
    return PartitionPair(source, None, TopicPartition(f"us.{source.topic}", source.partition), None)


def position(source: TopicPartition, writer: str, *, handed_over: bool) -> Position:
    target = (f"us.{source.topic}", source.partition)
    return Position(
        *source,
        None,
        50,
        3,
        *target,
        None,
        60,
        writer,
        PRODUCER.producer_id,
        PRODUCER.epoch,
        11,
        is_handed_over=handed_over,
    )


class World:
    """Everything around a task's changes; ``said`` is what happened, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stored: dict[TopicPartition, Start] = {}
        #: What others stored before they were shut out.
        self.stored_since: dict[TopicPartition, Start] = {}
        self.unknown: set[TopicPartition] = set()
        self.refusals: list[Exception] = []
        self.waiting = UnavailablePartitions(*cast(Any, (None, None)))
        self.ledger = Ledger([pair(A), pair(B)])
        for source in (A, B):
            self.ledger.begin(source, position(source, OURS, handed_over=False))
        store = cast(PositionStore, self)
        self.changes = Reconfiguring("us->eu task 0", OURS, (A, B), self.ledger, store, self.waiting, self)
        self.changes.began(PRODUCER)

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        self.said.append(f"load {names(partitions)}")
        return {one: self.stored.get(one, Start(None, None, False)) for one in partitions}

    async def find(self, partitions: Sequence[TopicPartition]) -> list[PartitionPair]:
        return [pair(one) for one in partitions if one not in self.unknown]

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        others = [one for one, start in starts.items() if start.position and start.position.transactional_id == THEIRS]
        if others := [one for one in others if not cast(Position, starts[one].position).is_handed_over]:
            self.said.append(f"shut out {names(others)}")
        return {source: self.stored_since.get(source, start) for source, start in starts.items()}

    async def store_left(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)

    async def join(self, _: SliceHandle, joining: Ledger, starts: Mapping[TopicPartition, Start]) -> None:
        self.said.append(f"join {names(joining.entries)}")
        for source in joining.entries:
            joining.begin(source, position(source, OURS, handed_over=False))
            joining.entries[source].become(STARTING)

    def epoch(self, length_s: float = 3600.0) -> asyncio.Task[None]:
        """One epoch."""
        return asyncio.create_task(self.changes.until_due(cast(SliceHandle, self), length_s))

    async def leave(self, *wanted: TopicPartition) -> None:
        """As between two slices, and stored."""
        await self.ledger.leave(wanted)
        for source in self.ledger.leaving():
            self.ledger.drop(source)

    async def change(self, *wanted: TopicPartition) -> None:
        """Bring about what is wanted, with the handover that it takes."""
        self.changes.want(wanted)
        await asyncio.wait_for(self.epoch(), 60)
        await self.leave(*wanted)
        self.changes.began(PRODUCER)


def names(partitions: Any) -> str:
    return ",".join(str(one.partition) for one in partitions)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("_LATE_LOOK_S", "_RETRY_S", "_LOOK_S", "_TOGETHER_S", "_APART_S"):
        monkeypatch.setattr(epochs, name, 0.001)
    monkeypatch.setattr(epochs, "HAND_OVER_S", 60.0)
    return World()


async def test_an_epoch_ends_early_for_a_partition_that_joins_once_it_is_ready(world: World) -> None:
    await world.change(A, B, C)
    assert world.said == ["load 2", "join 2"]
    assert [plan.source for plan in world.ledger.plans()] == [A, B, C]
    assert world.ledger.entries[C].is_copied


async def test_an_epoch_ends_early_for_a_partition_that_leaves(world: World) -> None:
    await world.change(A)
    assert world.said == []
    assert [plan.source for plan in world.ledger.plans()] == [A]


async def test_an_epoch_without_changes_lasts_as_long_as_it_should(world: World) -> None:
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait_for(world.epoch(0.05), 60)
    assert asyncio.get_running_loop().time() - began_s >= 0.05


def test_a_change_that_is_taken_back_ends_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def taken_back() -> None:
        world = World()
        world.changes.want((A,))
        epoch = world.epoch()
        await asyncio.sleep(0.9 * epochs._TOGETHER_S)
        world.changes.want((A, B))
        await asyncio.sleep(10 * epochs._APART_S)
        assert not epoch.done()
        epoch.cancel()

    monkeypatch.setattr(epochs, "_APART_S", 0.0)
    virtual_time.run(taken_back())


async def test_an_epoch_is_not_ended_soon_after_it_began(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "_APART_S", 0.1)
    began_s = asyncio.get_running_loop().time()
    world.changes.began(PRODUCER)
    await world.change(A)
    assert asyncio.get_running_loop().time() - began_s >= 0.1


async def test_what_heals_is_taken_over_between_two_slices(world: World) -> None:
    epoch = world.epoch()
    world.ledger.entries[B].resume_past_gap()
    world.changes.look()
    await asyncio.wait_for(epoch, 60)
    assert world.changes.takes_over


@pytest.mark.parametrize("handed_over", [True, False])
async def test_another_task_is_waited_for_until_it_has_handed_over(world: World, handed_over: bool) -> None:
    world.stored[C] = Start(position(C, THEIRS, handed_over=False), 49, False)
    world.changes.want((A, C))
    await asyncio.wait_for(world.epoch(), 60)
    assert "join 2" not in world.said, "B leaves meanwhile"
    await world.leave(A, C)
    world.changes.began(PRODUCER)
    epoch = world.epoch()
    await until(lambda: world.said.count("load 2") > 3)
    assert "join 2" not in world.said
    if handed_over:
        world.stored[C] = Start(position(C, THEIRS, handed_over=True), 49, False)
    else:
        epochs.HAND_OVER_S = 0.0  # type: ignore[misc]  # the fixture sets it back
    await asyncio.wait_for(epoch, 60)
    assert world.said[-1] == "join 2"
    assert ("shut out 2" in world.said) is not handed_over


async def test_what_another_stored_until_it_was_shut_out_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "HAND_OVER_S", 0.0)
    world.stored[C] = Start(position(C, THEIRS, handed_over=False), None, False)
    world.stored_since[C] = Start(position(C, OURS, handed_over=False), 49, False)
    world.changes.want((A, B, C))
    epoch = world.epoch()
    await until(lambda: C in world.ledger.entries)
    assert world.said == ["load 2", "shut out 2"], "it was ours by then, so our id is to be claimed first"
    assert world.ledger.entries[C].is_waiting
    epoch.cancel()


async def test_a_start_waits_for_the_other_task_and_stops_if_the_partition_was_taken_away(world: World) -> None:
    loaded = {C: Start(position(C, THEIRS, handed_over=False), 49, False)}
    world.stored.update(loaded)
    world.changes.want((C,))
    loading = asyncio.create_task(world.changes.wait_for_others(loaded))
    await until(lambda: world.said.count("load 2") > 2)
    world.changes.want((A,))
    with pytest.raises(RetriableError, match="changed before it started"):
        await asyncio.wait_for(loading, 60)


@pytest.mark.parametrize(("writer", "handed_over"), [(OURS, False), ("", False), ("", True)])
async def test_what_was_written_under_our_producer_is_taken_over_between_two_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, writer: str, handed_over: bool
) -> None:
    """Uncleanly, or without our transactional id: then its epoch may be above ours."""

    async def is_back(_: UnavailablePartitions, entries: Sequence[Entry]) -> bool:
        return bool(entries)

    monkeypatch.setattr(UnavailablePartitions, "is_back", is_back)
    world.stored[C] = Start(position(C, writer, handed_over=handed_over), 49, False)
    world.changes.want((A, B, C))
    await asyncio.wait_for(world.epoch(), 60)
    assert world.said == ["load 2"]
    assert world.ledger.entries[C].is_waiting
    assert world.waiting.starts == {C: world.stored[C]}
    assert world.changes.takes_over
    assert [plan.source for plan in world.ledger.plans()] == [A, B]


@pytest.mark.parametrize("why", ["our id was refused", "this epoch has written it"])
async def test_sequences_that_a_leader_may_know_are_not_used_again(world: World, why: str) -> None:
    """The leader has our id and epoch there; it would take another batch 0 for one that it has."""
    if why == "our id was refused":
        world.changes.is_fencing = False
        world.stored[C] = Start(None, None, False)
        joining = C
    else:
        await world.change(A)
        world.stored[B] = Start(position(B, THEIRS, handed_over=True), 49, False)
        joining = B
    world.changes.want((A, joining))
    epoch = world.epoch()
    await until(lambda: joining in world.ledger.entries)
    epoch.cancel()
    assert world.ledger.entries[joining].is_waiting
    world.changes.is_fencing = True
    await world.leave(A)
    world.changes.began(ProducerIdAndEpoch(PRODUCER.producer_id, PRODUCER.epoch + 1))
    await world.change(A, joining)
    assert world.said[-1] == f"join {joining.partition}", "in another epoch sequences begin at 0"


async def test_a_step_that_fails_is_made_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.refusals = [RetriableError("the target does not answer"), RetriableError("the target does not answer")]
    await world.change(A, B, C)
    assert caplog.text.count("partitions cannot be changed now: the target does not answer") == 2
    assert world.said == ["load 2", "join 2"]


async def test_what_a_cluster_does_not_know_yet_joins_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.unknown = {C}
    world.changes.want((A, B, C))
    epoch = world.epoch()
    await until(lambda: "a cluster does not know t-2 now" in caplog.text)
    assert not epoch.done()
    world.unknown.clear()
    await asyncio.wait_for(epoch, 60)
    assert C in world.ledger.entries


async def test_what_was_stored_of_a_partition_that_no_longer_waits_is_forgotten(world: World) -> None:
    """Another task may copy it meanwhile, and this task again later."""
    start = Start(None, 49, False)
    world.ledger.entries[A].wait("target us.orders-0 has no leader")
    world.waiting.starts = dict.fromkeys((A, B, C), start)
    world.changes.began(PRODUCER)
    assert world.waiting.starts == {A: start}
