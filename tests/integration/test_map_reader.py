"""The reader of the offset map against the store that writes it, on a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from connect.cli.commands.offsets import run_map
from connect.core.model import NewTopic
from connect.embedded.brokers import KafkaCluster
from connect.kafka.log.producer import OutRecord, PlainWriter
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import MapLimits, MapReader
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, MapRun, OffsetLocation
from connectors.offset_map.view_and_rebuild import MapQuery, Rebuilder
from connectors.source.positions.stored_positions import Commit, CommitScope
from tests.integration.test_store import CONNECTOR, ORDERS, POSITION, Site, add_partitions
from tests.kit.clients import cluster_and_admin

pytestmark = pytest.mark.integration

PAIR = MapPair.of(POSITION)
_RUNS_A_CHUNK = 16


@pytest.fixture
async def site(eu: KafkaCluster) -> AsyncIterator[Site]:
    async with cluster_and_admin(eu.bootstrap, "eu") as clients:
        made = Site(*clients)
        made.settings = replace(made.settings, max_runs_per_chunk=_RUNS_A_CHUNK)
        yield made


def reader_of(site: Site) -> MapReader:
    return MapReader(site.cluster, site.settings.map_topic, connector=CONNECTOR)


async def test_it_translates_while_the_map_grows_is_trimmed_and_begins_anew(site: Site) -> None:
    """A transactional source: ten records, a marker, and so on; each transaction is a run."""
    reader = MapReader(
        site.cluster, site.settings.map_topic, connector=CONNECTOR, limits=MapLimits(max_cached_runs=2 * _RUNS_A_CHUNK)
    )
    await reader.follow()  # no topic is no map
    assert await reader.forward(PAIR, 0) is None
    store = site.store()
    await store.load([ORDERS, TopicPartition("others", 0)])
    other = replace(POSITION, source_topic="others")
    sizes = []
    for turn in range(10):
        runs = [(11 * at, 10 * at, 10) for at in range(100 * turn, 100 * (turn + 1))]
        end = 1000 * (turn + 1)
        position = replace(POSITION, next_source_offset=1100 * (turn + 1), target_end=end)
        log_start = max(end - 2000, 0)
        await store.commit([Commit(position, runs, target_log_start=log_start), Commit(other, [(0, 0, 5)])])
        await reader.follow()
        sizes.append(len(reader.chunks(PAIR)))
        for target in range(log_start, end, 137):
            source = target + target // 10
            assert await reader.forward(PAIR, source) == MappedOffset(target, OffsetLocation.INSIDE)
            assert await reader.reverse(PAIR, target) == MappedOffset(source, OffsetLocation.INSIDE)
        assert await reader.forward(PAIR, 11 * 100 * turn + 10) == MappedOffset(1000 * turn + 10, OffsetLocation.GAP)
    bound = 2000 // 10 // _RUNS_A_CHUNK + 2
    assert max(sizes) <= bound, "as long as the target's log, not as its history"
    assert (await reader.forward(PAIR, 3)).place is OffsetLocation.BELOW  # type: ignore[union-attr]
    assert reader.sources() == [ORDERS, TopicPartition("others", 0)]

    anew = replace(POSITION, target_topic_id=UUID(int=7), target_end=10, next_source_offset=11_010)
    await store.commit([Commit(anew, [(11_000, 0, 10)])])
    late = MapReader(site.cluster, site.settings.map_topic, connector=CONNECTOR, partitions=[ORDERS])
    for each in (reader, late):
        await each.follow()
        assert each.pairs(ORDERS) == [MapPair.of(anew)] == [each.current(ORDERS)]
        assert await each.forward(PAIR, 5000) is None
        assert await each.forward(MapPair.of(anew), 11_004) == MappedOffset(4, OffsetLocation.INSIDE)
    assert late.sources() == [ORDERS]


async def test_a_reader_that_looks_at_a_chunk_which_was_written_again_follows(site: Site) -> None:
    store = site.store()
    await store.load([ORDERS])
    await store.commit([Commit(POSITION, [(0, 0, 10)])])
    reader = reader_of(site)
    await reader.follow()
    # As after the topic's cleaner: the record that is known holds something else now.
    index = reader._pairs[PAIR]
    index.put(0, 0, index.place(0).offset + 1)
    await store.commit([Commit(POSITION, [(10, 10, 10)])])
    assert await reader.forward(PAIR, 15) == MappedOffset(15, OffsetLocation.INSIDE)
    assert reader.position(ORDERS) == POSITION
    assert reader.pairs_to(TopicPartition("us.orders", 0)) == [PAIR]


async def test_a_map_whose_topic_got_more_partitions_is_read_on(site: Site) -> None:
    """The chunks of before stay where they are, and the last one is written again, elsewhere."""
    store, reader = site.store(), reader_of(site)
    await store.load([ORDERS])
    runs = [(11 * at, 10 * at, 10) for at in range(2 * _RUNS_A_CHUNK)]
    await store.commit([Commit(POSITION, runs[: _RUNS_A_CHUNK + 1])])
    await reader.follow()
    await add_partitions(site, site.settings.map_topic, 5)
    for each in (store, site.store()):  # one that writes meanwhile, and its successor
        if each is not store:
            await each.load([ORDERS])
        await each.commit([Commit(POSITION, runs)])
        for reading in (reader, reader_of(site)):
            await reading.follow()
            for upstream, downstream, _ in runs:
                assert await reading.forward(PAIR, upstream) == MappedOffset(downstream, OffsetLocation.INSIDE)


async def test_a_chunk_that_is_written_again_in_an_added_partition_at_its_offset_is_fetched_again(site: Site) -> None:
    store, reader = site.store(), reader_of(site)
    await store.load([ORDERS])
    await store.commit([Commit(POSITION, [(0, 0, 10)])])
    await add_partitions(site, site.settings.map_topic, 5)
    await reader.follow()
    assert await reader.forward(PAIR, 5) == MappedOffset(5, OffsetLocation.INSIDE)
    before = reader.chunks(PAIR)
    await store.commit([Commit(POSITION, [(11, 10, 10)])])
    await reader.follow()
    assert reader.chunks(PAIR) == before
    assert await reader.forward(PAIR, 15) == MappedOffset(14, OffsetLocation.INSIDE)


async def test_a_run_that_has_grown_since_partitions_were_added_has_no_hole_after_a_crash(site: Site) -> None:
    store = site.store()
    await store.load([ORDERS])
    await store.commit([Commit(POSITION, [(0, 0, 10)])])
    await add_partitions(site, site.settings.map_topic, 5)
    await store.commit([Commit(POSITION, [(10, 10, 10)], scope=CommitScope.OFFSETS)])
    successor = site.store()
    await successor.load([ORDERS])
    await successor.commit([Commit(POSITION, [(22, 20, 10)])])
    reader = reader_of(site)
    await reader.follow()
    assert await reader.forward(PAIR, 15) == MappedOffset(15, OffsetLocation.INSIDE)


async def test_the_last_run_is_as_long_as_the_newest_position_says(site: Site) -> None:
    """Its chunk is written once, and again when the copy is handed over."""
    store, reader = site.store(), reader_of(site)
    await store.load([ORDERS])
    await store.commit([Commit(POSITION, [(0, 0, 40)])])
    for at in range(40, 100, 10):
        later = replace(POSITION, next_source_offset=at + 10, target_end=at + 10, next_sequence=at + 10)
        scope = CommitScope.OFFSETS if at == 60 else CommitScope.PROGRESS
        await store.commit([Commit(later, [(at, at, 10)], scope=scope)])
        await reader.follow()
        assert await reader.forward(PAIR, at + 9) == MappedOffset(at + 9, OffsetLocation.INSIDE)
        assert await reader.reverse(PAIR, at + 9) == MappedOffset(at + 9, OffsetLocation.INSIDE)
        assert reader.position(ORDERS) == later
    assert await site.runs() == [MapRun(0, 0, 40)]
    fresh = reader_of(site)
    await fresh.follow()
    assert await fresh.forward(PAIR, 99) == MappedOffset(99, OffsetLocation.INSIDE)
    assert await fresh.forward(PAIR, 101) == MappedOffset(100, OffsetLocation.BEYOND)
    store = site.store()
    start = (await store.load([ORDERS]))[ORDERS]
    assert (start.position, start.moved) == (later, False)
    assert store.runs_of(later) == [MapRun(0, 0, 100)]
    await store.commit([Commit(replace(later, is_handed_over=True))])
    assert await site.runs() == [MapRun(0, 0, 100)]


async def test_a_position_that_goes_to_another_topic_leaves_a_complete_map_of_the_one_before(site: Site) -> None:
    store = site.store()
    await store.load([ORDERS])
    await store.commit([Commit(POSITION, [(0, 0, 40)])])
    grown = replace(POSITION, next_source_offset=50, target_end=50, next_sequence=50)
    await store.commit([Commit(grown, [(40, 40, 10)], scope=CommitScope.PROGRESS)])
    store = site.store()
    await store.load([ORDERS])
    elsewhere = replace(grown, target_topic="other", target_end=10)
    await store.commit([Commit(elsewhere, [(50, 0, 10)], scope=CommitScope.PROGRESS)])
    reader = reader_of(site)
    await reader.follow()
    assert await reader.forward(PAIR, 49) == MappedOffset(49, OffsetLocation.INSIDE)
    assert await reader.forward(MapPair.of(elsewhere), 59) == MappedOffset(9, OffsetLocation.INSIDE)


async def test_people_ask_for_it_with_the_target_alone(
    site: Site, eu: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alias = site.settings.map_topic.split(".")[1]
    file = tmp_path / "mm2.properties"
    file.write_text(
        f"clusters = {alias}, eu\n{alias}->eu.enabled = true\n"
        f"{alias}.bootstrap.servers = 127.0.0.1:1\neu.bootstrap.servers = {eu.bootstrap}\n"
    )

    async def ask(*, as_json: bool = False, **question: Any) -> str:
        ran = await asyncio.to_thread(run_map, file, MapQuery(**question), flow=f"{alias}->eu", as_json=as_json)
        assert ran == 0
        return " ".join(capsys.readouterr().out.split())

    assert await ask() == f"{alias}->eu: no map of any topic is stored"
    store = site.store()
    await store.load([ORDERS])
    await store.commit([Commit(POSITION, [(0, 0, 10), (12, 10, 30)])])
    assert "orders-0 us.orders-0 42 0 to 41 0 to 39" in await ask(topic="orders")
    assert (await ask(topic="orders", offset=10)).endswith(
        "orders-0 offset 10 is us.orders-0 offset 10: not mirrored; this is the nearest mirrored offset"
    )
    assert (await ask(topic="orders", partition=0, offset=13, is_reverse=True)).endswith(
        "us.orders-0 offset 13 is orders-0 offset 15: exact"
    )
    ((pair,),) = [reported["pairs"] for reported in json.loads(await ask(as_json=True, topic="orders", offset=50))]
    assert pair["answer"] == {"offset": 40, "place": "beyond"}


async def test_a_rebuild_adds_to_the_map_below_its_beginning(site: Site) -> None:
    """The flow's task writes on meanwhile, and trims what was added after its next start."""
    name = uuid4().hex[:8]
    source, target = TopicPartition(f"a-{name}", 0), TopicPartition(f"b-{name}", 0)
    own_times = {"message.timestamp.type": "LogAppendTime"}  # because the copies of this test are later
    await site.admin.create_topics([NewTopic(source.topic, 1, 1, {}), NewTopic(target.topic, 1, 1, own_times)])
    await PlainWriter(site.cluster).write(OutRecord(target.topic, b"k", b"not a copy") for _ in range(3))
    for one in (source, target):
        await PlainWriter(site.cluster).write(OutRecord(one.topic, b"k", b"%d" % at) for at in range(20))
    position = replace(
        POSITION,
        source_topic=source.topic,
        source_topic_id=None,
        target_topic=target.topic,
        target_topic_id=None,
        next_source_offset=20,
        target_end=23,
    )
    pair, store = MapPair.of(position), site.store()
    await store.load([source])
    await store.commit([Commit(position, [(15, 18, 5)])])
    settings: Any = SimpleNamespace(map_topic=site.settings.map_topic, name=CONNECTOR, read_committed=False)
    rebuilder = Rebuilder(settings, site.cluster, site.cluster)
    assert await rebuilder.partitions() == [source]
    found = await rebuilder.rebuild(source)
    assert (found.failure, found.records, found.source_begin, found.target_begin) == ("", 15, 0, 3)
    await store.commit([Commit(replace(position, next_source_offset=30, target_end=33), [(20, 23, 10)])])
    reader = reader_of(site)
    await reader.follow()
    assert await reader.forward(pair, 4) == MappedOffset(7, OffsetLocation.INSIDE)
    assert await reader.forward(pair, 29) == MappedOffset(32, OffsetLocation.INSIDE)
    store = site.store()
    await store.load([source])
    await store.commit([Commit(position, target_log_start=20)])
    await reader.follow()
    assert await reader.forward(pair, 4) == MappedOffset(18, OffsetLocation.BELOW)
