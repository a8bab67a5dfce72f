"""The ceiling: how fast the target's brokers take batches from loops that only produce.

Each loop is a process with its share of the partitions and one connection to each of their leaders. It reads some of
the load's batches into memory, as they are or merged, and produces them over and over, without producer ids; beside
that it reads as many bytes of the source as it produces, and forgets them.

``python -m bench.ceiling`` is one loop: it says ``ready`` on its standard output when its batches stand in memory and
starts at the line that comes on its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson

from bench.bed import BenchError
from bench.loads import Load
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import together
from connect.kafka.connection import Connection
from connect.kafka.security.connection_settings import connection_settings
from connect.wire.batch import CODEC_MASK, extents, read_header, rewrite
from connect.wire.fetch_produce import PRODUCE_TOPIC_IDS_FROM, decode_produce, encode_produce, topic_name_key
from connect.wire.merge import merge
from connectors.dataplane import fetch_api

_PRODUCE: Final = 0
_VERSION: Final = PRODUCE_TOPIC_IDS_FROM - 1
_IN_FLIGHT: Final = 8
_TIMEOUT_MS: Final = 30_000
_NONE: Final = 0
_NO_PRODUCER: Final = (-1, -1, -1)
#: What a loop holds of each partition, and how large merged batches are.
_HELD_BYTES: Final = 8 * 1024 * 1024
_HELD: Final = fetch_api.FetchLimits(100, 1, _HELD_BYTES, _HELD_BYTES, fetch_api.READ_UNCOMMITTED)
_MERGED_BYTES: Final = 1_000_000
_FETCH_BYTES: Final = 4 * 1024 * 1024
_LIMITS: Final = fetch_api.FetchLimits(100, 1, _FETCH_BYTES, _FETCH_BYTES, fetch_api.READ_UNCOMMITTED)
#: How far the reader may be ahead of the producer.
_AHEAD_BYTES: Final = 2 * _FETCH_BYTES
_REPOSITORY: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Variant:
    """``connections``: to each leader; ``together``: all partitions of a connection in each request, or one."""

    connections: int
    together: bool
    merged: bool

    @property
    def title(self) -> str:
        of = "s" * (self.connections > 1)
        requests = "all partitions" if self.together else "one partition"
        return f"{self.connections} connection{of}, {requests} a request, {'merged' if self.merged else 'as they are'}"


def variants(load: Load) -> Iterator[Sequence[Variant]]:
    """Steps of probes: the best of a step is what the next step varies."""
    most = min(2, load.partitions)
    is_merged = int(load.producer.get("batch.size", 0)) >= _MERGED_BYTES  # before it is read
    yield [Variant(most, together=True, merged=merged) for merged in ((False,) if is_merged else (False, True))]
    yield [Variant(0, together=False, merged=False)] if load.partitions > 1 else []
    yield [
        Variant(connections, together=True, merged=False)
        for connections in (1, 4)
        if most < load.partitions >= connections
    ]


class Loops:
    """The loops as processes: once entered all hold their batches, ``go`` lets them run."""

    def __init__(self, source: str, target: str, load: Load, topic: str, variant: Variant) -> None:
        self._reported = [
            {
                "source": source,
                "target": target,
                "source_topic": load.topic,
                "target_topic": topic,
                "partitions": list(range(index, load.partitions, variant.connections)),
                "together": variant.together,
                "merged": variant.merged,
            }
            for index in range(variant.connections)
        ]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            for reported in self._reported:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "bench.ceiling", orjson.dumps(reported).decode()],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        cwd=_REPOSITORY,
                        start_new_session=True,  # Ctrl-C is for the bench, which ends them
                    )
                )
            for process in self._processes:
                assert process.stdout is not None
                if process.stdout.readline().strip() != "ready":
                    raise BenchError("a loop of the ceiling did not get ready; its message stands above")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def go(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def failure(self) -> str | None:
        """Why nothing more will come; None while the loops run."""
        codes = [code for process in self._processes if (code := process.poll()) is not None]
        return f"a loop of the ceiling ended with exit code {codes[0]}; its message stands above" if codes else None

    def _close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@dataclass(eq=False)
class Loop:
    """One of them, in its process."""

    source: str
    target: str
    source_topic: str
    target_topic: str
    partitions: Sequence[int]
    together: bool
    merged: bool
    _batches: dict[int, Iterator[memoryview]] = field(default_factory=dict)
    _produced_bytes: int = 0
    _read_bytes: int = 0
    _produced: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._source, self._target = _cluster(self.source), _cluster(self.target)

    async def prepare(self) -> None:
        self._leaders = await self._target.metadata({self.target_topic})
        connection, topic = await self._reading()
        for index in self.partitions:
            row = await fetch_api.fetch_one(connection, topic, index, (0, -1, -1), _HELD)
            self._batches[index] = cycle(self._ready(row.records))

    def _ready(self, fetched: memoryview) -> list[memoryview]:
        found = [fetched[start : start + size] for start, size, _ in extents(fetched)]
        if self.merged:
            return [memoryview(one) for one in _merged(found)]
        for batch in found:
            rewrite(batch, read_header(batch).attributes & CODEC_MASK, *_NO_PRODUCER)
        return found

    async def run(self) -> None:
        by_leader: dict[int, list[int]] = {}
        for index in self.partitions:
            leader = self._leaders.leader(self.target_topic, index)
            if leader is None:
                raise BenchError(f"{self.target_topic}-{index} has no leader")
            by_leader.setdefault(leader, []).append(index)
        await together(
            "ceiling", [*(self._produce(leader, indexes) for leader, indexes in by_leader.items()), self._read()]
        )

    async def _produce(self, leader: int, indexes: Sequence[int]) -> None:
        connection = await self._target.connection(leader)
        key = topic_name_key(self.target_topic)
        turns = cycle(indexes)
        flying: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
        while True:
            while len(flying) < _IN_FLIGHT:
                named = indexes if self.together else list(islice(turns, 1))
                entries = [(index, next(self._batches[index])) for index in named]
                future = connection.send(_PRODUCE, _VERSION, encode_produce(_TIMEOUT_MS, [(key, entries)]))
                flying.append((sum(len(batch) for _, batch in entries), future))
            size, future = flying.popleft()
            answer = decode_produce(await future, _VERSION)
            for row in answer.partitions:
                if row.error_code != _NONE:
                    raise BenchError(f"produce {self.target_topic}-{row.partition}: Kafka error {row.error_code}")
            self._produced_bytes += size
            self._produced.set()

    async def _read(self) -> None:
        connection, topic = await self._reading()
        positions = dict.fromkeys(self.partitions, 0)
        for index in cycle(self.partitions):
            while self._read_bytes > self._produced_bytes + _AHEAD_BYTES:
                self._produced.clear()
                await self._produced.wait()
            row = await fetch_api.fetch_one(connection, topic, index, (positions[index], -1, -1), _LIMITS)
            self._read_bytes += len(row.records)
            last = [read_header(row.records, start) for start, _, _ in extents(row.records)][-1:]
            positions[index] = last[0].last_offset + 1 if last else 0
            await asyncio.sleep(0)

    async def _reading(self) -> tuple[Connection, fetch_api.TopicOnWire]:
        metadata = await self._source.metadata({self.source_topic})
        leader = metadata.leader(self.source_topic, 0)
        if leader is None:
            raise BenchError(f"{self.source_topic} has no leader")
        topic = fetch_api.TopicOnWire(self.source_topic, metadata.topics[self.source_topic].topic_id)
        return await self._source.connection(leader), topic


def _merged(found: Sequence[memoryview]) -> Iterator[bytearray]:
    """Batches of about a megabyte, of one codec."""
    parts: list[memoryview] = []
    size = 0
    for batch in found:
        growth = 16 * read_header(batch).record_count
        if parts and size + len(batch) + growth > _MERGED_BYTES:
            yield _one(parts)
            parts, size = [], 0
        parts.append(batch)
        size += len(batch) + growth
    yield _one(parts)


def _one(parts: Sequence[memoryview]) -> bytearray:
    return merge(parts, read_header(parts[0]).codec, *_NO_PRODUCER)


def _cluster(bootstrap: str) -> Cluster:
    return Cluster(connection_settings({"bootstrap.servers": bootstrap}, client_id="bench-ceiling", where="the bench"))


async def _run(reported: bytes) -> None:
    loop = Loop(**orjson.loads(reported))
    await loop.prepare()
    print("ready", flush=True)
    if await asyncio.to_thread(sys.stdin.readline):  # empty where the bench has gone
        await loop.run()


def main() -> None:
    parser = argparse.ArgumentParser(description="One loop that only produces batches read before.")
    parser.add_argument("reported", help="what it is to do, as JSON")
    asyncio.run(_run(parser.parse_args().reported))


if __name__ == "__main__":
    main()
