"""What is changed of aiokafka's producer, and what of its inside is used: all of it is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import BrokerResponseError, NodeNotReadyError, ProducerClosed, kafka_errors
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.produce import ProduceRequest

from connect.kafka.log.producer import SEQUENCES
from connect.kafka.security.connection_settings import ConnectionSettings

_END_S: Final = 5.0


class InvalidRecord(BrokerResponseError):  # type: ignore[misc]  # no marker for its types
    """A code that the library does not know: a compacted topic refuses a record without a key."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The broker refuses a record"


kafka_errors.setdefault(InvalidRecord.errno, InvalidRecord)


def make_producer(
    connection: ConnectionSettings,
    delivery_timeout_s: float,
    check: Callable[[], None] = lambda: None,
    **arguments: Any,
) -> AIOKafkaProducer:
    """Make a producer, not started yet.

    Args:
        delivery_timeout_s: How long a record may wait for its leader.
        check: Called each time before records are sent; raises if they must not be. The producer is spent then.
        arguments: The library's.
    """
    producer = AIOKafkaProducer(**connection.aiokafka_arguments(), **arguments)
    producer.client.send = _Gate(producer.client, check)
    # The library has one time for requests and for records; Connect's records outlive many requests.
    producer._message_accumulator._batch_ttl = delivery_timeout_s
    if (manager := producer._txn_manager) is not None:
        manager.increment_sequence_number = partial(_count_on, manager._sequence_numbers)
    return producer


class BuiltBatch(BatchBuilder):  # type: ignore[misc]  # no marker for its types
    """A batch for ``AIOKafkaProducer.send_batch`` that is built here: the library's builder refuses headers whose keys
    are not UTF-8, and knows no compression levels.

    Args:
        records: How many it holds.
        build: Called once with producer id, epoch and base sequence; returns the bytes that are sent.
    """

    def __init__(self, records: int, build: Callable[[int, int, int], bytes]) -> None:
        self._records = records
        self._make = build
        self._built: bytes | None = None
        self._state = -1, -1, -1

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._state = producer_id, producer_epoch, base_sequence

    def _build(self) -> bytes:
        if self._built is None:
            self._built = self._make(*self._state)
        return self._built

    def close(self) -> None:
        """Do nothing: it is closed from the beginning."""

    def closed(self) -> bool:
        return True

    def size(self) -> int:
        return len(self._build())

    def record_count(self) -> int:
        return self._records


class _Gate:
    """Stands in for ``AIOKafkaClient.send``, which connects first if it must: what ``check`` allowed could be written
    long after."""

    def __init__(self, client: Any, check: Callable[[], None]) -> None:
        self._client, self._send, self._check = client, client.send, check
        self._is_shut = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __call__(self, node_id: int, request: Any, **group: Any) -> Any:
        if self._is_shut:
            raise asyncio.CancelledError
        if not isinstance(request, ProduceRequest):
            return await self._send(node_id, request, **group)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection = await self._client._get_conn(node_id, **group)
        if connection is None or not connection.connected():
            raise NodeNotReadyError(f"no connection to node {node_id}")
        # With a connection the library writes without waiting.
        self._check()
        return await self._send(node_id, request, **group)

    def shut(self) -> set[asyncio.Task[Any]]:
        """Send nothing more, and cancel the tasks of the library that send records: left alone, they connect again or
        wait for metadata that no task updates. Return these tasks."""
        self._is_shut = True
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)


async def cut_off(producer: AIOKafkaProducer) -> None:
    """Stop a producer at once. The library's own stop waits for every record that is in flight, and may raise the
    CancelledError of a task of its own."""
    producer._closed = True
    producer._message_accumulator.fail_all(ProducerClosed())
    ending = producer.client.send.shut()
    if (sender := producer._sender.sender_task) is not None:
        sender.cancel()
        ending.add(sender)
    await producer.client.close()
    if ending:
        await asyncio.wait(ending, timeout=_END_S)
        for task in ending:
            if task.done() and not task.cancelled():
                task.exception()  # the library queues again what was given up, which fails
        # A task that was asking for something else may have connected again meanwhile.
        await producer.client.close()
    hush(producer)


def hush(producer: AIOKafkaProducer) -> None:
    """Take errors that nothing awaits any more, which the garbage collector would log with tracebacks."""
    waiters = [batch._drain_waiter for queue in producer._message_accumulator._batches.values() for batch in queue]
    manager = producer._txn_manager
    if manager is not None and manager._transaction_waiter is not None:
        waiters.append(manager._transaction_waiter)
    for waiter in waiters:
        if waiter.done() and not waiter.cancelled():
            waiter.exception()


def _count_on(sequences: dict[TopicPartition, int], partition: TopicPartition, records: int) -> None:
    """The library counts into negative numbers, which brokers take for a gap; they expect 0 after the last sequence."""
    sequences[partition] = (sequences[partition] + records) % SEQUENCES
