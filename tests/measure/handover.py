"""How long a change of epochs holds records up: producer-to-consumer latency with epochs of a few seconds."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.latency import Meter
from connect.embedded.brokers import KafkaCluster
from tests.kit.copies import await_records, send
from tests.kit.mirror import Mirror, one_flow
from tests.kit.topics import make_topics

_START_DEADLINE_S: Final = 600.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="handover", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--epoch-ms", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=2000, help="records a second")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--new-topics", type=int, default=0, help="topics to make meanwhile, evenly")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--command", nargs="*", default=[""], help="commands to compare; empty for this version's")
    options = parser.parse_args(arguments)
    with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu:
        found = [_run(options, us, eu, command) for command in options.command]
    return 0 if all(found) else 1


def _run(options: argparse.Namespace, us: KafkaCluster, eu: KafkaCluster, command: str) -> bool:
    topic = f"handover{time.time_ns()}"
    asyncio.run(make_topics(us.bootstrap, {topic: options.partitions}))
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, f"{topic}.*", tasks=1),
        "copy.epoch.ms": str(options.epoch_ms),
        "refresh.look.interval.ms": "1000",
        "spark.master": f"local[{options.slots},4]",
    }
    with tempfile.TemporaryDirectory() as folder:
        mirror = Mirror(properties, Path(folder), [command] if command else ())
        with mirror:
            mirror.start()
            # Once a record of each partition has arrived, all are copied; the meter passes over negative numbers.
            each = range(options.partitions)
            asyncio.run(send(us.bootstrap, topic, (b"-1 0" for _ in each), each))
            await_records(mirror, eu.bootstrap, f"us.{topic}", options.partitions, _START_DEADLINE_S)
            said = asyncio.run(_measured(options, us, eu, topic))
            mirror.stop()
            unclean = [line for line in mirror.log_lines() if "taking over again" in line]
            joined = sum(" as well" in line for line in mirror.log_lines())
    print(f"{command or 'this version'}: {said['error'] or said['found']}")
    print(f"  take-overs after a loss: {len(unclean)}; times that partitions joined: {joined}", flush=True)
    for line in unclean:
        print(f"  {line}", flush=True)
    return not said["error"] and not unclean


async def _measured(options: argparse.Namespace, us: KafkaCluster, eu: KafkaCluster, topic: str) -> dict[str, Any]:
    """Latencies in ms, or an ``error`` if not every record came once."""
    meter = Meter(
        us.bootstrap, eu.bootstrap, topic, options.partitions, options.rate, ramp_s=0.0, seconds=options.seconds
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(_make_topics(options, us, topic), name="new topics")
        return await meter.run()


async def _make_topics(options: argparse.Namespace, us: KafkaCluster, like: str) -> None:
    for index in range(options.new_topics):
        await asyncio.sleep(options.seconds / (options.new_topics + 1))
        await make_topics(us.bootstrap, {f"{like}-new{index}": 1})
