"""Topics of every shape in one flow whose epochs change every two seconds; each test looks at its own topic."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import pytest
from kafka.admin import NewPartitions

from connect.core import status_and_offset_topics
from connect.embedded.brokers import KafkaCluster
from connectors.formats.types import TopicPartition
from connectors.offset_map.log_alignment import LogSide, ProvenMap
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import RunList, decode_chunk
from connectors.offset_map.view_and_rebuild import LogFeed, lay_side_by_side
from connectors.verification.direct import compare_topics
from tests.integration.flows.prepare import CODECS, CONNECTOR
from tests.kit.clients import cluster_at, settings_of, stock_admin
from tests.kit.copies import partition_count, read_all, until_records, write
from tests.kit.direct import Broker
from tests.kit.map_judge import Verdict, judge_map
from tests.kit.members import until
from tests.kit.mirror import Mirror
from tests.kit.shared_mirror import NO_SUCH_KEY, SHAPES_EPOCH_MS, SharedMirror
from tests.kit.shared_mirror import SHAPES as ALIAS
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MAP_TOPIC = f"mm2-offset-map.{ALIAS}.internal"


@dataclass
class Shapes:
    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror

    async def assert_equal(self, topic: str, records: int) -> None:
        await self.caught_up(topic)
        sides = settings_of(self.us.bootstrap), settings_of(self.eu.bootstrap)
        report = await compare_topics(*sides, {topic: f"{ALIAS}.{topic}"})
        assert report.difference is None, report.difference
        assert report.records == records

    async def caught_up(self, topic: str) -> None:
        wanted = len(await read_all(self.us.bootstrap, topic))
        await until_records(self.mirror, self.eu.bootstrap, f"{ALIAS}.{topic}", wanted)


@pytest.fixture
def shapes(shared: SharedMirror) -> Shapes:
    return Shapes(shared.us, shared.eu, shared.mirror)


def test_a_line_of_the_file_that_nothing_reads_is_warned_of(shapes: Shapes) -> None:
    assert NO_SUCH_KEY in shapes.mirror.await_line(0, (" WARNING ", NO_SUCH_KEY), 60)


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_arrives_as_it_was(shapes: Shapes, codec: str) -> None:
    await shapes.assert_equal(f"shape-{codec}", 1000)


async def test_log_append_time_arrives_as_consumers_of_the_source_see_it(shapes: Shapes) -> None:
    await shapes.assert_equal("shape-append", 400)


async def test_a_compacted_topic_arrives_without_its_gaps(shapes: Shapes) -> None:
    survivors = await read_all(shapes.us.bootstrap, "shape-compacted")
    assert survivors[-1].offset - survivors[0].offset >= len(survivors) + 300, "the source has gaps"

    async def holds_what_is_left() -> bool:
        """The source's cleaner goes on: what is left there is a part of what was copied, in the same order."""
        copied = await read_all(shapes.eu.bootstrap, f"{ALIAS}.shape-compacted")
        following = iter([(record.key, record.timestamp, record.value, record.headers) for record in copied])
        left = await read_all(shapes.us.bootstrap, "shape-compacted")
        return all((one.key, one.timestamp, one.value, one.headers) in following for one in left)

    await until(holds_what_is_left, "shape-compacted is mirrored")
    copied = await read_all(shapes.eu.bootstrap, f"{ALIAS}.shape-compacted")
    assert [record.offset for record in copied] == list(range(len(copied)))


async def test_aborted_transactions_and_markers_stay_behind(shapes: Shapes) -> None:
    await shapes.assert_equal("shape-txn", len(await read_all(shapes.us.bootstrap, "shape-txn")))
    values = [record.value for record in await read_all(shapes.eu.bootstrap, f"{ALIAS}.shape-txn")]
    assert b"one 1" not in values
    assert b"two 1" in values
    assert b"two 2" not in values


async def test_a_start_inside_a_batch_copies_exactly_what_follows(shapes: Shapes) -> None:
    wanted = (await read_all(shapes.us.bootstrap, "shape-inside"))[123:]

    async def is_there() -> bool:
        return len(await read_all(shapes.eu.bootstrap, f"{ALIAS}.shape-inside")) >= len(wanted)

    await until(is_there, "the rest is mirrored")
    copied = await read_all(shapes.eu.bootstrap, f"{ALIAS}.shape-inside")
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
    return await partition_count(cluster.bootstrap, topic) == count


def _grow(bootstrap: str, topic: str, count: int) -> None:
    with stock_admin(bootstrap) as admin:
        admin.create_partitions({topic: NewPartitions(count)})


async def test_internal_and_unselected_topics_stay_behind(shapes: Shapes) -> None:
    await shapes.caught_up("shape-none")
    assert await partition_count(shapes.eu.bootstrap, f"{ALIAS}.shape-none") == 2
    for topic in (f"{ALIAS}.other", f"{ALIAS}.mm2-x.internal", f"{ALIAS}.mm2-offsets.{ALIAS}.internal"):
        assert await partition_count(shapes.eu.bootstrap, topic) == 0


async def test_records_written_across_many_epochs_arrive_once(shapes: Shapes) -> None:
    """The load lasts longer than three epochs, so slices hand over under it."""
    await make_topics(shapes.us.bootstrap, {"shape-epochs": 2})
    loop = asyncio.get_running_loop()
    end, written = loop.time() + 3.5 * SHAPES_EPOCH_MS / 1000, 0
    while loop.time() < end:
        await write(shapes.us, "shape-epochs", 200)
        written += 400
    await shapes.assert_equal("shape-epochs", written)


async def test_stored_offsets_are_javas_next_to_last(shapes: Shapes) -> None:
    await shapes.caught_up("shape-zstd")

    async def stored() -> bool:
        offsets = status_and_offset_topics.SourceOffsets()
        for record in await read_all(shapes.eu.bootstrap, f"mm2-offsets.{ALIAS}.internal"):
            status_and_offset_topics.apply(offsets, record.key, record.value)
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
    committed = len(await read_all(shapes.us.bootstrap, "shape-map"))
    reported = await judged(shapes, "shape-map")
    assert (reported.same, reported.reversed) == (committed, committed)
    # Either side loses what retention takes.
    await asyncio.to_thread(Broker(shapes.us, 0).delete_records, "shape-map", 12)
    await asyncio.to_thread(Broker(shapes.eu, 0).delete_records, f"{ALIAS}.shape-map", 20)
    reported = await judged(shapes, "shape-map")
    assert reported.next_survivor > 0
    assert (reported.same, reported.reversed) == (committed - 20, committed - 20)


async def test_the_map_of_a_compacted_topic_tells_of_what_is_left_on_either_side(shapes: Shapes) -> None:
    reported = Verdict()

    async def is_reported() -> bool:
        nonlocal reported
        partition = TopicPartition("shape-compacted", 0)
        reported = await judge_map(shapes.us, shapes.eu, MAP_TOPIC, partition, read_committed=True)
        return reported.same > 0 and not reported.not_copied_yet

    await until(is_reported, "shape-compacted is mapped")
    assert reported.faults == []


async def rebuilt(shapes: Shapes, topic: str) -> tuple[RunList, RunList]:
    """What both logs tell of a map, and the map that was written down."""
    partition = TopicPartition(topic, 0)
    async with cluster_at(shapes.us.bootstrap) as source, cluster_at(shapes.eu.bootstrap) as target:
        maps = MapReader(target, MAP_TOPIC, partitions=[partition])
        await maps.follow()
        pair, position = maps.current(partition), maps.position(partition)
        assert pair
        assert position
        known = RunList([run for chunk in maps.chunks(pair) for run in await maps.runs(pair, chunk)])
        found, copy = ProvenMap(), TopicPartition(pair.target_topic, 0)
        feeds = {
            LogSide.SOURCE: LogFeed(
                source, partition, pair.source_topic_id, position.next_source_offset, read_committed=True
            ),
            LogSide.TARGET: LogFeed(target, copy, pair.target_topic_id, position.target_end, read_committed=True),
        }
        await lay_side_by_side(feeds, found)
        return RunList(run for upstream, value in found.chunks(pair) for run in decode_chunk(upstream, value)), known


@pytest.mark.parametrize("topic", ["shape-zstd", "shape-map", "shape-append", "shape-compacted"])
async def test_a_map_that_is_rebuilt_is_the_one_that_was_written_down(shapes: Shapes, topic: str) -> None:
    await judged(shapes, topic)
    found, known = await rebuilt(shapes, topic)
    assert found.first is not None
    assert known.last == found.last
    copied = await read_all(shapes.eu.bootstrap, f"{ALIAS}.{topic}")
    left = {record.offset for record in await read_all(shapes.us.bootstrap, topic) if record.partition == 0}
    reported = possible = 0
    for offset in (record.offset for record in copied if record.partition == 0):
        was = known.reverse(offset)
        if was and was.offset in left:  # another test may have deleted records of either side
            possible += 1
            if offset >= found.first.downstream:
                assert found.reverse(offset) == was
                reported += 1
    assert 2 * reported > possible, "most of it is told"
