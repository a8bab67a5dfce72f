"""A lost offset map is rebuilt by the command, and judged by brute force with aborts, markers and a cleaner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from connect.cli.commands.offsets import run_rebuild
from connectors.formats.types import TopicPartition
from connectors.offset_map.view_and_rebuild import MapQuery
from tests.kit.brokers import KafkaCluster
from tests.kit.copies import read_all, until_records, write, write_transactions
from tests.kit.direct import Broker
from tests.kit.map_judge import Verdict, judge_map
from tests.kit.members import until
from tests.kit.mirror import Mirror, one_flow
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.kill, pytest.mark.long]

_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}


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

    async def arrives(topic: str) -> None:
        wanted = len(await read_all(us.bootstrap, topic))
        await until_records(mirror, eu.bootstrap, f"{alias}.{topic}", wanted)

    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        await load()
        await arrives(topics[0])
        await arrives(topics[1])
        await until(lambda: _is_thinned(eu, f"{alias}.{topics[2]}", load), "the target was cleaned")
        await arrives(topics[0])
        assert mirror.stop() == 0
        await asyncio.to_thread(Broker(eu, 0).delete_topic, map_topic)
        mirror.start()
        await load()
        await arrives(topics[0])
        await arrives(topics[1])
        assert mirror.stop() == 0
        lost = await judge()
        assert all(reported.below > 0 for reported in lost.values()), lost
        file = mirror.properties_file
        assert await asyncio.to_thread(run_rebuild, file, MapQuery(), flow=None, as_json=False) == 0
        mirror.start()
        await load()
        await arrives(topics[0])
        await arrives(topics[1])
        assert mirror.stop() == 0
        rebuilt = await judge()
        assert {topic: reported.faults for topic, reported in rebuilt.items()} == {topic: [] for topic in topics}
        # Below what the cleaner left of the copies nothing can be told, and nobody needs it.
        gone_first = (await read_all(eu.bootstrap, f"{alias}.{topics[2]}"))[0].offset
        assert [reported.below for reported in rebuilt.values()] == [0, 0, gone_first]


async def _is_thinned(eu: KafkaCluster, topic: str, load: Callable[[], Awaitable[None]]) -> bool:
    """A segment is cleaned once a later write has closed it."""
    await load()
    there = await read_all(eu.bootstrap, topic)
    return bool(there[-1].offset - there[0].offset + 1 - len(there) > 500)
