"""The offset map by brute force after kills under load, with aborts, markers, a cleaner, and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from connect.cli.commands.offsets import run_rebuild
from connectors.formats.types import TopicPartition
from connectors.offset_map.view_and_rebuild import MapQuery
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import stock_admin
from tests.kit.copies import read_all, write, write_transactions
from tests.kit.direct import Broker
from tests.kit.map_judge import Verdict, judge_map
from tests.kit.members import until
from tests.kit.mirror import Mirror, one_flow
from tests.kit.processes import gone, slices
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.kill, pytest.mark.long]

PLAIN: Final = "maze-plain"
TRANSACTIONS: Final = "maze-txn"
#: A plain topic whose remote topic is compacted, and one that is compacted at either side.
THINNED: Final = "maze-thinned"
BOTH: Final = "maze-both"
CUT: Final = "maze-cut"
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}


@pytest.mark.parametrize("eos", ["disabled", "enabled"])
async def test_it_names_the_same_record_after_crashes(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, eos: str
) -> None:
    alias = f"maze-{eos}"
    topics = {topic: f"{topic}-{eos}" for topic in (PLAIN, TRANSACTIONS, THINNED, BOTH, CUT)}
    await make_topics(us.bootstrap, {topics[PLAIN]: 2, topics[TRANSACTIONS]: 1, topics[THINNED]: 1, topics[CUT]: 1})
    await make_topics(us.bootstrap, {topics[BOTH]: 1}, _COMPACTED)
    await make_topics(eu.bootstrap, {f"{alias}.{topics[one]}": 1 for one in (THINNED, BOTH)}, _COMPACTED)
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, ", ".join(topics.values()), alias),
        "eu.exactly.once.source.support": eos,
        f"{alias}->eu.consumer.isolation.level": "read_committed",
        "copy.epoch.ms": "5000",
    }
    partitions = [TopicPartition(topics[PLAIN], 1), *(TopicPartition(topic, 0) for topic in topics.values())]

    async def load(times: int) -> None:
        for _ in range(times):
            await asyncio.gather(
                write(us, topics[PLAIN], 200),
                write_transactions(us, topics[TRANSACTIONS]),
                *(write(us, topics[one], 200, partitions=1) for one in (THINNED, BOTH, CUT)),
            )

    with Mirror(properties, tmp_path) as mirror:
        await load(1)
        mirror.start()
        await _arrives(us, eu, alias, topics[PLAIN])
        for blow in (_kill_a_slice, _kill_the_worker, _kill_a_slice):
            loading = asyncio.create_task(load(2))
            await blow(mirror, eu)
            await loading
            await _arrives(us, eu, alias, topics[PLAIN])
        await asyncio.to_thread(Broker(us, 0).delete_records, topics[CUT], 210)
        await asyncio.to_thread(Broker(eu, 0).delete_records, f"{alias}.{topics[CUT]}", 350)
        await until(lambda: _is_thinned(eu, f"{alias}.{topics[THINNED]}", lambda: load(1)), "the target was cleaned")
        verdicts: dict[TopicPartition, Verdict] = {}

        async def all_stored() -> bool:
            for partition in partitions:
                reported = verdicts[partition] = await judge_map(
                    us, eu, f"mm2-offset-map.{alias}.internal", partition, read_committed=True
                )
                if reported.not_copied_yet or not reported.same:
                    return False
            return True

        await until(all_stored, "all is copied and stored")
        assert {str(partition): reported.faults for partition, reported in verdicts.items() if reported.faults} == {}
        assert verdicts[TopicPartition(topics[THINNED], 0)].next_survivor > 300
        assert verdicts[TopicPartition(topics[CUT], 0)].next_survivor > 0
        assert mirror.stop() == 0
        mirror.assert_gone()


async def test_a_lost_map_is_rebuilt_by_the_command(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    """As after a take-over from Java: there are source offsets, and no map of what lies below them."""
    alias = "lost"
    topics = tuple(f"{alias}-{kind}" for kind in ("plain", "txn", "thinned"))
    map_topic = f"mm2-offset-map.{alias}.internal"
    await make_topics(us.bootstrap, dict.fromkeys(topics, 1))
    await make_topics(eu.bootstrap, {f"{alias}.{topics[2]}": 1}, _COMPACTED)
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, ", ".join(topics), alias),
        "tasks.max": "1",
        f"{alias}->eu.consumer.isolation.level": "read_committed",
    }

    async def load() -> None:
        await asyncio.gather(
            write(us, topics[0], 500, partitions=1),
            write_transactions(us, topics[1]),
            write(us, topics[2], 300, partitions=1),
        )

    async def judge() -> dict[str, Verdict]:
        found = {}
        for topic in topics:
            found[topic] = await judge_map(us, eu, map_topic, TopicPartition(topic, 0), read_committed=True)
            assert found[topic].not_copied_yet == 0
        return found

    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        await load()
        await _arrives(us, eu, alias, topics[0])
        await _arrives(us, eu, alias, topics[1])
        await until(lambda: _is_thinned(eu, f"{alias}.{topics[2]}", load), "the target was cleaned")
        await _arrives(us, eu, alias, topics[0])
        assert mirror.stop() == 0
        await asyncio.to_thread(_delete_topic, eu, map_topic)
        mirror.start()
        await load()
        await _arrives(us, eu, alias, topics[0])
        await _arrives(us, eu, alias, topics[1])
        assert mirror.stop() == 0
        lost = await judge()
        assert all(reported.below > 0 for reported in lost.values()), lost
        file = mirror.properties_file
        assert await asyncio.to_thread(run_rebuild, file, MapQuery(), flow=None, as_json=False) == 0
        mirror.start()
        await load()
        await _arrives(us, eu, alias, topics[0])
        await _arrives(us, eu, alias, topics[1])
        assert mirror.stop() == 0
        rebuilt = await judge()
        assert {topic: reported.faults for topic, reported in rebuilt.items()} == {topic: [] for topic in topics}
        # Below what the cleaner left of the copies nothing can be told, and nobody needs it.
        gone_first = (await read_all(eu.bootstrap, f"{alias}.{topics[2]}"))[0].offset
        assert [reported.below for reported in rebuilt.values()] == [0, 0, gone_first]


def _delete_topic(cluster: KafkaCluster, topic: str) -> None:
    with stock_admin(cluster.bootstrap) as admin:
        admin.delete_topics([topic])


async def _arrives(us: KafkaCluster, eu: KafkaCluster, alias: str, topic: str) -> None:
    wanted = len(await read_all(us.bootstrap, topic))

    async def is_there() -> bool:
        return len(await read_all(eu.bootstrap, f"{alias}.{topic}")) >= wanted

    await until(is_there, f"{topic} is mirrored")


async def _is_thinned(eu: KafkaCluster, topic: str, load: Callable[[], Awaitable[None]]) -> bool:
    """A segment is cleaned once a later write has closed it."""
    await load()
    there = await read_all(eu.bootstrap, topic)
    return bool(there[-1].offset - there[0].offset + 1 - len(there) > 500)


async def _kill_a_slice(mirror: Mirror, eu: KafkaCluster) -> None:
    ports = [int(address.rpartition(":")[2]) for address in eu.bootstrap.split(",")]
    found: Sequence = []

    async def is_there() -> bool:
        nonlocal found
        found = slices(mirror.pid, ports)
        return bool(found)

    await until(is_there, "a slice copies")
    found[0].process.kill()
    await until(lambda: asyncio.sleep(0, gone(found[:1])), "the slice is gone")


async def _kill_the_worker(mirror: Mirror, eu: KafkaCluster) -> None:
    await asyncio.to_thread(mirror.kill)
    mirror.start()
