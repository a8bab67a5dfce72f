"""How large the internal topics are after a week of busy partitions, cleaned or not, and how long a start takes."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from connect.core import status_and_offset_topics
from connect.kafka.cluster import Cluster
from connect.kafka.log.producer import OutRecord, partition_of
from connect.kafka.log.topic_admin import alter
from connectors.formats.position import (
    KeyKind,
    LastRun,
    Position,
    PositionKey,
    encode_position,
    encode_position_key,
    encode_progress,
    map_partition_key,
)
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import MapReader
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.positions.stored_positions import Commit
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_and_admin
from tests.kit.internal_rounds import Moment, write_rounds

_GOAL_BYTES: Final = 200 * 1024 * 1024
_GOAL_S: Final = 10.0
_CONNECTOR: Final = "MirrorSourceConnector"
_PROGRESS_A_MINUTE: Final = 5
_MINUTE_MS: Final = 60_000
_SETTLED_S: Final = 45.0
_LONGEST_WAIT_S: Final = 300.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="internal_week", description=__doc__)
    parser.add_argument("--hours", type=float, default=7 * 24.0)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--uncleaned", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, KafkaCluster.start("eu", base_dir=Path(folder)) as eu:
        return asyncio.run(_measure(options, eu, Path(folder)))


async def _measure(options: argparse.Namespace, eu: KafkaCluster, folder: Path) -> int:
    settings = StoreSettings(
        _CONNECTOR, "us", "mm2-offsets.us.internal", "mm2-offset-map.us.internal", "measure-commit", 1
    )
    positions = [_position(index) for index in range(options.partitions)]
    sources = [TopicPartition(one.source_topic, one.source_partition) for one in positions]
    async with cluster_and_admin(eu.bootstrap, "eu") as (cluster, admin):
        store = MirrorPositionStore(cluster, admin, settings)
        await store.load(sources)
        await store.commit([Commit(one, [(0, 0, one.target_end)]) for one in positions])
        if options.uncleaned:
            kafkas = {"segment.bytes": "1073741824", "segment.ms": "604800000", "min.cleanable.dirty.ratio": "0.5"}
            await alter(cluster, {topic: {**kafkas, "max.compaction.lag.ms": None} for topic in _topics(settings)})
        minutes = int(options.hours * 60)
        began_s = time.monotonic()
        moments = [await _placed(cluster, moment) for moment in _minute(settings, positions)]
        written = await write_rounds(cluster, moments, minutes, _MINUTE_MS)
        print(f"{written} records of {options.hours:g} hours written in {time.monotonic() - began_s:.0f} s", flush=True)
        size = await _settled(folder)
        print(f"internal topics: {size / 1024**2:.1f} MiB (goal: at most {_GOAL_BYTES // 1024**2})", flush=True)
        turns = Turns()
        cold_s = time.monotonic()
        starts = await MirrorPositionStore(cluster, admin, settings).load(sources)
        store_s = time.monotonic() - cold_s
        reader = MapReader(cluster, settings.map_topic, connector=_CONNECTOR)
        cold_s = time.monotonic()
        await reader.follow()
        reader_s = time.monotonic() - cold_s
        turns.end()
        print(f"cold read: a task {store_s:.1f} s, a reader of the map {reader_s:.1f} s")
        print(f"others on the loop waited {turns.longest_s * 1000:.0f} ms at most")
        whole = not any(start.moved or start.position is None for start in starts.values())
        whole = whole and all(reader.position(source) is not None for source in sources)
        print(f"every position is found: {whole}")
        if options.uncleaned:
            return 0 if whole else 1
        return 0 if whole and size <= _GOAL_BYTES and max(store_s, reader_s) <= _GOAL_S else 1


class Turns:
    """How long others on the loop wait for their turn."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._look(), name="turns of the loop")

    def end(self) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            await asyncio.sleep(0.005)


def _topics(settings: StoreSettings) -> tuple[str, str]:
    return settings.offsets_topic, settings.map_topic


def _position(index: int) -> Position:
    topic, partition = f"busy-{index // 10:03d}", index % 10
    ids = uuid4(), uuid4()
    at = 1_000_000
    return Position(
        topic, partition, ids[0], at, 3, f"us.{topic}", partition, ids[1], at, f"g-{_CONNECTOR}-{index % 10}", 7, 1, at
    )


def _minute(settings: StoreSettings, positions: Sequence[Position]) -> list[list[OutRecord]]:
    """The records of a minute, by the moment at which they are written."""
    moments: list[list[OutRecord]] = [[] for _ in range(_PROGRESS_A_MINUTE + 1)]
    for position in positions:
        topic, partition = position.source_topic, position.source_partition
        key, place = PositionKey(_CONNECTOR, topic, partition), map_partition_key(topic, partition)
        for moment in range(_PROGRESS_A_MINUTE):
            later = replace(position, next_source_offset=position.next_source_offset + 10 * (moment + 1))
            value = encode_progress(later, LastRun(0, later.next_source_offset))
            moments[moment].append(
                OutRecord(settings.map_topic, encode_position_key(key, KeyKind.PROGRESS), value, place)
            )
        java = status_and_offset_topics.mirror_key(_CONNECTOR, "us", topic, partition)
        last = status_and_offset_topics.mirror_value(position.next_source_offset - 1)
        moments[-1].append(OutRecord(settings.offsets_topic, java, last))
        moments[-1].append(OutRecord(settings.map_topic, encode_position_key(key), encode_position(position), place))
    return moments


async def _placed(cluster: Cluster, records: Sequence[OutRecord]) -> Moment:
    counts = {name: len(one.partitions) for name, one in (await cluster.topics(_names(records))).topics.items()}
    placed: dict[tuple[str, int], list[OutRecord]] = {}
    for record in records:
        place = record.topic, partition_of(record.partition_key or record.key, counts[record.topic])
        placed.setdefault(place, []).append(record)
    return placed


def _names(records: Sequence[OutRecord]) -> set[str]:
    return {record.topic for record in records}


async def _settled(folder: Path) -> int:
    """Bytes of the topics' segments once the cleaner has come to rest."""
    until_s = time.monotonic() + _LONGEST_WAIT_S
    size, since_s = -1, time.monotonic()
    while time.monotonic() < min(since_s + _SETTLED_S, until_s):
        await asyncio.sleep(2)
        now = await asyncio.to_thread(_size, folder)
        if now != size:
            size, since_s = now, time.monotonic()
    return size


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("mm2-off*/*.log") if file.exists())
