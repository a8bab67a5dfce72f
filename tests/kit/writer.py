"""A load writer in a process of its own, steered by lines on stdin: neither kills nor a busy test slow it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, Final, Self

from aiokafka import AIOKafkaProducer

from tests.kit import marked

#: Longer than any test leaves a broker down, on a machine that is busy as well.
_REQUEST_TIMEOUT_MS: Final = 120_000
_ANSWER_TIMEOUT_S: Final = 150.0
_END_TIMEOUT_S: Final = 60.0
_OUTSTANDING_BATCHES: Final = 8

Acknowledged = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Load:
    """What one topic gets: ``codec`` as aiokafka names it (``none`` for no compression), sizes in bytes."""

    topic: str
    partitions: int
    codec: str = "none"
    value_bytes: int = 100
    batch_records: int = 200


class Writer:
    """Starts the writing process and speaks with it."""

    def __init__(self, bootstrap: str, loads: Sequence[Load], *, records_per_s: float, seed: int) -> None:
        settings = {
            "bootstrap": bootstrap,
            "loads": [asdict(load) for load in loads],
            "rate": records_per_s,
            "seed": seed,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.writer", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        stdout = _present(self._process.stdout)
        threading.Thread(target=self._listen, args=(stdout,), name="writer-answers", daemon=True).start()

    def pause(self) -> Acknowledged:
        """Stop sending and wait until all that was sent is acknowledged: {topic: {partition: records}}."""
        return self._ask("pause")

    def resume(self) -> Acknowledged:
        return self._ask("resume")

    def acknowledged(self) -> Acknowledged:
        """What is acknowledged now, without a pause."""
        return self._ask("tell")

    def stop(self) -> Acknowledged:
        answer = self._ask("stop")
        self.close()
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, wherever it is. May be called twice."""
        with contextlib.suppress(OSError):
            _present(self._process.stdin).close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _present(self._process.stdout).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: str) -> Acknowledged:
        stdin = _present(self._process.stdin)
        try:
            stdin.write(command + "\n")
            stdin.flush()
            line = self._answers.get(timeout=_ANSWER_TIMEOUT_S)
        except (OSError, queue.Empty) as error:
            raise AssertionError(f"the writer did not answer {command!r} (exit code {self._process.poll()})") from error
        if not line:
            raise AssertionError(f"the writer ended with exit code {self._process.wait()}")
        answer: dict[str, dict[str, int]] = json.loads(line)
        return {topic: {int(index): count for index, count in counts.items()} for topic, counts in answer.items()}

    def _listen(self, stdout: IO[str]) -> None:
        with contextlib.suppress(ValueError):
            for line in stdout:
                self._answers.put(line)
        self._answers.put("")


def _present(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "opened with a pipe"
    return pipe


class _TopicWriter:
    """Writes one topic, partition after partition, batches of chance sizes; an idempotent producer keeps the order."""

    def __init__(self, bootstrap: str, load: Load, records_per_s: float, seed: int) -> None:
        codec = None if load.codec == "none" else load.codec
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=f"writer-{load.topic}",
            enable_idempotence=True,
            compression_type=codec,
            max_batch_size=1 << 20,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
        )
        self._load = load
        self._chance = random.Random(f"{seed}/{load.topic}")
        self._outstanding: set[asyncio.Future[Any]] = set()
        self._next = [0] * load.partitions
        self._running = asyncio.Event()
        self._running.set()
        self._idle = asyncio.Event()
        self.records_per_s = records_per_s
        self.acknowledged = dict.fromkeys(range(load.partitions), 0)

    async def run(self) -> None:
        async with self._producer:
            due = time.monotonic()
            while True:
                for partition in range(self._load.partitions):
                    if not self._running.is_set():
                        await self._settle(0)
                        self._idle.set()
                        await self._running.wait()
                        due = time.monotonic()
                    count = await self._send(partition)
                    due = max(due + count / self.records_per_s, time.monotonic() - 1)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def pause(self) -> None:
        """Returns once all that was sent is acknowledged."""
        if self._running.is_set():
            self._idle.clear()
            self._running.clear()
        await self._idle.wait()

    def resume(self) -> None:
        self._running.set()

    async def _send(self, partition: int) -> int:
        await self._settle(_OUTSTANDING_BATCHES * self._load.partitions - 1)
        batch: Any = self._producer.create_batch()
        first = self._next[partition]
        now_ms = int(time.time() * 1000)
        count = self._chance.randint(1, self._load.batch_records)
        for sequence in range(first, first + count):
            key, value, headers = marked.make(partition, sequence, self._load.value_bytes, now_ms)
            if batch.append(key=key, value=value, timestamp=now_ms, headers=headers) is None:
                count = sequence - first
                break
        self._next[partition] = first + count
        sent = await self._producer.send_batch(batch, self._load.topic, partition=partition)
        self._outstanding.add(sent)
        sent.add_done_callback(lambda done: self._done(done, partition, count))
        return count

    def _done(self, sent: asyncio.Future[Any], partition: int, count: int) -> None:
        if not sent.cancelled() and sent.exception() is None:
            self.acknowledged[partition] += count
            self._outstanding.discard(sent)

    async def _settle(self, at_most: int) -> None:
        while len(self._outstanding) > at_most:
            done, _ = await asyncio.wait(self._outstanding, return_when=asyncio.FIRST_COMPLETED)
            for sent in done:
                sent.result()
                self._outstanding.discard(sent)


async def _serve(settings: dict[str, Any]) -> None:
    loads = [Load(**load) for load in settings["loads"]]
    share = settings["rate"] / len(loads)
    writers = [_TopicWriter(settings["bootstrap"], load, share, settings["seed"]) for load in loads]
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(writer.run(), name="write") for writer in writers]
        await _handle(writers, {load.topic: writer for load, writer in zip(loads, writers, strict=True)})
        for run in runs:
            run.cancel()


async def _handle(writers: list[_TopicWriter], by_topic: dict[str, _TopicWriter]) -> None:
    """Carry out commands until ``stop`` or the end of stdin."""
    while True:
        words = (await asyncio.to_thread(sys.stdin.readline)).split()
        if not words:
            return
        match words[0]:
            case "pause" | "stop":
                await asyncio.gather(*(writer.pause() for writer in writers))
            case "resume":
                for writer in writers:
                    writer.resume()
        print(json.dumps({topic: writer.acknowledged for topic, writer in by_topic.items()}), flush=True)
        if words[0] == "stop":
            return


if __name__ == "__main__":
    # What it tries again is no news; what it gives up ends it.
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    asyncio.run(_serve(json.loads(sys.argv[1])))
