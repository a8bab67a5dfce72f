"""Partitions that are copied by key, with everything in memory: where each begins, what is stored, what is advised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.config.properties import parse_properties
from connect.core.errors import RetriableError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.log.committed_offsets import Committed
from connect.kafka.log.offsets import EARLIEST
from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.dataplane import log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.error_codes import explained
from connectors.dataplane.log_divergence import Verdict
from connectors.formats.types import QUARANTINED, STOPPED, TopicPartition
from connectors.mirror_maker_1 import by_key_task, topics
from connectors.mirror_maker_1.by_key_task import ByKeyTask, first_offset, stop_message, stop_message_at_end
from connectors.mirror_maker_1.config import Options, mirror_settings
from connectors.mirror_maker_1.consumer_group import GroupOffsets, encode_by_key, topic_id_of
from connectors.mirror_maker_1.process_context import ProcessContext
from connectors.mirror_maker_1.topics import takes
from connectors.source import slice_handle
from connectors.source.slice_handle import SliceDefect, SliceLost, TaskDefective
from connectors.topic_sync import partition_assignment
from tests.kit.members import until

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("clicks", 0)
OLD, NEW = UUID(int=1), UUID(int=2)
START, END = 10, 90
WITHIN_S = 60.0


class Source:
    name = "source"

    def __init__(self) -> None:
        self.topic_id = OLD
        self.missing: set[str] = set()

    async def topics(self, names: Collection[str]) -> Any:
        found = {name: TopicMetadata(name, self.topic_id, 0, {}) for name in names if name not in self.missing}
        return SimpleNamespace(topics=found)

    metadata = topics


class Group:
    """Stores what it is given, unless it is to fail so often."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, Committed] = {}
        self.fails = 0

    async def read(self) -> dict[TopicPartition, Committed]:
        return dict(self.stored)

    async def write(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        if self.fails:
            self.fails -= 1
            raise RetriableError("no answer")
        self.stored.update(offsets)


class Slice:
    """Is given plans, and reports what it is made to."""

    def __init__(self, scene: Scene, report: Callable[[PartitionProgress], None]) -> None:
        self.plans: Sequence[PartitionPlan] = ()
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.was_stopped = False
        self.holds: Callable[[], bool] | None = None
        self._scene, self._report = scene, report

    async def open(self) -> None:
        if self._scene.defect:
            raise SliceDefect("ValueError: no")

    async def go(self, _: object, plans: Iterable[PartitionPlan]) -> None:
        self.plans = list(plans)
        self._scene.slices.append(self)

    async def stop(self) -> list[TopicPartition]:
        self.was_stopped = True
        return self._scene.unclean

    async def close(self) -> None: ...

    def moved(self, to: int, state: str = "running", reason: str = "") -> None:
        of_records: Any = {"records": 1, "bytes": 1, "batches": {}}
        self._report(PartitionProgress(ONE, to, -1, -1, 0, 100, -1, 1, **of_records, state=state, reason=reason))


class Scene:
    def __init__(self) -> None:
        consumer = parse_properties("bootstrap.servers=a:9092\ngroup.id=g\n", "c.properties")
        producer = parse_properties("bootstrap.servers=b:9092\n", "p.properties")
        options = Options(takes(".*", None), commit_interval_ms=5)
        settings = mirror_settings([consumer], producer, options, lambda _: None)
        self.source, self.group = Source(), Group()
        clusters = cast(Any, SimpleNamespace(target=None, source=self.source))
        of_process: Any = (settings, settings.sources[0], 0, "abc", None, None, None, clusters, None)
        self.context = ProcessContext(*of_process)
        self.slices: list[Slice] = []
        self.defect = False
        self.leaderless: set[TopicPartition] = set()
        self.unclean: list[TopicPartition] = []
        self.task = self.made([ONE])

    def made(self, partitions: Sequence[TopicPartition]) -> ByKeyTask:
        return ByKeyTask(self.context, cast(GroupOffsets, self.group), partitions, self.is_ours)

    def is_ours(self) -> bool:
        return True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        running = asyncio.create_task(self.task.run(), name="task")
        try:
            yield running
            self.task.stop()
            await asyncio.wait_for(running, WITHIN_S)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def slice(self, number: int) -> Slice:
        """The slice of that number, once it copies."""
        await until(lambda: len(self.slices) > number, f"slice {number} copies", WITHIN_S)
        return self.slices[number]

    async def until_stored(self, offset: int) -> None:
        def is_stored() -> bool:
            return ONE in self.group.stored and self.group.stored[ONE].offset == offset

        await until(is_stored, f"{offset} is stored", WITHIN_S)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    async def list_offsets(_: object, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, START if at == EARLIEST else END)

    scene = Scene()

    async def known_offsets(
        _: object, partitions: Collection[TopicPartition], at: int
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
        led = [one for one in partitions if one not in scene.leaderless]
        return await list_offsets(_, led, at), dict.fromkeys(scene.leaderless & set(partitions), "no leader")

    monkeypatch.setattr(by_key_task, "known_offsets", known_offsets)
    monkeypatch.setattr(partition_assignment, "list_offsets", list_offsets)
    monkeypatch.setattr(by_key_task, "SliceHandle", lambda *args: Slice(scene, args[-1]))
    monkeypatch.setattr(by_key_task, "_LOST_S", 0.01)
    monkeypatch.setattr(slice_handle, "_MAX_RETRY_S", 0.01)
    monkeypatch.setattr(by_key_task, "_LOOK_S", 0.01)
    monkeypatch.setattr(topics, "_SHOWN_WITHIN_S", 0)
    monkeypatch.setattr(log_divergence, "_ASK_AGAIN_S", 0)
    return scene


async def test_positions_are_the_groups_offsets_and_the_next_copier_goes_on_there(scene: Scene) -> None:
    scene.group.stored[ONE] = Committed(20, "")
    async with scene.running():
        first = await scene.slice(0)
        assert first.plans[0].next_source_offset == 20
        assert first.holds == scene.is_ours, "no fence would stop it"
        first.moved(30)
        await scene.until_stored(30)
        first.moved(40)
    assert first.was_stopped
    assert scene.group.stored[ONE] == Committed(40, encode_by_key(OLD)), "what came last is stored at the end"


async def test_behind_a_lost_slice_it_goes_on_at_what_was_reported(scene: Scene) -> None:
    async with scene.running():
        first = await scene.slice(0)
        scene.group.fails = 2
        first.moved(33)
        first.ended.set_result(SliceLost("gone"))
        assert (await scene.slice(1)).plans[0].next_source_offset == 33


@pytest.mark.parametrize("already_lost", [False, True])
async def test_at_a_stop_no_successor_begins_before_what_was_in_flight_should_have_arrived(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, already_lost: bool
) -> None:
    monkeypatch.setattr(by_key_task, "_LOST_S", 0.3)
    scene.unclean = [ONE]
    began_s = asyncio.get_running_loop().time()
    async with scene.running():
        first = await scene.slice(0)
        first.moved(33)
        if already_lost:
            first.ended.set_result(SliceLost("gone"))
            await asyncio.sleep(0.05)
    assert asyncio.get_running_loop().time() - began_s >= 0.3
    assert already_lost or scene.group.stored[ONE].offset == 33


async def test_what_cannot_be_stored_is_stored_later(scene: Scene) -> None:
    async with scene.running():
        scene.group.fails = 3
        (await scene.slice(0)).moved(44)
        await scene.until_stored(44)


async def test_a_topic_that_is_recreated_is_copied_from_its_beginning(scene: Scene) -> None:
    async with scene.running():
        (await scene.slice(0)).moved(50)
        await scene.until_stored(50)
        scene.source.topic_id = NEW
        second = await scene.slice(1)
        assert (second.plans[0].next_source_offset, second.plans[0].source_topic_id) == (START, NEW)
        assert scene.slices[0].was_stopped, "in order, so that nothing else is copied twice"


async def test_a_topic_that_the_source_lacks_holds_up_no_other(scene: Scene) -> None:
    scene.source.missing, scene.task = {"clicks"}, scene.made([ONE, OTHER])
    async with scene.running():
        assert [plan.source for plan in (await scene.slice(0)).plans] == [ONE]
        scene.source.missing = set()
        assert [plan.source for plan in (await scene.slice(1)).plans] == [ONE, OTHER]


async def test_a_partition_without_a_leader_holds_up_no_other(scene: Scene) -> None:
    scene.leaderless, scene.task = {OTHER}, scene.made([ONE, OTHER])
    async with scene.running():
        assert [plan.source for plan in (await scene.slice(0)).plans] == [ONE]
        await asyncio.sleep(0.05)
        assert len(scene.slices) == 1, "while it has no leader the slice is left alone"
        scene.leaderless = set()
        assert [plan.source for plan in (await scene.slice(1)).plans] == [ONE, OTHER]


async def test_a_partition_that_cannot_be_read_on_is_looked_at_again(scene: Scene) -> None:
    scene.group.stored[ONE] = Committed(START, "")
    async with scene.running():
        first = await scene.slice(0)
        scene.group.stored[ONE] = Committed(3, encode_by_key(OLD))
        first.moved(3, STOPPED, "OffsetOutOfRange")
        assert (await scene.slice(1)).plans[0].next_source_offset == START
        assert first.was_stopped
        (view,) = scene.task.view(0)
        assert view.state == "running", "else the process would end"


async def test_what_the_target_refuses_stops_its_partition_with_the_commands_own_words(scene: Scene) -> None:
    async with scene.running():
        (await scene.slice(0)).moved(17, QUARANTINED, "refused; then start the flow again")
        (view,) = scene.task.view(0)
        assert (view.state, view.next_source_offset) == (QUARANTINED, 17)
        assert view.reason == "refused; then start kafka-mirror-maker again"


async def test_slices_that_end_of_a_defect_end_the_task(scene: Scene) -> None:
    scene.defect = True
    with pytest.raises(TaskDefective):
        await asyncio.wait_for(scene.task.run(), WITHIN_S)


@pytest.mark.parametrize(
    ("stored", "then", "expected", "words"),
    [
        (50, OLD, 50, ""),
        (50, None, 50, ""),
        (50, NEW, START, "was recreated"),
        (3, OLD, START, "offsets 3 to 9 were deleted before they were copied"),
        (95, OLD, START, "was truncated to 90 or before"),
    ],
)
def test_where_a_copy_goes_on_behind_a_stored_offset(stored: int, then: UUID | None, expected: int, words: str) -> None:
    offset, lost_words = first_offset(stored, then, OLD, START, END)
    assert offset == expected
    assert words in lost_words and bool(words) is bool(lost_words)


def test_the_text_beside_an_offset_names_the_topic() -> None:
    assert topic_id_of(ONE, encode_by_key(OLD)) == OLD
    for text in (encode_by_key(None), "heliograph:by-key:?", "another tool's", "heliograph:spread:busy:a::-1:7:id"):
        assert topic_id_of(ONE, text) is None


OF_CONNECTORS = (
    "errors.tolerance",
    "the flow",
    "of topics",
    "is altered or reset",
    "on.topic.recreated",
    "on.source.gap",
)
RESET = "nothing more of orders-0 is copied until group g has no members and its offset of orders-0 was set with"


@pytest.mark.parametrize("code", sorted({*error_codes.TOO_LARGE, 17, 29, 31, 32, 44, 76, 87, 100, 9999}))
def test_what_the_target_refuses_is_told_in_options_of_the_command_line(code: int) -> None:
    reason = explained(code, ONE, "the record at offset 3")
    for found in (stop_message(QUARANTINED, ONE, reason, "g"), stop_message_at_end(QUARANTINED, ONE, reason, "g")):
        assert found.startswith("target orders-0 refuses the record at offset 3: ")
        assert found.endswith((", then start kafka-mirror-maker again", "; then start kafka-mirror-maker again"))
        assert not any(words in found for words in OF_CONNECTORS)
        assert ("--abort.on.send.failure false" in found) is ("errors.tolerance" in reason)


def test_a_record_that_a_handler_fails_on_may_be_left_out() -> None:
    found = stop_message_at_end(QUARANTINED, ONE, "the handler fails: ValueError", "g")
    skipped = "with --abort.on.send.failure false such records are skipped, logged and counted"
    assert found == f"the handler fails: ValueError; {skipped}"


@pytest.mark.parametrize(
    "verdict",
    [
        log_divergence.target_truncated(ONE, 50, 40, ONE, 100, "its end is lower"),
        log_divergence.source_another(ONE, 100, 3),
    ],
)
def test_a_log_that_is_not_what_it_was_is_gone_on_with_by_the_groups_offset(verdict: Verdict) -> None:
    assert verdict.gap is not None
    found = stop_message(verdict.gap.state, ONE, verdict.reason, "g")
    assert f"; {RESET} kafka-consumer-groups --reset-offsets" in found
    assert not any(words in found for words in OF_CONNECTORS)
    assert stop_message(verdict.gap.state, ONE, found, "g") == found, "it is said once"


def test_what_a_topic_made_anew_copies_again_by_itself_needs_nobody() -> None:
    verdict = log_divergence.recreated_topic("target", "orders", UUID(int=2), UUID(int=1), ONE)
    assert verdict.gap is not None
    found = stop_message(verdict.gap.state, ONE, verdict.reason, "g")
    assert found == log_divergence.facts(verdict.reason)
    assert stop_message(STOPPED, ONE, "it was cut", "g") == "it was cut"
