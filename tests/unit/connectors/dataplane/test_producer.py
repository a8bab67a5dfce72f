"""The writing half of a slice against brokers made of futures: what is lost, refused or unreadable."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connect.kafka.framing_and_sasl import ConnectionLost
from connect.kafka.log.active_producers import ProducersRefused
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import fetch_api, produce_recovery, producer
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.sequencer import CopiesUnderWay
from connectors.dataplane.leader_connections import Leaders, Pace
from connectors.dataplane.producer import TargetWriter, encode_produce, topic_key
from connectors.formats.types import TopicPartition
from tests.kit import logs as kit
from tests.kit.answers import fails, put
from tests.kit.logs import PRODUCER, plan, source_batch

#: Leaders have to be found.
NO_PRODUCER = Leaders(ClusterMetadata(None, -1, {}, {}))


class Broker:
    """One connection to the only leader; answers are given by hand."""

    def __init__(self) -> None:
        self.versions = {0: (0, 12)}
        self.address = "broker:9092"
        self.request_timeout_ms = 30_000
        self.closed = False
        self.write_paused = self.is_muted = False
        self.stalled_s = 0.0
        self.answers: list[asyncio.Future[memoryview]] = []

    def send(self, *_: object) -> asyncio.Future[memoryview]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def mute(self, throttle_time_ms: int) -> None:
        self.is_muted = throttle_time_ms > 0

    def lose(self) -> None:
        self.closed = True
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(ConnectionLost("lost"))

    async def close(self) -> None:
        self.lose()

    def refuse(self, code: int, base_offset: int = -1, throttle_ms: int = 0) -> None:
        """Answer the last request, one partition of a topic named on the wire as in version 12, with an error."""
        offset = base_offset.to_bytes(8, signed=True)
        row = (0).to_bytes(4) + code.to_bytes(2, signed=True) + offset + b"\xff" * 16 + b"\x01\x00\x00"
        self.answers[-1].set_result(
            memoryview(b"\x02" + b"\x02t" + b"\x02" + row + b"\x00" + throttle_ms.to_bytes(4) + b"\x00")
        )


class Brokers:
    """A cluster whose metadata always names the same leader, and the connection to it at the moment."""

    def __init__(self, topics: Collection[str]) -> None:
        self.broker = Broker()
        self.probed = Broker()
        self.looked_up = 0
        self._topics = topics

    async def metadata(self, names: Collection[str]) -> ClusterMetadata:
        self.looked_up += 1
        leader = {0: PartitionMetadata(1, 0, (1,), 0)}
        there = [name for name in self._topics if name in names]
        return ClusterMetadata(None, 1, {}, {name: TopicMetadata(name, None, 0, leader) for name in there})

    async def connection(self, node_id: int, purpose: str) -> Broker:
        return self.probed if purpose == "probe" else self.broker

    def opened(self, node_id: int, purpose: str) -> Broker:
        return self.broker


@pytest.fixture(autouse=True)
def nothing_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, produce_recovery, describe_producers={})
    put(monkeypatch, produce_recovery, max_message_bytes=None)
    monkeypatch.setattr(producer, "_WATCH_S", 0.001)


def copier(topic: str, records: int = 3, *, skip_refused: bool = False) -> PartitionCopier:
    machine: PartitionCopier = kit.copier(plan(topic, target=TopicPartition(topic, 0)), skip_refused=skip_refused)
    if records:
        take(machine, records)
    return machine


def take(machine: PartitionCopier, records: int = 3) -> None:
    machine.take(memoryview(bytearray(source_batch(range(records)))))


@asynccontextmanager
async def writing(
    brokers: Brokers, *machines: PartitionCopier, ends: bool = False
) -> AsyncIterator[tuple[TargetWriter, list[BaseException]]]:
    """A writer of these, once one of them has sent; ``ends``: whether its slice ends with an error."""
    failures: list[BaseException] = []
    settings = SliceSettings("us->eu", 0, {}, {})
    writer = TargetWriter(
        cast(Cluster, brokers), settings, may_write=lambda: True, room=lambda: None, fail=failures.append
    )
    if machines:
        writer.start(machines, NO_PRODUCER)
        await until(lambda: len(brokers.broker.answers) == 1)
    yield writer, failures
    await writer.stop()
    assert bool(failures) is ends


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - the copier has no event for it
            await asyncio.sleep(0.001)


async def test_the_first_requests_to_leaders_that_are_known_and_connected_leave_at_once() -> None:
    machine, brokers = copier("t"), Brokers(["t"])
    async with writing(brokers) as (writer, _):
        leaders = await Leaders.connected(cast(Cluster, brokers), ["t"])
        looked_up = brokers.looked_up
        writer.start([machine], leaders)
        writer.offer([machine])
        assert len(brokers.broker.answers) == 1
        assert brokers.looked_up == looked_up


def test_a_leader_is_a_hint_for_the_same_topic_and_epochs_that_are_not_over() -> None:
    first, other = UUID(int=1), UUID(int=2)
    rows = {0: PartitionMetadata(1, 5, (1,), 0), 1: PartitionMetadata(-1, 5, (1,), 5)}
    leaders = Leaders(ClusterMetadata(None, 1, {}, {"t": TopicMetadata("t", first, 0, rows)}))
    assert leaders.of(TopicPartition("t", 0), first, 5) == (1, 5)
    for partition, topic_id, epoch in ((0, first, 6), (0, other, -1), (1, first, -1), (2, first, -1)):
        assert leaders.of(TopicPartition("t", partition), topic_id, epoch) is None
    assert leaders.of(TopicPartition("u", 0), first) is None


async def test_what_waited_in_a_lost_connection_goes_out_over_the_next() -> None:
    first, second, brokers = copier("t"), copier("u", records=0), Brokers(["t", "u"])
    old = brokers.broker
    async with writing(brokers, first, second) as (writer, _):
        await until(lambda: not second.faulted)
        old.write_paused = True
        take(second)
        writer.offer([second])
        assert len(old.answers) == 1, "it waits for the socket, with nothing in flight"
        brokers.broker = Broker()
        old.lose()
        await until(lambda: len(brokers.broker.answers) == 2)


async def test_nothing_is_sent_while_a_quota_delays_the_connection() -> None:
    first, second, brokers = copier("t"), copier("u", records=0), Brokers(["t", "u"])
    async with writing(brokers, first, second) as (writer, _):
        await until(lambda: not second.faulted)
        brokers.broker.refuse(0, base_offset=0, throttle_ms=60_000)
        await until(lambda: not first.has_unsent and brokers.broker.is_muted)
        take(second)
        writer.offer([second])
        await asyncio.sleep(0.01)  # the watch looks in between
        assert len(brokers.broker.answers) == 1
        brokers.broker.is_muted = False
        await until(lambda: len(brokers.broker.answers) == 2)


async def test_a_leader_that_refuses_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_recovery, "_backoff_s", lambda failures, _: 3600.0 * failures)
    machine, brokers = copier("t"), Brokers(["t"])
    async with writing(brokers, machine):
        looked_up = brokers.looked_up
        brokers.broker.refuse(19)  # NOT_ENOUGH_REPLICAS
        await until(lambda: machine.faulted)
        for _ in range(50):
            await asyncio.sleep(0)
        assert (brokers.looked_up, len(brokers.broker.answers)) == (looked_up, 1)


async def test_a_partition_whose_leader_lacks_replicas_has_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker answers a connection's requests in turn, so the others would wait for the replicas as well."""
    monkeypatch.setattr(produce_recovery, "_backoff_s", lambda *_: 0.0)
    machine, other, brokers = copier("t"), copier("u", records=0), Brokers(["t", "u"])
    shared, own = brokers.broker, brokers.probed
    async with writing(brokers, machine, other) as (writer, _):
        await until(lambda: not other.faulted)
        shared.refuse(19)
        await until(lambda: len(own.answers) == 1)
        take(other)
        writer.offer([other])
        assert (len(shared.answers), len(own.answers)) == (2, 1)
        own.refuse(0, base_offset=0)
        machine.take(memoryview(bytearray(source_batch(range(3, 6)))))
        await until(lambda: len(shared.answers) == 3)
        assert len(own.answers) == 1


async def test_a_slow_link_gets_small_requests_and_every_partition_its_turn() -> None:
    brokers = Brokers([f"t{index}" for index in range(3)])
    machines = [copier(f"t{index}") for index in range(3)]
    async with writing(brokers) as (writer, _):
        writer.start(machines, NO_PRODUCER)
        await until(lambda: not any(machine.faulted for machine in machines))
        pump = writer._placed[machines[0]]
        pump._pace = Pace(1, 1)
        for machine in machines:
            machine.pipelined = True
            machine.take(memoryview(bytearray(source_batch(range(3, 6)) + source_batch(range(6, 9)))))
        pump.ready = dict.fromkeys(machines)
        sent = [pump._gather(math.inf) for _ in range(3)]
        assert [[machine for machine, _ in request] for request in sent] == [[machine] for machine in machines]


async def test_a_connection_on_which_no_byte_moves_is_given_up_and_its_batches_go_over_the_next() -> None:
    brokers = Brokers(["t"])
    first = brokers.broker
    async with writing(brokers, copier("t")):
        first.stalled_s = 29.0
        await asyncio.sleep(0.02)
        assert not first.closed
        brokers.broker, first.stalled_s = Broker(), 31.0
        await until(lambda: first.closed and len(brokers.broker.answers) == 1)


@pytest.mark.parametrize(("took_s", "expected_s"), [(10.0, 10.0), (100.0, 30.0)])
async def test_what_is_in_flight_is_expected_at_the_measured_rate_in_time(took_s: float, expected_s: float) -> None:
    machine, brokers = copier("t"), Brokers(["t"])
    async with writing(brokers, machine) as (writer, _):
        pump = writer._placed[machine]
        pump._pace = Pace(1, 2**30)
        pump._pace.begin(0.0)
        pump._pace.moved(pump._in_flight_bytes, took_s, is_idle=True)
        assert writer.expected_s == pytest.approx(expected_s)
        brokers.broker.refuse(0, base_offset=0)
        await until(lambda: not machine.has_unacknowledged)
        assert writer.expected_s == 0.0


async def test_a_broker_answers_before_its_connection_counts_as_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_ms: list[int] = []

    def encode(timeout_ms: int, *rest: Any) -> list[bytes | memoryview]:
        waits_ms.append(timeout_ms)
        return encode_produce(timeout_ms, *rest)

    monkeypatch.setattr(producer, "encode_produce", encode)
    brokers = Brokers(["t"])
    async with writing(brokers, copier("t")):
        pass
    assert waits_ms == [brokers.broker.request_timeout_ms // 2]


async def test_a_leader_that_may_have_forgotten_us_gets_one_batch_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "_IDLE_S", 0.0)
    machine, brokers = copier("t"), Brokers(["t"])
    async with writing(brokers, machine):
        brokers.broker.refuse(0, base_offset=0)
        await until(lambda: machine.next_source_offset == 3)
        await until(lambda: not machine.pipelined)


async def test_others_have_their_turn_between_requests_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([f"t{index}" for index in range(3)])
    machines = [copier(f"t{index}") for index in range(3)]
    async with writing(brokers) as (writer, _):
        leaders = await Leaders.connected(cast(Cluster, brokers), ["t0", "t1", "t2"])
        writer.start(machines, leaders)
        monkeypatch.setattr(producer, "_TURN_S", 0.0)
        writer.offer(machines)
        writer.offer(machines)
        assert len(brokers.broker.answers) == 1
        await asyncio.sleep(0)
        assert len(brokers.broker.answers) == 2
        await until(lambda: len(brokers.broker.answers) == 3)


async def test_a_batch_that_cannot_be_made_in_a_later_turn_ends_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be in it is no longer in the queue then, and must not be missing between what follows."""
    outcomes = iter([MemoryError()])

    def broken(saved_s: float) -> None:
        for error in outcomes:
            raise error

    brokers, machines = Brokers(["t", "u"]), [copier("t"), copier("u")]
    monkeypatch.setattr(machines[1], "next_batch", broken)
    async with writing(brokers, ends=True) as (writer, failures):
        leaders = await Leaders.connected(cast(Cluster, brokers), ["t", "u"])
        writer.start(machines, leaders)
        monkeypatch.setattr(producer, "_TURN_S", 0.0)
        writer.offer(machines[:1])
        writer.offer(machines[1:])
        assert not failures
        await until(lambda: bool(failures))
        assert isinstance(failures[0], MemoryError)


def test_it_is_given_ever_more_time() -> None:
    waits_s = [produce_recovery._backoff_s(failures, 2.0) for failures in (1, 2, 3, 5, 6, 1_000_000)]
    assert waits_s == [0.1, 0.2, 0.4, 1.6, 2.0, 2.0]


async def test_an_answer_that_cannot_be_read_ends_the_slice() -> None:
    machine, brokers = copier("t"), Brokers(["t"])
    async with writing(brokers, machine, ends=True) as (_, failures):
        brokers.broker.answers[0].set_result(memoryview(b"\x02"))
        await until(lambda: bool(failures))


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (29, "target t-0 refuses the batch of source offsets 0 to 2: TOPIC_AUTHORIZATION_FAILED (29); grant WRITE"),
        (44, "target t-0 refuses the batch of source offsets 0 to 2: POLICY_VIOLATION (44); a policy of the target"),
        (87, "target t-0 refuses the batch of source offsets 0 to 2: INVALID_RECORD (87); a compacted topic takes no"),
    ],
)
async def test_what_is_refused_for_good_quarantines_its_partition_only(code: int, sentence: str) -> None:
    machine, other, brokers = copier("t"), copier("u", records=0), Brokers(["t", "u"])
    async with writing(brokers, machine, other) as (writer, _):
        await until(lambda: not other.faulted)
        brokers.broker.refuse(code)
        await until(lambda: machine.stopped)
        assert machine.state == "QUARANTINED"
        assert machine.stopped_reason.startswith(sentence)
        take(other)
        writer.offer([other])
        await until(lambda: len(brokers.broker.answers) == 2)


async def test_without_the_right_to_read_a_partition_is_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        produce_recovery, "describe_producers", fails(ProducersRefused("grant READ on topic t", frozenset({("t", 0)})))
    )
    machine, brokers = copier("t"), Brokers(["t"])
    async with writing(brokers, machine):
        brokers.broker.refuse(7)
        await until(lambda: machine.stopped)
        assert machine.state == "QUARANTINED"
        assert machine.stopped_reason == "target t-0: grant READ on topic t, then start the flow again"


async def test_a_leader_that_knows_a_later_epoch_of_ours_ends_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {PRODUCER.producer_id: (PRODUCER.epoch + 1, 0)}
    put(monkeypatch, produce_recovery, describe_producers={TopicPartition("t", 0): state})
    brokers = Brokers(["t"])
    async with writing(brokers, copier("t"), ends=True) as (_, failures):
        brokers.broker.refuse(7)
        await until(lambda: bool(failures))
        assert isinstance(failures[0], produce_recovery.Fenced)


async def test_what_was_appended_is_looked_for_again_at_a_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked under its epoch, so that no former leader answers (C2)."""

    class Elections(Brokers):
        async def metadata(self, names: Collection[str]) -> ClusterMetadata:
            known = await super().metadata(names)
            partitions = {0: PartitionMetadata(1, self.looked_up, (1,), 0)}
            return ClusterMetadata(None, 1, {}, {one: TopicMetadata(one, None, 0, partitions) for one in known.topics})

    async def fetch(_: object, __: object, ___: int, position: tuple[int, int, int], ____: object) -> SimpleNamespace:
        asked.append(position)
        return SimpleNamespace(error_code=0, records=memoryview(bytearray(logs.pop(0))))

    asked: list[tuple[int, int, int]] = []
    machine, brokers = copier("t"), Elections(["t"])
    state = {PRODUCER.producer_id: (PRODUCER.epoch, 2)}
    put(monkeypatch, produce_recovery, describe_producers={TopicPartition("t", 0): state})
    monkeypatch.setattr(fetch_api, "fetch_one", fetch)
    async with writing(brokers, machine):
        logs = [source_batch(range(3)), b"", bytes(machine._in_flight[0].batch)]
        brokers.broker.refuse(7)
        await until(lambda: machine.next_source_offset == 3)
    assert asked == [(0, 2, -1), (3, 2, -1), (0, 3, -1)]


async def test_what_a_leader_cannot_explain_is_sent_again_and_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the broker's own trouble: errors.tolerance = all gives no right to lose good records to it."""
    monkeypatch.setattr(produce_recovery, "_backoff_s", lambda *_: 0.0)
    machine, brokers = copier("t", skip_refused=True), Brokers(["t"])
    async with writing(brokers) as (writer, _):
        writer.start([machine], NO_PRODUCER)
        for sent in range(1, producer._UNEXPLAINED_TRIES + 1):
            await until(lambda sent=sent: len(brokers.broker.answers) == sent)  # type: ignore[misc]
            assert not machine.stopped
            brokers.broker.refuse(-1)
        await until(lambda: machine.stopped)
        assert machine.state == "QUARANTINED"
        assert machine.stopped_reason.startswith(
            "target t-0 refuses the batch of source offsets 0 to 2: UNKNOWN_SERVER"
        )
        assert "UNKNOWN_SERVER_ERROR (-1); see the log of the" in machine.stopped_reason
        report = machine.report()
        assert report is not None and report.skips == [] and report.next_source_offset == 0


async def test_a_target_topic_that_stays_unknown_is_said_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.dataplane.log_divergence.DELETED_AFTER_S", 0.05)
    machine, brokers = copier("t"), Brokers([])
    async with writing(brokers) as (writer, _):
        writer.start([machine], NO_PRODUCER)
        await until(lambda: machine.stopped)
        assert machine.stopped_error == "target-deleted"
        assert "target topic t does not exist any more" in machine.stopped_reason


async def test_a_refused_batch_whose_neighbours_have_no_answer_ends_the_slice() -> None:
    machine, brokers = copier("t"), Brokers(["t"])
    machine.pipelined = True
    async with writing(brokers, machine, ends=True) as (writer, failures):
        machine.take(memoryview(bytearray(source_batch(range(3, 6)))))
        writer.offer([machine])
        await until(lambda: len(brokers.broker.answers) == 2)
        lost, brokers.broker.answers = brokers.broker.answers[1:], brokers.broker.answers[:1]
        brokers.broker.refuse(10)
        lost[0].set_exception(ConnectionLost("lost"))
        await until(lambda: bool(failures))
        assert isinstance(failures[0], CopiesUnderWay)


async def test_two_copiers_of_one_target_partition_never_share_a_request() -> None:
    # A broker that finds a partition twice in a request keeps the last batch, and acknowledges both.
    first, second = copier("t"), copier("t")
    brokers = Brokers(["t"])
    brokers.broker.write_paused = True
    async with writing(brokers) as (writer, _):
        writer.start([first, second], NO_PRODUCER)
        await until(lambda: not first.faulted and not second.faulted)
        brokers.broker.write_paused = False
        writer.offer([first, second])
        assert len(brokers.broker.answers) == 2
        assert first.unanswered == second.unanswered == 1


def test_a_request_with_two_batches_for_a_partition_is_never_encoded() -> None:
    pair, batch = copier("t").plan, memoryview(source_batch(range(3)))
    with pytest.raises(AssertionError, match="two batches"):
        encode_produce(1_000, {topic_key(pair, 12): [(pair.target.partition, batch)] * 2})
