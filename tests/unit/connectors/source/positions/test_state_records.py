"""Records of partitions that are not copied, and the end of a task that has no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import cast

import pytest

from connect.core.errors import RetriableError
from connectors.formats.gap import Gap, GapKind
from connectors.formats.types import RUNNING, TopicPartition
from connectors.internal_topics import PartitionState, StateRecords
from connectors.source.positions import partition_notes
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_notes import PartitionsStopped, StateNotes, end_when_all_stopped
from connectors.source.positions.partition_pairs import Entry, PartitionPair


def ledger(count: int) -> tuple[Ledger, list[Entry]]:
    """Return a ledger of partitions that are copied, and its entries."""
    topics = "orders", "us.orders"
    sources, targets = ([TopicPartition(topic, index) for index in range(count)] for topic in topics)
    made = Ledger(PartitionPair(one, None, target, None) for one, target in zip(sources, targets, strict=True))
    for entry in made.entries.values():
        entry.become(RUNNING)
    return made, list(made.entries.values())


class Records:
    """What is stored, and how often somebody wrote."""

    def __init__(self, *states: int) -> None:
        old = PartitionState("stopped", "old", "us.orders", 1)
        self.stored = {TopicPartition("orders", index): old for index in states}
        self.writes = 0
        self.error: Exception | None = None

    async def load(self) -> dict[TopicPartition, PartitionState]:
        return dict(self.stored)

    async def is_recreated(self) -> bool:
        return False

    async def store(self, states: Mapping[TopicPartition, PartitionState | None]) -> None:
        if self.error is not None:
            raise self.error
        self.writes += 1
        for one, state in states.items():
            if state is None:
                self.stored.pop(one)
            else:
                self.stored[one] = state

    def reasons(self) -> dict[int, str]:
        return {one.partition: f"{state.state}: {state.reason}" for one, state in self.stored.items()}


async def test_what_changes_is_stored_once_and_what_is_copied_again_forgotten() -> None:
    records, (here, entries) = Records(0, 1, 7), ledger(3)
    entries[1].become("starting")
    notes = StateNotes("us->eu task 0", cast(StateRecords, records), lambda: here)
    assert await notes.note()
    assert records.reasons() == {1: "stopped: old", 7: "stopped: old"}, "what is not decided, or not ours, stays"
    entries[2].stop("its source begins later", gap=Gap(GapKind.SOURCE_GAP, 1, 2))
    entries[1].wait("no leader")
    for _ in range(3):
        assert await notes.note()
    assert records.reasons() == {1: "waiting: no leader", 2: "source-gap: its source begins later", 7: "stopped: old"}
    assert records.writes == 2


async def test_what_cannot_be_stored_is_said_once_and_kept_for_later(caplog: pytest.LogCaptureFixture) -> None:
    records, (here, (stopped,)) = Records(), ledger(1)
    stopped.stop("damaged")
    notes = StateNotes("us->eu task 0", cast(StateRecords, records), lambda: here)
    records.error = RetriableError("the target does not answer")
    assert [await notes.note() for _ in range(2)] == [False, False]
    assert len(caplog.records) == 1
    records.error = None
    assert await notes.note()
    assert records.reasons() == {0: "stopped: damaged"}


async def test_a_task_ends_when_none_of_its_partitions_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "_LOOK_S", 0.001)
    (here, entries), settled = ledger(3), []

    async def settle() -> None:
        settled.append(True)

    ending = asyncio.create_task(end_when_all_stopped("us->eu task 0", lambda: here, settle, lambda _: False))
    entries[0].stop("damaged")
    entries[1].wait("no leader")
    entries[2].become("healing")
    await asyncio.sleep(0.02)
    assert not ending.done(), "two of them go on by themselves"
    entries[1].stop("gone", gap=Gap(GapKind.SOURCE_DELETED))
    entries[2].stop("lost", gap=Gap(GapKind.SOURCE_GAP))
    with pytest.raises(PartitionsStopped, match=r"all of its 3 partitions .* orders-1 is source-deleted: gone; "):
        await asyncio.wait_for(ending, 60)
    assert settled


async def test_a_task_without_partitions_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "_LOOK_S", 0.001)

    async def settle() -> None: ...

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(end_when_all_stopped("us->eu task 0", lambda: Ledger(()), settle, lambda _: False), 0.02)


async def test_a_task_waits_for_a_topic_that_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "_LOOK_S", 0.001)
    here, entries = ledger(2)
    entries[0].stop("damaged")
    entries[1].stop("gone", gap=Gap(GapKind.SOURCE_DELETED))

    async def settle() -> None: ...

    def ending(may_return: bool) -> Awaitable[None]:
        return end_when_all_stopped(
            "us->eu task 0", lambda: here, settle, lambda one: may_return and one.gap is not None
        )

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ending(True), 0.02)
    with pytest.raises(PartitionsStopped):
        await asyncio.wait_for(ending(False), 60)
