"""Topics of every shape through the real thing: two brokers, Spark, the command in a process of its own.

One mirror copies all of them while its epochs change every two seconds; each test then looks at its own topic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as KafkaPartition
from kafka.admin import KafkaAdminClient, NewPartitions

from connect.core import offsetlog
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.settings import ConnectionSettings, connection_settings
from connectors.dataplane.plan import TopicPartition
from connectors.map_alignment import Found, Side
from connectors.map_reader import MapReader
from connectors.map_rebuild import LogFeed, lay_side_by_side
from connectors.offset_map import RunList, decode_chunk
from connectors.verify import compare_topics
from tests.kit.direct import Broker
from tests.kit.map_judge import Verdict, judge_map
from tests.kit.mirror import CALM, SMALL, Mirror
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONNECTOR = "MirrorSourceConnector"
#: An alias of its own: what a flow stores is named after its source, and the clusters are shared with other tests.
ALIAS = "shop"
MAP_TOPIC = f"mm2-offset-map.{ALIAS}.internal"
EPOCH_MS = 2000
_DEADLINE_S = 240.0


@dataclass
class Shapes:
    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror

    def settings(self, cluster: KafkaCluster, alias: str) -> ConnectionSettings:
        return connection_settings({"bootstrap.servers": cluster.bootstrap}, client_id="test", where=alias)

    async def assert_equal(self, topic: str, records: int) -> None:
        """Wait for the copy, then compare key, value, headers, timestamp and order."""
        await self.caught_up(topic)
        report = await compare_topics(
            self.settings(self.us, "us"),
            self.settings(self.eu, "eu"),
            {topic: f"{ALIAS}.{topic}"},
            isolation_level="read_committed",
        )
        assert report.difference is None, report.difference
        assert report.records == records

    async def caught_up(self, topic: str) -> None:
        """Until the target holds as many records as a read_committed consumer of the source sees."""
        wanted = len(await read(self.us, topic))

        async def is_there() -> bool:
            assert self.mirror.is_running, self.mirror.log_lines()
            return len(await read(self.eu, f"{ALIAS}.{topic}")) >= wanted

        await until(is_there, f"{topic} is mirrored")


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + _DEADLINE_S
    while not await condition():
        assert loop.time() < end, f"waited {_DEADLINE_S:g} s in vain until {what}"
        await asyncio.sleep(0.2)


async def read(cluster: KafkaCluster, topic: str):
    """All records of a topic as a read_committed consumer sees them, by partition and offset; none if it is missing."""
    count = await partition_count(cluster, topic)
    if not count:
        return []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    await consumer.start()
    try:
        partitions = [KafkaPartition(topic, index) for index in range(count)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records = []
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


async def partition_count(cluster: KafkaCluster, topic: str) -> int:
    """0 where there is no such topic."""
    settings = connection_settings({"bootstrap.servers": cluster.bootstrap}, client_id="test", where="test")
    known = Cluster(settings)
    try:
        found = (await known.metadata({topic})).topics.get(topic)
        return len(found.partitions) if found else 0
    finally:
        await known.close()


async def write(cluster: KafkaCluster, topic: str, count: int, partitions: int = 2, **producer) -> None:
    """``count`` records a partition, with keys, headers, nulls and timestamps of their own."""
    client = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5, **producer)
    await client.start()
    try:
        now_ms = int(time.time() * 1000)
        sent = [
            await client.send(
                topic,
                f"value {index} of {topic}".encode() if index % 7 else None,
                # Some keys come once only, so that compaction leaves gaps and not just a later start.
                key=(f"{now_ms} {index}" if index % 11 == 0 else f"key {index % 50}").encode(),
                partition=index % partitions,
                timestamp_ms=now_ms + index,
                headers=[("n", b"%d" % index), ("n", b""), ("ä", "ü".encode())] if index % 3 else [],
            )
            for index in range(count * partitions)
        ]
        await asyncio.gather(*sent)
    finally:
        await client.stop()


async def write_transactions(cluster: KafkaCluster, topic: str) -> None:
    """Committed, aborted and committed again, by the same producer and beside another one."""
    one = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-one")
    two = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-two")
    await asyncio.gather(one.start(), two.start())
    try:
        for number in range(12):
            await two.begin_transaction()
            await one.begin_transaction()
            for producer, name in ((one, b"one"), (two, b"two"), (one, b"one again")):
                await producer.send_and_wait(topic, b"%s %d" % (name, number), partition=0)
            await (one.abort_transaction() if number % 3 == 1 else one.commit_transaction())
            await (two.abort_transaction() if number % 4 == 2 else two.commit_transaction())
    finally:
        await asyncio.gather(one.stop(), two.stop())


async def write_offset(cluster: KafkaCluster, topic: str, partition: int, last_copied: int) -> None:
    """A source offset as Java's MirrorMaker or an operator writes it."""
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
    await producer.start()
    try:
        await producer.send_and_wait(
            f"mm2-offsets.{ALIAS}.internal",
            offsetlog.mirror_value(last_copied),
            key=offsetlog.mirror_key(CONNECTOR, ALIAS, topic, partition),
        )
    finally:
        await producer.stop()


async def prepare(us: KafkaCluster, eu: KafkaCluster) -> None:
    await make_topics(us.bootstrap, {f"shape-{codec}": 2 for codec in CODECS})
    await make_topics(
        us.bootstrap, {"shape-txn": 1, "shape-map": 1, "shape-inside": 1, "other": 1, "mm2-x.internal": 1}
    )
    await make_topics(us.bootstrap, {"shape-append": 2}, {"message.timestamp.type": "LogAppendTime"})
    await make_topics(
        us.bootstrap,
        {"shape-compacted": 1},
        {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
    )
    await make_topics(eu.bootstrap, {f"mm2-offsets.{ALIAS}.internal": 25}, {"cleanup.policy": "compact"})
    for codec in CODECS:
        await write(us, f"shape-{codec}", 500, compression_type=None if codec == "none" else codec)
    await write(us, "shape-append", 200)
    await write(us, "shape-inside", 300, partitions=1)
    await write_transactions(us, "shape-txn")
    await write_transactions(us, "shape-map")
    await write_offset(eu, "shape-inside", 0, 122)
    await compacted(us, "shape-compacted")


async def compacted(cluster: KafkaCluster, topic: str) -> None:
    """Write until the cleaner has been at work: a segment is cleaned once a later write has closed it."""

    async def has_gaps() -> bool:
        await write(cluster, topic, 300, partitions=1)
        records = await read(cluster, topic)
        return bool(records[-1].offset - records[0].offset + 1 - len(records) > 300)

    await until(has_gaps, f"{topic} is compacted")


@pytest.fixture(scope="module")
def shapes(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shapes]:
    asyncio.run(prepare(us, eu))
    properties = {
        "clusters": f"{ALIAS}, eu",
        f"{ALIAS}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{ALIAS}->eu.enabled": "true",
        f"{ALIAS}->eu.topics": r"shape-.*, mm2-x.*, mm2-offsets.*",
        f"{ALIAS}->eu.consumer.isolation.level": "read_committed",
        "tasks.max": "2",
        "copy.epoch.ms": str(EPOCH_MS),
        "refresh.topics.interval.seconds": "1",
        **SMALL,
        **CALM,
    }
    with Mirror(properties, tmp_path_factory.mktemp("shapes")) as mirror:
        mirror.start()
        yield Shapes(us, eu, mirror)
        assert mirror.stop() == 0
        mirror.assert_gone()


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_arrives_as_it_was(shapes: Shapes, codec: str) -> None:
    await shapes.assert_equal(f"shape-{codec}", 1000)


async def test_log_append_time_arrives_as_consumers_of_the_source_see_it(shapes: Shapes) -> None:
    await shapes.assert_equal("shape-append", 400)


async def test_a_compacted_topic_arrives_without_its_gaps(shapes: Shapes) -> None:
    survivors = await read(shapes.us, "shape-compacted")
    assert survivors[-1].offset - survivors[0].offset >= len(survivors) + 300, "the source has gaps"

    async def holds_what_is_left() -> bool:
        """The source's cleaner goes on: what is left there is a part of what was copied, in the same order."""
        copied = await read(shapes.eu, f"{ALIAS}.shape-compacted")
        following = iter([(record.key, record.timestamp, record.value, record.headers) for record in copied])
        left = await read(shapes.us, "shape-compacted")
        return all((one.key, one.timestamp, one.value, one.headers) in following for one in left)

    await until(holds_what_is_left, "shape-compacted is mirrored")
    copied = await read(shapes.eu, f"{ALIAS}.shape-compacted")
    assert [record.offset for record in copied] == list(range(len(copied)))


async def test_aborted_transactions_and_markers_stay_behind(shapes: Shapes) -> None:
    await shapes.assert_equal("shape-txn", len(await read(shapes.us, "shape-txn")))
    values = [record.value for record in await read(shapes.eu, f"{ALIAS}.shape-txn")]
    assert b"one 1" not in values
    assert b"two 1" in values
    assert b"two 2" not in values


async def test_a_start_inside_a_batch_copies_exactly_what_follows(shapes: Shapes) -> None:
    wanted = (await read(shapes.us, "shape-inside"))[123:]

    async def is_there() -> bool:
        return len(await read(shapes.eu, f"{ALIAS}.shape-inside")) >= len(wanted)

    await until(is_there, "the rest is mirrored")
    copied = await read(shapes.eu, f"{ALIAS}.shape-inside")
    assert [(r.key, r.value, r.headers, r.timestamp) for r in copied] == [
        (r.key, r.value, r.headers, r.timestamp) for r in wanted
    ]


async def test_new_topics_and_partitions_are_found_while_running(shapes: Shapes) -> None:
    await make_topics(shapes.us.bootstrap, {"shape-new": 1})
    await write(shapes.us, "shape-new", 100, partitions=1)
    await shapes.assert_equal("shape-new", 100)
    await asyncio.to_thread(_grow, shapes.us.bootstrap, "shape-new", 3)
    await until(partial(_has_partitions, shapes.us, "shape-new", 3), "the broker knows the new partitions")
    await write(shapes.us, "shape-new", 100, partitions=3)
    await shapes.assert_equal("shape-new", 400)


async def _has_partitions(cluster: KafkaCluster, topic: str, count: int) -> bool:
    return await partition_count(cluster, topic) == count


def _grow(bootstrap: str, topic: str, count: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_partitions({topic: NewPartitions(count)})
    finally:
        admin.close()


async def test_internal_and_unselected_topics_stay_behind(shapes: Shapes) -> None:
    await shapes.caught_up("shape-none")
    assert await partition_count(shapes.eu, f"{ALIAS}.shape-none") == 2
    for topic in (f"{ALIAS}.other", f"{ALIAS}.mm2-x.internal", f"{ALIAS}.mm2-offsets.{ALIAS}.internal"):
        assert await partition_count(shapes.eu, topic) == 0


async def test_records_written_across_many_epochs_arrive_once(shapes: Shapes) -> None:
    """The load lasts longer than three epochs, so slices hand over under it."""
    await make_topics(shapes.us.bootstrap, {"shape-epochs": 2})
    loop = asyncio.get_running_loop()
    end, written = loop.time() + 3.5 * EPOCH_MS / 1000, 0
    while loop.time() < end:
        await write(shapes.us, "shape-epochs", 200)
        written += 400
    await shapes.assert_equal("shape-epochs", written)


async def test_stored_offsets_are_javas_next_to_last(shapes: Shapes) -> None:
    await shapes.caught_up("shape-zstd")

    async def stored() -> bool:
        offsets = offsetlog.SourceOffsets()
        for record in await read(shapes.eu, f"mm2-offsets.{ALIAS}.internal"):
            offsetlog.apply(offsets, record.key, record.value)
        return all(offsets.mirrored_offset(CONNECTOR, ALIAS, "shape-zstd", index) == 499 for index in (0, 1))

    await until(stored, "the offsets are stored")


async def judged(shapes: Shapes, topic: str) -> Verdict:
    """What brute force says of the map of partition 0, once all is copied and stored."""
    found: list[Verdict] = []

    async def is_stored() -> bool:
        partition = TopicPartition(topic, 0)
        found.append(await judge_map(shapes.us, shapes.eu, MAP_TOPIC, partition, read_committed=True))
        return found[-1].same > 0 and not found[-1].not_copied_yet

    await until(is_stored, f"the position of {topic} is stored")
    assert found[-1].faults == []
    return found[-1]


async def test_the_map_tells_where_each_record_went(shapes: Shapes) -> None:
    assert (await judged(shapes, "shape-zstd")).same == 500
    committed = len(await read(shapes.us, "shape-map"))
    told = await judged(shapes, "shape-map")
    assert (told.same, told.reversed) == (committed, committed)
    # Either side loses what retention takes.
    await asyncio.to_thread(Broker(shapes.us, 0).delete_records, "shape-map", 12)
    await asyncio.to_thread(Broker(shapes.eu, 0).delete_records, f"{ALIAS}.shape-map", 20)
    told = await judged(shapes, "shape-map")
    assert told.next_survivor > 0
    assert (told.same, told.reversed) == (committed - 20, committed - 20)


async def test_the_map_of_a_compacted_topic_tells_of_what_is_left_on_either_side(shapes: Shapes) -> None:
    told = Verdict()

    async def is_told() -> bool:
        nonlocal told
        partition = TopicPartition("shape-compacted", 0)
        told = await judge_map(shapes.us, shapes.eu, MAP_TOPIC, partition, read_committed=True)
        return told.same > 0 and not told.not_copied_yet

    await until(is_told, "shape-compacted is mapped")
    assert told.faults == []


async def rebuilt(shapes: Shapes, topic: str) -> tuple[RunList, RunList]:
    """What both logs tell of a map, and the map that was written down."""
    source, target = (Cluster(shapes.settings(one, "judge"), one.name) for one in (shapes.us, shapes.eu))
    partition = TopicPartition(topic, 0)
    try:
        maps = MapReader(target, MAP_TOPIC, partitions=[partition])
        await maps.follow()
        pair, position = maps.current(partition), maps.position(partition)
        assert pair
        assert position
        known = RunList([run for chunk in maps.chunks(pair) for run in await maps.runs(pair, chunk)])
        found, copy = Found(), TopicPartition(pair.target_topic, 0)
        feeds = {
            Side.SOURCE: LogFeed(
                source, partition, pair.source_topic_id, position.next_source_offset, read_committed=True
            ),
            Side.TARGET: LogFeed(target, copy, pair.target_topic_id, position.target_end, read_committed=True),
        }
        await lay_side_by_side(feeds, found)
        return RunList(run for upstream, value in found.chunks(pair) for run in decode_chunk(upstream, value)), known
    finally:
        await source.close()
        await target.close()


@pytest.mark.parametrize("topic", ["shape-zstd", "shape-map", "shape-append", "shape-compacted"])
async def test_a_map_that_is_rebuilt_is_the_one_that_was_written_down(shapes: Shapes, topic: str) -> None:
    await judged(shapes, topic)
    found, known = await rebuilt(shapes, topic)
    assert found.first is not None
    assert known.last == found.last
    copied = await read(shapes.eu, f"{ALIAS}.{topic}")
    left = {record.offset for record in await read(shapes.us, topic) if record.partition == 0}
    told = possible = 0
    for offset in (record.offset for record in copied if record.partition == 0):
        was = known.reverse(offset)
        if was and was.offset in left:  # another test may have deleted records of either side
            possible += 1
            if offset >= found.first.downstream:
                assert found.reverse(offset) == was
                told += 1
    assert 2 * told > possible, "most of it is told"
