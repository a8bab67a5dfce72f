"""Partitions that move between tasks under loss and kills: each is copied by one slice, from where the last ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.log.transactions import Superseded
from connectors.control_link.protocol import PartitionPlan, PartitionProgress, SliceSettings
from connectors.dataplane.resume import Resumed
from connectors.formats.position import Position
from connectors.formats.types import FlowName, ProducerIdAndEpoch, ResumeProof, TopicPartition
from connectors.offset_map.runs_and_chunks import MapRun
from connectors.source import task
from connectors.source.epochs import Reconfiguring
from connectors.source.positions import position_checks, stored_positions
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair
from connectors.source.positions.stored_positions import Commit, PositionStore, Start
from connectors.source.positions.takeover import Takeover
from connectors.source.slice_handle import SliceFenced, SliceLost, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask
from tests.kit import virtual_time

PARTITIONS = [TopicPartition("orders", index) for index in range(5)]
TASKS = range(3)
_ROUNDS = 6
_SETTLED_S = 150.0


def _target(source: TopicPartition) -> TopicPartition:
    return TopicPartition(f"us.{source.topic}", source.partition)


class Slice:
    """Copies records one by one; what it has copied last is told late, or never."""

    def __init__(self, world: World, on_progress: Callable[[PartitionProgress], None]) -> None:
        self.epoch = 1
        self.on_no_slot: Callable[[], None] | None = None
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._world = world
        self._on_progress = on_progress
        self.sequences: dict[TopicPartition, int] = {}
        self.producer = ProducerIdAndEpoch(-1, -1)
        self._copying: asyncio.Task[None] | None = None

    async def open(self, _: object) -> None:
        await self._world.pause(6)

    async def renewed(self) -> None:
        await asyncio.Event().wait()

    async def resume(self, plans: Sequence[PartitionPlan]) -> list[Resumed]:
        await self._world.pause(4)
        if self.ended.done():
            raise self.ended.result() or SliceLost("ended")
        copied = self._world.copied
        return [Resumed(replace(one, next_source_offset=copied[one.source], proof=None)) for one in plans]

    async def go(self, producer: ProducerIdAndEpoch, plans: Sequence[PartitionPlan]) -> None:
        self.producer = producer
        for plan in plans:
            self._world.begins(self, plan)
            self.sequences[plan.source] = plan.next_sequence
        self._copying = asyncio.create_task(self._copy())

    def hold(self, *, is_held: bool) -> None: ...

    async def _copy(self) -> None:
        while True:
            await asyncio.sleep(1)
            for source in self.sequences:
                self._world.copied[source] += 1
                self.sequences[source] += 1
                self._world.written[self.producer, source] = self.sequences[source]
                if self._world.chance.random() < 0.5:
                    self._report(source)

    def _report(self, source: TopicPartition) -> None:
        at = self._world.copied[source]
        self._on_progress(PartitionProgress(source, at, 0, at, self.sequences[source], at, 0, 0, 1, 1, {}))

    async def stop(self) -> list[TopicPartition]:
        await self._world.pause(1)
        if not self.ended.done():
            for source in self.sequences:
                self._report(source)
            self.end(None)
        if error := self.ended.result():
            raise error
        return []

    def end(self, error: Exception | None) -> None:
        """From now on it writes nothing."""
        if self._copying is not None:
            self._copying.cancel()
        self.sequences = {}
        if not self.ended.done():
            self.ended.set_result(error)

    async def close(self) -> None:
        self.end(SliceLost("closed"))


class Store:
    """What one task sees of the store that all share."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._claim = -1
        self._read: dict[TopicPartition, Start] = {}

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        self._claim = self._world.claim_store(self._name)
        return await self.load_more(partitions)

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        await self._world.pause(0.3)
        self._read |= (starts := {one: self._world.stored[one] for one in partitions})
        return starts

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        stored = self._world.stored
        for source, start in starts.items():
            position = start.position
            owner = start.claimant or (position.transactional_id if position and not position.is_handed_over else "")
            if owner not in ("", self._name):
                self._world.claim_store(owner)
                stored[source] = replace(stored[source], claimant=self._name)
        self._read |= (starts := {one: self._world.stored[one] for one in starts})
        return starts

    async def commit(self, commits: Sequence[Commit]) -> None:
        await self._world.pause(20 if self._world.chance.random() < 0.1 else 0.3)
        if self._world.claims[self._name] != self._claim:
            raise Superseded(f"{self._name} was claimed")
        if self._world.is_store_away:
            raise RetriableError("the store does not answer")
        positions = {
            TopicPartition(one.position.source_topic, one.position.source_partition): one.position for one in commits
        }
        first = {one for one in positions if one in self._read and stored_positions.is_unowned(self._read[one])}
        if taken := {one for one in first if self._world.stored[one] is not self._read[one]}:
            raise stored_positions.PositionsTaken(taken)
        for source, position in positions.items():
            self._world.stored[source] = Start(position, position.next_source_offset - 1, False)
            self._read.pop(source, None)

    def runs_of(self, _: Position) -> list[MapRun]:
        return []


class World:
    """All that is random comes of ``seed``."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.copied = dict.fromkeys(PARTITIONS, 0)
        self.written: dict[tuple[ProducerIdAndEpoch, TopicPartition], int] = {}
        self.stored = {one: Start(None, None, False) for one in PARTITIONS}
        self.claims: dict[str, int] = {}
        self.is_store_away = self.is_quiet = False
        self.unknown: set[TopicPartition] = set()
        self.slices: list[Slice] = []
        self.tasks: dict[int, MirrorSourceTask] = {}
        self.wanted: dict[int, tuple[TopicPartition, ...]] = {}
        self.joined = 0

    # -- what is asked of it --------------------------------------------------------------------------

    async def pause(self, most_s: float) -> None:
        await asyncio.sleep(0.01 if self.is_quiet else self.chance.uniform(0, most_s))

    def claim_store(self, name: str) -> int:
        self.claims[name] = self.claims.get(name, 0) + 1
        return self.claims[name]

    def begins(self, slice_: Slice, plan: PartitionPlan) -> None:
        source = plan.source
        assert not any(source in one.sequences for one in self.slices), f"{source} is copied by two"
        assert plan.next_source_offset == self.copied[source], f"{source} goes on elsewhere"
        assert plan.next_sequence == self.written.get((slice_.producer, source), 0), "sequences are used again"

    async def take_over(
        self,
        _: object,
        name: str,
        entries: Sequence[Entry],
        starts: Mapping[TopicPartition, Start],
        *,
        running: ProducerIdAndEpoch | None,
        **__: object,
    ) -> Takeover:
        await self.pause(1)
        plans, mine = [], ProducerIdAndEpoch(int(name[-1]), self.claim_store(f"{name} data"))
        for entry in entries:
            source, position = entry.pair.source, starts[entry.pair.source].position
            proof = None
            if position is not None and not position.is_handed_over:
                writer = ProducerIdAndEpoch(position.producer_id, position.producer_epoch)
                proof = ResumeProof(writer, position.next_sequence, is_fenced=True)
                assert running is None or position.transactional_id != name, "its own slice would be fenced"
                self._fence(position.producer_id)
            offset = position.next_source_offset if position else 0
            plans.append(PartitionPlan(source, None, _target(source), None, offset, -1, offset, 0, False, proof=proof))
        if running is None:
            self._fence(mine.producer_id)
        self.joined += len(plans) if running else 0
        return Takeover(running or mine, tuple(plans), name)

    def _fence(self, producer_id: int) -> None:
        for one in self.slices:
            if one.producer.producer_id == producer_id and one.sequences:
                one.end(SliceFenced("a successor has fenced it"))

    async def find(self, partitions: Sequence[TopicPartition]) -> list[PartitionPair]:
        await self.pause(0.3)
        return [PartitionPair(one, None, _target(one), None) for one in partitions if one not in self.unknown]

    # -- what happens ---------------------------------------------------------------------------------

    def configure(self) -> None:
        owners = {one: self.chance.choice(TASKS) for one in PARTITIONS}
        for index in TASKS:
            self.wanted[index] = tuple(one for one, owner in owners.items() if owner == index)
            if index in self.tasks:
                self.tasks[index].reconfigure(self.wanted[index])

    async def run_task(self, index: int) -> None:
        """As a worker does: it starts again after what a successor of its own does to it."""
        settings = SliceSettings("us->eu", index, {}, {})
        services = TaskServices(*cast(Any, (None, None, Clusters(*cast(Any, (None, None))), None)))
        while True:
            name = f"mm2-{index}"
            of_task = TaskSettings(
                FlowName("us", "eu"), name, self.wanted[index], "us.{}".format, settings, epoch_ms=40_000
            )
            one = MirrorSourceTask(of_task, services, cast(PositionStore, Store(self, name)))
            self.tasks[index] = one
            try:
                return await one.run()
            except (Superseded, SliceFenced):
                await asyncio.sleep(0.5)

    async def play(self) -> None:
        self.configure()
        running = {index: asyncio.create_task(self.run_task(index)) for index in TASKS}
        try:
            await self._play(running)
        finally:
            for each in running.values():
                each.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _play(self, running: dict[int, asyncio.Task[None]]) -> None:
        for _ in range(_ROUNDS):
            await asyncio.sleep(self.chance.uniform(5, 60))
            for _ in range(self.chance.choice([1, 1, 3])):
                self.configure()
                await asyncio.sleep(self.chance.uniform(0, 8))
            for index in TASKS:
                await asyncio.sleep(self.chance.uniform(0, 6))
                happens = self.chance.random()
                if happens < 0.2:
                    for one in [one for one in self.slices if one.sequences]:
                        one.end(SliceLost("lost"))
                elif happens < 0.4:
                    if happens < 0.3:
                        self.tasks[index].stop()
                        await asyncio.wait({running[index]}, timeout=60)
                    running[index].cancel()
                    await asyncio.gather(running[index], return_exceptions=True)
                    running[index] = asyncio.create_task(self.run_task(index))
                elif happens < 0.6:
                    self.is_store_away = not self.is_store_away
                elif happens < 0.8:
                    self.unknown = set(self.chance.sample(PARTITIONS, self.chance.randrange(2)))
                for each in running.values():
                    assert not each.done(), each.exception()
        self.is_store_away, self.unknown, self.is_quiet = False, set(), True
        await asyncio.sleep(_SETTLED_S)
        for index in TASKS:
            view = {(one.source_topic, one.source_partition): one.state for one in self.tasks[index].view(0)}
            assert view == dict.fromkeys(self.wanted[index], "running"), (index, view, running[index])
        assert sum(len(one.sequences) for one in self.slices) == len(PARTITIONS)
        for index in TASKS:
            self.tasks[index].stop()
            await asyncio.wait_for(running[index], 60)
        for source in PARTITIONS:
            position = self.stored[source].position
            assert position is not None
            assert (position.next_source_offset, position.is_handed_over) == (self.copied[source], True)


def play(seed: int, patch: pytest.MonkeyPatch) -> World:
    world = World(seed)

    class Opened(Slice):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(world, arguments[4])
            world.slices = [*(one for one in world.slices if not one.ended.done()), self]

    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    async def none_away(*_: object) -> dict[TopicPartition, str]:
        return {}

    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), time_ns=lambda: 0)
    patch.setattr(task, "time", clock)
    patch.setattr(task, "SliceHandle", Opened)
    patch.setattr(task, "take_over", world.take_over)
    patch.setattr(task, "trim_forever", nothing)
    patch.setattr(position_checks, "still_unavailable", none_away)
    patch.setattr(MirrorSourceTask, "find", lambda _, partitions: world.find(partitions))
    virtual_time.run(world.play())
    return world


@pytest.fixture(autouse=True)
def _quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(100)


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_each_partition_is_copied_by_one_slice_at_a_time_and_goes_on_where_it_was(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = sum(play(seed, monkeypatch).joined for seed in range(first, first + 10))
    assert joined > 50, "partitions joined while slices copied others"


def _left_at_once(patch: pytest.MonkeyPatch) -> None:
    """A partition is handed over while its slice still writes."""
    want = Reconfiguring.want

    def mutated(self: Any, partitions: Sequence[TopicPartition]) -> None:
        want(self, partitions)
        with contextlib.suppress(StopIteration):
            self._ledger.leave(partitions).send(None)  # so few are left in one step

    patch.setattr(Reconfiguring, "want", mutated)


def _sequences_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    began = Reconfiguring.began

    def mutated(self: Any, producer: ProducerIdAndEpoch) -> None:
        began(self, producer)
        self._written.clear()

    patch.setattr(Reconfiguring, "began", mutated)


def _nobody_waits_for_the_mark(patch: pytest.MonkeyPatch) -> None:
    """Positions are taken for handed over as they are."""
    patch.setattr(Entry, "may_hand_over", property(lambda self: self.position is not None))
    begin = Ledger.begin

    def mutated(self: Ledger, source: TopicPartition, position: Position, *args: Any, **named: Any) -> None:
        begin(self, source, replace(position, is_handed_over=True), *args, **named)

    patch.setattr(Ledger, "begin", mutated)


@pytest.mark.parametrize("mutant", [_left_at_once, _sequences_are_not_remembered, _nobody_waits_for_the_mark])
def test_without_a_rule_the_judge_finds_a_counterexample(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        _play_some(monkeypatch)


def _play_some(patch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        play(seed, patch)
