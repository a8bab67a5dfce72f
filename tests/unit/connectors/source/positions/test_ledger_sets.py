"""The sets of a ledger are what a look at all its entries would find, after each step of any schedule."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.control_link.protocol import PartitionProgress
from connectors.flow_facts import Tally
from connectors.flow_progress import Meters
from connectors.formats.gap import Gap, GapKind
from connectors.formats.types import QUARANTINED, RUNNING, STOPPED, ProducerIdAndEpoch, TopicPartition
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import STARTING, Entry, PartitionPair, position_of
from connectors.source.positions.stored_positions import Commit, CommitScope

ALL = [TopicPartition(topic, index) for topic in ("a", "b") for index in range(4)]


class Schedule:
    """Random steps of a task on a ledger, with commits that other steps interleave."""

    def __init__(self, seed: int) -> None:
        self.random, self.now_s = random.Random(seed), 0.0
        self.ledger, self.meters, self.producer_id, self.reports = Ledger(()), Meters(), 0, 0
        self.wanted = ALL[:4]
        self.ledger.want(self.wanted)
        self.ledger.enter(_pair(one) for one in self.wanted)
        self.taking: Iterator[Commit] | None = None
        self.taken: list[Commit] = []
        self.reader = self.ledger.reader()
        self.before = self._facts()

    async def step(self) -> None:
        steps = [self.begin, self.report, self.report, self.commit, self.commit, self.change, self.want, self.end]
        await self.random.choice(steps)()
        self.check()

    def _any(self) -> Entry | None:
        entries = list(self.ledger.entries.values())
        return self.random.choice(entries) if entries else None

    async def begin(self) -> None:
        if (entry := self._any()) is not None:
            self.producer_id += 1
            at = self.random.randrange(50)
            plan = entry.pair.plan(at, -1, at, pipelined=False)
            self.ledger.begin(entry.pair.source, position_of(plan, "txn", ProducerIdAndEpoch(self.producer_id, 0)))
            entry.was_copied = True

    async def report(self) -> None:
        if (entry := self._any()) is None or entry.position is None or not entry.is_copied:
            return
        at, count = entry.position, self.random.choice((0, 0, 3))
        values: dict[str, Any] = {"batches": {"as it is": 2, "old magic": 1}, "timestamp_ms": self.random.randrange(9)}
        if count:
            values["runs"] = [(at.next_source_offset, at.target_end, count)]
        if not self.random.randrange(8):
            values |= {"state": self.random.choice((STOPPED, QUARANTINED)), "reason": "a reason"}
        end = at.next_source_offset + count
        progress = PartitionProgress(
            entry.pair.source, end, at.source_leader_epoch, at.target_end + count, at.next_sequence + count,
            high_watermark=end + self.random.choice((0, 0, 2)), log_start_offset=0, records=count, bytes=count * 10,
            **values,
        )  # fmt: skip
        was = entry.position
        self.meters.apply(progress, 10)
        self.reports += 1
        self.ledger.apply(progress)
        assert entry.is_dirty or entry.position == was

    async def commit(self) -> None:
        """Take some of a commit; at its end it succeeds or fails."""
        if self.taking is None:
            self.now_s += self.random.choice((1.0, 11.0, 61.0, 3601.0))
            self.taking, self.taken = iter(self.ledger.take_commits(self.random.choice((None, self.now_s)))), []
        for _ in range(self.random.randrange(1, 9)):
            if (commit := next(self.taking, None)) is None:
                self.taking = None
                break
            self.taken.append(commit)
        if self.taking is None:
            if self.random.randrange(3):
                for commit in self.taken:
                    self.ledger.commit_succeeded(commit)
            else:
                self.ledger.give_back([one for one in self.taken if one.position.source in self.ledger.entries])

    async def change(self) -> None:
        if (entry := self._any()) is None:
            return
        gap = Gap(GapKind.SOURCE_DELETED)
        changes = [
            entry.hand_over,
            lambda: entry.wait("it waits"),
            lambda: entry.stop("a gap", gap=gap),
            entry.resume_past_gap,
            lambda: entry.become(STARTING if entry.state != STARTING else RUNNING),
            self.ledger.forget_unstored,
        ]
        self.random.choice(changes)()

    async def want(self) -> None:
        self.wanted = self.random.sample(ALL, self.random.randrange(len(ALL)))
        self.ledger.want(self.wanted)
        if self.random.randrange(2):
            await self.ledger.leave(self.wanted)
        if self.random.randrange(2):
            joining = Ledger(_pair(one) for one in self.ledger.missing)
            self.ledger.take_in(joining)
            assert not self.ledger.missing

    async def end(self) -> None:
        if not self.random.randrange(6):
            self.ledger.clear()
        for source in self.ledger.leaving():
            self.ledger.drop(source)

    def _facts(self) -> dict[TopicPartition, Any]:
        return {one: (id(of), of.position, of.state, of.high_watermark) for one, of in self.ledger.entries.items()}

    def check(self) -> None:
        made, entries = self.ledger, self.ledger.entries
        assert made.apart == {one: of for one, of in entries.items() if of.state != RUNNING}
        assert made.behind == {one: of for one, of in entries.items() if of.lag_records}
        assert made._unstored == {one: of for one, of in entries.items() if of.is_dirty}
        assert made._incomplete == {one: of for one, of in entries.items() if of.written < CommitScope.ALL}
        assert set(made.missing) == set(self.wanted) - set(entries)
        assert set(made.unwanted) == set(entries) - set(self.wanted)
        assert made._unstored_bytes == sum(of.unstored_bytes for of in entries.values())
        views, tally = Tally.of([of.view(10) for of in entries.values()]), made.tally(self.meters, 10)
        assert (tally.topics, tally.partitions) == (views.topics, views.partitions)
        assert tally.batches == Counter(shallow=2 * self.reports, rebuilt=self.reports)
        assert (tally.lag_records, tally.lag_ms) == (views.lag_records, views.lag_ms)
        assert {one.source for one in tally.not_copied} == {one.source for one in views.not_copied}
        after = self._facts()
        changed = {one for one in self.before.keys() | after if self.before.get(one) != after.get(one)}
        assert changed <= self.reader.keys()
        self.before = after
        self.reader.clear()


def _pair(source: TopicPartition) -> PartitionPair:
    return PartitionPair(source, None, TopicPartition("us." + source.topic, source.partition), None)


@pytest.mark.parametrize("seed", range(24))
async def test_the_sets_are_those_of_a_look_at_everything(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(150):
        await schedule.step()
