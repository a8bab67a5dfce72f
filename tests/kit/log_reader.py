"""Reads partitions of one cluster, each record once, straight from their leaders: nothing under test takes part."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

_FETCH_BYTES: Final = 8 * 1024 * 1024
_PARTITION_BYTES: Final = 2 * 1024 * 1024
_POLL_S: Final = 0.1
_READ_DEADLINE_S: Final = 120.0
_EARLIEST: Final = -2
Key = tuple[str, int]


@dataclass(slots=True)
class Progress:
    """One partition as read so far: ``position`` is the next offset to fetch; ``aborted`` counts batches."""

    position: int = 0
    markers: int = 0
    aborted: int = 0


class LogReader:
    """Reads every followed partition from offset 0; asks for all topics: asking for one by name could make it."""

    def __init__(
        self,
        bootstrap: str,
        take: Callable[[Key, int, Any], None],
        *,
        committed: bool = False,
        skips_deleted: bool = False,
    ) -> None:
        """``take`` gets each batch, its partition and the offset read to before; ``skips_deleted``: no fault if cut."""
        self._skips_deleted = skips_deleted
        self._bootstrap = bootstrap
        self._take_batch = take
        self._isolation = int(committed)
        self._client: Any = None
        self.followed: dict[Key, Progress] = {}

    def follow(self, topic: str, partitions: int) -> None:
        """From its beginning, with what it has of partitions besides those already followed."""
        for index in range(partitions):
            self.followed.setdefault((topic, index), Progress())

    def forget(self, topic: str) -> None:
        self.followed = {key: progress for key, progress in self.followed.items() if key[0] != topic}

    async def open(self) -> None:
        client = AIOKafkaClient(bootstrap_servers=self._bootstrap, client_id="judge", request_timeout_ms=15000)
        await client.bootstrap()
        self._client = client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def read_to_end(self) -> None:
        """Fetch until every partition has been read to its high watermark; a topic not made yet is empty."""
        pending = set(self.followed)
        end = time.monotonic() + _READ_DEADLINE_S
        while pending:
            if time.monotonic() > end:
                raise AssertionError(f"could not read {sorted(pending)} to the end within {_READ_DEADLINE_S:g} s")
            leaders = {key: self._leader(key) for key in pending}
            if None in leaders.values():
                await self._look_again()
                pending -= {key for key in pending if self._leader(key) is None and not self.followed[key].position}
                continue
            for node in set(leaders.values()):
                if node is not None:
                    pending -= await self._fetch(node, [key for key, leader in leaders.items() if leader == node])

    def _leader(self, key: Key) -> int | None:
        node: int | None = self._client.cluster.leader_for_partition(TopicPartition(*key))
        return None if node == -1 else node

    async def _look_again(self) -> None:
        await asyncio.sleep(_POLL_S)
        await self._client.force_metadata_update()

    async def _fetch(self, node: int, keys: list[Key]) -> set[Key]:
        """One fetch; which of ``keys`` have been read to their ends."""
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for topic, index in keys:
            topics.setdefault(topic, []).append((index, self.followed[topic, index].position, _PARTITION_BYTES))
        request = FetchRequest(0, 0, _FETCH_BYTES, self._isolation, list(topics.items()))
        try:
            answer = await self._client.send(node, request)
        except KafkaError:
            await self._look_again()
            return set()
        done = set()
        for topic, partitions in answer.topics:
            for index, error_code, high_watermark, *more, data in partitions:
                # Behind it, from Fetch 5 on: last stable offset, log start, aborted transactions.
                end, aborted = (more[0], more[2] or ()) if self._isolation else (high_watermark, ())
                if error_code:
                    await self._apply(error_code, node, topic, index)
                elif self._take(topic, index, data, aborted) >= end:
                    done.add((topic, index))
        return done

    async def _apply(self, error_code: int, node: int, topic: str, index: int) -> None:
        error: Any = for_code(error_code)
        if error is OffsetOutOfRangeError and self._skips_deleted:
            await self._skip_deleted(node, topic, index)
        elif not error.retriable:
            raise AssertionError(f"reading {topic}-{index} at {self.followed[topic, index].position}: {error.__name__}")
        else:
            await self._look_again()

    async def _skip_deleted(self, node: int, topic: str, index: int) -> None:
        try:
            answer = await self._client.send(node, OffsetRequest(-1, 0, [(topic, [(index, _EARLIEST)])]))
        except KafkaError:
            await self._look_again()
            return
        [(_, [(_, error_code, _, start)])] = answer.topics
        log = self.followed[topic, index]
        if error_code:
            await self._look_again()
        elif start <= log.position:
            raise AssertionError(f"{topic}-{index} begins at {start}, and its offset {log.position} is out of range")
        else:
            log.position = start

    def _take(self, topic: str, index: int, data: bytes, listed: Collection[tuple[int, int]]) -> int:
        """``listed``: (producer id, first offset) of transactions that were aborted."""
        log = self.followed[topic, index]
        aborted = _Aborted(listed)
        batches = MemoryRecords(data or b"")
        while batches.has_next():
            batch: Any = batches.next_batch()
            if batch is None:
                break
            if batch.next_offset <= log.position:
                aborted.has(batch)
                continue
            if not batch.validate_crc():
                raise AssertionError(f"{topic}-{index} at {batch.base_offset}: wrong CRC")
            is_aborted = aborted.has(batch)
            if batch.is_control_batch:
                log.markers += 1
            elif is_aborted:
                log.aborted += 1
            else:
                self._take_batch((topic, index), log.position, batch)
            log.position = batch.next_offset
        return log.position


@contextlib.asynccontextmanager
async def reading(
    bootstrap: str, take: Callable[[Key, int, Any], None], topics: Mapping[str, int]
) -> AsyncIterator[LogReader]:
    """A reader of what is committed in ``topics``, by their numbers of partitions; open."""
    reader = LogReader(bootstrap, take, committed=True)
    for topic, count in topics.items():
        reader.follow(topic, count)
    await reader.open()
    try:
        yield reader
    finally:
        await reader.close()


class _Aborted:
    """Which batches of one answer belong to aborted transactions: a producer leaves them at its abort marker."""

    def __init__(self, listed: Collection[tuple[int, int]]) -> None:
        self._listed = sorted(listed, key=lambda one: one[1])
        self._producers: set[int] = set()

    def has(self, batch: Any) -> bool:
        """Batches have to come in order."""
        while self._listed and self._listed[0][1] <= batch.next_offset - 1:
            self._producers.add(self._listed.pop(0)[0])
        if batch.is_control_batch:
            self._producers.discard(batch.producer_id)
            return False
        return bool(batch.is_transactional) and batch.producer_id in self._producers
