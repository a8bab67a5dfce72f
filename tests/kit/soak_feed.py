"""Producers that keep a soak run's topics busy; readers of the source say what is there, not what these think."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.kit import marked
from tests.kit.soak_plan import DROPPED, Fate, Feed

_ABORTED_SHARE: Final = 0.3
_TOMBSTONE_SHARE: Final = 0.1
_KEYLESS_SHARE: Final = 0.1
_DROPPED_SHARE: Final = 0.3
_TRANSACTION_BATCHES: Final = 6
_TRANSACTION_TIMEOUT_MS: Final = 60_000
#: Partitions that are added are seen within that time.
_METADATA_MS: Final = 1_000
_REQUEST_TIMEOUT_MS: Final = 20_000
_AGAIN_S: Final = 0.5
_STOP_S: Final = 10.0


class Feeder:
    def __init__(self, bootstrap: str, feed: Feed, records_per_s: float, seed: str) -> None:
        self.feed = feed
        self.partitions = feed.partitions
        self._open = asyncio.Event()
        self._open.set()
        self._stopping = False
        self._writers = [
            _FeedWriter(self, bootstrap, index, in_transactions, records_per_s / len(feed.writers), seed)
            for index, in_transactions in enumerate(feed.writers)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks = [
            asyncio.create_task(writer.run(), name=f"feed {self.feed.topic} {writer.number}")
            for writer in self._writers
        ]

    async def pause(self) -> None:
        self._open.clear()
        for writer, task in zip(self._writers, self._tasks, strict=True):
            idle = asyncio.create_task(writer.idle.wait(), name=f"idle {self.feed.topic}")
            await asyncio.wait({idle, task}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                idle.cancel()
                task.result()

    def resume(self) -> None:
        for writer in self._writers:
            writer.idle.clear()
        self._open.set()

    async def stop(self) -> None:
        """As :meth:`pause`, and for good. Raises what a writer ended with."""
        await self.pause()
        self._stopping = True
        self._open.set()
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def may_write(self) -> bool:
        """Waits while it is paused; False when it is stopped."""
        await self._open.wait()
        return not self._stopping

    @property
    def is_paused(self) -> bool:
        return not self._open.is_set()


class _FeedWriter:
    def __init__(
        self, feeder: Feeder, bootstrap: str, number: int, in_transactions: bool, records_per_s: float, seed: str
    ) -> None:
        self.number = number
        self.idle = asyncio.Event()
        self._feeder = feeder
        self._bootstrap = bootstrap
        self._in_transactions = in_transactions
        self._records_per_s = records_per_s
        self._chance = random.Random(f"{seed}/{feeder.feed.topic}/{number}")
        self._made = 0

    async def run(self) -> None:
        while await self._feeder.may_write():
            self.idle.clear()
            producer, failed = self._producer(), False
            try:
                await producer.start()
                await self._write(producer)
            except (KafkaError, TimeoutError, OSError):
                failed = True
            finally:
                await _end(producer)
            # What was left open is ended by the next of the same id.
            if failed:
                await self._end_what_is_open()
            self.idle.set()

    async def _end_what_is_open(self) -> None:
        """Unless it is written on anyway."""
        while self._feeder.is_paused:
            if await self._is_ended():
                return
            await asyncio.sleep(_AGAIN_S)

    async def _is_ended(self) -> bool:
        """No transaction is open any more, as the next producer of the id says."""
        if not self._in_transactions:
            return True
        producer = self._producer()
        try:
            await producer.start()
        except (KafkaError, TimeoutError, OSError):
            return False
        finally:
            await _end(producer)
        return True

    def _producer(self) -> Any:
        codec = self._feeder.feed.codec
        more = {"transactional_id": f"feed-{self._feeder.feed.topic}-{self.number}"} if self._in_transactions else {}
        return AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=f"feed-{self._feeder.feed.topic}",
            enable_idempotence=True,
            compression_type=None if codec == "none" else codec,
            max_batch_size=1 << 20,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            metadata_max_age_ms=_METADATA_MS,
            **more,
        )

    async def _write(self, producer: Any) -> None:
        due_s = time.monotonic()
        while not self._feeder.is_paused:
            if self._in_transactions:
                count = await self._transaction(producer)
            else:
                sent, count = await self._send(producer)
                await sent
            due_s = max(due_s + count / self._records_per_s, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _transaction(self, producer: Any) -> int:
        await producer.begin_transaction()
        sent = [await self._send(producer) for _ in range(self._chance.randint(1, _TRANSACTION_BATCHES))]
        await asyncio.gather(*(each for each, _ in sent))
        if self._chance.random() < _ABORTED_SHARE:
            await producer.abort_transaction()
        else:
            await producer.commit_transaction()
        return sum(count for _, count in sent)

    async def _send(self, producer: Any) -> tuple[Any, int]:
        feed, chance = self._feeder.feed, self._chance
        batch = producer.create_batch()
        wanted = chance.randint(1, feed.batch_records)
        count = 0
        now_ms = int(time.time() * 1000)
        while count < wanted and batch.append(timestamp=now_ms, **self._record(now_ms)) is not None:
            self._made += 1
            count += 1
        partition = chance.randrange(self._feeder.partitions)
        return await producer.send_batch(batch, feed.topic, partition=partition), count

    def _record(self, now_ms: int) -> dict[str, Any]:
        """Its header tells it from all others."""
        feed, chance = self._feeder.feed, self._chance
        key: bytes | None = b"k%d" % chance.randrange(feed.keys) if feed.keys else b"%d" % self._made
        if not feed.keys and chance.random() < _KEYLESS_SHARE:
            key = None
        value: bytes | None = marked.make(0, self._made, chance.randint(8, max(feed.value_bytes, 9)), now_ms)[1]
        if feed.keys and chance.random() < _TOMBSTONE_SHARE:
            value = None
        headers = [("soak", b"%d/%d" % (self.number, self._made))]
        if feed.fate is Fate.FILTERED and chance.random() < _DROPPED_SHARE:
            headers.append((DROPPED, b""))
        return {"key": key, "value": value, "headers": headers}


async def _end(producer: Any) -> None:
    try:
        async with asyncio.timeout(_STOP_S):
            await producer.stop()
    except (KafkaError, TimeoutError, OSError):
        await producer.client.close()
