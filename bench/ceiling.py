"""The ceiling: how fast the destination broker takes the same batches from loops that only produce.

One process and one connection a loop, as many loops as Heliograph has slices, each with its share of the
partitions. The batches are read from the source and rewritten before the clock starts. A request carries one
batch of every partition of the loop, many requests are in flight.

``python -m bench.ceiling`` is one loop: it says ``ready`` on its standard output when its batches stand in
memory and starts at the line that comes on its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kafka.protocol.producer import InitProducerIdRequest

from bench.loads import PARTITIONS, Load
from bench.topics import BenchError, Topics
from connect.kafka.connection import Connection
from connect.kafka.settings import ConnectionSettings
from connect.wire.batch import CODEC_MASK, add_sequence, rewrite
from connect.wire.hot import (
    PRODUCE_TOPIC_IDS_FROM,
    decode_produce,
    encode_produce,
    topic_name_key,
)

_PRODUCE: Final = 0
_VERSION: Final = PRODUCE_TOPIC_IDS_FROM - 1
_IN_FLIGHT: Final = 64
_TIMEOUT_MS: Final = 30_000
_REPOSITORY: Final = Path(__file__).parents[1]
_NONE: Final = 0


class Loops:
    """The loops as processes: once entered all hold their batches, ``go`` lets them run."""

    def __init__(self, source: str, target: str, load: Load, topic: str, loops: int) -> None:
        self._commands = [
            [
                sys.executable,
                "-m",
                "bench.ceiling",
                source,
                target,
                load.topic,
                topic,
                ",".join(map(str, partitions)),
            ]
            for partitions in (range(index, PARTITIONS, loops) for index in range(loops))
        ]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            for command in self._commands:
                self._processes.append(
                    subprocess.Popen(
                        command,
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def go(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def failure(self) -> str | None:
        """Why nothing more will come; None while the loops run or have done their work."""
        codes = [code for process in self._processes if (code := process.poll())]
        return f"a loop of the ceiling ended with exit code {codes[0]}; its message stands above" if codes else None

    def _close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


async def prepare(
    source: Topics, topic: str, partitions: Sequence[int], producer_id: int
) -> dict[int, deque[memoryview]]:
    """The data batches of ``topic`` by partition, ready to be produced."""
    ready: dict[int, deque[memoryview]] = {partition: deque() for partition in partitions}
    sequences = dict.fromkeys(partitions, 0)
    async for partition, header, fetched in source.batches(topic, partitions):
        data = memoryview(bytearray(fetched))  # a copy: the answer's other partitions need not stay in memory
        rewrite(data, header.attributes & CODEC_MASK, producer_id, 0, sequences[partition])
        sequences[partition] = add_sequence(sequences[partition], header.record_count)
        ready[partition].append(data)
    return ready


async def produce(connection: Connection, topic: str, batches: dict[int, deque[memoryview]]) -> None:
    """Sends everything in order. The first goes alone, as an unknown producer id takes any first sequence."""
    key = topic_name_key(topic)
    flying: deque[asyncio.Future[memoryview]] = deque()
    limit = 1
    while any(batches.values()) or flying:
        while len(flying) < limit and any(batches.values()):
            entries = [(partition, waiting.popleft()) for partition, waiting in batches.items() if waiting]
            flying.append(connection.send(_PRODUCE, _VERSION, encode_produce(_TIMEOUT_MS, [(key, entries)])))
        answer = decode_produce(await flying.popleft(), _VERSION)
        for partition in answer.partitions:
            if partition.error_code != _NONE:
                raise BenchError(f"produce {topic}-{partition.partition}: Kafka error {partition.error_code}")
        limit = _IN_FLIGHT


async def run(
    source: str,
    target: str,
    source_topic: str,
    target_topic: str,
    partitions: Sequence[int],
) -> None:
    host, port = target.rsplit(":", 1)
    settings = ConnectionSettings(bootstrap=((host, int(port)),), client_id="bench-ceiling")
    connection = await Connection.open(settings, host, int(port))
    try:
        identity = await connection.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
        async with await Topics.open(source, "bench-ceiling") as topics:
            batches = await prepare(topics, source_topic, partitions, identity.producer_id)
        print("ready", flush=True)
        if await asyncio.to_thread(sys.stdin.readline):  # empty where the bench has gone
            await produce(connection, target_topic, batches)
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="One loop that only produces batches read before.")
    for name in ("source", "target", "source_topic", "target_topic", "partitions"):
        parser.add_argument(name)
    asked = parser.parse_args()
    partitions = [int(text) for text in asked.partitions.split(",")]
    asyncio.run(
        run(
            asked.source,
            asked.target,
            asked.source_topic,
            asked.target_topic,
            partitions,
        )
    )


if __name__ == "__main__":
    main()
