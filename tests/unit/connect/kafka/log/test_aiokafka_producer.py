"""The library's producer where we use its inside: fails when an upgrade changes that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import aiokafka.client
import aiokafka.errors
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import BrokerMetadata

from connect.core.errors import RetriableError
from connect.kafka.log.aiokafka_producer import BuiltBatch, InvalidRecord, cut_off, make_producer
from connect.kafka.security.connection_settings import connection_settings
from tests.kit.members import until

SETTINGS = connection_settings({"bootstrap.servers": "b:9092"}, client_id="c", where="test")


def built(*producer: int) -> bytes:
    return b"%d %d %d" % producer


async def test_a_batch_of_ours_gets_its_place_in_the_sequence_once() -> None:
    producer = make_producer(SETTINGS, float("inf"), enable_idempotence=True)
    assert producer._txn_manager is not None
    producer._txn_manager.set_pid_and_epoch(7, 1)
    queue, partition = producer._message_accumulator, TopicPartition("t", 0)
    for expected in (b"7 1 0", b"7 1 5"):
        answer = await queue.add_batch(BuiltBatch(5, built), partition, 1.0)
        sent = queue._pop_batch(partition)
        assert bytes(sent.get_data_buffer()) == expected
        queue.reenqueue(sent)
        again = queue._pop_batch(partition)
        assert bytes(again.get_data_buffer()) == expected, "what is sent again is unchanged"
        assert not again.expired()
        again.done(0)
        await answer
    await cut_off(producer)


def test_the_library_tells_records_that_are_refused_from_unknown_errors() -> None:
    assert aiokafka.errors.for_code(87) is InvalidRecord
    assert aiokafka.errors.for_code(9_999) is aiokafka.errors.UnknownError


class Broker:
    """Takes connections when it is let, and never answers what is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lets_in = asyncio.Event()
        self.connecting = self.open = 0
        self.unanswered: list[asyncio.Future[None]] = []
        monkeypatch.setattr(aiokafka.client, "create_conn", self._connect)

    async def _connect(self, *_: object, **__: object) -> SimpleNamespace:
        self.connecting += 1
        await self.lets_in.wait()
        self.open += 1
        return SimpleNamespace(connected=lambda: True, send=self._send, close=self._close)

    def _send(self, *_: object, **__: object) -> asyncio.Future[None]:
        self.unanswered.append(asyncio.get_running_loop().create_future())
        return self.unanswered[-1]

    def _close(self, **_: object) -> asyncio.Future[None]:
        self.open -= 1
        for answer in self.unanswered:
            if not answer.done():
                answer.set_exception(aiokafka.errors.KafkaConnectionError("closed"))
        closed = asyncio.get_running_loop().create_future()
        closed.set_result(None)
        return closed


async def sending(check: Callable[[], None] = lambda: None) -> tuple[AIOKafkaProducer, asyncio.Future[object]]:
    """A producer that sends one batch to :class:`Broker`, and what comes of the batch."""
    producer = make_producer(SETTINGS, float("inf"), check, enable_idempotence=True)
    producer._txn_manager.set_pid_and_epoch(7, 1)
    cluster, partition = producer.client.cluster, TopicPartition("t", 0)
    cluster._brokers = {1: BrokerMetadata(1, "b", 9092, None)}
    cluster.leader_for_partition = lambda _: 1
    await producer._sender.start()
    return producer, await producer._message_accumulator.add_batch(BuiltBatch(5, built), partition, 1.0)


async def test_a_producer_with_a_batch_in_flight_can_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    broker.lets_in.set()
    producer, sent = await sending()
    await until(lambda: broker.unanswered, "the batch is sent", 60)
    await asyncio.wait_for(cut_off(producer), 60)
    with pytest.raises(aiokafka.errors.ProducerClosed):
        await sent
    assert producer._sender.sender_task.done()


async def test_a_batch_that_waits_for_a_connection_is_not_sent_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    producer, sent = await sending()
    await until(lambda: broker.connecting, "it connects", 60)
    await asyncio.wait_for(cut_off(producer), 60)
    broker.lets_in.set()
    await asyncio.sleep(0.05)
    assert not broker.unanswered
    with pytest.raises(aiokafka.errors.ProducerClosed):
        await sent


async def test_the_lease_is_checked_when_the_connection_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, over = Broker(monkeypatch), asyncio.Event()

    def check() -> None:
        if over.is_set():
            raise RetriableError("the lease is over")

    producer, sent = await sending(check)
    await until(lambda: broker.connecting, "it connects", 60)
    over.set()
    broker.lets_in.set()
    with pytest.raises(aiokafka.errors.KafkaError):
        await sent
    assert not broker.unanswered
    await cut_off(producer)


async def test_a_start_that_is_cancelled_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    broker.lets_in.set()
    producer = make_producer(SETTINGS, float("inf"))
    starting = asyncio.ensure_future(producer.start())
    await until(lambda: broker.unanswered, "it asks for metadata", 60)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await producer.stop()
    assert broker.open == 0


async def test_a_broker_that_knows_no_broker_yet_does_not_start_a_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    broker.lets_in.set()
    producer = make_producer(SETTINGS, float("inf"))
    producer.client.cluster.update_metadata = lambda _: None
    starting = asyncio.ensure_future(producer.start())
    await until(lambda: broker.unanswered, "it asks for metadata", 60)
    broker.unanswered[-1].set_result(None)
    with pytest.raises(aiokafka.errors.KafkaConnectionError, match=r"b:9092: .*knows no broker yet"):
        await starting
    await producer.stop()
    assert broker.open == 0
