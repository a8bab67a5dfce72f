"""Offset syncs beside a copy: written in order, tried again, given up only at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.kafka.log.producer import OutRecord
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import TopicPartition
from connectors.source import offset_sync_writer
from connectors.source.offset_sync_writer import SyncWriter

ORDERS, CLICKS = TopicPartition("orders", 0), TopicPartition("clicks", 0)


class Topic:
    """Takes records unless there is something in the way."""

    def __init__(self) -> None:
        self.records: list[OutRecord] = []
        self.tries = 0
        self.error: Exception | None = None
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.changed = asyncio.Event()

    async def write(self, records: Iterable[OutRecord]) -> None:
        await self.is_open.wait()
        self.tries += 1
        self.changed.set()
        if self.error is not None:
            raise self.error
        self.records += records

    async def until_tried(self, times: int) -> None:
        async with asyncio.timeout(60):
            while self.tries < times:
                self.changed.clear()
                await self.changed.wait()

    @property
    def syncs(self) -> list[tuple[int, int]]:
        decoded = [OffsetSync.decode(record.key, record.value) for record in self.records]
        return [(sync.upstream_offset, sync.downstream_offset) for sync in decoded]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sync_writer, "_RETRY_S", 0.001)


def writer(topic: Topic, lag_max: int = 100) -> SyncWriter:
    return SyncWriter("us->eu task 0", "syncs", lag_max, topic.write)


async def test_the_end_writes_what_waits() -> None:
    topic = Topic()
    async with writer(topic) as syncs:
        syncs.acknowledged(ORDERS, [(5, 7, 200)])
        syncs.commit()
    assert topic.syncs == [(5, 7), (106, 108), (204, 206)]
    assert {(record.topic, record.partition) for record in topic.records} == {("syncs", 0)}


@pytest.mark.parametrize("error", [RetriableError("no leader"), SecurityError("grant WRITE"), ValueError("a mistake")])
async def test_what_fails_is_said_once_and_written_later(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic()
    topic.error = error
    async with writer(topic, lag_max=0) as syncs:
        syncs.acknowledged(ORDERS, [(0, 0, 2)])
        await topic.until_tried(3)
        syncs.acknowledged(ORDERS, [(2, 2, 1)])
        topic.error = None
        await topic.until_tried(5 if topic.tries > 3 else 4)
    assert topic.syncs == [(0, 0), (1, 1), (2, 2)]
    reported = [record for record in caplog.records if "not written" in record.message]
    assert len(reported) == 1
    assert isinstance(error, HeliographError) != bool(reported[0].exc_info)


async def test_the_end_does_not_wait_for_what_fails() -> None:
    topic = Topic()
    topic.error = RetriableError("the cluster is away")
    async with asyncio.timeout(60), writer(topic) as syncs:
        syncs.acknowledged(ORDERS, [(0, 0, 1)])
        await topic.until_tried(2)
    assert topic.records == []


async def test_the_end_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(offset_sync_writer, "_LAST_WRITE_S", 0.01)
    topic = Topic()
    topic.is_open.clear()
    async with asyncio.timeout(60), writer(topic) as syncs:
        syncs.acknowledged(ORDERS, [(0, 0, 1)])
    assert "the last offset syncs were not written to syncs" in caplog.text


async def test_syncs_that_become_due_meanwhile_wait_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sync_writer, "_PAUSE_S", 3600)
    topic = Topic()
    async with asyncio.timeout(60), writer(topic, lag_max=0) as syncs:
        syncs.acknowledged(ORDERS, [(0, 0, 1)])
        await topic.until_tried(1)
        for offset in range(1, 10):
            syncs.acknowledged(ORDERS, [(offset, offset, 1)])
            await asyncio.sleep(0)
        assert topic.tries == 1
    assert topic.tries == 2
    assert topic.syncs == [(offset, offset) for offset in range(10)]


async def test_more_than_a_request_holds_is_written_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sync_writer, "_PAUSE_S", 3600)
    monkeypatch.setattr(offset_sync_writer, "_MOST_AT_ONCE", 2)
    topic = Topic()
    async with asyncio.timeout(60), writer(topic, lag_max=0) as syncs:
        syncs.acknowledged(ORDERS, [(0, 0, 5)])
        await topic.until_tried(3)
    assert topic.syncs == [(offset, offset) for offset in range(5)]


async def test_the_end_writes_the_newest_of_each_partition_where_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sync_writer, "_MOST_AT_ONCE", 2)
    topic = Topic()
    topic.is_open.clear()
    async with asyncio.timeout(60), writer(topic, lag_max=0) as syncs:
        syncs.acknowledged(ORDERS, [(0, 0, 40)])
        topic.is_open.set()
    assert topic.syncs[-1] == (39, 39)
    assert len(topic.syncs) < 10


async def test_a_partition_that_leaves_is_written_first_and_never_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sync_writer, "_PAUSE_S", 3600)
    topic = Topic()
    async with asyncio.timeout(60), writer(topic) as syncs:
        syncs.acknowledged(CLICKS, [(0, 0, 1)])
        await topic.until_tried(1)
        syncs.acknowledged(ORDERS, [(5, 7, 200)])
        await syncs.leave([ORDERS])
        assert topic.syncs[1:] == [(5, 7), (106, 108), (204, 206)]
        topic.records.clear()
        syncs.commit()
    assert topic.syncs == []


async def test_a_partition_leaves_in_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sync_writer, "_LAST_WRITE_S", 0.01)
    topic = Topic()
    topic.is_open.clear()
    async with asyncio.timeout(60), writer(topic) as syncs:
        syncs.acknowledged(ORDERS, [(5, 7, 1)])
        await syncs.leave([ORDERS])
        topic.is_open.set()
        await syncs.leave([ORDERS])
    assert topic.syncs in ([], [(5, 7)]), "as far as it was under way"
