"""A producer without a cluster; the rest of its life is in the integration tests."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiokafka.errors
import pytest
from aiokafka import TopicPartition

from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.runtime.task.client_configs import producer_settings
from connect.runtime.task.record_delivery import BatchRefused, OutgoingRecord, RecordProducer
from tests.kit.work import WORKER


async def test_a_producer_that_was_closed_does_not_come_back() -> None:
    producer = RecordProducer(producer_settings(WorkerConfig.parse(WORKER), {}, "c-0", None))
    await producer.close(0)
    with pytest.raises(PermanentError, match="connector-producer-c-0 is closed"):
        await producer.start()
    with pytest.raises(PermanentError, match="is closed"):
        await producer.send(OutgoingRecord("t", None, b"x"), lambda metadata, error: None)


async def test_sequences_begin_again_at_zero_where_brokers_expect_that() -> None:
    config = WorkerConfig.parse(WORKER)
    library = RecordProducer(producer_settings(config, {}, "c-0", "id"))._made()
    manager, partition = library._txn_manager, TopicPartition("t", 0)
    counted = []
    for records in (2**31 - 5, 4, 1, 3, 2**31 - 5, 10):
        manager.increment_sequence_number(partition, records)
        counted.append(manager.sequence_number(partition))
    await library.stop()
    assert counted == [2**31 - 5, 2**31 - 1, 0, 3, 2**31 - 2, 8]


class Refusing:
    """The library's producer, which knows every topic and refuses each record with ``error``."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked = 0

    async def partitions_for(self, topic: str) -> set[int]:
        self.asked += 1
        return {0}

    async def send(self, *arguments: object) -> asyncio.Future[None]:
        raise self._error


class Late(Refusing):
    """Takes them, and a broker refuses the batch."""

    async def send(self, *arguments: object) -> asyncio.Future[None]:
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome.set_exception(self._error)
        return outcome


def refused_with(error: Exception) -> RecordProducer:
    producer = RecordProducer(producer_settings(WorkerConfig.parse(WORKER), {}, "c-0", None))
    producer._producer = cast(Any, Refusing(error))
    return producer


async def outcome(producer: RecordProducer, topic: str = "t") -> Exception | None:
    reported: list[Exception | None] = []
    await producer.send(OutgoingRecord(topic, None, b"x"), lambda metadata, error: reported.append(error))
    (error,) = reported
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiokafka.errors.MessageSizeTooLargeError("2 MB"), PermanentError),
        (aiokafka.errors.TopicAuthorizationFailedError("t"), SecurityError),
    ],
    ids=repr,
)
async def test_what_is_wrong_with_a_record_is_its_outcome(error: Exception, kind: type[HeliographError]) -> None:
    """So that it can be tolerated, as Kafka's producer tells it."""
    assert isinstance(await outcome(refused_with(error)), kind)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiokafka.errors.KafkaTimeoutError(), RetriableError),
        (aiokafka.errors.UnknownTopicOrPartitionError(), RetriableError),
        (aiokafka.errors.ProducerFenced(), PermanentError),
        (aiokafka.errors.ProducerClosed(), PermanentError),
    ],
    ids=repr,
)
async def test_what_is_wrong_with_cluster_or_producer_is_raised(error: Exception, kind: type[HeliographError]) -> None:
    with pytest.raises(kind):
        await outcome(refused_with(error))


@pytest.mark.parametrize("topic", ["a/b", "", ".", "..", "x" * 250, "ä", "a\n"])
async def test_a_topic_that_cannot_be_is_not_waited_for(topic: str) -> None:
    producer = refused_with(AssertionError("nothing is asked"))
    error = await outcome(producer, topic)
    assert isinstance(error, PermanentError)
    assert repr(topic) in str(error)


@pytest.mark.parametrize(("bytes_", "alone"), [(100, False), (16_000, False), (16_384, True), (200_000, True)])
async def test_a_batch_that_a_topic_does_not_take_says_nothing_of_its_records(bytes_: int, alone: bool) -> None:
    """Unless it holds a single one. The producer's batches have 16 KiB."""
    producer = RecordProducer(producer_settings(WorkerConfig.parse(WORKER), {}, "c-0", None))
    producer._producer = cast(Any, Late(aiokafka.errors.MessageSizeTooLargeError("too large")))
    reported: list[Exception | None] = []
    await producer.send(OutgoingRecord("t", None, b"x" * bytes_), lambda metadata, error: reported.append(error))
    await asyncio.sleep(0)
    assert isinstance(reported[0], PermanentError)
    assert isinstance(reported[0], BatchRefused) is not alone
