"""Partitions that are spread, with the group, the clusters and Spark's slices in memory: where each begins, what is
stored, what outlives a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.core.properties import parse_properties
from connect.kafka.group_offsets import Committed
from connectors.dataplane import lost
from connectors.dataplane.plan import STOPPED, PartitionPlan, PartitionProgress, ProducerIdentity, TopicPartition
from connectors.gaps import Gap, GapKind
from connectors.mirror_maker_1 import source_topics, spread_task
from connectors.mirror_maker_1.group_store import GroupOffsets
from connectors.mirror_maker_1.lent import Lent
from connectors.mirror_maker_1.notes import Spread, decode, encode_spread
from connectors.mirror_maker_1.settings import Options, mirror_settings
from connectors.mirror_maker_1.spread_task import SpreadTask
from connectors.mirror_maker_1.topics import takes
from connectors.source import left_behind
from connectors.source.defects import TaskDefective
from connectors.source.slice import SliceDefect, SliceLost
from tests.kit.members import until

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("clicks", 0)
OLD, NEW = UUID(int=1), UUID(int=2)
WITHIN_S = 60.0


def lent(number: int = 0, source: int = 0) -> Lent:
    consumer = parse_properties("bootstrap.servers=a:9092\ngroup.id=g\n", "c.properties")
    producer = parse_properties("bootstrap.servers=b:9092\n", "p.properties")
    options = Options(takes(".*", None), commit_interval_ms=60_000)
    settings = mirror_settings([consumer, consumer], producer, options, lambda _: None)
    there = cast(Any, SimpleNamespace(target=None, source=Source()))
    return Lent(settings, settings.sources[source], number, "abc", cast(Any, None), cast(Any, None), there, there)


class Source:
    name = "source"

    def __init__(self) -> None:
        self.topic_id = OLD
        self.gone: set[str] = set()
        self.asked = 0

    async def topics(self, names: Collection[str]) -> Any:
        self.asked += 1
        found = {name: SimpleNamespace(topic_id=self.topic_id, error_code=0) for name in names if name not in self.gone}
        return SimpleNamespace(topics=found)

    metadata = topics


class Group:
    """Stores what it is given, unless it is to fail so often."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, Committed] = {}
        self.fails = 0
        self.answer = asyncio.Event()
        self.answer.set()

    async def read(self) -> dict[TopicPartition, Committed]:
        return dict(self.stored)

    async def write(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        await self.answer.wait()
        if self.fails:
            self.fails -= 1
            raise RetriableError("no answer")
        self.stored.update(offsets)


class Slice:
    """Is told plans, and tells what it is made to."""

    def __init__(self, scene: Scene, tell: Callable[[PartitionProgress], None]) -> None:
        self.tell = tell
        self.plans: Sequence[PartitionPlan] = ()
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._scene = scene

    async def open(self) -> None:
        self._scene.opened += 1
        if self._scene.defect:
            raise SliceDefect("ValueError: no")

    def go(self, producer: ProducerIdentity, plans: Sequence[PartitionPlan]) -> None:
        self.plans = plans
        self._scene.slices.append(self)

    async def stop(self) -> list[TopicPartition]:
        return []

    async def close(self) -> None:
        pass

    def moved(self, to: int, **more: Any) -> None:
        self.tell(
            PartitionProgress(
                **{
                    "source": ONE,
                    "next_source_offset": to,
                    "last_source_epoch": 3,
                    "target_end": 0,
                    "next_sequence": 0,
                    "high_watermark": 100,
                    "log_start_offset": 0,
                    "timestamp_ms": 1,
                    "records": 1,
                    "bytes": 1,
                    "batches": {},
                    "topics": ["other"],
                    **more,
                }
            )
        )


class Scene:
    def __init__(self) -> None:
        self.group, self.lent = Group(), lent()
        self.slices: list[Slice] = []
        self.defect = False
        self.opened = 0
        self.partitions = [ONE]
        self.task = self._made()

    def _made(self) -> SpreadTask:
        return SpreadTask(self.lent, cast(GroupOffsets, self.group), self.partitions)

    @property
    def source(self) -> Source:
        return cast(Source, self.lent.clusters.source)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        self.task = self._made()
        running = asyncio.create_task(self.task.run(), name="spread task")
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def slice(self, number: int) -> Slice:
        await until(lambda: len(self.slices) > number, "the slice is begun", WITHIN_S)
        return self.slices[number]

    def note(self) -> Spread:
        found = decode(ONE, self.group.stored[ONE].metadata)
        assert isinstance(found, Spread)
        return found


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()

    async def nothing(*_: object, **__: object) -> dict[str, object]:
        return {}

    async def writer(_: object, transactional_id: str) -> tuple[str, ProducerIdentity]:
        return transactional_id, ProducerIdentity(40, 0)

    async def offsets(_: object, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 5 if at == made.lent.source.reset_to else 1)

    monkeypatch.setattr(spread_task, "SliceHandle", lambda *given: Slice(made, given[-1]))
    monkeypatch.setattr(spread_task, "shut_out", nothing)
    monkeypatch.setattr(spread_task, "writers_of", nothing)
    monkeypatch.setattr(spread_task, "new_writer", writer)
    monkeypatch.setattr(spread_task, "list_offsets", offsets)
    monkeypatch.setattr(left_behind, "list_offsets", offsets)
    monkeypatch.setattr(source_topics, "_SHOWN_WITHIN_S", 0)
    monkeypatch.setattr(lost, "_ASK_AGAIN_S", 0)
    monkeypatch.setattr(spread_task, "_RETRY_S", 0.01)
    monkeypatch.setattr(spread_task, "_MAX_RETRY_S", 0.02)
    return made


def begin(one: Slice) -> tuple[int, int]:
    (plan,) = one.plans
    return plan.next_source_offset, plan.last_source_epoch


def test_writers_of_sources_whose_groups_have_one_name_are_told_apart() -> None:
    members = [lent(source=source, number=number) for source in (0, 1) for number in (0, 1)]
    ids = [member.transactional_id(partition) for member in members for partition in (None, ONE)]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith("g-") for one in ids)


async def test_a_slice_that_is_lost_goes_on_where_it_had_told_to_be(scene: Scene) -> None:
    async with scene.running():
        first = await scene.slice(0)
        assert begin(first) == (5, -1)
        first.moved(20)
        first.ended.set_result(SliceLost("gone"))
        assert begin(await scene.slice(1)) == (20, 3)
    assert scene.group.stored[ONE].offset == 20
    assert scene.note() == Spread(scene.lent.transactional_id(ONE), ("orders", "other"), False, OLD, 3, 40), (
        "what the one before wrote to is known to the next"
    )


async def test_a_commit_that_is_under_way_is_waited_for(scene: Scene) -> None:
    async with scene.running():
        first = await scene.slice(0)
        scene.group.answer.clear()
        first.moved(20)
        committing = asyncio.create_task(scene.task._commit(), name="commit")
        await asyncio.sleep(0)
        first.ended.set_result(SliceLost("gone"))
        scene.group.answer.set()
        assert begin(await scene.slice(1)) == (20, 3)
        await committing


async def test_a_gap_is_passed_though_the_first_commit_behind_it_fails(scene: Scene) -> None:
    async with scene.running():
        first = await scene.slice(0)
        scene.group.fails = 1
        gap = Gap(GapKind.SOURCE_GAP, 5, 29, go_on_at=30)
        first.moved(5, state=STOPPED, reason="begins at offset 30 now", gap=gap)
        assert begin(await scene.slice(1)) == (30, -1)
    assert scene.group.stored[ONE].offset == 30


@pytest.mark.parametrize(("known", "expected"), [(OLD, (17, 2)), (NEW, (1, -1)), (None, (17, 2))])
async def test_a_source_that_was_made_anew_meanwhile_is_copied_from_its_beginning(
    scene: Scene, known: UUID | None, expected: tuple[int, int]
) -> None:
    note = Spread("g-x", ("orders",), True, known, 2, 39)
    scene.group.stored[ONE] = Committed(17, encode_spread(note))
    async with scene.running():
        assert begin(await scene.slice(0)) == expected


async def test_a_target_that_was_cut_stops_it_until_the_group_is_reset(scene: Scene) -> None:
    async with scene.running() as running:
        first = await scene.slice(0)
        gap = Gap(GapKind.TARGET_TRUNCATED, last=9)
        advice = "nothing more is copied until the stored source offset of orders-0 is altered or reset"
        first.moved(10, state=STOPPED, reason=f"target orders-1 was truncated; {advice}", gap=gap)
        scene.task.stop()
        await running
    (shown,) = scene.task.view(0)
    assert shown.state == "target-truncated"
    assert shown.reason.startswith("target orders-1 was truncated; nothing more of orders-0 is copied until group g")
    assert "altered" not in shown.reason
    assert scene.note().stopped_of == "target-truncated"

    async with scene.running() as running:
        await until(lambda: scene.task.view(0), "it is known where it stands", WITHIN_S)
        (shown,) = scene.task.view(0)
        assert (shown.state, shown.next_source_offset) == ("target-truncated", 10)
        assert "--reset-offsets" in shown.reason
        scene.task.stop()
        await running
    assert len(scene.slices) == 1
    assert scene.note().stopped_of == "target-truncated"

    scene.group.stored[ONE] = Committed(8)  # as the tool does
    async with scene.running():
        assert begin(await scene.slice(1)) == (8, -1)


async def test_a_slice_is_begun_anew_after_a_while_at_no_cost(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_task, "_SLICE_S", 0.05)
    async with scene.running():
        (await scene.slice(0)).moved(20)
        assert begin(await scene.slice(2)) == (20, 3)
        (shown,) = scene.task.view(0)
        assert shown.records == 1, "counts go on"


async def test_what_is_left_out_at_a_first_start_is_told(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async with scene.running():
        assert begin(await scene.slice(0)) == (5, -1)
        scene.slices[0].ended.set_result(SliceLost("gone"))
        await scene.slice(1)
    assert caplog.text.count("leaves these records out: orders-0 at offset 5") == 1


async def test_a_topic_that_was_deleted_holds_up_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_task, "_SHORT_SLICE_S", 0.05)
    scene.partitions, scene.source.gone = [ONE, OTHER], {OTHER.topic}
    async with scene.running():
        assert [plan.source for plan in (await scene.slice(0)).plans] == [ONE]
        scene.source.gone = set()
        await until(lambda: len(scene.slices[-1].plans) == 2, "it is copied once it is there", WITHIN_S)


@pytest.mark.parametrize("stopped", [False, True])
async def test_no_slice_is_opened_while_nothing_is_left_to_copy(scene: Scene, stopped: bool) -> None:
    """All topics are gone, but for those that have stopped."""
    scene.source.gone = {ONE.topic}
    if stopped:
        scene.partitions = [ONE, OTHER]
        note = Spread("g-x", (OTHER.topic,), True, OLD, 2, 39, "target-deleted")
        scene.group.stored[OTHER] = Committed(17, encode_spread(note))
    async with scene.running():
        await until(lambda: scene.opened == 1, "it is found out", WITHIN_S)
        asked = scene.source.asked
        await until(lambda: scene.source.asked > asked + 20, "it is asked again", WITHIN_S)
        assert scene.opened == 1
        scene.source.gone = set()
        await scene.slice(0)
    assert scene.opened == 2


async def test_what_looks_like_a_defect_is_not_tried_for_ever(scene: Scene) -> None:
    scene.defect = True
    with pytest.raises(TaskDefective, match="3 slices in a row"):
        async with asyncio.timeout(WITHIN_S), scene.running() as running:
            await running


def test_what_is_stored_beside_an_offset_is_read_again() -> None:
    note = Spread("g:with:colons-x", ("a", "b"), False, OLD, 7, 12, "target-deleted")
    assert decode(ONE, encode_spread(note)) == note
    bare = replace(note, source_topic_id=None, topics=(), stopped_of="", is_handed_over=True)
    assert decode(ONE, encode_spread(bare)) == bare
    assert decode(ONE, "heliograph:spread:later:a:b") is None
