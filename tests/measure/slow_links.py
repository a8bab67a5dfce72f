"""How much of a slow link (``--rates``, MB/s) a backlog uses. Goal: 90 %, and no unclean change of epochs."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Partition

from tests.kit.brokers import KafkaCluster
from tests.kit.mirror import Mirror, one_flow
from tests.kit.pipe import Direction
from tests.kit.proxy import FaultProxy, put_before
from tests.kit.topics import make_topics

_GOAL: Final = 0.9
_PARTITIONS: Final = 4
_RECORD_BYTES: Final = 1000
#: With what Kafka adds to a record.
_WIRE_BYTES: Final = _RECORD_BYTES + 10
_START_DEADLINE_S: Final = 600.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="slow_links", description=__doc__)
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[0.1, 0.5, 2.0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--epoch-ms", type=int, default=30_000)
    parser.add_argument("--sides", nargs="*", choices=["target", "source"], default=["target", "source"])
    parser.add_argument("--command", default="", help="another version's connect-mirror-maker")
    options = parser.parse_args(arguments)
    found = [_run(options, side, rate) for side in options.sides for rate in options.rates]
    return 0 if all(found) else 1


def _run(options: argparse.Namespace, side: str, rate_mb: float) -> bool:
    proxies: list[FaultProxy] = []
    rate = rate_mb * 1e6
    seconds = options.minutes * 60
    with ExitStack() as exits:
        advertised = put_before(exits, proxies)
        us = exits.enter_context(KafkaCluster.start("us", advertised=advertised if side == "source" else None))
        eu = exits.enter_context(KafkaCluster.start("eu", advertised=advertised if side == "target" else None))
        asyncio.run(make_topics(us.bootstrap, {"backlog": _PARTITIONS}))
        asyncio.run(_fill(us, int(rate * (seconds + 60) / _WIRE_BYTES)))
        for direction in Direction:
            proxies[0].limit(direction, rate)
        source = us.proxied_bootstrap if side == "source" else us.bootstrap
        target = eu.proxied_bootstrap if side == "target" else eu.bootstrap
        properties = {**one_flow(source, target, "backlog", tasks=1), "copy.epoch.ms": str(options.epoch_ms)}
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        mirror = exits.enter_context(Mirror(properties, folder, [options.command] if options.command else ()))
        mirror.start()
        used = asyncio.run(_used(eu, seconds)) / rate
        unclean = [line for line in mirror.log_lines() if "taking over again" in line]
        mirror.kill()
    print(f"{side} at {rate_mb:g} MB/s: {used:.1%} of the link, {len(unclean)} unclean changes of epochs", flush=True)
    for line in unclean[:5]:
        print(f"  {line}", flush=True)
    return used >= _GOAL and not unclean


async def _fill(us: KafkaCluster, records: int) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=us.bootstrap, linger_ms=20, max_batch_size=64 * 1024, enable_idempotence=True
    ) as producer:
        for number in range(records):
            await producer.send("backlog", os.urandom(_RECORD_BYTES), partition=number % _PARTITIONS)
        await producer.flush()


async def _used(eu: KafkaCluster, seconds: float) -> float:
    """Bytes of records a second that reached the target, from the first ones on."""
    partitions = [Partition("us.backlog", index) for index in range(_PARTITIONS)]
    async with AIOKafkaConsumer(bootstrap_servers=eu.bootstrap) as consumer:

        async def copied() -> int:
            ends = await consumer.end_offsets(partitions)
            return sum(ends.values())

        async with asyncio.timeout(_START_DEADLINE_S):
            while "us.backlog" not in await consumer.topics() or not await copied():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        began_s, first = time.monotonic(), await copied()
        await asyncio.sleep(seconds)
        return (await copied() - first) * _WIRE_BYTES / (time.monotonic() - began_s)
