"""Copying by key through a throttled, delayed path and a kill: keys keep order, and only a crash doubles records."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from connect.kafka.log.producer import partition_of
from tests.kit.brokers import KafkaCluster
from tests.kit.maker_1 import maker_1, stored
from tests.kit.mirror import Mirror
from tests.kit.pipe import Direction
from tests.kit.proxy import FaultProxy, put_before
from tests.kit.topics import make_topics

_TOPIC: Final = "by-key"
_GROUP: Final = "by-key-group"
_FROM, _INTO = 3, 2
_KEYS: Final = 20_000
_BATCH_RECORDS: Final = 2_000
_DEADLINE_S: Final = 3_600.0


class Judge:
    """Counts what arrived. A record's value begins with its number, from which its key follows."""

    def __init__(self, records: int) -> None:
        self.times = bytearray(records)
        self._found: list[array[int]] = [array("q") for _ in range(_INTO)]
        self.misplaced = 0

    @property
    def missing(self) -> int:
        return self.times.count(0)

    @property
    def extra(self) -> int:
        return sum(self.times) - (len(self.times) - self.missing)

    def take(self, partition: int, value: bytes) -> None:
        number = int(value.partition(b" ")[0])
        self.misplaced += partition_of(_key(number), _INTO) != partition
        self.times[number] = min(self.times[number] + 1, 255)
        self._found[partition].append(number)

    def out_of_order(self) -> int:
        """Count records whose last copy is followed by an older record of their key."""
        count = 0
        for found in self._found:
            oldest: dict[int, int] = {}
            seen = bytearray(len(self.times))
            for number in reversed(found):
                if not seen[number]:
                    seen[number] = 1
                    count += number > oldest.get(number % _KEYS, number)
                    oldest[number % _KEYS] = number
        return count


def _key(number: int) -> bytes:
    return b"key-%d" % (number % _KEYS)


async def _write(bootstrap: str, numbers: range, chance: random.Random) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=500_000) as to:
        for first in range(numbers.start, numbers.stop, _FROM * _BATCH_RECORDS):
            batches = [to.create_batch() for _ in range(_FROM)]
            for number in range(first, min(first + _FROM * _BATCH_RECORDS, numbers.stop)):
                value = b"%d " % number + bytes(chance.randint(20, 100))
                batches[number % _KEYS % _FROM].append(timestamp=None, key=_key(number), value=value)
            sent = [await to.send_batch(batch, _TOPIC, partition=index) for index, batch in enumerate(batches)]
            await asyncio.gather(*sent)


async def _judged(bootstrap: str, records: int) -> Judge:
    judge = Judge(records)
    partitions = [TopicPartition(_TOPIC, index) for index in range(_INTO)]
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, max_partition_fetch_bytes=4 << 20) as consumer:
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for one, found in (await consumer.getmany(timeout_ms=500)).items():
                for record in found:
                    judge.take(one.partition, record.value or b"")
    return judge


async def _until(bootstrap: str, count: int, maker: Mirror) -> float:
    end_s = time.monotonic() + _DEADLINE_S
    while True:
        assert maker.is_running, maker.log_lines()[-20:]
        assert time.monotonic() < end_s, maker.log_lines()[-20:]
        if sum(one.offset for one in (await stored(bootstrap, _GROUP)).values()) >= count:
            return time.monotonic()
        await asyncio.sleep(0.5)


async def _run(options: argparse.Namespace, exits: ExitStack) -> bool:
    proxies: list[FaultProxy] = []
    us = exits.enter_context(KafkaCluster.start("us"))
    eu = exits.enter_context(KafkaCluster.start("eu", advertised=put_before(exits, proxies, options.seed)))
    folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="by-key-")))
    half, chance = options.records // 2, random.Random(options.seed)
    await make_topics(us.bootstrap, {_TOPIC: _FROM})
    await make_topics(eu.bootstrap, {_TOPIC: _INTO})
    await _write(us.bootstrap, range(half), chance)
    for direction in Direction:
        proxies[0].delay(direction, options.delay_ms)
    proxies[0].limit(Direction.REQUESTS, options.mb_per_s * 1e6)
    maker = exits.enter_context(maker_1(folder, us.bootstrap, eu.proxied_bootstrap, _GROUP, "--include", _TOPIC))
    maker.start()
    began_s = await _until(us.bootstrap, 1, maker)
    took_s = await _until(us.bootstrap, half, maker) - began_s
    print(f"clean half: {half} records in {took_s:.1f} s, {half / took_s:.0f} records/s", flush=True)
    assert proxies[0].passed_bytes(Direction.REQUESTS) > half, "the copy goes through the proxy"
    good = _reported("clean half", await _judged(eu.bootstrap, half), exact=True)
    await _write(us.bootstrap, range(half, 2 * half), chance)
    await _until(us.bootstrap, half + half // 3, maker)
    maker.kill()
    print("killed", flush=True)
    maker.start()
    await _until(us.bootstrap, 2 * half, maker)
    assert await asyncio.to_thread(maker.stop) == 0, maker.log_lines()[-20:]
    return _reported("all, one crash", await _judged(eu.bootstrap, 2 * half), exact=False) and good


def _reported(what: str, judge: Judge, *, exact: bool) -> bool:
    figures = {
        "lost": judge.missing,
        "at another partition than its key's": judge.misplaced,
        "out of order": judge.out_of_order(),
        "copied twice": judge.extra,
    }
    print(f"{what}: " + ", ".join(f"{count} {name}" for name, count in figures.items()), flush=True)
    if not exact:
        del figures["copied twice"]
    return not any(figures.values())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="by_key", description=__doc__)
    option: Callable[..., object] = parser.add_argument
    option("--records", type=int, default=2_000_000)
    option("--delay-ms", type=float, default=20.0, help="of each direction of the path to the target")
    option("--mb-per-s", type=float, default=8.0, help="of each connection to the target")
    option("--seed", type=int, default=7)
    with ExitStack() as exits:
        return 0 if asyncio.run(_run(parser.parse_args(arguments), exits)) else 1
