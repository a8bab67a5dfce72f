"""The reading half of a slice: nothing that goes wrong may leave a partition standing unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.wire import hot
from connectors.dataplane import reading
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, SliceSettings, TopicPartition
from connectors.dataplane.source import SourceReader, _BrokerLoop
from tests.kit.logs import source_batch

SETTINGS = SliceSettings("us->eu", 0, {"password": "s3cret"}, {"password": "s3cret"})
LIMITS = reading.FetchLimits(0, 1, 1024, 1024, reading.READ_UNCOMMITTED)


def copier() -> PartitionCopier:
    pair = TopicPartition("t", 0)
    plan = PartitionPlan(pair, None, pair, None, 0, -1, 0, 0, pipelined=False)
    return PartitionCopier(plan, ProducerIdentity(7, 0), read_committed=False)


def fetched(records: bytes, error_code: int = 0) -> hot.FetchedPartition:
    view = memoryview(bytearray(records))
    return hot.FetchedPartition(b"t", 0, error_code, 9, 9, 0, (), -1, view, None, None)


def unexpected(error: BaseException) -> None:
    raise error


class Refusing:
    """A cluster that answers every question with the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def metadata(self, _: object) -> None:
        raise self._error


async def test_what_trying_again_does_not_heal_ends_the_slice() -> None:
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    refused = PermanentError("DESCRIBE is missing")
    reader = SourceReader(cast(Cluster, Refusing(refused)), SETTINGS, lambda _: None, failure.set_result)
    reader.start([copier()])
    assert await asyncio.wait_for(failure, 60) is refused
    await reader.stop()


async def test_a_batch_that_does_not_open_stops_its_partition_only() -> None:
    reader = SourceReader(cast(Cluster, None), SETTINGS, lambda _: None, unexpected)
    loop = _BrokerLoop(reader, cast(Cluster, None), SETTINGS, 1)
    machine = copier()
    torn = source_batch([0, 2], attributes=4)  # says zstd, and is not: found on opening it for its gap
    assert loop._take(machine, fetched(source_batch([0]) + torn))
    assert machine.stopped
    assert "source t-0: a batch behind offset 0 cannot be opened" in machine.stopped_reason


def test_a_stopped_partition_takes_no_room_from_the_others() -> None:
    machine = copier()
    settings = SliceSettings("us->eu", 0, {}, {}, buffer_bytes=10)
    reader = SourceReader(cast(Cluster, None), settings, lambda _: None, unexpected)
    machine.take(memoryview(bytearray(source_batch(range(3)))))
    reader.took([machine])
    assert not reader.has_room()
    machine.stop("refused")
    assert reader.has_room()


class Broker:
    """Fetch answers in order."""

    def __init__(self, *answers: bytes) -> None:
        self.versions = {1: (0, 17)}
        self.address = "broker:9092"
        self.request_timeout_ms = 30_000
        self._answers = list(answers)

    def send(self, *_: Any) -> Awaitable[memoryview]:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        answer.set_result(memoryview(bytearray(self._answers.pop(0))))
        return answer


def answer(*, throttle_ms: int = 0, error_code: int = 0, partition: bool = False) -> bytes:
    row = b"\x02" + UUID(int=1).bytes + b"\x02" + b"\x00" * 6 + b"\x00" * 24 + b"\x00" + b"\xff" * 4 + b"\x01\x00\x00"
    return throttle_ms.to_bytes(4) + error_code.to_bytes(2) + b"\x00" * 4 + (row if partition else b"\x01") + b"\x00"


def fetch_one(broker: Broker) -> Awaitable[hot.FetchedPartition]:
    topic = reading.TopicOnWire("t", UUID(int=1))
    return reading.fetch_one(cast(Connection, broker), topic, 0, (0, -1, -1), LIMITS)


async def test_a_fetch_over_quota_is_put_again() -> None:
    row = await fetch_one(Broker(answer(throttle_ms=1), answer(throttle_ms=1), answer(partition=True)))
    assert (row.partition, row.error_code) == (0, 0)


async def test_a_refused_fetch_is_an_error_that_says_so() -> None:
    with pytest.raises(RetriableError, match=r"broker:9092 refuses a fetch: .*\(56\)"):
        await fetch_one(Broker(answer(error_code=56)))


def test_no_secret_is_in_the_settings_text() -> None:
    assert "s3cret" not in repr(SETTINGS)


class Held:
    """A connection whose one answer is given by hand."""

    def __init__(self) -> None:
        self.versions = {1: (0, 12)}
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[hot.FetchAnswer] = asyncio.get_running_loop().create_future()


async def test_what_was_asked_for_one_copier_is_not_given_to_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition leaves and comes again elsewhere in its log while a fetch for it is under way."""
    held = Held()

    async def fetch(*_: object) -> hot.FetchAnswer:
        held.asked.set()
        return await held.answer

    monkeypatch.setattr(reading, "fetch", fetch)
    reader = SourceReader(cast(Cluster, None), SETTINGS, lambda _: None, unexpected)
    loop = reader._loops[1] = _BrokerLoop(reader, cast(Cluster, None), SETTINGS, 1)
    before, after = copier(), copier()
    loop.add(before, 0)
    fetching = asyncio.create_task(loop._fetch(cast(Connection, held), 12))
    await held.asked.wait()
    before.discard_unsent()
    reader.remove([before])
    loop.add(after, 0)
    held.answer.set_result(
        hot.FetchAnswer(0, 0, 1, [fetched(source_batch(range(50, 53)))._replace(topic=hot.topic_name_key("t"))])
    )
    await fetching
    assert after.fetch_offset == before.fetch_offset == 0
    assert not after.has_unsent
    assert loop._session.wants_any
