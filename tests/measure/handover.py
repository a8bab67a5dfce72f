"""How long a change of epochs holds records up: producer-to-consumer latency with epochs of a few seconds."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Partition

from connect.embedded.brokers import KafkaCluster
from tests.kit.mirror import Mirror, one_flow
from tests.kit.topics import make_topics

_START_DEADLINE_S = 600.0
_TICK_S = 0.01


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="handover", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--epoch-ms", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=2000, help="records a second")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--new-topics", type=int, default=0, help="topics to make meanwhile, evenly")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--command", nargs="*", default=[""], help="commands to compare; empty for this version's")
    options = parser.parse_args(arguments)
    with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu:
        found = [_run(options, us, eu, command) for command in options.command]
    return 0 if all(found) else 1


def _run(options: argparse.Namespace, us: KafkaCluster, eu: KafkaCluster, command: str) -> bool:
    prefix = f"handover{time.time_ns()}"
    topics = [f"{prefix}-{index}" for index in range(options.topics)]
    asyncio.run(make_topics(us.bootstrap, dict.fromkeys(topics, options.partitions)))
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, f"{prefix}-.*", tasks=1),
        "copy.epoch.ms": str(options.epoch_ms),
        "refresh.look.interval.ms": "1000",
        "spark.master": f"local[{options.slots},4]",
    }
    with tempfile.TemporaryDirectory() as folder:
        mirror = Mirror(properties, Path(folder), [command] if command else ())
        with mirror:
            mirror.start()
            partitions = [Partition(topic, index) for topic in topics for index in range(options.partitions)]
            latencies_ms, exact = asyncio.run(_measure(options, us, eu, partitions))
            mirror.stop()
            unclean = [line for line in mirror.log_lines() if "taking over again" in line]
            joined = sum(" as well" in line for line in mirror.log_lines())
    latencies_ms.sort()
    at = {name: latencies_ms[int(len(latencies_ms) * share)] for name, share in _SHARES.items()}
    figures = ", ".join(f"{name} {value:.1f} ms" for name, value in at.items())
    print(f"{command or 'this version'}: {len(latencies_ms)} records: {figures}, max {latencies_ms[-1]:.0f} ms")
    print(
        f"  exact: {exact}; take-overs after a loss: {len(unclean)}; times that partitions joined: {joined}", flush=True
    )
    for line in unclean:
        print(f"  {line}", flush=True)
    return exact and not unclean


_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


async def _measure(
    options: argparse.Namespace, us: KafkaCluster, eu: KafkaCluster, partitions: Sequence[Partition]
) -> tuple[list[float], bool]:
    """Latencies in ms, and whether every number came once and in order."""
    copied: dict[Partition, list[int]] = {}
    latencies: list[float] = []
    written = dict.fromkeys(partitions, 0)
    remote = {Partition(f"us.{one.topic}", one.partition): one for one in partitions}
    async with (
        AIOKafkaProducer(bootstrap_servers=us.bootstrap, enable_idempotence=True) as producer,
        AIOKafkaConsumer(bootstrap_servers=eu.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(list(remote))
        reading = asyncio.create_task(_read(consumer, remote, copied, latencies))
        for partition in partitions:
            await producer.send(partition.topic, b"0 0", partition=partition.partition)
            written[partition] = 1
        async with asyncio.timeout(_START_DEADLINE_S):
            while len(copied) < len(partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        latencies.clear()
        changing = asyncio.create_task(_make_topics(options, us, partitions[0].topic))
        began_s, sent = time.monotonic(), 0
        while (passed_s := time.monotonic() - began_s) < options.seconds:
            while sent < passed_s * options.rate:
                partition = partitions[sent % len(partitions)]
                value = b"%d %d" % (written[partition], time.time_ns())
                written[partition] += 1
                sent += 1
                await producer.send(partition.topic, value, partition=partition.partition)
            await asyncio.sleep(_TICK_S)
        await changing
        await producer.flush()
        deadline_s = time.monotonic() + _START_DEADLINE_S
        while sum(map(len, copied.values())) < sum(written.values()) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        reading.cancel()
    return latencies, all(copied[one] == list(range(count)) for one, count in written.items())


async def _make_topics(options: argparse.Namespace, us: KafkaCluster, like: str) -> None:
    for index in range(options.new_topics):
        await asyncio.sleep(options.seconds / (options.new_topics + 1))
        await make_topics(us.bootstrap, {f"{like}-new{index}": 1})


async def _read(
    consumer: AIOKafkaConsumer,
    remote: dict[Partition, Partition],
    copied: dict[Partition, list[int]],
    latencies: list[float],
) -> None:
    while True:
        for partition, records in (await consumer.getmany(timeout_ms=50)).items():
            now_ns = time.time_ns()
            for record in records:
                number, made_ns = map(int, (record.value or b"").split())
                copied.setdefault(remote[partition], []).append(number)
                if made_ns:
                    latencies.append((now_ns - made_ns) / 1e6)
