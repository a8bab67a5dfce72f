"""A task's life from takeover to handover, with slices, store and takeover in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka import concurrency
from connectors.control_link.protocol import PartitionProgress
from connectors.dataplane.resume import Resumed
from connectors.formats.position import Position
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof, TopicPartition
from connectors.source import task
from connectors.source.positions import position_checks
from connectors.source.positions.ledger import MAX_UNSTORED_BYTES, Ledger
from connectors.source.positions.partition_pairs import Entry, PartitionPair, position_of
from connectors.source.positions.position_checks import UnavailablePartitions
from connectors.source.positions.stored_positions import Commit, CommitScope, PositionsTaken, PositionStore, Start
from connectors.source.positions.takeover import Takeover
from connectors.source.slice_handle import Defects, SliceDefect, SliceHandle, SliceLost, TaskDefective
from connectors.source.task import MirrorSourceTask
from tests.kit.answers import answers
from tests.kit.turns import turns_during
from tests.unit.connectors.source.world import OTHER, OTHER_PAIR, PAIR, SOURCE, World, copying

UNCLEAN = Position("orders", 1, None, 100, 3, "us.orders", 1, None, 50, "mm2-0", 5, 1, 8)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_a_stop_does_not_wait_for_a_takeover(world: World) -> None:
    world.may_take_over.clear()  # as while the target does not answer
    one = world.task()
    running = asyncio.create_task(one.run())
    await world.until(lambda: bool(world.taken_over))
    one.stop()
    await asyncio.wait_for(running, 60)
    assert (world.went, world.commits) == ([], [])
    assert all(each.is_closed for each in world.slices)


async def test_a_stop_hands_over(world: World) -> None:
    async with copying(world):
        assert [commit.position.is_handed_over for commit in world.commits] == [False], "stored before it may write"
        assert [each.holds for each in world.slices] == [world.is_ours], "its lease is renewed while the work is ours"
    assert world.commits[-1].position.is_handed_over


async def test_a_slice_that_does_not_come_up_leaves_the_present_one_alone(world: World) -> None:
    async with copying(world, epoch_ms=1):
        world.refusals = [SliceLost("no slot"), RetriableError("no broker")]
        went = len(world.went)
        await world.until(lambda: not world.refusals and len(world.went) > went)
    assert world.taken_over == [False], "no takeover but the first"


async def test_renewed_certificates_start_the_next_slice(world: World) -> None:
    async with copying(world):
        await asyncio.sleep(0.01)
        assert len(world.went) == 1
        world.certificates.set()
        await world.until(lambda: len(world.went) == 2)
    assert world.taken_over == [False], "without a takeover"
    assert [epoch for epoch, *_ in world.went] == [1, 2]


async def test_a_successor_without_a_slot_starts_after_a_clean_end_of_its_predecessor(world: World) -> None:
    world.has_one_slot = True
    async with copying(world, epoch_ms=1):
        await world.until(lambda: len(world.went) >= 3)
    assert world.taken_over == [False], "no takeover but the first"
    assert [epoch for epoch, *_ in world.went[:3]] == [1, 2, 3]
    assert world.warmed[1] == {(PAIR.source, PAIR.target)}


async def test_a_stop_between_two_slices_hands_over(world: World) -> None:
    world.has_one_slot = True
    async with copying(world, epoch_ms=1):
        world.slot_is_given.clear()
        await world.until(lambda: world.slices[0].is_closed)
    assert len(world.went) == 1
    assert world.commits[-1].position.is_handed_over
    assert all(each.is_closed for each in world.slices)


async def test_a_claim_is_renewed_before_brokers_forget_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_CLAIM_AGAIN_S", 0.0)
    async with copying(world, epoch_ms=1):
        await world.until(lambda: len(world.went) >= 3)
        assert not any(commit.position.is_handed_over for commit in world.commits), "another task would copy it as well"
    assert world.taken_over[:3] == [False, True, True], "cleanly: nothing is fenced"
    assert [epoch for _, epoch, _ in world.went[:3]] == [1, 2, 3]


def other_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, str]:
    """OTHER has no leader until it is taken out of what this returns."""
    away = {OTHER: "target us.orders-1 has no leader"}

    async def still_unavailable(_: object, __: object, entries: Sequence[Entry], starts: Any) -> dict[Any, str]:
        assert {entry.pair.source for entry in entries} == set(starts) == {OTHER}
        return dict(away)

    monkeypatch.setattr(position_checks, "still_unavailable", still_unavailable)
    monkeypatch.setattr(position_checks, "_LOOK_AGAIN_S", 0.001)
    world.pairs, world.away = [PAIR, OTHER_PAIR], away
    return away


async def test_a_waiting_partition_is_taken_over_between_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end cleanly before, for its fence raises the epoch of all; and its position is not handed over."""
    away = other_is_away(world, monkeypatch)
    world.stored = {OTHER: Start(UNCLEAN, 99, False)}
    async with copying(world) as one:
        await asyncio.sleep(0.05)
        assert len(world.went) == 1
        assert [view.state for view in one.view(0)] == ["running", "waiting"]
        assert {commit.position.source_partition for commit in world.commits} == {0}
        away.clear()
        await world.until(lambda: len(world.went) == 2)
        assert world.taken_over == [False, False, True, False]
        assert world.starts[-1][OTHER] == Start(UNCLEAN, 99, False), "as the store told it"
        assert [len(sequences) for _, _, sequences in world.went] == [1, 2]
        assert [view.state for view in one.view(0)] == ["running", "running"]
    handed_over = {commit.position.source_partition: commit.position.is_handed_over for commit in world.commits}
    assert handed_over == {0: True, 1: True}


async def test_who_still_waits_at_the_end_is_not_handed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pairs, world.away = [PAIR, OTHER_PAIR], {OTHER: "target us.orders-1 has no leader"}
    async with copying(world) as one:
        one.ledger.entries[OTHER].position = UNCLEAN  # as where a slice was lost
    assert {commit.position.source_partition for commit in world.commits} == {0}


async def test_a_partition_joins_with_the_next_slice_and_the_others_go_on_under_their_producer(world: World) -> None:
    async with copying(world) as one:
        world.pairs = [PAIR, OTHER_PAIR]
        world.may_take_over.clear()
        one.reconfigure((SOURCE, OTHER))
        await world.until(lambda: len(world.taken_over) == 2)
        await asyncio.sleep(0.05)
        assert len(world.went) == 1, "what is slow holds up nothing that is copied"
        world.may_take_over.set()
        await world.until(lambda: len(world.went) == 2)
        assert world.went == [(1, 1, [0]), (2, 1, [0, 0])]
        assert [view.state for view in one.view(0)] == ["running", "running"]
        stored = [(commit.position.source_partition, commit.position.is_handed_over) for commit in world.commits]
        assert stored == [(0, False), (1, False)], "one that stays is not offered to other tasks"
    assert {commit.position.source_partition for commit in world.commits if commit.position.is_handed_over} == {0, 1}


async def test_a_partition_that_left_is_stored_while_others_copy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_back(_: UnavailablePartitions, entries: Sequence[Entry]) -> bool:
        return bool(entries)

    monkeypatch.setattr(UnavailablePartitions, "is_back", is_back)
    world.pairs = [PAIR, OTHER_PAIR]
    async with copying(world) as one:
        world.is_store_away = True
        one.reconfigure((SOURCE,))
        await world.until(lambda: len(world.went) == 2)
        assert [len(sequences) for _, _, sequences in world.went] == [2, 1]
        one.reconfigure((SOURCE, OTHER))
        await asyncio.sleep(0.05)
        assert len(world.went) == 2, "another task may have it, until it is known what is stored"
        world.is_store_away = False
        one._changes.look()
        await world.until(lambda: len(world.went) == 3)
        stored = [(commit.position.source_partition, commit.position.is_handed_over) for commit in world.commits]
        assert stored[2:] == [(1, True), (0, False), (1, False)]
        assert [epoch for _, epoch, _ in world.went] == [1, 1, 2], "the epoch that wrote it does not write it again"


async def test_after_a_loss_nothing_is_fenced_before_a_slice_stands_ready(world: World) -> None:
    """Else every attempt at a Spark that is gone would leave a marker in every partition."""
    async with copying(world):
        world.refusals = [SliceLost("no Spark"), RetriableError("no Spark"), SliceLost("no Spark")]
        world.slices[-1].ended.set_result(SliceLost("killed"))
        await world.until(lambda: len(world.went) == 2)
    assert world.refusals == []
    assert len(world.taken_over) == 2, "once at first, once for the slice that came up"


async def test_a_defect_in_slice_after_slice_fails_the_task_with_its_reason(world: World) -> None:
    one = world.task()
    running = asyncio.create_task(one.run())
    for count in (1, 2, 3):
        await world.until(lambda count=count: len(world.went) == count)  # type: ignore[misc]
        world.slices[-1].ended.set_result(SliceDefect("TypeError: spoilt (copier.py:7)"))
    with pytest.raises(TaskDefective, match=r"3 slices in a row.*copier\.py:7") as caught:
        await asyncio.wait_for(running, 60)
    assert isinstance(caught.value, PermanentError)
    assert one.state == "failed"
    assert len(world.went) == 3


async def test_defects_with_whole_epochs_between_them_fail_nothing(world: World) -> None:
    async with copying(world, epoch_ms=1):
        for _ in range(4):
            seen = len(world.went)
            await world.until(lambda seen=seen: len(world.went) > seen)  # type: ignore[misc]
            world.refusals = [SliceDefect("TypeError: spoilt")]
            await world.until(lambda: not world.refusals)


def test_a_defect_that_comes_back_only_after_a_while_fails_nothing() -> None:
    defects, error = Defects("us->eu task 0"), SliceDefect("TypeError: spoilt")
    for _ in range(6):
        defects.count(error, 61.0)
    defects.count(error, 0.0)
    with pytest.raises(TaskDefective):
        defects.count(error, 60.0)


async def test_a_next_slice_that_never_comes_up_for_a_defect_fails_the_task(world: World) -> None:
    one = world.task(epoch_ms=1)
    world.went.append((0, 0, []))
    running = asyncio.create_task(one.run())
    await world.until(lambda: len(world.went) == 2)
    world.refusals = [SliceDefect("ImportError: spoilt") for _ in range(10)]
    with pytest.raises(TaskDefective):
        await asyncio.wait_for(running, 60)
    assert len(world.refusals) == 7


@pytest.mark.parametrize(("known", "lets_join"), [([PAIR], True), ([PAIR], False), ([], True)])
async def test_partitions_that_a_cluster_does_not_know_hold_up_no_others_that_may_join_before_them(
    world: World, monkeypatch: pytest.MonkeyPatch, known: list[PartitionPair], lets_join: bool
) -> None:
    world.pairs = [PAIR, OTHER_PAIR]
    one = world.task()
    world.pairs = known
    monkeypatch.setattr(type(one), "_lets_join", lets_join)
    if known and lets_join:
        assert await one._pairs() == known
    else:
        with pytest.raises(RetriableError, match=r"does not know .*orders-1 now"):
            await one._pairs()


def _full_at(offset: int) -> PartitionProgress:
    return PartitionProgress(
        source=SOURCE, next_source_offset=offset, last_source_epoch=0, target_end=offset, next_sequence=offset,
        high_watermark=offset, log_start_offset=0, timestamp_ms=5, records=9, bytes=MAX_UNSTORED_BYTES, batches={},
    )  # fmt: skip


async def test_a_task_passes_on_what_it_has_copied_and_stored(world: World) -> None:
    async with copying(world) as one:
        one._progressed(replace(_full_at(9), batches={"as it is": 2, "merged with others": 1}, skips=[(3, 4, 10)]))
    counted = world.counters
    assert (counted.written, counted.skipped, counted.batch_records.last) == (9, 2, 3)
    assert counted.commit_ms.recorded == counted.commits_well.total > 0
    assert world.topics == {"us.orders"}


async def test_a_store_that_is_away_counts_as_a_failed_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_COMMIT_S", 0.01)
    async with copying(world) as one:
        well = world.counters.commits_well.total
        world.is_store_away = True
        one._progressed(_full_at(9))
        await world.until(lambda: world.counters.commits_well.recorded > well)
        world.is_store_away = False
    assert world.counters.commits_well.recorded > world.counters.commits_well.total


async def test_a_task_that_copies_faster_than_the_ticks_stores_its_positions_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task, "_COMMIT_S", 3600.0)
    async with copying(world) as one:
        one._progressed(_full_at(9))
        async with asyncio.timeout(20):
            await world.until(lambda: world.holds == [(1, True), (1, False)])
        assert world.commits[-1].position.next_source_offset == 9
        assert "could not be stored" not in caplog.text


async def test_copying_waits_while_positions_cannot_be_stored_and_continues_once_they_can(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task, "_COMMIT_S", 0.01)
    async with copying(world) as one:
        world.is_store_away = True
        one._progressed(_full_at(9))
        assert world.holds == [(1, True)]
        await world.until(lambda: "copying is paused" in caplog.text)
        world.is_store_away = False
        await world.until(lambda: world.holds == [(1, True), (1, False)])
        assert world.commits[-1].position.next_source_offset == 9
    assert world.commits[-1].scope is CommitScope.ALL


async def test_two_tasks_do_not_shut_each_other_out_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would take themselves for superseded."""
    locked: list[bool] = []

    async def fence_predecessors(starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        locked.append(one._services.clusters.fencing.locked())
        return starts

    one = world.task()
    monkeypatch.setattr(world, "fence_predecessors", fence_predecessors)
    await one.fence_predecessors({})
    assert locked == [True]


async def test_what_a_predecessor_wrote_late_is_announced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with copying(world) as one:
        position = one.ledger.entries[SOURCE].position
        assert position is not None
        one.ledger.begin(SOURCE, replace(position, target_end=50), is_fenced=False)
        one._progressed(replace(_full_at(9), target_end=65, runs=[(0, 56, 9)]))
    assert "resumed us->eu orders-0: surplus=0 verified=false fallback=at-least-once may_double=6" in caplog.text


async def test_the_next_slice_waits_too_while_positions_cannot_be_stored(world: World) -> None:
    async with copying(world, epoch_ms=1) as one:
        world.is_store_away = True
        one._progressed(_full_at(9))
        ((full, _),) = world.holds
        await world.until(lambda: world.went[-1][0] > full + 1)
        held = [epoch for epoch, is_held in world.holds if is_held]
        world.is_store_away = False
        await world.until(lambda: not world.holds[-1][1])
    assert held[:2] == [full, full + 1]


@pytest.mark.parametrize(
    ("settings", "is_countable"),
    [
        ({}, True),
        ({"transform_sql": "SELECT * FROM records"}, False),
        ({"chain": {"transforms": []}}, False),
        ({"skip_refused": True}, False),
    ],
)
async def test_a_task_that_leaves_records_out_or_changes_them_stores_positions_more_often(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], is_countable: bool
) -> None:
    said: list[bool] = []
    monkeypatch.setattr(task, "Pairing", lambda *_, is_countable: said.append(is_countable))
    plain = world.task()
    changed = replace(plain._settings, slice=replace(plain._settings.slice, **settings))
    MirrorSourceTask(changed, plain._services, cast(PositionStore, world))
    assert said == [True, is_countable]


async def test_a_partition_that_is_taken_away_during_the_first_takeover_is_not_stored(world: World) -> None:
    """Its next owner may have stored a newer position: ours would be stored over that."""
    world.pairs = [PAIR, OTHER_PAIR]
    world.may_take_over.clear()
    one = world.task()
    running = asyncio.create_task(one.run())
    await world.until(lambda: len(world.starts) == 1)
    one.reconfigure((SOURCE,))
    world.may_take_over.set()
    await world.until(lambda: len(world.went) == 1)
    one.stop()
    await asyncio.wait_for(running, 60)
    assert {commit.position.source_partition for commit in world.commits} == {0}


async def test_a_partition_that_is_taken_away_while_it_joins_is_not_stored(world: World) -> None:
    async with copying(world) as one:
        world.pairs = [PAIR, OTHER_PAIR]
        world.may_take_over.clear()
        one.reconfigure((SOURCE, OTHER))
        await world.until(lambda: len(world.starts) == 2)
        one.reconfigure((SOURCE,))
        world.may_take_over.set()
        await asyncio.sleep(0.05)
    assert {commit.position.source_partition for commit in world.commits} == {0}


async def test_a_partition_that_joined_and_is_taken_away_before_it_is_copied_is_not_handed_over(world: World) -> None:
    async with copying(world) as one:
        world.pairs = [PAIR, OTHER_PAIR]
        world.has_one_slot = True
        world.slot_is_given.clear()
        one.reconfigure((SOURCE, OTHER))
        await world.until(lambda: len(world.slices) == 2 and world.slices[0].is_closed)
        one.reconfigure((SOURCE,))
        world.slot_is_given.set()
        await world.until(lambda: len(world.went) == 2)
    assert [len(sequences) for _, _, sequences in world.went] == [1, 1]
    handed_over = {one.position.source_partition for one in world.commits if one.position.is_handed_over}
    assert handed_over == {0}


async def test_a_partition_another_task_took_is_dropped_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, answered = asyncio.Event(), asyncio.Event()

    async def taken(_: Sequence[Commit]) -> None:
        writing.set()
        await answered.wait()
        raise PositionsTaken(frozenset({SOURCE}))

    monkeypatch.setattr(world, "commit", taken)
    one = world.task()
    one.ledger.enter([PAIR])
    one.ledger.begin(SOURCE, UNCLEAN)
    one.ledger.entries[SOURCE].was_copied = True
    await one.ledger.leave([])
    committing = asyncio.create_task(one._commit())
    await writing.wait()
    leaving = asyncio.create_task(one.store_left())
    await asyncio.sleep(0)
    answered.set()
    with pytest.raises(PositionsTaken):
        await committing
    await leaving
    assert not one.ledger.entries


async def test_a_partition_that_leaves_is_not_taken_over_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover after its move would begin it here, over the position of its new owner."""
    away = other_is_away(world, monkeypatch)
    world.has_one_slot = True
    async with copying(world) as one:
        world.slot_is_given.clear()
        away.clear()
        await world.until(lambda: len(world.slices) == 2)
        one.reconfigure((SOURCE,))
        world.slot_is_given.set()
        await world.until(lambda: len(world.went) == 2)
    assert {commit.position.source_partition for commit in world.commits} == {0}


async def test_a_partition_joins_a_task_that_lost_its_slice_and_whose_others_all_wait(world: World) -> None:
    world.pairs = [PAIR]
    async with copying(world) as one:
        world.away = {SOURCE: "target us.orders-0 has no leader"}
        world.slices[-1].ended.set_result(SliceLost("killed"))
        await world.until(lambda: one.state == "recovering" and len(world.starts) > 1)
        assert len(world.went) == 1, "alone it is tried again"
        world.pairs = [PAIR, OTHER_PAIR]
        one.reconfigure((SOURCE, OTHER))
        await world.until(lambda: [len(sequences) for _, _, sequences in world.went] == [1, 0, 1])
        assert [view.state for view in one.view(0)] == ["waiting", "running"]


async def test_others_of_the_loop_have_their_turn_while_many_partitions_are_resumed(world: World) -> None:
    sources = [TopicPartition("orders", index) for index in range(1000)]
    world.pairs = [PartitionPair(one, None, TopicPartition("us.orders", one.partition), None) for one in sources]
    ledger, writer = Ledger(world.pairs), ProducerIdAndEpoch(5, 1)
    plans = [pair.plan(9, 0, 9, pipelined=True, next_sequence=9) for pair in world.pairs]
    proven = [replace(plan, proof=ResumeProof(writer, 9, is_fenced=plan.source.partition > 0)) for plan in plans]

    handle = cast(SliceHandle, SimpleNamespace(resume=answers([Resumed(plan, ((0, 0, 9),), 9) for plan in plans])))
    turns, _ = await turns_during(world.task()._begin(handle, Takeover(writer, tuple(proven), "mm2-0"), ledger))
    assert turns >= 2 * len(sources)
    assert [commit.position.next_source_offset for commit in world.commits] == [9] * len(sources)
    unfenced = [source for source, entry in ledger.entries.items() if entry.unfenced_end is not None]
    assert unfenced == sources[:1]


async def test_a_cancelled_commit_of_thousands_gives_all_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_TURN_S", 0.0)
    sources = [TopicPartition("orders", index) for index in range(3000)]
    world.pairs = [PartitionPair(one, None, TopicPartition("us.orders", one.partition), None) for one in sources]
    made, ledger = world.task(), Ledger(world.pairs)
    for pair in world.pairs:
        plan = pair.plan(9, 0, 9, pipelined=True, next_sequence=9)
        ledger.begin(pair.source, position_of(plan, "mm2-0", ProducerIdAndEpoch(5, 1)), [(0, 0, 9)])
    storing = asyncio.create_task(made._commit_of(ledger))
    while all(entry.is_dirty for entry in ledger.entries.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert any(entry.is_dirty for entry in ledger.entries.values()), "others have their turn in between"
    storing.cancel()
    await asyncio.wait({storing})
    assert all(entry.is_dirty for entry in ledger.entries.values())
    await made._commit_of(ledger)
    assert [commit.runs for commit in world.commits] == [((0, 0, 9),)] * len(sources)
