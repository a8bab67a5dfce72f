"""What is around a source task: slices, store and takeover in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import pytest

from connect.core.errors import RetriableError
from connect.runtime.task.task_control import TaskCounters
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.formats.position import Position
from connectors.formats.types import FlowName, ProducerIdAndEpoch, TopicPartition
from connectors.offset_map.runs_and_chunks import MapRun
from connectors.source import epochs, slice_handle, task
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair
from connectors.source.positions.stored_positions import Commit, PositionStore, Start
from connectors.source.positions.takeover import Takeover
from connectors.source.slice_handle import SliceLost, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask

FLOW = FlowName("us", "eu")
SOURCE = TopicPartition("orders", 0)
PAIR = PartitionPair(SOURCE, None, TopicPartition("us.orders", 0), None)
OTHER = TopicPartition("orders", 1)
OTHER_PAIR = PartitionPair(OTHER, None, TopicPartition("us.orders", 1), None)


class Slice:
    """What a task sees of a slice; it copies nothing."""

    def __init__(self, world: World, epoch: int) -> None:
        self.epoch = epoch
        self.ended: asyncio.Future[SliceLost | None] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self.on_no_slot: Callable[[], None] | None = None
        self.holds: Callable[[], bool] | None = None
        self._world = world

    async def renewed(self) -> None:
        await (self._world.certificates if self.epoch == 1 else asyncio.Event()).wait()

    async def open(self, pairs: Collection[tuple[TopicPartition, TopicPartition]]) -> None:
        if self._world.refusals:
            raise self._world.refusals.pop(0)
        if self._world.has_one_slot:
            while not all(one.is_closed for one in self._world.slices if one is not self):
                assert self.on_no_slot is not None, "a predecessor has to make room"
                self.on_no_slot()
                await asyncio.sleep(0)
            await self._world.slot_is_given.wait()
        self._world.opened += 1
        self._world.warmed.append(set(pairs))

    async def go(self, producer: ProducerIdAndEpoch, plans: Iterable[PartitionPlan]) -> None:
        self._world.went.append((self.epoch, producer.epoch, [plan.next_sequence for plan in plans]))
        self._world.changed()

    def hold(self, *, is_held: bool) -> None:
        self._world.holds.append((self.epoch, is_held))
        self._world.changed()

    async def stop(self) -> list[TopicPartition]:
        if not self.ended.done():
            self.ended.set_result(None)
        return []

    async def close(self) -> None:
        self.is_closed = True
        self._world.changed()


class World:
    """Everything around a task."""

    kind: ClassVar[type[Slice]] = Slice

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals: list[Exception] = []
        #: Whether a slice opens only after its predecessor was closed, and ``slot_is_given``.
        self.has_one_slot = False
        self.slot_is_given = asyncio.Event()
        self.slot_is_given.set()
        self.went: list[tuple[int, int, list[int]]] = []
        self.slices: list[Any] = []
        self.opened = 0
        self.certificates = asyncio.Event()
        self.warmed: list[set[tuple[TopicPartition, TopicPartition]]] = []
        self.commits: list[Commit] = []
        self.holds: list[tuple[int, bool]] = []
        self.is_store_away = False
        self.taken_over: list[bool] = []  # by whether the position was handed over
        self.may_take_over = asyncio.Event()
        self.may_take_over.set()
        self.pairs = [PAIR]
        self.away: dict[TopicPartition, str] = {}
        self.stored: dict[TopicPartition, Start] = {}
        self.starts: list[Mapping[TopicPartition, Start]] = []
        self.counters = TaskCounters()
        self.topics: set[str] = set()
        self._changed = asyncio.Event()

        def opened(_engine: object, _links: object, _settings: object, epoch: int, _: object) -> Slice:
            made = self.kind(self, epoch)
            self.slices.append(made)
            return made

        monkeypatch.setattr(task, "SliceHandle", opened)
        monkeypatch.setattr(task, "take_over", self._take_over)
        for name in ("_RETRY_S", "_MAX_RETRY_S"):
            monkeypatch.setattr(slice_handle, name, 0.001)
        for name in ("_OPEN_AGAIN_S", "_TOGETHER_S", "_APART_S", "_LOOK_S", "_LATE_LOOK_S"):
            monkeypatch.setattr(epochs, name, 0.001)
        monkeypatch.setattr(MirrorSourceTask, "find", lambda _, wanted: self._find(wanted))

    def task(self, epoch_ms: int = 60_000) -> MirrorSourceTask:
        settings = TaskSettings(
            FLOW, "mm2-0", tuple(pair.source for pair in self.pairs), remote_topic="us.{}".format,
            slice=SliceSettings("us->eu", 0, {}, {}), epoch_ms=epoch_ms,
        )  # fmt: skip
        nothing = cast(Any, None)
        told = {"holds": self.is_ours, "meter": self.counters, "topic_used": self.topics.add}
        services = TaskServices(nothing, nothing, Clusters(nothing, nothing), nothing, **cast(Any, told))
        return self.make(settings, services)

    def make(self, settings: TaskSettings, services: TaskServices) -> MirrorSourceTask:
        return MirrorSourceTask(settings, services, cast(PositionStore, self))

    def is_ours(self) -> bool:
        return True

    def changed(self) -> None:
        self._changed.set()

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not happened():
                await self._changed.wait()
                self._changed.clear()

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        return {one: self.stored.get(one, Start(None, None, False)) for one in partitions}

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        return starts

    async def commit(self, commits: Sequence[Commit]) -> None:
        if self.is_store_away:
            self.changed()
            raise RetriableError("the topic of positions has no leader now")
        self.commits += commits

    def runs_of(self, position: Position) -> list[MapRun]:
        return []

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        return await self.load(partitions)

    async def _find(self, wanted: Collection[TopicPartition]) -> list[PartitionPair]:
        return [pair for pair in self.pairs if pair.source in wanted]

    async def _take_over(
        self, _: Any, __: str, entries: Sequence[Entry], starts: Any, running: Any, may_all_wait: bool, **___: object
    ) -> Takeover:
        self.starts.append(starts)
        positions = [starts[entry.pair.source].position for entry in entries]
        self.taken_over += [bool(position and position.is_handed_over) for position in positions]
        self.changed()
        await self.may_take_over.wait()
        if all(entry.pair.source in self.away for entry in entries) and not may_all_wait:
            raise RetriableError("no partition can be taken over now")
        plans = []
        for entry in entries:
            if why := self.away.get(entry.pair.source):
                entry.wait(why)
            else:
                plans.append(self.plan(entry.pair, starts[entry.pair.source]))
        producer = running or ProducerIdAndEpoch(5, len(self.starts))
        return Takeover(producer, tuple(plans), "mm2-0")

    def plan(self, pair: PartitionPair, _: Start) -> PartitionPlan:
        return pair.plan(0, -1, 0, pipelined=False)


@asynccontextmanager
async def copying(world: World, epoch_ms: int = 60_000) -> AsyncIterator[MirrorSourceTask]:
    """A task whose first slice copies; it is stopped at the end."""
    one = world.task(epoch_ms)
    running = asyncio.create_task(one.run())
    await world.until(lambda: bool(world.went))
    yield one
    one.stop()
    await asyncio.wait_for(running, 60)
