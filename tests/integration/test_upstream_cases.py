"""Cases of Kafka's ``MirrorConnectorsIntegrationBaseTest`` and ``IdentityReplicationIntegrationTest`` in one flow."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer

from connect.embedded.brokers import KafkaCluster
from connectors.checkpoint.offset_translation import OffsetSyncStore
from connectors.client import (
    checkpoint_topics,
    heartbeat_topics,
    replication_hops,
    translate_offsets,
    upstream_clusters,
)
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import TopicPartition
from tests.kit.copies import partition_count, read_all, send
from tests.kit.mirror import CALM, FOLLOWED_GROUPS, Mirror, one_flow
from tests.kit.moving import COMPACTED, PLACES, PLAIN, Feed, Mover, commit, committed, not_processed_once
from tests.kit.processes import wait_until
from tests.kit.stock import Stock
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

_IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
_DEADLINE_S: Final = 240.0
_OLD: Final = 10
_LATER: Final = 100
_ROUNDS: Final = 60
_PLACES: Final = ("half", "ten")


async def _write(us: KafkaCluster, topic: str, *numbers: int, partition: int = 0) -> None:
    await send(us.bootstrap, topic, (b"%d" % number for number in numbers), [partition])


def test_from_the_latest_with_an_empty_partition_and_a_sync_for_each_record(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    name = uuid.uuid4().hex[:6]
    topic, group, alias = f"kept-{name}", f"{name}-group", f"us{name}"
    syncs_topic = f"mm2-offset-syncs.{alias}.internal"
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, topic, alias, tasks=1),
        "groups": group,
        "replication.policy.class": _IDENTITY,
        **CALM,
        **FOLLOWED_GROUPS,
        f"{alias}->eu.consumer.auto.offset.reset": "latest",
        "offset-syncs.topic.location": "target",
        "offset.lag.max": "0",
        "eu.offset.flush.interval.ms": "1000",
    }
    asyncio.run(make_topics(us.bootstrap, {topic: 2}))
    asyncio.run(_write(us, topic, *range(_OLD)))
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        written = _OLD

        def arrived() -> list[int]:
            nonlocal written
            asyncio.run(_write(us, topic, written))
            written += 1
            return [int(one.value or b"") for one in asyncio.run(read_all(eu.bootstrap, topic))]

        first = mirror.wait_until(arrived, "a record arrives", _DEADLINE_S)[0]
        end = written + _LATER
        asyncio.run(_write(us, topic, *range(written, end)))
        wanted = list(range(first, end))
        wait_until(
            lambda: [int(one.value or b"") for one in asyncio.run(read_all(eu.bootstrap, topic))] == wanted,
            _DEADLINE_S,
            "all from the first on has arrived once",
        )
        assert first >= _OLD
        assert asyncio.run(partition_count(eu.bootstrap, topic)) == 2
        # A group in the middle, which only a sync near it translates.
        asyncio.run(commit(us.bootstrap, group, {topic: end - 1}))
        wait_until(
            lambda: asyncio.run(committed(eu.bootstrap, group, [topic]))[topic] == end - 1 - first,
            _DEADLINE_S,
            "the group is moved",
        )

        def synced() -> OffsetSyncStore | None:
            """What the offset syncs say, once the last has been written, which may be later than the group's move."""
            store = OffsetSyncStore(only_last=False)
            for one in asyncio.run(read_all(eu.bootstrap, syncs_topic)):
                store.take(OffsetSync.decode(one.key, one.value))
            store.read_to_end()
            found = [store.translate(TopicPartition(topic, 0), offset) for offset in (end - 1, end)]
            return store if found == [end - 1 - first, end - first] else None

        store = wait_until(synced, _DEADLINE_S, "offset syncs translate as the map does")
        assert store is not None and store.translate(TopicPartition(topic, 1), 0) is None
        assert mirror.stop() == 0


def test_identity_replication_of_all_that_a_mirror_does(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    """One way, with heartbeats of the other, as ``IdentityReplicationIntegrationTest`` starts it."""
    name = uuid.uuid4().hex[:6]
    alias, wide = f"us{name}", f"wide-{name}"
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, f".*-{name}", alias, tasks=1),
        f"{alias}.consumer.isolation.level": "read_committed",
        "groups": f"{name}-.*",
        "replication.policy.class": _IDENTITY,
        **CALM,
        "emit.heartbeats.enabled": "true",
        "heartbeats.replication.enabled": "true",
        **FOLLOWED_GROUPS,
        "sync.topic.configs.enabled": "true",
        "sync.topic.configs.interval.seconds": "1",
        "refresh.topics.interval.seconds": "1",
    }
    feed, movers = Feed(us.bootstrap, name), [Mover(f"{name}-{place}") for place in _PLACES]
    asyncio.run(_prepare(us, feed, movers, wide))
    with Mirror(properties, tmp_path) as mirror, contextlib.closing(Stock(us)) as source:
        mirror.start()

        until = partial(mirror.wait_until, deadline_s=_DEADLINE_S)
        with contextlib.closing(Stock(eu)) as target:
            until(lambda: asyncio.run(target.partitions(wide)) == 1, "the topic is made")
            assert asyncio.run(target.configs(feed.topics[COMPACTED]))["cleanup.policy"] == "compact"
            asyncio.run(source.grow(wide, 3))
            asyncio.run(source.alter(wide, {"retention.ms": "86400002"}))
            asyncio.run(target.until_partitions(wide, 3))
            asyncio.run(target.until_configs(wide, {"retention.ms": "86400002"}))
        asyncio.run(_write(us, wide, 1, partition=2))
        until(lambda: _values(eu, wide) == [(0, b"0"), (2, b"1")], "both records are where they were")

        of_flow = {
            "bootstrap.servers": eu.bootstrap,
            "replication.policy.class": _IDENTITY,
            "source.cluster.alias": alias,
        }
        for mover in movers:
            goes_on = partial(not_processed_once, eu.bootstrap, mover, feed)
            until(lambda: not asyncio.run(goes_on()), f"{mover.group} goes on behind what it has processed")  # noqa: B023
            until(partial(_is_translated, eu, of_flow, feed, mover), f"checkpoints of {mover.group}")

        # syncs are at the source; heartbeats of the other way have the name that says where they come from
        until(lambda: _synced(us) >= {*feed.topics.values(), wide}, "each topic has syncs")
        until(lambda: alias in upstream_clusters(of_flow), "heartbeats of the source arrive")
        assert replication_hops(of_flow, alias) == 1
        assert f"{alias}.heartbeats" in heartbeat_topics(of_flow)
        assert f"{alias}.checkpoints.internal" in checkpoint_topics(of_flow)

        # nothing comes back
        names = {*feed.topics.values(), wide}
        for cluster in (us, eu):
            assert {topic for topic in asyncio.run(_topics(cluster)) if topic.endswith(f"-{name}")} == names
        assert _values(us, wide) == _values(eu, wide)
        assert [value for _, value in _values(us, feed.topics[PLAIN])] == [one.value for one in feed.written[PLAIN]]
        assert mirror.stop() == 0


async def _prepare(us: KafkaCluster, feed: Feed, movers: Sequence[Mover], wide: str) -> None:
    await feed.make()
    await feed.write(_ROUNDS)
    await make_topics(us.bootstrap, {wide: 1}, {"retention.ms": "86400001"})
    await _write(us, wide, 0)
    for mover in movers:
        await mover.leave(us.bootstrap, feed.topics, PLACES[mover.group.rpartition("-")[2]])


def _values(cluster: KafkaCluster, topic: str) -> list[tuple[int, bytes | None]]:
    return [(one.partition, one.value) for one in asyncio.run(read_all(cluster.bootstrap, topic))]


def _is_translated(eu: KafkaCluster, of_flow: Mapping[str, str], feed: Feed, mover: Mover) -> bool:
    found = translate_offsets(of_flow, of_flow["source.cluster.alias"], mover.group, _DEADLINE_S)
    stands = asyncio.run(committed(eu.bootstrap, mover.group, feed.topics.values()))
    return {place.topic: at.offset for place, at in found.items()} == stands


def _synced(us: KafkaCluster) -> set[str]:
    records = asyncio.run(read_all(us.bootstrap, "mm2-offset-syncs.eu.internal"))
    return {OffsetSync.decode(one.key, one.value).topic for one in records}


async def _topics(cluster: KafkaCluster) -> set[str]:
    async with AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap) as consumer:
        return set(await consumer.topics())
