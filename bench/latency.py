"""Latency from a producer at the source to a consumer at the target, at a steady rate, while a contender copies.

``python -m bench.latency`` is the meter, a process of its own: one line of JSON on its standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.bed import Bed, BenchError
from bench.contenders import Contender
from bench.loads import Paced
from bench.measure import failure_of, first_records, quiet_look
from bench.rows import Latency
from connect.kafka.concurrency import Scope

_TICK_S: Final = 0.001
_VALUE_BYTES: Final = 100
_DEADLINE_S: Final = 120.0
_BUSY_LOOPS: Final = 2
_REPOSITORY: Final = Path(__file__).parents[1]
_SHARES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "most_ms": 1.0}


async def measure_latency(
    contender: Contender, load: Paced, number: int, bed: Bed, ramp_s: float, seconds: float, folder: Path
) -> Latency:
    """Raises BenchError if a record does not arrive, or arrives twice."""
    await bed.clear(())
    await bed.source.create(load.topic, load.partitions, 1)
    busy_before_percent = await quiet_look()
    replicator = contender.replicator(bed.ways_in(load), load, folder)
    reported = {
        "source": bed.source.bootstrap,
        "target": bed.target.bootstrap,
        "topic": load.topic,
        "partitions": load.partitions,
        "records_per_s": load.records_per_s,
        "ramp_s": ramp_s,
        "seconds": seconds,
    }
    with ExitStack() as running:
        running.enter_context(replicator)
        await _one_each(bed, load)
        failure = partial(failure_of, replicator)
        await first_records(bed.target, f"us.{load.topic}", load, failure, records=load.partitions)
        if load.has_company:
            running.enter_context(busy_loops(ramp_s + seconds + 2 * _DEADLINE_S))
        said = await _metered(reported, ramp_s + seconds + 2 * _DEADLINE_S)
        await asyncio.to_thread(replicator.stop)
    if said["error"]:
        raise BenchError(f"{contender.title} on {load.title}: {said['error']}")
    return Latency(
        load=load.name, contender=contender.name, round=number, busy_before_percent=busy_before_percent, **said["found"]
    )


async def _one_each(bed: Bed, load: Paced) -> None:
    """A record into each partition: once all have arrived, all are copied."""
    async with AIOKafkaProducer(bootstrap_servers=bed.source.bootstrap) as producer:
        for index in range(load.partitions):
            await producer.send_and_wait(load.topic, _value(-1, 0), partition=index)


async def _metered(reported: dict[str, object], deadline_s: float) -> dict[str, Any]:
    """What the meter says: ``error``, empty if there is none, and ``found``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.latency", orjson.dumps(reported).decode(), stdout=subprocess.PIPE, cwd=_REPOSITORY
    )
    try:
        async with asyncio.timeout(deadline_s):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BenchError("the meter of latency failed; its message stands above")
    answer: dict[str, Any] = orjson.loads(said)
    return answer


@contextmanager
def busy_loops(at_most_s: float) -> Iterator[None]:
    """Two processes that do nothing, as fast as they can; each ends by itself."""
    script = f"import time\nend_s = time.monotonic() + {at_most_s}\nwhile time.monotonic() < end_s: pass"
    loops = [subprocess.Popen([sys.executable, "-S", "-c", script]) for _ in range(_BUSY_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def shares(latencies_ms: Sequence[float]) -> dict[str, float]:
    """How many there are, and the percentiles that are looked at."""
    ordered = sorted(latencies_ms)
    at = {name: ordered[min(int(len(ordered) * share), len(ordered) - 1)] for name, share in _SHARES.items()}
    return {"records": len(ordered), **at}


@dataclass(eq=False)
class Meter:
    """Sends numbered records by the clock and takes them at the other end. Those sent in the ramp do not count."""

    source: str
    target: str
    topic: str
    partitions: int
    records_per_s: int
    ramp_s: float
    seconds: float
    deadline_s: float = _DEADLINE_S
    _seen: dict[int, int] = field(default_factory=dict)
    _latencies_ms: dict[int, float] = field(default_factory=dict)

    async def run(self) -> dict[str, Any]:
        copied = [TopicPartition(f"us.{self.topic}", index) for index in range(self.partitions)]
        async with (
            AIOKafkaProducer(bootstrap_servers=self.source, enable_idempotence=True) as producer,
            AIOKafkaConsumer(bootstrap_servers=self.target, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign(copied)
            async with Scope("read the target") as scope:
                scope.spawn(self._read(consumer), "read the target")
                count = await self._send(producer)
                until_s = time.monotonic() + self.deadline_s
                while len(self._seen) < count and time.monotonic() < until_s:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        if len(self._seen) < count:
            return {"error": f"{count - len(self._seen)} of {count} records did not arrive"}
        if twice := sum(times > 1 for times in self._seen.values()):
            return {"error": f"{twice} of {count} records arrived more than once"}
        first = int(self.ramp_s * self.records_per_s)
        return {"error": "", "found": shares([ms for number, ms in self._latencies_ms.items() if number >= first])}

    async def _send(self, producer: AIOKafkaProducer) -> int:
        began_s, sent = time.monotonic(), 0
        while (passed_s := time.monotonic() - began_s) < self.ramp_s + self.seconds:
            while sent < passed_s * self.records_per_s:
                value = _value(sent, time.monotonic_ns())
                await producer.send(self.topic, value, partition=sent % self.partitions)
                sent += 1
            await asyncio.sleep(_TICK_S)
        await producer.flush()
        return sent

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            taken = await consumer.getmany(timeout_ms=1000)
            now_ns = time.monotonic_ns()
            for record in (one for records in taken.values() for one in records):
                number, made_ns = map(int, (record.value or b"").split())
                if number >= 0:
                    self._seen[number] = self._seen.get(number, 0) + 1
                    self._latencies_ms.setdefault(number, (now_ns - made_ns) / 1e6)


def _value(number: int, made_ns: int) -> bytes:
    return (b"%d %d" % (number, made_ns)).ljust(_VALUE_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure latency once.")
    parser.add_argument("reported", help="what it is to do, as JSON")
    print(orjson.dumps(asyncio.run(Meter(**orjson.loads(parser.parse_args().reported)).run())).decode())


if __name__ == "__main__":
    main()
