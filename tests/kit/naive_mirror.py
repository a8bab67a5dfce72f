"""A mirror that is wrong on purpose, and survives plain kills: it trusts the target's end to tell what has arrived."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import javaproperties
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.kit.topics import make_topics

_DAEMON: Final = "pyspark.daemon"
_PR_SET_PDEATHSIG: Final = 1
_RESTART_S: Final = 1.0
#: A busy broker has done what a killed copier had sent it once nothing has come for so long.
_STILL_S: Final = 2.0
_POLL_S: Final = 0.1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep_running(command: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        with subprocess.Popen(command) as child:
            try:
                child.wait()
            finally:
                child.kill()
        time.sleep(_RESTART_S)


async def _copy(settings: dict[str, str]) -> None:
    topics = [topic.strip() for topic in settings["us->eu.topics"].split(",")]
    source = AIOKafkaConsumer(bootstrap_servers=settings["us.bootstrap.servers"], enable_auto_commit=False)
    target = AIOKafkaConsumer(bootstrap_servers=settings["eu.bootstrap.servers"], enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=settings["eu.bootstrap.servers"], linger_ms=20)
    async with source, target, producer:
        known = await source._client.fetch_all_metadata()
        counts = {topic: len(known.partitions_for_topic(topic)) for topic in topics}
        if f"us.{topics[0]}" not in await target.topics():
            mirrored_counts = {f"us.{topic}": count for topic, count in counts.items()}
            await make_topics(settings["eu.bootstrap.servers"], mirrored_counts)
        partitions = [TopicPartition(topic, index) for topic, count in counts.items() for index in range(count)]
        source.assign(partitions)
        mirrored = [TopicPartition(f"us.{partition.topic}", partition.partition) for partition in partitions]
        ends = await _settled_ends(target, mirrored)
        for partition, copy in zip(partitions, mirrored, strict=True):
            end = ends[copy]
            source.seek(partition, end)
            print(f"resumed us->eu {partition.topic}-{partition.partition}: surplus=1 trusted end={end}", flush=True)
        while True:
            await _forward(await source.getmany(timeout_ms=200, max_records=2000), producer)


async def _settled_ends(target: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    ends, since_s = dict[TopicPartition, int](), time.monotonic()
    while time.monotonic() < since_s + _STILL_S:
        if (now := await target.end_offsets(partitions)) != ends:
            ends, since_s = now, time.monotonic()
        await asyncio.sleep(_POLL_S)
    return ends


async def _forward(fetched: dict[Any, list[Any]], producer: Any) -> None:
    sent = [
        await producer.send(
            f"us.{record.topic}", record.value, record.key, record.partition, record.timestamp, list(record.headers)
        )
        for records in fetched.values()
        for record in records
    ]
    await asyncio.gather(*sent)


def main() -> None:
    """``naive_mirror FILE``: the worker; with the daemon's name in between: the daemon; with ``copy``: the copier."""
    if len(sys.argv) > 2:
        _die_with_parent()
    file = sys.argv[-1]
    match sys.argv[1:-1]:
        case []:
            _keep_running([sys.executable, "-m", "tests.kit.naive_mirror", _DAEMON, file])
        case ["pyspark.daemon"]:
            _keep_running([sys.executable, "-m", "tests.kit.naive_mirror", _DAEMON, "copy", file])
        case _:
            asyncio.run(_copy(javaproperties.loads(Path(file).read_text())))


if __name__ == "__main__":
    main()
