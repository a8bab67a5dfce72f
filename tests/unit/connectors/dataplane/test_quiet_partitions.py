"""Many partitions of which few are busy: what a fetch costs the broker, and that no record is lost on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.kafka.cluster import Cluster, ClusterMetadata, LeaderEpochs, PartitionMetadata, TopicMetadata
from connect.wire import fetch_produce
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import fetch_api, source_reader
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.fetched_batches import CORRUPT_TRIES
from connectors.dataplane.leader_connections import Leaders
from connectors.dataplane.source_reader import SourceReader
from connectors.formats.types import TopicPartition
from tests.kit import logs as kit
from tests.kit.logs import source_batch
from tests.kit.members import until
from tests.kit.quotas import Mutable

#: More than every wait of a loop.
LONG_S = 10.0
WAIT_MS = 20


class Source:
    """A broker with a fetch session for each connection, and the reader of its partitions."""

    def __init__(self, partitions: int, **settings: Any) -> None:
        self.ends = dict.fromkeys(range(partitions), 0)
        self.sessions: dict[str, dict[int, int]] = {}
        self.waits_ms: dict[str, list[int]] = {}
        #: The connection that fetched a partition first.
        self.first: dict[int, str] = {}
        #: Partitions whose records arrive damaged, and how often they did.
        self.damaged: dict[int, int] = {}
        self.now_s = 0.0
        self.written = asyncio.Event()
        self.copiers = [self._copier(partition) for partition in self.ends]
        rows = {partition: PartitionMetadata(1, 0, (1,), 0) for partition in self.ends}
        self.metadata = ClusterMetadata(None, 1, {}, {"t": TopicMetadata("t", None, 0, rows)})
        parts = {"connection": self._connect, "metadata": self._look_up, "leader_epochs": LeaderEpochs("us")}
        cluster = cast(Cluster, SimpleNamespace(**parts))
        of_slice = SliceSettings("us->eu", 0, {}, {}, **{"fetch_max_wait_ms": WAIT_MS, **settings})
        self.reader = SourceReader(cluster, of_slice, lambda _: None, self._failed, clock=lambda: self.now_s)

    def start(self, first: int = 0, last: int | None = None) -> None:
        self.reader.start(self.copiers[first:last], Leaders(self.metadata))

    def write(self, partitions: Iterable[int], records: int = 3) -> None:
        for partition in partitions:
            self.ends[partition] += records
        self.written.set()

    async def copied(self) -> None:
        def is_copied() -> bool:
            return all(one.fetch_offset == end for one, end in zip(self.copiers, self.ends.values(), strict=True))

        await until(is_copied, "that all is copied")
        for copier, end in zip(self.copiers, self.ends.values(), strict=True):
            offsets = [outgoing.segments[0] for outgoing in copier._queue]
            begins = [sum(count for _, count in offsets[:at]) for at in range(len(offsets))]
            assert [first for first, _ in offsets] == begins
            assert sum(count for _, count in offsets) == end

    async def waits(self) -> None:
        await until(lambda: self.waits_ms.get("copy 0", [0])[-1], "that quiet partitions are waited for")

    async def rests(self) -> None:
        """Wait until what had no records for long is quiet."""
        self.now_s += LONG_S
        await asyncio.sleep(10 * WAIT_MS / 1000)

    async def fetch(self, connection: Any, _: int, body: tuple[Any, ...], __: int) -> fetch_produce.FetchAnswer:
        limits, (_, epoch), partitions, forgotten = body
        self.waits_ms.setdefault(connection.purpose, []).append(limits.max_wait_ms)
        session = self.sessions.setdefault(connection.purpose, {})
        if not epoch:
            session.clear()
        new = {index for _, index in partitions if index not in session}
        for _, index in partitions:
            self.first.setdefault(index, connection.purpose)
        session.update({index: position[0] for (_, index), position in partitions.items()})
        for _, index in forgotten:
            del session[index]
        self.written.clear()
        if limits.max_wait_ms and not any(self.ends[index] > offset for index, offset in session.items()):
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.max_wait_ms / 1000):
                    await self.written.wait()
        await asyncio.sleep(0)
        return fetch_produce.FetchAnswer(0, 0, 7, [*self._rows(session, new)])

    def _rows(self, session: Mapping[int, int], new: set[int]) -> Iterable[fetch_produce.FetchedPartition]:
        for index, offset in session.items():
            end = self.ends[index]
            if end > offset or index in new:
                records = memoryview(bytearray(source_batch(range(offset, end)) if end > offset else b""))
                if len(records) and index in self.damaged:
                    self.damaged[index] += 1
                    records[-1] ^= 1
                yield fetch_produce.FetchedPartition(
                    fetch_produce.topic_name_key("t"), index, 0, end, end, 0, (), -1, records, None, None
                )

    @staticmethod
    def _copier(partition: int) -> PartitionCopier:
        pair = TopicPartition("t", partition)
        made: PartitionCopier = kit.copier(kit.plan(source=pair, target=pair))
        return made

    async def _look_up(self, _: object) -> ClusterMetadata:
        return self.metadata

    @staticmethod
    async def _connect(_: int, purpose: str) -> object:
        connection = Mutable()
        connection.purpose = purpose
        return connection

    @staticmethod
    def _failed(error: BaseException) -> None:
        raise error


@asynccontextmanager
async def reading(
    patch: pytest.MonkeyPatch, partitions: int, busy: Iterable[int] = (), first: int | None = None, **settings: int
) -> AsyncIterator[Source]:
    source = Source(partitions, **settings)
    patch.setattr(fetch_api, "fetch", source.fetch)
    patch.setattr(fetch_api, "encode_fetch", lambda _, *body: body if len(body) > 3 else (*body, ()))
    patch.setattr(fetch_api, "fetch_version", lambda *_: 12)
    source.write(busy)
    source.start(0, first)
    await source.copied()
    yield source
    await source.reader.stop()


@pytest.mark.parametrize(
    ("wait_ms", "min_bytes", "quiet_ms"), [(20, 1, 80), (20, 2, 20), (20_000, 1, 30_000), (2**31 - 1, 1, 2**31 - 1)]
)
async def test_a_quiet_partition_waits_no_longer_than_brokers_and_users_allow(
    monkeypatch: pytest.MonkeyPatch, wait_ms: int, min_bytes: int, quiet_ms: int
) -> None:
    """Few records of a quiet partition do not end the wait for ``fetch.min.bytes``."""
    async with reading(monkeypatch, 200, fetch_max_wait_ms=wait_ms, fetch_min_bytes=min_bytes) as source:
        await source.waits()
        assert source.waits_ms["copy 0"][-1] == quiet_ms


async def test_an_added_partition_does_not_wait_for_records_of_quiet_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(monkeypatch, 301, first=300, fetch_max_wait_ms=5000) as source:
        await source.waits()
        source.start(300)
        source.write([5])  # ends the waits
        await until(lambda: 300 in source.first, "that it is fetched")
        assert source.first[300] == "copy"


async def test_damage_is_fetched_three_times_by_whichever_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reader, "_RETRY_S", 0.001)
    async with reading(monkeypatch, 150) as source:
        source.damaged[149] = 0
        source.write([149])
        await until(lambda: source.copiers[149].stopped, "that it is stopped")
        assert source.damaged == {149: CORRUPT_TRIES}
        assert source.first[149] == "copy 0"


async def test_a_fetch_of_busy_partitions_is_for_no_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker looks at each partition of a session for each fetch."""
    busy = range(0, 1000, 100)
    async with reading(monkeypatch, 1000, busy) as source:
        await source.rests()
        for _ in range(20):
            source.write(busy)
            await source.copied()
        assert sorted(source.sessions["copy"]) == [*busy]
        await source.rests()
        fetches = len(source.waits_ms["copy"])
        await source.rests()
        assert len(source.waits_ms["copy"]) == fetches, "with nothing to copy only quiet partitions are fetched"
        assert len(source.sessions["copy 0"]) == 1000
        assert source.waits_ms["copy 0"][-1] == 4 * WAIT_MS


async def test_few_partitions_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(monkeypatch, 100, [3]) as source:
        await source.rests()
        source.write([3, 5])
        await source.copied()
        assert source.sessions.keys() == {"copy"}


async def test_no_record_is_lost_or_read_twice_where_partitions_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(5)
    async with reading(monkeypatch, 150) as source:
        for _ in range(60):
            source.write(choose.sample(range(150), choose.choice((1, 20, 120))), choose.randint(1, 5))
            for _ in range(choose.randint(0, 6)):
                await asyncio.sleep(0)
            source.now_s += choose.choice((0.0, 1.0, LONG_S))
            if choose.random() < 0.3:
                await source.copied()
        await source.copied()
        assert len(source.sessions) == 2
