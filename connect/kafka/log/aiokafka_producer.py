"""Adapts aiokafka's producer; all access to its internals is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import aiokafka.client
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from connect.kafka.concurrency import Scope
from connect.kafka.log.producer import SEQUENCES
from connect.kafka.security.connection_settings import ConnectionSettings, format_address

_END_S: Final = 5.0


class InvalidRecord(errors.BrokerResponseError):  # type: ignore[misc]  # no marker for its types
    """An error code that the library does not know: a compacted topic rejects a record without a key."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The broker refuses a record"


errors.kafka_errors.setdefault(InvalidRecord.errno, InvalidRecord)


def make_producer(
    connection: ConnectionSettings,
    delivery_timeout_s: float,
    check: Callable[[], None] = lambda: None,
    **arguments: Any,
) -> AIOKafkaProducer:
    """Return a producer that is not started. ``delivery_timeout_s``: how long a record may wait for its leader.
    ``check``: called each time before records are sent; an error prevents it and makes the producer unusable.
    ``arguments``: the library's."""
    producer = AIOKafkaProducer(**connection.aiokafka_arguments(), **arguments)
    producer.client.send = _Gate(producer.client, check)
    producer.client.bootstrap = partial(_bootstrap, producer.client, connection)
    # The library has one timeout for requests and records, but Connect's records outlive many requests.
    producer._message_accumulator._batch_ttl = delivery_timeout_s
    if (manager := producer._txn_manager) is not None:
        manager.increment_sequence_number = partial(_count_on, manager._sequence_numbers)
    return producer


class BuiltBatch(BatchBuilder):  # type: ignore[misc]  # no marker for its types
    """A batch for ``AIOKafkaProducer.send_batch`` without the library's builder, which rejects header keys that are not
    UTF-8 and has no compression levels. ``records``: the number of records. ``build``: called once with producer id,
    epoch and base sequence; returns the bytes to send."""

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
        """Do nothing: the batch is always closed."""

    def closed(self) -> bool:
        return True

    def size(self) -> int:
        return len(self._build())

    def record_count(self) -> int:
        return self._records


async def _bootstrap(client: Any, connection: ConnectionSettings) -> None:
    """Replaces ``AIOKafkaClient.bootstrap``, which leaves its connection open if it is cancelled during its request.
    Raises KafkaConnectionError if no bootstrap server answers."""
    failed: list[str] = []
    for host, port in connection.bootstrap:
        try:
            opened = await aiokafka.client.create_conn(host, port, **connection.create_conn_arguments())
            try:
                client.cluster.update_metadata(await opened.send(MetadataRequest([])))
            finally:
                opened.close()
            if not client.cluster.brokers():
                raise errors.KafkaConnectionError("it knows no broker yet")
        except (OSError, errors.KafkaError, TimeoutError) as error:
            failed.append(f"{format_address(host, port)}: {error!r}")
        else:
            # The client cancels and awaits it when it closes.
            client._sync_task = Scope("aiokafka").spawn(client._md_synchronizer(), "update aiokafka's metadata")
            return
    raise errors.KafkaConnectionError(f"no bootstrap server answers: {', '.join(failed)}")


class _Gate:
    """Replaces ``AIOKafkaClient.send``, which may connect first: the request could be written long after ``check``
    allowed it."""

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
            raise errors.NodeNotReadyError(f"no connection to node {node_id}")
        # Once connected, the library writes without waiting.
        self._check()
        return await self._send(node_id, request, **group)

    def shut(self) -> set[asyncio.Task[Any]]:
        """Send no more requests, and cancel and return the library's tasks that send records: left alone, they
        reconnect or wait for metadata that no task updates."""
        self._is_shut = True
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)


async def cut_off(producer: AIOKafkaProducer) -> None:
    """Stop a producer at once. The library's own stop waits for every record in flight, and may raise the
    CancelledError of one of its tasks."""
    producer._closed = True
    producer._message_accumulator.fail_all(errors.ProducerClosed())
    ending = producer.client.send.shut()
    if (sender := producer._sender.sender_task) is not None:
        sender.cancel()
        ending.add(sender)
    await producer.client.close()
    if ending:
        await asyncio.wait(ending, timeout=_END_S)
        for task in ending:
            if task.done() and not task.cancelled():
                task.exception()  # the library requeues the failed batch, which fails again
        # A task that waited for another response may have reconnected in the meantime.
        await producer.client.close()
    retrieve_errors(producer)


def retrieve_errors(producer: AIOKafkaProducer) -> None:
    """Retrieve errors that no task awaits; the garbage collector would log them with tracebacks."""
    waiters = [batch._drain_waiter for queue in producer._message_accumulator._batches.values() for batch in queue]
    manager = producer._txn_manager
    if manager is not None and manager._transaction_waiter is not None:
        waiters.append(manager._transaction_waiter)
    for waiter in waiters:
        if waiter.done() and not waiter.cancelled():
            waiter.exception()


def _count_on(sequences: dict[TopicPartition, int], partition: TopicPartition, records: int) -> None:
    """Advance a sequence so that 0 follows the last one. The library would go negative, which is a gap to brokers."""
    sequences[partition] = (sequences[partition] + records) % SEQUENCES
