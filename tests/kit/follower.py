"""Follows some topics from now on in a thread of its own, and knows when it has read what was written before."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_MS: Final = 50
#: Topic and partition.
Flow = tuple[str, int]
_Records = Sequence[ConsumerRecord[bytes, bytes]]


class Follower(ABC):
    """All partitions of ``topics`` (name to number of partitions), from their beginnings. Use as a context manager."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        self._bootstrap = bootstrap
        self._flows = [(topic, index) for topic, count in topics.items() for index in range(count)]
        #: Held while records are taken in.
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._drained.set()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    @abstractmethod
    def _take(self, flow: Flow, records: _Records, came_s: float) -> None:
        """Records of one partition, in their order; a consumer that lost its leader may begin anew."""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_START_TIMEOUT_S), "the follower has begun"
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def drain(self) -> None:
        self._drained.clear()
        assert self._drained.wait(_START_TIMEOUT_S), "the follower has come to the ends of its topics"
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise AssertionError(f"the follower has ended: {self._error!r}") from self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _follow(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", request_timeout_ms=60_000
        )
        async with consumer:
            consumer.assign([TopicPartition(*flow) for flow in self._flows])
            self._ready.set()
            while not self._stopping.is_set():
                await self._poll(consumer)
                if not self._drained.is_set():
                    await self._poll_to_ends(consumer)
                    self._drained.set()

    async def _poll_to_ends(self, consumer: AIOKafkaConsumer) -> None:
        ends = await consumer.end_offsets(consumer.assignment())
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            await self._poll(consumer)

    async def _poll(self, consumer: AIOKafkaConsumer) -> None:
        for partition, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
            came_s = time.time()
            with self._lock:
                self._take((partition.topic, partition.partition), records, came_s)


class Arrivals(Follower):
    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        super().__init__(bootstrap, topics)
        self._came_s: dict[Flow, list[float]] = {flow: [] for flow in self._flows}

    def longest_gaps(self, since_s: float, until_s: float) -> dict[Flow, float]:
        """Of each partition the longest time in which nothing came, in seconds."""
        with self._lock:
            self._check()
            return {flow: longest_gap(came, since_s, until_s) for flow, came in self._came_s.items()}

    def _take(self, flow: Flow, records: _Records, came_s: float) -> None:
        self._came_s[flow].append(came_s)


def longest_gap(times_s: Iterable[float], since_s: float, until_s: float) -> float:
    times = sorted([since_s, *(at for at in times_s if since_s < at < until_s), until_s])
    return max(later - earlier for earlier, later in itertools.pairwise(times))
