"""Every shape of a batch, and what a target refuses, in two flows of a mirror that is killed and finds it all again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from connect.kafka.log.topic_admin import max_message_bytes, min_insync_replicas
from connectors.formats.position import KeyKind, decode_kind, decode_position_key
from tests.kit import shapes
from tests.kit.batches import Topics, topics_of
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.copies import read_all, until_records
from tests.kit.groups import end_sessions
from tests.kit.members import until
from tests.kit.mirror import PATIENT, SMALL, Mirror
from tests.kit.resumed import Resumed
from tests.kit.secured import as_lines, start_secured
from tests.kit.shapes import COMMITTED, HUGE_RECORDS, START_INSIDE, ZSTD, configure, plain, some
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FINE, LENIENT = "fine", "lenient"
EPOCH_MS = 2000
#: Offsets of a poisoned topic that its target refuses.
REFUSED = (13, 19, 40, 41, 42)
LENIENT_TARGETS = {topic: configs for topic, configs in shapes.TARGETS.items() if topic in shapes.POISON}
EMPTIED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
SOURCES = {**shapes.SOURCES, "emptied": EMPTIED}


async def put_emptied(topics: Topics) -> None:
    """A producer's last batch, of which compaction leaves the header (Kafka ``LogCleaner``: it keeps the sequence)."""
    await topics.put("emptied", some(5), producer=(990, 0, 0))
    await topics.put("emptied", some(5, first=100), producer=(991, 0, 0))
    again = 0

    async def has_an_empty_one() -> bool:
        nonlocal again
        again += 1
        # A segment is closed by what bears a later time.
        await topics.put("emptied", some(5, seed=again, timestamp_ms=int(time.time() * 1000)))
        return any(header.record_count == 0 for header in await topics.headers("emptied"))

    await until(has_an_empty_one, "compaction has emptied a batch")


@dataclass
class Copies:
    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror
    #: where the log stood when the mirror was started again
    restarted: int = 0
    first_lines: list[str] = field(default_factory=list)

    async def assert_copied(
        self, flow: str, topic: str, *, without: Iterable[int] = (), times: int = 1, **how: Any
    ) -> None:
        await assert_copied(self.us, self.eu, self.mirror, flow, topic, without=without, times=times, **how)

    def restarted_lines(self) -> list[str]:
        return self.mirror.log_lines(self.restarted)


async def assert_copied(
    us: KafkaCluster,
    eu: KafkaCluster,
    mirror: Mirror,
    alias: str,
    topic: str,
    *,
    without: Iterable[int] = (),
    first: int = 0,
    own_time: bool = False,
    times: int = 1,
) -> None:
    """Wait for the copy, then compare every record but those of the source offsets ``without``."""
    left_out = set(without)
    source = times * [
        one for one in await read_all(us.bootstrap, topic) if one.offset not in left_out and one.offset >= first
    ]

    copied = await until_records(mirror, eu.bootstrap, f"{alias}.{topic}", len(source))
    assert [plain(one, own_time) for one in copied] == [plain(one, own_time) for one in source]


async def prepare(us: KafkaCluster, eu: KafkaCluster) -> None:
    for topic, configs in SOURCES.items():
        await make_topics(us.bootstrap, {topic: 1}, configs)
    await shapes.make_targets(eu, FINE)
    for topic, configs in LENIENT_TARGETS.items():
        await make_topics(eu.bootstrap, {f"{LENIENT}.{topic}": 1}, configs)
    async with topics_of(us.bootstrap) as topics:
        await asyncio.gather(shapes.put_huge(topics, "huge-inside"), put_emptied(topics))


#: Of internal topics: value and headers by topic, partition and key.
Stored = dict[tuple[str, int, bytes], tuple[bytes | None, list[tuple[str, bytes]]]]


async def stored(eu: KafkaCluster, **isolation: str) -> Stored:
    """What is stored of positions, except of topics that are copied before anything else is written."""
    names = [f"{kind}.{flow}.internal" for flow in (FINE, LENIENT) for kind in ("mm2-offset-map", "mm2-offsets")]
    return {
        (name, one.partition, one.key): (one.value, list(one.headers))
        for name in names
        for one in await read_all(eu.bootstrap, name, **isolation)
        if one.key is not None and not any(topic in one.key for topic in (b"emptied", b"huge-inside"))
    }


async def roll_back(eu: KafkaCluster, before: Stored) -> None:
    """Store again what was stored ``before``, and nothing else, also behind a transaction that the kill left open."""
    since = await stored(eu, isolation_level="read_uncommitted")
    async with AIOKafkaProducer(bootstrap_servers=eu.bootstrap) as producer:
        for name, partition, key in since:
            value, headers = before.get((name, partition, key), (None, []))
            await producer.send_and_wait(name, value, key=key, partition=partition, headers=headers)


async def write_while_running(us: KafkaCluster, eu: KafkaCluster, copies: Copies) -> Stored:
    """Write what has to come while the mirror runs, until all of it has been copied; what was stored before."""
    expected = len(SOURCES) + len(LENIENT_TARGETS) + 1

    async def are_begun() -> bool:
        return len({one for flow in (FINE, LENIENT) for one in await begun(eu, flow)}) == expected

    await until(are_begun, "the first position of each partition is stored")
    before = await stored(eu)
    async with topics_of(us.bootstrap) as topics:
        await shapes.put_all(topics)
    await copies.assert_copied(FINE, "lowered")
    await shapes.put_lowered(us.bootstrap, eu.bootstrap, FINE)
    await shapes.put_transactions(us.bootstrap, 1.1 * EPOCH_MS / 8000)
    await everything(copies)
    return before


async def begun(eu: KafkaCluster, flow: str) -> set[tuple[str, str]]:
    stored = [
        one.key for one in await read_all(eu.bootstrap, f"mm2-offset-map.{flow}.internal") if one.value is not None
    ]
    keys = [decode_position_key(key) for key in stored if decode_kind(key) is KeyKind.POSITION]
    return {(flow, key.source_topic) for key in keys}


def skipped(lines: Iterable[str], topic: str) -> set[int]:
    """The source offsets that the lenient flow says it has left out."""
    said = f"{LENIENT}->eu: skipped the record of topic {topic} partition 0 at offset "
    return {int(line.rpartition(said)[2].partition(":")[0]) for line in lines if said in line}


async def everything(copies: Copies) -> None:
    async with topics_of(copies.us.bootstrap) as source, topics_of(copies.eu.bootstrap) as target:
        wanted = {f"{FINE}.{topic}": await source.end(topic) for topic in shapes.DENSE}
        wanted[f"{FINE}.huge-inside"] = wanted[f"{FINE}.huge"] - START_INSIDE
        wanted[f"{FINE}.transactions"] = COMMITTED
        wanted[f"{LENIENT}.plain"] = wanted[f"{FINE}.plain"]
        wanted |= dict.fromkeys((f"{LENIENT}.poison-{kind}" for kind in ("key", "time", "size")), 48)

        async def is_there() -> bool:
            there = [await target.end(topic) >= end for topic, end in wanted.items()]
            lines = copies.mirror.log_lines()
            skips = all(skipped(lines, topic) >= set(REFUSED) for topic in shapes.POISON)
            return all(there) and skips and sum("QUARANTINED" in line for line in lines) >= 3

        await copies.mirror.until(is_there, "everything is mirrored")


@dataclass
class Ends:
    """The two clusters, and what a mirror writes into its file to be let in."""

    us: KafkaCluster
    eu: KafkaCluster
    ways_in: dict[str, str]


@pytest.fixture(scope="module", params=["open", pytest.param("secured", marks=pytest.mark.long)])
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    if request.param == "open":
        us, eu = request.getfixturevalue("us"), request.getfixturevalue("eu")
        sources = {f"{flow}.bootstrap.servers": us.bootstrap for flow in (FINE, LENIENT)}
        yield Ends(us, eu, {**sources, "eu.bootstrap.servers": eu.bootstrap})
        return
    folders = [tmp_path_factory.mktemp(f"secured-{name}") for name in ("us", "eu")]
    with start_secured("us", folders[0]) as source, start_secured("eu", folders[1]) as target:
        ways_in = as_lines("eu", target.properties("MUTUAL"))
        for flow in (FINE, LENIENT):
            ways_in |= as_lines(flow, source.properties("SCRAM_TLS"))
        yield Ends(source.cluster, target.cluster, ways_in)


@pytest.fixture(scope="module")
def copies(ends: Ends, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    us, eu = ends.us, ends.eu
    asyncio.run(prepare(us, eu))
    both = {
        key: value
        for flow in (FINE, LENIENT)
        for key, value in {
            f"{flow}->eu.enabled": "true",
            f"{flow}->eu.consumer.isolation.level": "read_committed",
        }.items()
    }
    properties = {
        "clusters": f"{FINE}, {LENIENT}, eu",
        **ends.ways_in,
        **both,
        f"{FINE}->eu.topics": ", ".join(SOURCES),
        f"{LENIENT}->eu.topics": "plain, poison-.*",
        f"{LENIENT}->eu.errors.tolerance": "all",
        f"{LENIENT}->eu.errors.log.enable": "true",
        f"{LENIENT}->eu.producer.override.compression.type": "zstd",
        "tasks.max": "1",
        "copy.epoch.ms": str(EPOCH_MS),
        **SMALL,
        **PATIENT,
    }
    with Mirror(properties, tmp_path_factory.mktemp("every-shape")) as mirror:
        found = Copies(us, eu, mirror)
        mirror.start()
        before = asyncio.run(write_while_running(us, eu, found))
        mirror.members()
        os.kill(mirror.pid, signal.SIGKILL)
        mirror.reap()
        asyncio.run(end_sessions(eu.bootstrap, f"{FINE}-mm2", f"{LENIENT}-mm2"))
        asyncio.run(roll_back(eu, before))
        found.first_lines = mirror.log_lines()
        configure(eu.bootstrap, "fine.poison-size", {"max.message.bytes": "1000000"})
        found.restarted = mirror.log_end()
        mirror.start()
        yield found
        assert mirror.stop() == 0
        mirror.assert_gone()


@pytest.mark.parametrize("topic", ["split", "lowered", "inflated", "gzipped", "huge", "stamped-twice"])
async def test_every_record_arrives_once_whatever_the_target_does_to_its_batch(copies: Copies, topic: str) -> None:
    await copies.assert_copied(FINE, topic, own_time=topic == "stamped-twice")


async def test_shapes_are_what_they_are_meant_to_be(copies: Copies) -> None:
    """So that the tests beside this one do not pass for want of the shape."""
    async with topics_of(copies.us.bootstrap) as source, topics_of(copies.eu.bootstrap) as target:
        huge = (await source.headers("huge"))[0]
        assert huge.record_count == HUGE_RECORDS
        assert (await target.headers("fine.huge"))[0].record_count == HUGE_RECORDS
        assert len(await target.headers("fine.huge-inside")) > 4
        assert max(one.size_bytes for one in await target.headers("fine.split")) <= 20_000
        assert max(one.size_bytes for one in await source.headers("split")) > 20_000
        late = [one for one in await target.headers("fine.lowered") if one.base_offset >= 40]
        assert max(one.size_bytes for one in late) <= 10_000
        assert {one.codec for one in await target.headers("fine.gzipped") if not one.is_control} == {1}
        assert {one.codec for one in await target.headers("fine.inflated")} == {0}
        assert {one.codec for one in await target.headers("fine.plain")} == {0}
        assert {one.codec for one in await target.headers("lenient.plain") if not one.is_control} == {ZSTD}


async def test_any_broker_tells_what_a_topic_takes(copies: Copies) -> None:
    async with cluster_at(copies.eu.bootstrap) as cluster:
        assert await max_message_bytes(cluster, f"{FINE}.lowered") == 10_000
        assert await min_insync_replicas(cluster, [f"{FINE}.lowered", "missing"]) == {f"{FINE}.lowered": 1}


async def test_a_target_that_stamps_its_own_time_gets_all_the_rest(copies: Copies) -> None:
    await copies.assert_copied(FINE, "stamped", own_time=True)


async def test_a_start_inside_seventy_thousand_records_is_exact(copies: Copies) -> None:
    await copies.assert_copied(FINE, "huge-inside", first=START_INSIDE)


async def test_an_emptied_batch_lets_the_copy_pass(copies: Copies) -> None:
    """Cleaners go on at both sides, each as it likes; what both leave is the last record of each key, in its order."""

    async def last_of_each_key(cluster: KafkaCluster, topic: str) -> list[object]:
        found = {one.key: one for one in await read_all(cluster.bootstrap, topic)}
        return [plain(one, False) for one in sorted(found.values(), key=lambda one: one.offset)]

    async def is_mirrored() -> bool:
        source, target = await last_of_each_key(copies.us, "emptied"), await last_of_each_key(copies.eu, "fine.emptied")
        return source == target

    await until(is_mirrored, "emptied is mirrored")


async def test_transactions_over_fetches_and_epochs_leave_no_aborted_record(copies: Copies) -> None:
    await copies.assert_copied(FINE, "transactions")
    values = {one.value for one in await read_all(copies.eu.bootstrap, f"{FINE}.transactions")}
    assert b"one 0 7" in values and b"two 0 7" not in values
    assert b"two 1 0" in values and b"one 1 0" not in values


async def test_what_comes_uncompressed_is_compressed_as_the_producer_is_told(copies: Copies) -> None:
    await copies.assert_copied(LENIENT, "plain")


@pytest.mark.parametrize("topic", ["poison-key", "poison-time", "poison-size"])
async def test_with_tolerance_just_the_records_that_are_refused_stay_behind(copies: Copies, topic: str) -> None:
    """After the kill they come again, as a count knows nothing of what was left out; the log announces how many."""
    await copies.assert_copied(LENIENT, topic, without=REFUSED, times=2)
    assert first_resumed(copies)[f"{LENIENT}->eu", f"{topic}-0"].may_double == 48
    assert skipped(copies.first_lines, topic) == set(REFUSED)


@pytest.mark.parametrize(("topic", "sentence"), shapes.POISON.items())
async def test_without_tolerance_the_partition_is_quarantined_and_says_what_to_do(
    copies: Copies, topic: str, sentence: str
) -> None:
    lines = [one for one in copies.first_lines if "QUARANTINED" in one and f" {topic}-0 " in one]
    (line,) = [one for one in lines if "does not copy" not in one]  # which the verdict repeats every 10 s
    assert f"target fine.{topic}-0 {sentence}" in line
    assert "errors.tolerance = all" in line
    copied = await read_all(copies.eu.bootstrap, f"{FINE}.{topic}")
    assert [one.offset for one in await read_all(copies.us.bootstrap, topic)][:10] == list(range(10))
    if topic != "poison-size":
        assert len(copied) == 10


async def test_a_quarantined_partition_is_tried_again_after_a_start(copies: Copies) -> None:
    await copies.assert_copied(FINE, "poison-size")

    async def are_reported_again() -> bool:
        again = [line for line in copies.restarted_lines() if "QUARANTINED" in line]
        return all(any(f" {topic}-0 " in line for line in again) for topic in ("poison-key", "poison-time"))

    await until(are_reported_again, "the others are refused again")


def first_resumed(copies: Copies) -> dict[tuple[str, str], Resumed]:
    """By flow and partition; one that a slow machine gives up and takes over again has nothing left to find."""
    first: dict[tuple[str, str], Resumed] = {}
    for one in copies.mirror.resumed(copies.restarted):
        first.setdefault((one.flow, one.partition), one)
    return first


async def test_the_proof_finds_its_way_through_every_shape(copies: Copies) -> None:
    async def are_resumed() -> bool:
        return len(first_resumed(copies)) >= len(SOURCES) + 4

    await until(are_resumed, "all partitions are resumed")
    found = copies.mirror.resumed(copies.restarted)
    expected = ("emptied-0", *(f"{topic}-0" for topic in shapes.POISON))
    doubtful = [one.line for one in found if one.at_least_once and one.partition not in expected]
    assert doubtful == []
    surplus = {which: one.surplus_records for which, one in first_resumed(copies).items()}
    assert surplus["fine->eu", "huge-0"] == HUGE_RECORDS + 10
    assert surplus["fine->eu", "transactions-0"] == COMMITTED
    assert surplus["fine->eu", "gzipped-0"] == 200
    assert surplus["lenient->eu", "plain-0"] == 200
