"""Partitions read from a replica in our rack: the leader names it, and is asked again when it fails or time is up."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.wire import fetch_produce
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import fetch_api
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.fetch_loop import LEADER_ONLY_S, REVISIT_S, FetchLoop, Nearby
from connectors.dataplane.source_reader import SourceReader
from connectors.formats.types import TopicPartition
from tests.kit import logs as kit
from tests.kit.answers import put
from tests.kit.logs import source_batch
from tests.kit.quotas import Mutable

LEADER, NEAR = 1, 2


def copier() -> PartitionCopier:
    pair = TopicPartition("t", 0)
    made: PartitionCopier = kit.copier(kit.plan(source=pair, source_topic_id=UUID(int=5), target=pair))
    return made


def row(records: bytes = b"", *, error: int = 0, end: int = 9, preferred: int = -1, diverging: Any = None) -> Any:
    view, topic_id = memoryview(bytearray(records)), UUID(int=5).bytes
    return fetch_produce.FetchedPartition(topic_id, 0, error, end, end, 0, (), preferred, view, diverging, None)


@dataclass
class Stage:
    """A reader whose clock and brokers are told by hand, with one partition that its leader serves."""

    now_s: float = 0.0
    reader: SourceReader = field(init=False)
    leader: FetchLoop = field(init=False)
    near: FetchLoop = field(init=False)
    machine: PartitionCopier = field(default_factory=copier)

    def __post_init__(self) -> None:
        settings = SliceSettings("us->eu", 0, {}, {}, rack="b")
        self.reader = SourceReader(cast(Cluster, None), settings, lambda _: None, self.fail, clock=lambda: self.now_s)
        nobody = cast(Cluster, None)
        self.leader, self.near = (FetchLoop(self.reader, nobody, settings, node) for node in (LEADER, NEAR))
        self.reader._loops = {LEADER: [self.leader], NEAR: [self.near]}
        self.leader.add(self.machine, 3)

    def fail(self, error: BaseException) -> None:
        raise error

    def send_near(self) -> None:
        assert not self.leader._take(self.machine, row(preferred=NEAR))

    def feed(self, answer: fetch_produce.FetchedPartition) -> None:
        """From the near one."""
        assert self.near._take(self.machine, answer)
        deque(self.near._feed(self.machine, answer), maxlen=0)

    @property
    def readers(self) -> list[int]:
        return [node for node, (loop,) in self.reader._loops.items() if self.machine in loop._placed]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_replica_that_the_leader_names_is_read_under_the_leaders_epoch(stage: Stage) -> None:
    stage.send_near()
    assert stage.readers == [NEAR]
    assert [*stage.near._session.request().partitions.values()] == [(0, 3, -1)]
    stage.feed(row(source_batch(range(3))))
    assert stage.machine.fetch_offset == 3


def test_the_end_of_the_log_does_not_go_back_with_a_replica_that_hears_of_it_late(stage: Stage) -> None:
    stage.leader._take(stage.machine, row(preferred=NEAR, end=90))
    stage.near._take(stage.machine, row(end=50))
    assert stage.machine.high_watermark == 90
    stage.near._take(stage.machine, row(end=95))
    assert stage.machine.high_watermark == 95


@pytest.mark.parametrize(
    "answer", [row(error=error_codes.OFFSET_OUT_OF_RANGE), row(error=6), row(diverging=(2, 5)), row(error=29)]
)
def test_what_a_replica_refuses_its_leader_is_asked_about(stage: Stage, answer: fetch_produce.FetchedPartition) -> None:
    """It may be behind, or have been cut; only the leader says what is true, and sends the records itself then."""
    stage.send_near()
    assert not stage.near._take(stage.machine, answer)
    assert not stage.machine.stopped
    assert stage.readers == []
    assert stage.machine in stage.reader._unplaced
    assert stage.reader.nearby.rack() == ""
    stage.now_s += LEADER_ONLY_S
    assert stage.reader.nearby.rack() == "b"


def test_damage_at_a_replica_is_read_again_from_the_leader_and_does_not_count(stage: Stage) -> None:
    damaged = bytearray(source_batch(range(3)))
    damaged[-1] ^= 1
    for _ in range(20):
        stage.reader.nearby.forget(stage.machine)
        stage.leader.add(stage.machine, 3)
        stage.send_near()
        stage.feed(row(bytes(damaged)))
    assert not stage.machine.stopped
    assert stage.machine in stage.reader._unplaced


def test_the_leader_is_asked_again_when_time_is_up(stage: Stage) -> None:
    stage.send_near()
    for now_s, readers in ((REVISIT_S - 1, [NEAR]), (REVISIT_S, [])):
        stage.now_s = now_s
        stage.near._revisit()
        assert stage.readers == readers
    assert stage.machine in stage.reader._unplaced
    assert stage.reader.nearby.rack() == "b", "nothing failed"


class Open(Mutable):
    """The cluster of one connection."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = {1: (0, 17)}

    async def connection(self, *_: object) -> Open:
        return self


async def test_a_replica_that_has_no_news_is_left_in_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost its leader and not us; the answers of a fetch session name only what is new."""
    asked = 0

    async def fetch(*_: object) -> fetch_produce.FetchAnswer:
        nonlocal asked
        asked += 1
        stage.now_s += REVISIT_S / 10
        return fetch_produce.FetchAnswer(0, 0, 7, [])

    monkeypatch.setattr(fetch_api, "fetch", fetch)
    stage.send_near()
    stage.near._cluster = cast(Cluster, Open())
    left = stage.reader._placing = asyncio.Event()
    fetching = asyncio.create_task(stage.near._fetch_while_connected(), name="fetch")
    async with asyncio.timeout(60):
        await left.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert asked == 10
    assert stage.readers == []
    assert stage.machine in stage.reader._unplaced
    assert stage.reader.nearby.rack() == "b"


def test_those_that_are_due_first_stand_first() -> None:
    now_s = 0.0
    nearby, machines = Nearby("b", lambda: now_s), [copier() for _ in range(3)]
    for at_s, machine in enumerate([*machines, machines[0]]):
        now_s = at_s
        nearby.follow(machine)
    now_s = REVISIT_S
    assert nearby.overdue() == []
    now_s = REVISIT_S + 2
    assert nearby.overdue() == machines[1:]
    now_s = REVISIT_S + 3
    assert nearby.overdue() == [*machines[1:], machines[0]]


def test_a_replica_that_cannot_be_reached_is_left(stage: Stage) -> None:
    stage.send_near()
    stage.near._leave(stage.machine)
    assert stage.reader.nearby.rack() == ""


def test_a_leader_that_fails_does_not_silence_the_rack(stage: Stage) -> None:
    stage.leader._leave(stage.machine)
    assert stage.reader.nearby.rack() == "b"


async def test_leaders_are_told_the_rack(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    encode = fetch_api.encode_fetch

    def encoded(version: int, limits: fetch_api.FetchLimits, *rest: object) -> bytes:
        reported.append(limits.rack)
        return encode(version, limits, *rest)  # type: ignore[arg-type]

    put(monkeypatch, fetch_api, fetch=fetch_produce.FetchAnswer(0, 0, 1, [row(preferred=NEAR)]))
    monkeypatch.setattr(fetch_api, "encode_fetch", encoded)
    await stage.leader._fetch(cast(Connection, Mutable()), 13)
    assert reported == ["b"]
    assert stage.readers == [NEAR]


def test_without_a_rack_none_is_told() -> None:
    assert Nearby("", lambda: 5.0).rack() == ""
