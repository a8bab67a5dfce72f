"""Java reads our offset syncs as its own, our store translates as Java's, and our map is at least as close."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer

from connect.embedded.brokers import QUICK_JVM
from connectors.checkpoint.offset_translation import OffsetSyncStore
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import OffsetLocation
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.copies import read_all, send
from tests.kit.java_program import JavaMirrorMaker, judged
from tests.kit.mirror import CALM, Mirror, one_flow
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

_DEADLINE_S: Final = 300.0
_JUDGE: Final = Path(__file__).with_name("OffsetSyncJudge.java")
_LAG_MAX: Final = 100
_HALF: Final = 3000
_TRANSACTIONS, _EACH = 40, 25

Syncs = Sequence[OffsetSync]


def test_our_store_translates_as_javas() -> None:
    """Random histories, with steps back, and the beginning read with and without regard to older syncs."""
    seeded = random.Random(11)
    script: list[str] = []
    expected: list[str] = []
    for _ in range(60):
        only_last = seeded.random() < 0.3
        store = OffsetSyncStore(only_last=only_last)
        script.append(f"new {str(only_last).lower()}")
        upstream = downstream = seeded.choice((0, 5, 10**9))
        syncs = []
        for _ in range(seeded.randint(1, 150)):
            upstream = max(upstream + seeded.choice((0, 1, 3, 101, 101, 5000, -400)), 0)
            downstream += seeded.choice((1, 101, 250))
            syncs.append(OffsetSync("orders", 3, upstream, downstream))
        ends_at = seeded.randrange(len(syncs) + 1)
        for at, sync in enumerate([*syncs, None]):
            if at == ends_at:
                store.read_to_end()
                script.append("end")
            if sync is not None:
                store.take(sync)
                script.append(_reported(sync))
        for offset in sorted({seeded.randrange(upstream + 300) for _ in range(100)}):
            script.append(f"ask orders 3 {offset}")
            expected.append(_javas(store.translate(TopicPartition("orders", 3), offset)))
    assert _judge(script) == expected


@pytest.mark.long
def test_java_translates_by_ours_as_by_its_own(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    name = uuid.uuid4().hex[:6]
    plain, gaps = f"plain-{name}", f"gaps-{name}"
    java, ours = f"java{name}", f"ours{name}"
    asyncio.run(make_topics(us.bootstrap, {plain: 1, gaps: 1}))
    asyncio.run(_write(us, plain, gaps))
    ends = {plain: 2 * _HALF - 1, gaps: 2 * _TRANSACTIONS * (_EACH + 1) - 2}
    with (
        JavaMirrorMaker(
            _properties(us, eu, java, name), tmp_path / "java.log", heap="512m", jvm_options=QUICK_JVM
        ) as mm2,
        Mirror(_properties(us, eu, ours, name), tmp_path) as mirror,
    ):
        mirror.start()
        halves = {source: (end - 1) // 2 for source, end in ends.items()}
        _await_syncs(eu, ours, halves, lambda: mirror.is_running)
        _await_syncs(eu, java, halves, lambda: mm2.is_running)
        asyncio.run(_write(us, plain, gaps))
        by_ours = _await_syncs(eu, ours, ends, lambda: mirror.is_running)
        by_java = _await_syncs(eu, java, ends, lambda: mm2.is_running)
        assert mirror.stop() == 0
        mm2.stop()
    by_map = asyncio.run(_mapped(eu, ours, ends))
    for source, end in ends.items():
        true_java, true_ours = _judged(by_java, source, end), _judged(by_ours, source, end)
        assert true_ours == _translated(by_ours, source, end), "Java's class and ours agree on what ours wrote"
        assert all(mine >= 0 for own, mine in zip(true_java, true_ours, strict=True) if own >= 0)
        # Exact at the end, and never too far.
        assert true_ours[-2:] == true_java[-2:] == [_exact(source, offset) for offset in (end, end + 1)]
        for offset, mine in enumerate(true_ours):
            assert mine <= _exact(source, offset), (offset, mine)
        worse = sum(mine < own for own, mine in zip(true_java, true_ours, strict=True))
        better = sum(mine > own for own, mine in zip(true_java, true_ours, strict=True))
        print(f"{source}: of {end + 2} offsets ours translates {better} closer and {worse} farther than Java")
        assert by_map[source] == [_exact(source, offset) for offset in range(end + 2)]
        assert all(mapped >= own for own, mapped in zip(true_java, by_map[source], strict=True))
        # Which old syncs a store keeps depends on when commits fell, so single old offsets differ either way.
        assert sum(true_ours) >= 0.95 * sum(true_java)


def _properties(us: KafkaCluster, eu: KafkaCluster, alias: str, name: str) -> Mapping[str, str]:
    return {
        **one_flow(us.bootstrap, eu.bootstrap, f".*-{name}", alias, tasks=1),
        "offset-syncs.topic.location": "target",
        "offset.lag.max": str(_LAG_MAX),
        "eu.offset.flush.interval.ms": "2000",
        **CALM,
        f"{alias}.consumer.isolation.level": "read_committed",
    }


async def _write(us: KafkaCluster, plain: str, gaps: str) -> None:
    await send(us.bootstrap, plain, (b"%d" % number for number in range(_HALF)))
    async with AIOKafkaProducer(bootstrap_servers=us.bootstrap, transactional_id=gaps) as producer:
        for number in range(_TRANSACTIONS):
            async with producer.transaction():
                for part in range(_EACH):
                    await producer.send(gaps, b"%d %d" % (number, part))


def _await_syncs(eu: KafkaCluster, alias: str, ends: Mapping[str, int], runs: Callable[[], bool]) -> Syncs:
    topic = f"mm2-offset-syncs.{alias}.internal"

    def found() -> Syncs:
        assert runs()
        records = asyncio.run(read_all(eu.bootstrap, topic))
        syncs = [OffsetSync.decode(record.key, record.value) for record in records]
        last = {sync.topic: sync.upstream_offset for sync in syncs}
        return syncs if all(last.get(source, -1) >= end for source, end in ends.items()) else []

    return wait_until(found, _DEADLINE_S, f"{topic} has syncs up to {ends}")


async def _mapped(eu: KafkaCluster, alias: str, ends: Mapping[str, int]) -> dict[str, list[int]]:
    """Where a group goes on by the map, for each offset up to behind the end."""
    found: dict[str, list[int]] = {}
    async with cluster_at(eu.bootstrap, "eu") as cluster:
        reader = MapReader(cluster, f"mm2-offset-map.{alias}.internal")
        await reader.follow()
        for source, end in ends.items():
            pair = reader.current(TopicPartition(source, 0))
            assert pair is not None, f"{source} has a map"
            places = [await reader.forward(pair, offset) for offset in range(end + 2)]
            assert {one.place for one in places if one is not None} <= {OffsetLocation.INSIDE, OffsetLocation.GAP}
            found[source] = [one.offset for one in places if one is not None]
    return found


def _exact(source: str, offset: int) -> int:
    """Where the next record lies in the copy: each transaction left a marker at the source only."""
    return offset - offset // (_EACH + 1) if source.startswith("gaps") else offset


def _translated(syncs: Syncs, source: str, end: int) -> list[int]:
    store = OffsetSyncStore(only_last=False)
    for sync in syncs:
        store.take(sync)
    store.read_to_end()
    found = [store.translate(TopicPartition(source, 0), offset) for offset in range(end + 2)]
    return [-2 if one is None else one for one in found]


def _judged(syncs: Syncs, source: str, end: int) -> list[int]:
    asks = [f"ask {source} 0 {offset}" for offset in range(end + 2)]
    answers = _judge(["new false", *map(_reported, syncs), "end", *asks])
    return [int(answer.removeprefix("OptionalLong[").removesuffix("]")) for answer in answers]


def _reported(sync: OffsetSync) -> str:
    return f"sync {sync.key().hex()} {sync.value().hex()}"


def _javas(translated: int | None) -> str:
    return "OptionalLong.empty" if translated is None else f"OptionalLong[{translated}]"


def _judge(script: Sequence[str]) -> list[str]:
    """What Java's store answers to ``ask``, one line each."""
    return [line for line in judged(_JUDGE, script) if line.startswith("OptionalLong")]
