"""What the watch of a worker reads, and what it leaves to tasks that tell it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.api.source import ConnectorHere, TaskReport
from connect.core.errors import RetriableError
from connect.kafka.concurrency import wall_ms
from connectors.config.connector_configs import source_settings
from connectors.flow_progress import (
    NOTHING_KNOWN,
    UNKNOWN,
    ClusterContact,
    Contact,
    FlowLag,
    Takeovers,
    lag_of,
    together,
)
from connectors.formats.types import RUNNING, ProducerIdAndEpoch, TopicPartition
from connectors.source import lag_watch
from connectors.source.lag_watch import LagWatch
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import PartitionPair, position_of
from connectors.source.worker_context import MirrorHost
from tests.kit.answers import put
from tests.kit.counted import Counted
from tests.kit.members import until

PROPS = {"name": "us-eu", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
A, B, C = (TopicPartition(name, 0) for name in "abc")


class Worker:
    """Three tasks of a partition each, and what the watch reads of the store; ``now_s`` is its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = ["RUNNING", "RUNNING", "PAUSED"]
        self.host = SimpleNamespace(running={}, seen={}, group_id="group")
        self.stored: list[list[TopicPartition]] = []
        self.asked: list[list[TopicPartition]] = []
        self.now_s = 1000.0
        self.watched: Any = SimpleNamespace(
            settings=source_settings(PROPS, {"offset.storage.topic": "offsets"}),
            parts=SimpleNamespace(store=None),
            reader=self,
            stored={},
            stored_s=float("-inf"),
            running=[],
            at_rest={},
            configs=[],
            assigned=[],
        )
        self.watch = LagWatch(cast(MirrorHost, self.host), dict)

        put(monkeypatch, lag_watch, read_states={})
        monkeypatch.setattr(lag_watch, "time", SimpleNamespace(monotonic=lambda: self.now_s, time_ns=lambda: 0))

    async def stored_(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self.stored.append(list(partitions))
        return dict.fromkeys(partitions, 5)

    async def of(self, positions: Mapping[TopicPartition, int], _: int) -> FlowLag:
        self.asked.append([*positions])
        return FlowLag(tuple(lag_of(*one, "x", at, 0, 9, 1) for one, at in positions.items()))

    async def positions(self) -> dict[TopicPartition, int]:
        self.stored.append([A, B, C])
        return {A: 5, B: 9, C: 5}

    def runs(
        self, index: int, state: str, *reported: TopicPartition, at: int = 7, end: int = 9, fetched_ms: int = UNKNOWN
    ) -> None:
        if ("us-eu", index) not in self.host.running:
            ledger = Ledger(())
            self.host.running["us-eu", index] = SimpleNamespace(ledger=ledger, news=ledger.reader())
        task = self.host.running["us-eu", index]
        task.state, task.meters = state, SimpleNamespace(fetched_ms=fetched_ms)
        for one in reported:
            if one not in task.ledger.entries:
                task.ledger.enter([PartitionPair(one, None, one, None)])
            entry = task.ledger.entries[one]
            plan = entry.pair.plan(at, -1, 0, pipelined=False)
            entry.position, entry.high_watermark = position_of(plan, "", ProducerIdAndEpoch(7, 0)), end
            entry.become(RUNNING)

    async def look(self) -> tuple[dict[TopicPartition, int], list[int]]:
        """Positions by which lags are known, and the tasks that rest."""
        reports = [
            TaskReport(index, state, "", {"task.assigned.partitions": str(one)})
            for index, (state, one) in enumerate(zip(self.states, (A, B, C), strict=True))
        ]
        await self.watch._look_at("us-eu", self.watched, reports)
        seen = self.host.seen["us-eu"]
        return {one: lag.position for one, lag in seen.lags.items()}, [one.task for one in seen.resting]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker(monkeypatch)
    worker.watched.reader = SimpleNamespace(stored=worker.stored_, of=worker.of, positions=worker.positions)
    return worker


async def test_nothing_is_read_of_tasks_that_start(worker: Worker) -> None:
    assert await worker.look() == ({C: 5}, [2])
    worker.runs(0, "starting")
    worker.now_s += 59
    assert await worker.look() == ({C: 5}, [2])
    assert worker.stored == [[C]]
    worker.runs(0, "running", A)
    worker.runs(1, "running", B)
    assert await worker.look() == ({A: 7, B: 7, C: 5}, [2])
    assert worker.stored == [[C]]


async def test_a_start_that_takes_long_is_not_waited_for(worker: Worker) -> None:
    worker.states = ["RUNNING", "RUNNING", "RUNNING"]
    assert await worker.look() == ({}, [])
    assert not worker.stored
    worker.now_s += 61
    assert await worker.look() == ({A: 5, B: 5, C: 5}, [0, 1, 2])


async def test_what_a_running_task_does_not_tell_is_read(worker: Worker) -> None:
    worker.runs(0, "running")
    worker.runs(1, "recovering", B)
    assert await worker.look() == ({A: 5, B: 7, C: 5}, [2])


async def test_partitions_without_news_are_not_read_again(worker: Worker) -> None:
    """Their slice sees each end that moves, so the cost is that of the others."""
    worker.states = ["RUNNING", "RUNNING", "RUNNING"]
    for index, one in enumerate((A, B, C)):
        worker.runs(index, "running", one, at=9, fetched_ms=wall_ms())
    lags = await worker.look()
    assert worker.asked == [[A, B, C]]
    assert await worker.look() == lags
    assert worker.asked[1:] == [[]]
    worker.runs(0, "running", A, at=9, end=10, fetched_ms=wall_ms())  # it waits
    worker.runs(1, "running", B, at=10, end=10, fetched_ms=wall_ms())  # it has moved
    worker.runs(2, "running", C, at=9)  # its slice does not fetch, and so does not see the source's end
    assert await worker.look() == ({A: 9, B: 10, C: 9}, [])
    assert worker.asked[2:] == [[A, B, C]]


async def test_a_look_costs_the_partitions_that_moved(worker: Worker) -> None:
    many = [TopicPartition("m", index) for index in range(1000)]
    worker.runs(0, "running", *many, at=9, fetched_ms=wall_ms())
    ledger = worker.host.running["us-eu", 0].ledger
    await worker.look()
    worker.runs(0, "running", *many[:3], at=10, end=10, fetched_ms=wall_ms())
    ledger.drop(many[3])
    ledger.entries = looked = Counted(ledger.entries)
    await worker.look()
    assert looked.looked_at == 4
    assert worker.asked[1:] == [[*many[:3], A, C]], "and those of which the store alone knows the position"
    seen = worker.host.seen["us-eu"]
    assert (len(seen.lags), many[3] in seen.lags) == (1001, False)
    assert seen.whole() == together(seen.lags.values())


async def test_nothing_rests_of_a_task_that_ended_while_the_source_did_not_answer(worker: Worker) -> None:
    worker.states = ["RUNNING"] * 3
    worker.runs(0, "running", A, at=9, fetched_ms=wall_ms())
    await worker.look()
    assert [*worker.watched.at_rest] == [A]
    worker.watched.reader.of, reader = _no_answer, worker.watched.reader.of
    with pytest.raises(RetriableError):
        await worker.look()
    worker.watched.reader.of, worker.host.running = reader, {}
    worker.states = ["PAUSED"] * 3
    assert await worker.look() == ({A: 5, B: 5, C: 5}, [0, 1, 2])


async def _no_answer(*_: object) -> FlowLag:
    raise RetriableError("no broker answers")


async def test_a_connector_without_tasks_is_watched_while_here(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks have ended, or it is STOPPED: whether its clusters answer is still of interest."""
    host = MirrorHost({"offset.storage.topic": "offsets", "group.id": "group"}, *cast(Any, [None] * 3))
    here = {"us-eu": lambda: ConnectorHere(PROPS, [])}
    watch = LagWatch(host, lambda: here)
    monkeypatch.setattr(lag_watch, "settings_of", lambda *_: (worker.watched.settings, None))
    monkeypatch.setattr(lag_watch, "looked_at_parts", _no_parts)
    monkeypatch.setattr(lag_watch, "ContactWatch", Contacts)
    monkeypatch.setattr(lag_watch, "LagReader", lambda *_: worker.watched.reader)
    monkeypatch.setattr(lag_watch, "_TICK_S", 0.0)
    watch.start()
    await until(lambda: "us-eu" in host.seen, "that it is watched")
    with host.shown("us-eu", 0, _task(fetched_ms=3, produced_ms=4)):
        pass
    worker.now_s += 1000
    for _ in range(20):
        await asyncio.sleep(0)
    assert (host.contact("us-eu").source.answers, host.contact("us-eu").source.moved_ms) == (True, 3)
    assert host.takeovers("us-eu").at_least_once == 1
    here.clear()
    for _ in range(20):
        await asyncio.sleep(0)
    assert host.watches, "it may be about to come back"
    worker.now_s += 1000
    await until(lambda: not host.watches, "that it is not watched")
    assert host.contact("us-eu") == NOTHING_KNOWN
    await watch.stop()


async def test_an_error_of_a_connector_that_was_created_again_is_logged_again(
    worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> ConnectorHere:
        raise RetriableError("no broker answers")

    monkeypatch.setattr(lag_watch, "_TICK_S", 0.0)
    host = MirrorHost({"offset.storage.topic": "offsets", "group.id": "group"}, *cast(Any, [None] * 3))
    here = {"us-eu": fail}
    watch = LagWatch(host, lambda: here)
    watch.start()
    for times in (1, 2):
        here["us-eu"] = fail
        await until(lambda times=times: caplog.text.count("no broker answers") == times, "that it is logged")  # type: ignore[misc]
        here.clear()
        await until(lambda: not watch._due_s, "that it is forgotten")
    await watch.stop()


async def test_all_that_a_stopped_connector_selects_has_a_lag(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    host = MirrorHost({"offset.storage.topic": "offsets", "group.id": "group"}, *cast(Any, [None] * 3))
    contacts, is_stopped = Contacts(), False
    monkeypatch.setattr(lag_watch, "settings_of", lambda *_: (worker.watched.settings, None))
    monkeypatch.setattr(lag_watch, "looked_at_parts", _no_parts)
    monkeypatch.setattr(lag_watch, "ContactWatch", lambda *_: contacts)
    monkeypatch.setattr(lag_watch, "LagReader", lambda *_: worker.watched.reader)
    watch = LagWatch(host, dict)

    async def seen() -> tuple[Any, ...]:
        await watch._look("us-eu", lambda: ConnectorHere(PROPS, [], is_stopped))
        now = host.seen["us-eu"]
        return [(one.task, one.source, one.state) for one in now.resting], [one.records for one in now.lags.values()]

    assert await seen() == ([], [])
    is_stopped = True
    rests = [(None, one, "unassigned") for one in (A, B, C)]
    assert await seen() == (rests, [4, 0, 4])
    worker.now_s += 59
    assert await seen() == (rests, [4, 0, 4])
    assert worker.stored == [[A, B, C]], "what is stored does not change"
    is_stopped = False
    assert await seen() == ([], [])
    # Stopped again while its source is silent.
    is_stopped, contacts.contact = True, Contact(ClusterContact(answers=False))
    assert await seen() == ([], []) and host.seen["us-eu"].is_stopped
    contacts.contact = Contact(ClusterContact(answers=True))
    assert await seen() == (rests, [4, 0, 4])
    assert len(worker.stored) == 2
    # A task that runs between two looks may have copied.
    with host.shown("us-eu", 0, _task(fetched_ms=0, produced_ms=0)):
        pass
    assert await seen() == (rests, [4, 0, 4])
    assert len(worker.stored) == 3
    await watch.stop()


def _task(fetched_ms: int, produced_ms: int) -> Any:
    counts = {"throttled": lambda _: (0.0, 0.0), "takeovers": Takeovers(at_least_once=1, may_double=7)}
    meters = SimpleNamespace(fetched_ms=fetched_ms, produced_ms=produced_ms, **counts)
    return SimpleNamespace(meters=meters)


class Contacts:
    """Of clusters that both answer."""

    contact = Contact(ClusterContact(answers=True), ClusterContact(answers=True))

    def __init__(self, *_: object) -> None:
        pass

    async def stop(self) -> None:
        pass


@asynccontextmanager
async def _no_parts(*_: object) -> AsyncIterator[Any]:
    yield SimpleNamespace(clusters=SimpleNamespace(source=None), store=None)
