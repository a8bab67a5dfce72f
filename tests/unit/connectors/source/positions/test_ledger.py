"""What a task keeps of its slices' reports: records left out, partitions that stopped or are quarantined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.formats.position import Position
from connectors.formats.types import QUARANTINED, RUNNING, STOPPED, ProducerIdAndEpoch, TopicPartition
from connectors.source.positions.ledger import MAX_UNSTORED_BYTES, MAX_UNSTORED_RECORDS, Ledger
from connectors.source.positions.partition_pairs import Entry, PartitionPair, plan_of, position_of
from connectors.source.positions.stored_positions import Commit, CommitScope
from tests.kit.turns import turns_during

SOURCE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def ledger(sources: Iterable[TopicPartition] = (SOURCE, OTHER)) -> Ledger:
    made = Ledger(pair_of(one) for one in sources)
    for entry in made.entries.values():
        made.begin(entry.pair.source, position_of(_plan(entry.pair), "txn", ProducerIdAndEpoch(7, 0)))
        entry.was_copied = True
    return made


def pair_of(source: TopicPartition, **more: Any) -> PartitionPair:
    return PartitionPair(source, None, TopicPartition("us.orders", source.partition), None, **more)


def _plan(pair: PartitionPair) -> PartitionPlan:
    return PartitionPlan(pair.source, None, pair.target, None, 0, -1, 0, 0, False)


def report(**changes: Any) -> PartitionProgress:
    begins = PartitionProgress(SOURCE, 20, 0, 15, 15, 30, 0, 5, records=15, bytes=100, batches={})
    return replace(begins, **changes)


def test_records_left_out_are_counted_and_shown() -> None:
    made = ledger()
    made.apply(report(skips=[(3, 5, 87), (9, 9, 10)]))
    made.apply(report(skips=[(15, 15, 32)]))
    view = made.entries[SOURCE].view(10)
    assert (view.skipped, view.state, view.next_source_offset) == (5, RUNNING, 20)


def test_reports_add_up() -> None:
    made = ledger()
    made.apply(report(timestamp_ms=9, dropped=2, changed=3, batches={"as it is": 2, "old magic": 1}))
    made.apply(report(timestamp_ms=5, dropped=1, changed=1, batches={"as it is": 4}))
    entry = made.entries[SOURCE]
    assert (entry.timestamp_ms, entry.records, entry.bytes, entry.dropped, entry.changed) == (9, 30, 200, 3, 4)
    assert {kind: count for kind, count in entry.batches.items() if count} == {"shallow": 6, "rebuilt": 1}


def test_plans_say_where_a_fence_has_made_the_producer_known() -> None:
    made = ledger()
    assert {plan.source: plan.pipelined for plan in made.plans([OTHER])} == {SOURCE: False, OTHER: True}
    made.entries[SOURCE].wait("its leader is away")
    assert [plan.source for plan in made.plans()] == [OTHER]
    assert made.waiting() == [made.entries[SOURCE]]


@pytest.mark.parametrize(("is_fenced", "late"), [(True, 0), (False, 6)])
def test_what_an_unfenced_predecessor_wrote_before_our_first_batch_is_counted_once(is_fenced: bool, late: int) -> None:
    made = ledger()
    made.begin(SOURCE, replace(plan_position(made), target_end=94), is_fenced=is_fenced)
    assert made.late_records(report(runs=[])) == 0
    assert made.late_records(report(runs=[(5, 100, 15)])) == late
    assert made.late_records(report(runs=[(20, 115, 5)])) == 0


def test_the_record_before_the_end_is_ours_once_we_wrote_one() -> None:
    """A writer that comes back continues its sequences behind what others have written since."""
    made, plan = ledger(), _plan(ledger().entries[SOURCE].pair)
    assert position_of(plan, "mm2-0", ProducerIdAndEpoch(5, 1)).is_last_ours
    made.begin(SOURCE, position_of(replace(plan, next_sequence=7, target_end=60), "mm2-0", ProducerIdAndEpoch(5, 1)))
    assert not plan_position(made).is_last_ours
    made.apply(report(target_end=60, next_sequence=7))
    assert not plan_position(made).is_last_ours
    made.apply(report(target_end=63, next_sequence=10))
    made.apply(report(target_end=63, next_sequence=10))
    assert plan_position(made).is_last_ours


def plan_position(made: Ledger) -> Position:
    position = made.entries[SOURCE].position
    assert position is not None
    return position


@pytest.mark.parametrize("state", [STOPPED, QUARANTINED])
async def test_a_partition_that_stopped_is_neither_planned_nor_handed_over_and_says_why(state: str) -> None:
    made = ledger()
    assert made.apply(report(state=state, reason="refused")) == "refused"
    assert made.apply(report(state=state, reason="refused")) == ""
    assert [plan.source for plan in made.plans()] == [OTHER]
    await made.hand_over()
    handed_over = {source: entry.position.is_handed_over for source, entry in made.entries.items() if entry.position}
    assert handed_over == {SOURCE: False, OTHER: True}
    view = made.entries[SOURCE].view(10)
    assert (view.state, view.reason) == (state, "refused")
    assert plan_of(made.entries[SOURCE], False).next_source_offset == 20


def test_a_report_survives_the_link() -> None:
    sent = report(skips=[(3, 5, 87)], runs=[(0, 0, 15)], state=QUARANTINED, reason="why", error="code")
    assert PartitionProgress.from_wire(sent.to_wire()) == sent


def taken(made: Ledger, now_s: float | None = None) -> list[Commit]:
    return list(made.take_commits(now_s))


def succeed(made: Ledger, commits: Iterable[Commit]) -> None:
    for commit in commits:
        made.commit_succeeded(commit)


class Clock:
    """A ledger that looks each second whether positions are due, and counts what it stores in a minute."""

    def __init__(self, *, is_countable: bool = True) -> None:
        pairs = [pair_of(SOURCE, is_countable=is_countable), pair_of(OTHER)]
        self.ledger = Ledger(pairs)
        self.now_s = 1000.0
        self.offset = 0
        for pair in pairs:
            self.ledger.begin(pair.source, position_of(_plan(pair), "txn", ProducerIdAndEpoch(7, 0)))
        succeed(self.ledger, taken(self.ledger))
        self.tick()  # the first look stores Java's offsets

    def tick(self, copied: int = 0) -> list[tuple[TopicPartition, CommitScope]]:
        """Of a second in which SOURCE copied so many bytes."""
        self.now_s += 1
        if copied:
            self.offset += 1
            self.ledger.apply(report(next_source_offset=self.offset, bytes=copied, records=1))
        commits = taken(self.ledger, self.now_s)
        succeed(self.ledger, commits)
        stored = [(one.position, one.scope) for one in commits]
        return [(TopicPartition(of.source_topic, of.source_partition), scope) for of, scope in stored]


@pytest.mark.parametrize(("is_countable", "progress"), [(True, range(10, 60, 10)), (False, range(1, 60))])
def test_how_often_a_busy_partition_stores_position_and_offset(is_countable: bool, progress: range) -> None:
    clock = Clock(is_countable=is_countable)
    for _ in range(3):
        stored = [(second, *one) for second in range(1, 61) for one in clock.tick(100)]
        progressed = [(second, SOURCE, CommitScope.PROGRESS) for second in progress]
        assert stored == [*progressed, (60, SOURCE, CommitScope.OFFSETS)]


def test_a_position_that_a_successor_cannot_count_is_stored_once_a_second_however_often_it_is_looked() -> None:
    clock = Clock(is_countable=False)
    stored = []
    for _ in range(10):
        clock.now_s -= 0.5
        stored += clock.tick(100)
    assert len(stored) == 5


def test_an_earlier_version_that_continues_after_a_kill_lacks_an_hour_of_the_map_at_most() -> None:
    clock = Clock()
    scopes = [scope for _ in range(2 * 3600) for _, scope in clock.tick(100)]
    assert (scopes.count(CommitScope.ALL), scopes.count(CommitScope.OFFSETS)) == (2, 118)
    clock.ledger.apply(report(next_source_offset=clock.offset + 1))
    clock.ledger.give_back(taken(clock.ledger))
    assert clock.tick(100) == [(SOURCE, CommitScope.ALL)], "due again if it could not be stored"


def test_a_position_is_stored_once_so_much_is_copied() -> None:
    clock, half, stored = Clock(), 32 * 1024 * 1024, [(SOURCE, CommitScope.PROGRESS)]
    assert [clock.tick(half) for _ in range(4)] == [[], stored] * 2
    clock.ledger.apply(report(source=OTHER, next_source_offset=1, bytes=0))
    assert [clock.tick(half) for _ in range(2)] == [[], stored], "however many others wait"


def test_a_store_that_works_holds_up_no_copying_however_many_partitions_share_it() -> None:
    sources = [TopicPartition("orders", at) for at in range(40)]
    made, quiet = ledger(sources), list[TopicPartition]()
    succeed(made, taken(made, 1000.0))
    for tenth in range(1, 300):  # twenty partitions at 100 MB/s together, the others at 2 KB/s
        for one in sources:
            copied = 500_000 if one.partition < 20 else 100
            made.apply(report(source=one, next_source_offset=tenth, bytes=copied, records=1))
        assert not made.must_wait()
        if tenth % 10 == 0:
            commits = taken(made, 1000.0 + tenth / 10)
            succeed(made, commits)
            quiet += [sources[39] for one in commits if one.position.source_partition == 39]
    assert len(quiet) <= 3, "the others are not stored each second for that"


def test_a_partition_at_rest_stores_nothing_but_javas_offset_of_what_it_copied() -> None:
    clock = Clock()
    clock.tick(100)
    stored = [one for _ in range(300) for one in clock.tick()]
    assert stored == [(SOURCE, CommitScope.PROGRESS), (SOURCE, CommitScope.OFFSETS)]


def test_runs_of_a_transaction_that_was_aborted_are_in_no_map() -> None:
    made = ledger()
    begins = plan_position(made)
    succeed(made, taken(made))
    made.apply(report(next_source_offset=9, runs=[(0, 0, 9)]))
    made.forget_unstored()
    assert taken(made) == []
    made.begin(SOURCE, begins)
    made.apply(report(next_source_offset=4, runs=[(0, 11, 4)]))
    assert [list(commit.runs) for commit in taken(made)] == [[(0, 11, 4)]]


def test_whoever_continues_finds_everything() -> None:
    clock = Clock()
    clock.tick(100)
    for _ in range(20):
        clock.tick()
    assert clock.ledger.entries[SOURCE].is_dirty is False
    (commit,) = taken(clock.ledger)
    assert (commit.position.next_source_offset, commit.scope) == (1, CommitScope.ALL)
    assert taken(clock.ledger) == []


async def test_partitions_that_leave_are_handed_over_and_those_that_stopped_keep_their_position() -> None:
    made = ledger()
    made.apply(report(state=STOPPED, reason="refused"))
    await made.leave([])
    assert (made.leaving(), list(made.plans())) == ([SOURCE, OTHER], [])
    stored = {one.position.source_partition: one.position.is_handed_over for one in taken(made)}
    assert stored == {0: False, 1: True}


async def test_of_a_partition_that_leaves_and_was_never_copied_here_nothing_is_stored() -> None:
    made = ledger()
    made.entries[SOURCE].was_copied = False
    await made.leave([])
    assert [one.position.source_partition for one in taken(made)] == [OTHER.partition]
    assert made.leaving() == [SOURCE, OTHER]


def test_what_was_never_copied_here_leaves_at_once() -> None:
    made = ledger()
    made.entries[SOURCE].was_copied = False
    made.abandon([OTHER])
    assert (made.leaving(), [plan.source for plan in made.plans()]) == ([SOURCE], [OTHER])


def test_a_task_stands_still_once_it_has_all_its_partitions_and_each_has_ended() -> None:
    def has_ended(entry: Entry) -> bool:
        return entry.state == STOPPED

    empty, made = Ledger([]), ledger()
    assert not empty.stand_still(has_ended)
    made.apply(report(state=STOPPED, reason="refused"))
    assert not made.stand_still(has_ended), "one is copied"
    made.entries[OTHER].wait("its leader is away")
    assert not made.stand_still(has_ended), "one waits"
    made.apply(report(source=OTHER, state=STOPPED, reason="refused"))
    assert made.stand_still(has_ended)
    made.want([SOURCE, OTHER, TopicPartition("orders", 2)])
    assert not made.stand_still(has_ended), "one is not there yet"


def test_runs_that_a_resume_has_counted_are_stored() -> None:
    made = ledger()
    succeed(made, taken(made))
    made.begin(SOURCE, plan_position(made), [(0, 0, 4), (4, 4, 2)])
    made.apply(report(runs=[(6, 6, 3)]))
    assert [list(commit.runs) for commit in taken(made)] == [[(0, 0, 9)]]


async def test_a_partition_leaves_while_a_commit_of_it_is_under_way_that_fails() -> None:
    made = ledger()
    made.apply(report(next_source_offset=9, runs=[(0, 0, 9)]))
    commits = taken(made)
    await made.leave([OTHER])
    made.give_back(commits)
    (commit,) = [one for one in taken(made) if one.position.source_partition == SOURCE.partition]
    assert (commit.position.is_handed_over, list(commit.runs)) == (True, [(0, 0, 9)])


def test_a_partition_is_dropped_while_a_commit_of_it_is_under_way_that_fails() -> None:
    made = ledger()
    commits = taken(made)
    for _ in range(2):
        made.drop(SOURCE)
    made.give_back(commits)
    assert [one.position.source_partition for one in taken(made)] == [OTHER.partition]


@pytest.mark.parametrize("rests_s", [20, 70])
async def test_a_successor_finds_the_whole_map_of_a_partition_that_stopped_before(rests_s: int) -> None:
    clock = Clock()
    clock.tick(100)
    clock.ledger.apply(report(next_source_offset=2, state=STOPPED, reason="refused"))
    for _ in range(rests_s):
        clock.tick()
    await clock.ledger.hand_over()
    commits = {one.position.source_partition: one for one in taken(clock.ledger)}
    assert (commits[0].scope, commits[0].position.is_handed_over) == (CommitScope.ALL, False)
    succeed(clock.ledger, commits.values())
    assert taken(clock.ledger) == []


def test_runs_that_could_not_be_stored_are_stored_with_newer_ones() -> None:
    made = ledger()
    made.apply(report(next_source_offset=9, runs=[(0, 0, 9)]))
    commits = taken(made)
    made.apply(report(runs=[(9, 9, 4), (20, 13, 2)]))
    made.give_back(commits)
    assert [list(commit.runs) for commit in taken(made) if commit.runs] == [[(0, 0, 13), (20, 13, 2)]]


def test_what_could_not_be_stored_is_due_at_once() -> None:
    clock = Clock()
    for _ in range(9):
        clock.tick(100)
    clock.ledger.give_back(taken(clock.ledger, clock.now_s + 1))
    assert clock.tick() == [(SOURCE, CommitScope.OFFSETS)]


def test_copying_has_to_wait_while_too_many_bytes_are_not_stored() -> None:
    made = ledger()
    for at in range(1, 4):
        made.apply(report(next_source_offset=at, bytes=MAX_UNSTORED_BYTES // 4))
    assert not made.must_wait()
    made.apply(report(source=OTHER, next_source_offset=1, bytes=MAX_UNSTORED_BYTES // 4))
    assert made.must_wait()
    commits = taken(made)
    made.apply(report(next_source_offset=5, bytes=7))
    assert made.must_wait(), "they are not stored yet"
    made.give_back(commits)
    assert made.must_wait()
    succeed(made, taken(made))
    assert not made.must_wait()


def test_copying_has_to_wait_while_too_many_records_of_a_partition_are_not_stored() -> None:
    """Sequences are 31 bits: what arrived is counted modulo 2^31."""
    made = ledger()
    made.apply(report(next_source_offset=5, records=MAX_UNSTORED_RECORDS, bytes=1))
    assert made.must_wait()
    succeed(made, taken(made))
    assert not made.must_wait()
    made.apply(report(next_source_offset=6, records=MAX_UNSTORED_RECORDS, bytes=MAX_UNSTORED_BYTES))
    made.drop(SOURCE)
    assert not made.must_wait()
    made.apply(report(source=OTHER, bytes=MAX_UNSTORED_BYTES))
    made.clear()
    assert not made.must_wait()


async def test_others_of_the_loop_have_their_turn_while_thousands_are_handed_over() -> None:
    sources = [TopicPartition("orders", index) for index in range(5000)]
    made = ledger(sources)
    for work in (made.hand_over, made.committed_with_records, lambda: made.leave([])):
        turns, _ = await turns_during(work())
        assert turns >= len(sources)
    assert made.leaving() == sources
    assert all(commit.position.is_handed_over and commit.position.is_atomic for commit in taken(made))
