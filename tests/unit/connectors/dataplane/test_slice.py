"""A slice on its control link, without Spark and without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.security.connection_settings import connection_settings
from connectors.control_link.protocol import Link, PartitionPlan, SliceSettings
from connectors.dataplane import slice as dataplane_slice
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.by_key_copier import KeyedPartition
from connectors.dataplane.leader_connections import Leaders
from connectors.dataplane.slice import LeaseOver, Slice
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from connectors.transforms.smt_chain import Outcome
from tests.kit import logs as kit
from tests.kit.answers import put
from tests.kit.logs import plan, source_batch


class Wire:
    """The worker's end of a link: what it says is queued, what the slice says is kept."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def say(self, kind: str, **values: Any) -> None:
        self._heard.put_nowait({"type": kind, **values})

    def send(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    async def receive(self) -> dict[str, Any]:
        return await self._heard.get()

    async def close(self) -> None:
        """Nothing to flush."""


def in_flight(partition: int) -> PartitionCopier:
    machine: PartitionCopier = kit.copier(plan("t", partition))
    machine.take(memoryview(bytearray(source_batch(range(3)))))
    assert machine.next_batch() is not None
    return machine


async def test_the_lease_is_answered_while_the_clusters_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, never = Wire(), asyncio.Event()
    opening = asyncio.Event()

    async def open_for_ever(*_: object) -> None:
        opening.set()
        await never.wait()

    monkeypatch.setattr(Slice, "_open_clusters", open_for_ever)
    running = asyncio.create_task(Slice(cast(Link, wire)).run())
    wire.say("config", settings=SliceSettings("us->eu", 0, {}, {}).to_wire(), source_topics=[], target_topics=[])
    await asyncio.wait_for(opening.wait(), 60)
    wire.say("lease")
    wire.say("stop")
    await asyncio.wait_for(running, 60)
    assert [message["type"] for message in wire.said] == ["alive", "done"]


async def test_errors_of_a_slice_name_the_clusters_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[str | None] = []

    async def note(cluster: Cluster, _topics: object) -> None:
        connected.append(cluster.alias)

    monkeypatch.setattr(Leaders, "connected", note)
    there = connection_settings({"bootstrap.servers": "127.0.0.1:1"}, client_id="slice", where="us").to_wire()
    wire = Wire()
    running = asyncio.create_task(Slice(cast(Link, wire)).run())
    settings = SliceSettings("us->eu", 0, there, there, source_alias="us", target_alias="eu")
    wire.say("config", settings=settings.to_wire(), source_topics=[], target_topics=[])
    wire.say("stop")
    await asyncio.wait_for(running, 60)
    assert connected == ["us", "eu"]


async def test_a_drain_waits_for_answers_and_not_for_stopped_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataplane_slice, "_DRAIN_STILL_S", 0.01)
    wire = Wire()
    slice_ = Slice(cast(Link, wire))
    stopped, waiting = in_flight(0), in_flight(1)
    stopped.stop("the target refuses the batch")
    slice_._copiers = [stopped, waiting]
    await slice_._drain()
    assert wire.said[-1] == {"type": "done", "unclean": [["t", 1]]}
    monkeypatch.setattr(dataplane_slice, "_DRAIN_STILL_S", 3600.0)
    slice_._copiers = [stopped]
    await asyncio.wait_for(slice_._drain(), 60)
    assert wire.said[-1] == {"type": "done", "unclean": []}


async def test_a_drain_takes_as_long_as_the_target_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0.1 MB/s what is in flight takes longer than any fixed limit that a dead target deserves."""
    now_s = 1000.0
    monkeypatch.setattr(dataplane_slice, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(dataplane_slice, "_DRAIN_LOOK_S", 0.001)
    wire, writer = Wire(), SimpleNamespace(expected_s=0.0)
    slice_ = Slice(cast(Link, wire))
    slice_._writer = cast(Any, writer)
    copiers = [in_flight(index) for index in range(4)]
    slice_._copiers = list(copiers)
    draining = asyncio.create_task(slice_._drain())
    for copier in copiers[:2]:
        now_s += dataplane_slice._DRAIN_STILL_S
        await asyncio.sleep(0.02)
        copier.acknowledged(copier._in_flight[0], 0)
        slice_._made_room()
        await asyncio.sleep(0.02)
    writer.expected_s = 60.0  # of a large batch on a slow link
    now_s += 100.0
    await asyncio.sleep(0.02)
    assert not draining.done()
    copiers[2].acknowledged(copiers[2]._in_flight[0], 0)
    await asyncio.sleep(0.02)
    for _ in range(3):  # answers that acknowledge nothing
        now_s += 50.0
        slice_._made_room()
        await asyncio.sleep(0.02)
    await asyncio.wait_for(draining, 60)
    assert wire.said[-1] == {"type": "done", "unclean": [["t", 3]]}


async def test_a_drain_by_key_takes_until_batches_of_its_round_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(dataplane_slice, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(dataplane_slice, "_DRAIN_LOOK_S", 0.001)
    answers, wire, pair = asyncio.Semaphore(0), Wire(), TopicPartition("t", 0)

    async def send(*_: object) -> None:
        await answers.acquire()

    sender = SimpleNamespace(batches=lambda _, share: [[one] for one in share], send=send)
    settings, consumer = SimpleNamespace(skip_refused=False), SimpleNamespace(highwater=lambda _: 3)
    copy = SimpleNamespace(settings=settings, sender=sender, on_round=lambda: None, consumer=consumer)
    keyed = KeyedPartition(plan("t"), cast(Any, copy))
    records = [SimpleNamespace(offset=offset, timestamp=1, key=b"k", value=b"v") for offset in range(3)]

    put(monkeypatch, keyed, _shared_out=({pair: records}, None))
    slice_ = Slice(cast(Link, wire))
    slice_._keyed = [keyed]
    copying = asyncio.create_task(keyed._round(records, 3))
    await asyncio.sleep(0.02)
    draining = asyncio.create_task(slice_._drain())
    for _ in records:
        await asyncio.sleep(0.02)
        now_s += dataplane_slice._DRAIN_STILL_S
        answers.release()
    await asyncio.wait_for(draining, 60)
    await copying
    assert wire.said[-1] == {"type": "done", "unclean": []}


async def test_the_lease_is_answered_during_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataplane_slice, "_DRAIN_STILL_S", 0.05)
    wire = Wire()
    slice_ = Slice(cast(Link, wire))
    slice_._copiers = [in_flight(0)]
    wire.say("stop")
    wire.say("lease")
    await asyncio.wait_for(slice_.run(), 60)
    assert [message["type"] for message in wire.said] == ["alive", "done"]
    assert wire.said[-1]["unclean"] == [["t", 0]]


async def test_a_lease_that_ran_out_is_not_renewed_when_a_slice_thaws(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    slice_ = Slice(cast(Link, wire))
    now_s = 1000.0
    monkeypatch.setattr(dataplane_slice, "time", SimpleNamespace(monotonic=lambda: now_s))
    slice_._settings = SliceSettings("us->eu", 0, {}, {}, lease_ms=5000)
    slice_._renew()
    now_s += 4.9
    await slice_._handle({"type": "lease"})
    now_s += 4.9
    assert slice_._has_lease()
    now_s += 0.2
    with pytest.raises(LeaseOver):
        await slice_._handle({"type": "lease"})
    assert not slice_._has_lease()
    assert [message["type"] for message in wire.said] == ["alive"]


async def test_an_unexpected_error_is_told_as_a_defect_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spoilt(*_: object) -> None:
        raise TypeError("spoilt")

    monkeypatch.setattr(Slice, "_open_clusters", spoilt)
    wire = Wire()
    running = asyncio.create_task(Slice(cast(Link, wire)).run())
    wire.say("config", settings=SliceSettings("us->eu", 0, {}, {}).to_wire(), source_topics=[], target_topics=[])
    await asyncio.wait_for(running, 60)
    (failed,) = (message for message in wire.said if message["type"] == "failed")
    assert failed["fault"] == "Defect"
    assert failed["error"].startswith("TypeError: spoilt (test_slice.py:")


async def test_a_lack_of_memory_ends_the_slice_and_is_no_defect() -> None:
    wire = Wire()
    slice_ = Slice(cast(Link, wire))
    running = asyncio.create_task(slice_.run())
    await asyncio.sleep(0)
    slice_._end(MemoryError())
    await asyncio.wait_for(running, 60)
    (failed,) = wire.said
    assert failed["fault"] == "OutOfMemory"
    assert failed["error"].startswith("a slice had no memory left; give it more")


@pytest.mark.parametrize("stale", [True, False])
async def test_a_refused_slice_ends_and_knows_whether_its_code_is_stale(stale: bool) -> None:
    wire = Wire()
    slice_ = Slice(cast(Link, wire))
    wire.say("refused", reason="it runs other code", stale=stale)
    await asyncio.wait_for(slice_.run(), 60)
    assert slice_.is_stale is stale
    assert wire.said == []


class Half:
    """The reading or the writing half of a slice: which partitions it was given."""

    def __init__(self) -> None:
        self.added: list[TopicPartition] = []
        self.woken = 0
        self.expected_s = 0.0

    def start(self, copiers: list[PartitionCopier], _: Leaders) -> None:
        self.added += [copier.plan.source for copier in copiers]

    def wake(self) -> None:
        """Room was made."""
        self.woken += 1

    def offer(self, copiers: Iterable[PartitionCopier]) -> None:
        """Nothing of these may have to be sent."""
        assert not any(copier.has_unsent for copier in copiers)


async def test_a_long_list_of_partitions_comes_in_pieces() -> None:
    slice_ = Slice(cast(Link, Wire()))
    reader, writer = Half(), Half()
    slice_._reader, slice_._writer = cast(Any, reader), cast(Any, writer)
    slice_._settings, slice_._producer = SliceSettings("us->eu", 0, {}, {}), ProducerIdAndEpoch(7, 3)
    slice_._leaders = (Leaders(ClusterMetadata(None, -1, {}, {})),) * 2
    slice_._copiers = [in_flight(0)]
    added = in_flight(1).plan
    await slice_._handle({"type": "add", "plans": [added.to_wire()]})
    assert (reader.added, writer.added) == ([added.source],) * 2
    assert slice_._copiers[1].plan == added
    assert slice_._copiers[1].producer == ProducerIdAndEpoch(7, 3)


def test_a_report_asks_only_partitions_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_, asked = Slice(cast(Link, Wire())), list[PartitionCopier]()
    slice_._settings = SliceSettings("us->eu", 0, {}, {})
    pairs = [TopicPartition("t", partition) for partition in range(1000)]
    plans = [PartitionPlan(pair, None, pair, None, 0, -1, 0, 0, pipelined=False) for pair in pairs]
    copiers = slice_._made([plan.to_wire() for plan in plans], ProducerIdAndEpoch(7, 0), slice_._settings)
    slice_._copiers += copiers
    report = PartitionCopier.report

    def reported(copier: PartitionCopier) -> object:
        asked.append(copier)
        return report(copier)

    monkeypatch.setattr(PartitionCopier, "report", reported)
    copiers[3].reaches(0, 0)
    copiers[5].take(memoryview(bytearray(source_batch(range(3)))))
    copiers[7].stop("refused")
    assert [row[1][1] for row in slice_._collect()] == [3, 7]
    acknowledge(copiers[5])
    assert [row[1][1] for row in slice_._collect()] == [5]
    assert not slice_._collect()
    assert asked == [copiers[3], copiers[7], copiers[5]]


def acknowledge(machine: PartitionCopier) -> None:
    while (outgoing := machine.next_batch()) is not None:
        machine.acknowledged(outgoing, machine.target_end)


async def test_who_reads_hears_of_records_that_a_query_drops() -> None:
    """Nothing is sent then, so that no answer of the target tells it that there is room."""
    slice_, reader, given = Slice(cast(Link, Wire())), Half(), list[Callable[[Outcome], None]]()
    slice_._reader, slice_._writer = cast(Any, reader), cast(Any, Half())
    slice_._settings = SliceSettings("us->eu", 0, {}, {})
    slice_._stage = cast(Any, SimpleNamespace(submit=lambda plan, part, done: given.append(done)))
    (copier,) = slice_._made([plan().to_wire()], ProducerIdAndEpoch(7, 0), slice_._settings)
    copier.take(memoryview(bytearray(source_batch(range(3)))))
    assert copier.buffered_bytes
    assert not reader.woken
    given.pop()([None] * 3)
    assert not copier.buffered_bytes
    assert reader.woken


def test_a_slice_that_reports_many_partitions_costs_its_worker_no_more() -> None:
    for busy in (1, 100, 1_500, 10_000):
        reports_a_second = busy / dataplane_slice.pause_s(busy)
        assert reports_a_second <= max(500, busy / 3) + 1
    assert dataplane_slice.pause_s(10) < 0.1  # few partitions are told of as often as ever
