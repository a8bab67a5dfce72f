"""How many internal records a flow writes for each mirrored one: many partitions, each with a few records a second."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaProducer

from connect.core.errors import RetriableError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit.clients import cluster_at
from tests.kit.mirror import Mirror, one_flow
from tests.kit.topics import make_topics

_GOAL_PERCENT: Final = 5.0
_TOPIC: Final = "measured"
_INTERNAL: Final = ("mm2-offsets.us.internal", "mm2-offset-map.us.internal")
_START_DEADLINE_S: Final = 600.0
_TICK_S: Final = 0.05


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="internal_records", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0, help="records a second for each partition")
    parser.add_argument("--tasks", type=int, default=2)
    options = parser.parse_args(arguments)
    with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu, tempfile.TemporaryDirectory() as folder:
        asyncio.run(make_topics(us.bootstrap, {_TOPIC: options.partitions}))
        properties = one_flow(us.bootstrap, eu.bootstrap, _TOPIC, tasks=options.tasks)
        with Mirror(properties, Path(folder)) as mirror:
            mirror.start()
            mirrored, internal = asyncio.run(_measure(options, us, eu))
            mirror.stop()
    written = sum(internal.values())
    percent = 100 * written / mirrored
    minutes = options.partitions * options.minutes
    print(f"{mirrored} records mirrored, {written} offsets in internal topics (markers included): {percent:.2f} %")
    for topic, count in internal.items():
        print(f"  {topic}: {count}, {count / minutes:.2f} a partition and minute")
    return 0 if percent <= _GOAL_PERCENT else 1


async def _measure(options: argparse.Namespace, us: KafkaCluster, eu: KafkaCluster) -> tuple[int, dict[str, int]]:
    """Count from when every partition is copied, so without what a start writes."""
    async with cluster_at(eu.bootstrap, "eu") as target:
        async with AIOKafkaProducer(bootstrap_servers=us.bootstrap) as producer:
            await _write(producer, options.partitions, options.partitions)
            deadline_s = time.monotonic() + _START_DEADLINE_S
            while await _count(target, f"us.{_TOPIC}") < options.partitions:
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the mirror has not begun")
                await asyncio.sleep(1)
            begun = {topic: await _count(target, topic) for topic in _INTERNAL}
            copied = await _count(target, f"us.{_TOPIC}")
            rate, began_s, sent = options.rate * options.partitions, time.monotonic(), 0
            while (passed_s := time.monotonic() - began_s) < options.minutes * 60:
                due = int(passed_s * rate)
                await _write(producer, due - sent, options.partitions, sent)
                sent = due
                await asyncio.sleep(_TICK_S)
            await producer.flush()
        internal = {topic: await _count(target, topic) - begun[topic] for topic in _INTERNAL}
        return await _count(target, f"us.{_TOPIC}") - copied, internal


async def _write(producer: AIOKafkaProducer, count: int, partitions: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await producer.send(_TOPIC, b"%d" % number, partition=number % partitions)


async def _count(cluster: Cluster, topic: str) -> int:
    """Offsets that were ever taken in a topic; 0 if it does not exist yet."""
    while True:
        known = (await cluster.metadata({topic})).topics.get(topic)
        if not known:
            return 0
        try:
            ends = await list_offsets(cluster, [(topic, index) for index in known.partitions], LATEST)
        except RetriableError:  # a topic that was created a moment ago has no leaders yet
            await asyncio.sleep(_TICK_S)
        else:
            return sum(ends.values())
