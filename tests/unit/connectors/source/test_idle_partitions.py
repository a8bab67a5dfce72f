"""The regular looks of a task at its partitions cost what moved, not what there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from connectors.control_link.protocol import PartitionProgress
from connectors.flow_progress import Meters
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from connectors.internal_topics import StateRecords
from connectors.source.epochs import Reconfiguring
from connectors.source.positions import ledger as trimming
from connectors.source.positions.ledger import Ledger, trim_forever
from connectors.source.positions.partition_notes import StateNotes
from connectors.source.positions.partition_pairs import Entry, PartitionPair, position_of
from connectors.source.positions.position_checks import UnavailablePartitions
from connectors.source.positions.stored_positions import Commit
from tests.kit.counted import Counted
from tests.kit.members import until

COUNT = 1000
MOVED = [TopicPartition("orders", index) for index in (3, 500, 997)]
PRODUCER = ProducerIdAndEpoch(7, 0)


class Scene:
    """A task that copies thousands of partitions: all are stored, and three have moved since."""

    def __init__(self) -> None:
        sources = [TopicPartition("orders", index) for index in range(COUNT)]
        pairs = [PartitionPair(one, None, TopicPartition("us.orders", one.partition), None) for one in sources]
        self.ledger, self.now_s, self.meters = Ledger(pairs), 1000.0, Meters()
        for pair in pairs:
            plan = pair.plan(0, -1, 0, pipelined=False)
            self.ledger.begin(pair.source, position_of(plan, "txn", PRODUCER))
        waiting = UnavailablePartitions(*cast(Any, (None, None)))
        self.changes = Reconfiguring("task", "txn", sources, self.ledger, cast(Any, None), waiting, cast(Any, self))
        self.changes.began(PRODUCER)
        self.commit()
        self.ledger.entries = self.looked = Counted(self.ledger.entries)
        for one in MOVED:
            self.ledger.apply(report(one, next_source_offset=2, target_end=2, next_sequence=2, high_watermark=5))

    def commit(self) -> list[Commit]:
        self.now_s += 60
        commits = list(self.ledger.take_commits(self.now_s))
        for one in commits:
            self.ledger.commit_succeeded(one)
        return commits

    async def store_left(self) -> None: ...

    async def load(self) -> dict[Any, Any]:
        return {}

    async def store(self, _: Any) -> None: ...


def report(source: TopicPartition, **changes: Any) -> PartitionProgress:
    values = {"next_source_offset": 0, "last_source_epoch": -1, "target_end": 0, "next_sequence": 0}
    values |= {"high_watermark": 0, "log_start_offset": 0, "timestamp_ms": 5, "records": 0, "bytes": 0}
    return PartitionProgress(source, **{**values, "batches": {}, **changes})


async def commit(scene: Scene) -> None:
    assert [one.position.source for one in scene.commit()] == MOVED


async def status_line(scene: Scene) -> None:
    tally = scene.ledger.tally(scene.meters, 10)
    assert (tally.partitions, tally.lag_records, tally.lag_ms) == (COUNT, 9, 5)


async def change_of_partitions(scene: Scene) -> None:
    await scene.changes._step(cast(Any, None))
    assert scene.changes._due_s() == float("inf")


async def states(scene: Scene) -> None:
    assert await StateNotes("task", cast(StateRecords, scene), lambda: scene.ledger).note()


async def end(scene: Scene) -> None:
    assert not scene.ledger.stand_still(lambda entry: entry.is_stopped)


@pytest.mark.parametrize("look", [commit, status_line, change_of_partitions, states, end])
async def test_a_look_at_thousands_costs_those_that_moved(look: Callable[[Scene], Awaitable[None]]) -> None:
    scene = Scene()
    scene.looked.looked_at = 0
    await look(scene)
    assert scene.looked.looked_at <= 2 * len(MOVED)


async def test_a_slice_that_reports_where_idle_logs_end_stores_nothing() -> None:
    scene = Scene()
    assert len(scene.commit()) == len(MOVED)
    for source in set(scene.ledger.entries) - set(MOVED):
        scene.ledger.apply(report(source, high_watermark=7))
    assert scene.commit() == []


async def test_log_starts_are_asked_of_partitions_that_moved_since(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, asked = Scene(), list[int]()

    async def note(_: object, entries: list[Entry]) -> bool:
        asked.append(len(entries))
        for one in MOVED:
            scene.ledger.apply(report(one, next_source_offset=2 + len(asked)))
        return True

    monkeypatch.setattr(trimming, "note_log_starts", note)
    monkeypatch.setattr(trimming, "_INTERVAL_S", 0.0)
    task = asyncio.create_task(trim_forever(cast(Any, None), scene.ledger, "task"))
    await until(lambda: len(asked) >= 3, "three requests")
    task.cancel()
    assert asked[:3] == [COUNT, len(MOVED), len(MOVED)]
