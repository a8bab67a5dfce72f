"""Every shape that a batch may have, and what a target refuses, through a whole mirror that is killed on the way.

Two flows of one mirror copy them all: ``fine`` stops at what is refused, ``lenient`` leaves it out and compresses what
comes uncompressed. Positions are not stored while it runs, so after the kill everything that was copied is surplus: the
proof has to find its way through each shape. Each test then looks at its own topic.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from connect.core import offsetlog
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.configs import max_message_bytes
from connect.kafka.settings import connection_settings
from connect.wire.records import Record
from tests.integration.test_mirror import read, until
from tests.kit.batches import Topics, topics_of
from tests.kit.mirror import Mirror
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FINE, LENIENT = "fine", "lenient"
EPOCH_MS = 2000
NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
ZSTD = 4
HUGE_RECORDS = 70_000
START_INSIDE = 42_000
#: Of the transactions below.
COMMITTED = 32
_NEVER = {"min.cleanable.dirty.ratio": "1.0", "min.compaction.lag.ms": "604800000"}

#: Remote topics that have settings of their own before the mirror comes.
TARGETS: dict[str, dict[str, str]] = {
    "fine.split": {"max.message.bytes": "20000"},
    "fine.lowered": {"max.message.bytes": "500000"},
    "fine.gzipped": {"compression.type": "gzip"},
    "fine.inflated": {"compression.type": "uncompressed", "max.message.bytes": "30000"},
    "fine.stamped": {"message.timestamp.type": "LogAppendTime"},
    "fine.stamped-twice": {"message.timestamp.type": "LogAppendTime"},
    "fine.huge-inside": {"max.message.bytes": "50000"},
    "fine.poison-key": {"cleanup.policy": "compact", **_NEVER},
    "fine.poison-time": {"message.timestamp.before.max.ms": str(HOUR_MS)},
    "fine.poison-size": {"max.message.bytes": "5000"},
    "lenient.poison-key": {"cleanup.policy": "compact", **_NEVER},
    "lenient.poison-time": {"message.timestamp.before.max.ms": str(HOUR_MS)},
    "lenient.poison-size": {"max.message.bytes": "5000"},
}
SOURCES: dict[str, dict[str, str]] = {
    **{name: {} for name in ("split", "lowered", "gzipped", "inflated", "stamped", "transactions", "plain")},
    **{name: {} for name in ("huge", "huge-inside")},
    **{name: {} for name in ("poison-key", "poison-time", "poison-size")},
    "stamped-twice": {"message.timestamp.type": "LogAppendTime"},
    "emptied": {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
}


def some(
    count: int, *, first: int = 0, value_bytes: int = 40, seed: int = 0, timestamp_ms: int = NOW_MS
) -> list[Record]:
    """Records of which no two are alike, with values that do not compress."""
    chance = random.Random(f"{seed} {first}")
    return [
        Record(
            index,
            timestamp_ms + index,
            b"key %d" % index,
            b"%d " % index + chance.randbytes(value_bytes),
            [("n", b"%d" % index)],
        )
        for index in range(first, first + count)
    ]


def soft(count: int) -> list[Record]:
    """Records that a codec makes very small."""
    return [Record(i, NOW_MS + i, b"k", b"%06d" % i + b"0" * 1000, []) for i in range(count)]


async def put_all(topics: Topics) -> None:
    """Every shape that has to be there before the mirror."""
    for first in (0, 60, 120):
        await topics.put("split", some(60, first=first, value_bytes=1000), codec=ZSTD)
    await topics.put("lowered", some(40, value_bytes=1000))
    for first in range(0, 200, 50):
        await topics.put("gzipped", some(50, first=first), codec=first // 50)
        await topics.put("stamped", some(50, first=first), codec=first // 50)
        await topics.put("stamped-twice", some(50, first=first))
        await topics.put("plain", soft(50))
    await topics.put("inflated", soft(100), codec=ZSTD)
    await topics.put("inflated", some(20), codec=ZSTD)
    huge = [Record(i, NOW_MS + i, None, b"%d" % i, []) for i in range(HUGE_RECORDS)]
    for topic in ("huge", "huge-inside"):
        await topics.put(topic, huge, codec=ZSTD)
        await topics.put(topic, some(10, first=HUGE_RECORDS))
    await put_poison(topics)


async def put_poison(topics: Topics) -> None:
    """A good batch, one with records that are refused, and good ones again."""
    kinds: dict[str, Callable[[Record], Record]] = {
        "poison-key": lambda record: record._replace(key=None),
        "poison-time": lambda record: record._replace(timestamp_ms=NOW_MS - 48 * HOUR_MS),
        "poison-size": lambda record: record._replace(value=random.Random(record.offset).randbytes(6000)),
    }
    for topic, spoil in kinds.items():
        await topics.put(topic, some(10))
        batch = some(10, first=10)
        batch[3], batch[9] = spoil(batch[3]), spoil(batch[9])
        await topics.put(topic, batch, codec=ZSTD)
        for first in range(20, 40, 5):
            await topics.put(topic, some(5, first=first))
        await topics.put(topic, [spoil(record) for record in some(3, first=40)])
        await topics.put(topic, some(10, first=43))


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


async def transactions(bootstrap: str) -> None:
    """Two producers whose transactions lie in one another, over several fetches and longer than an epoch."""
    one = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="shapes-one")
    two = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="shapes-two")
    await asyncio.gather(one.start(), two.start())
    try:
        for number in range(3):
            await one.begin_transaction()
            await two.begin_transaction()
            for index in range(8):
                for producer, name in ((one, "one"), (two, "two")):
                    value = f"{name} {number} {index}".encode()
                    await producer.send_and_wait("transactions", value, partition=0)
                await asyncio.sleep(1.1 * EPOCH_MS / 8000)
            await (one.abort_transaction() if number % 2 else one.commit_transaction())
            await (two.commit_transaction() if number % 3 else two.abort_transaction())
    finally:
        await asyncio.gather(one.stop(), two.stop())


@dataclass
class Copies:
    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror
    #: where the log stood when the mirror was started again
    restarted: int = 0
    first_lines: list[str] = field(default_factory=list)

    async def assert_copied(
        self, flow: str, topic: str, *, without: Iterable[int] = (), first: int = 0, own_time: bool = False
    ) -> None:
        """Wait for the copy, then compare every record but those of the source offsets ``without``."""
        left_out = set(without)
        source = [one for one in await read(self.us, topic) if one.offset not in left_out and one.offset >= first]

        copied: list[Any] = []

        async def is_there() -> bool:
            assert self.mirror.is_running, self.mirror.log_lines()[-30:]
            copied[:] = await read(self.eu, f"{flow}.{topic}")
            return len(copied) >= len(source)

        await until(is_there, f"{flow}.{topic} is mirrored")
        assert [plain(one, own_time) for one in copied] == [plain(one, own_time) for one in source]

    def restarted_lines(self) -> list[str]:
        return self.mirror.log_lines(self.restarted)


def plain(record: Any, own_time: bool) -> tuple[Any, ...]:
    return record.key, record.value, tuple(record.headers), None if own_time else record.timestamp


def configure(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)])
    finally:
        admin.close()


async def prepare(us: KafkaCluster, eu: KafkaCluster) -> None:
    for topic, configs in SOURCES.items():
        await make_topics(us.bootstrap, {topic: 1}, configs)
    for topic, configs in TARGETS.items():
        await make_topics(eu.bootstrap, {topic: 1}, configs)
    await make_topics(eu.bootstrap, {f"mm2-offsets.{FINE}.internal": 5}, {"cleanup.policy": "compact"})
    producer = AIOKafkaProducer(bootstrap_servers=eu.bootstrap)
    await producer.start()
    try:
        key = offsetlog.mirror_key("MirrorSourceConnector", FINE, "huge-inside", 0)
        await producer.send_and_wait(f"mm2-offsets.{FINE}.internal", offsetlog.mirror_value(START_INSIDE - 1), key=key)
    finally:
        await producer.stop()
    async with topics_of(us.bootstrap) as topics:
        await asyncio.gather(put_all(topics), put_emptied(topics))


async def write_while_running(us: KafkaCluster, eu: KafkaCluster, copies: Copies) -> None:
    """What has to come while the mirror runs, until all of it has been copied."""
    await copies.assert_copied(FINE, "lowered")
    await asyncio.to_thread(configure, eu.bootstrap, "fine.lowered", {"max.message.bytes": "10000"})
    async with topics_of(us.bootstrap) as topics:
        for first in (40, 80, 120):
            await topics.put("lowered", some(40, first=first, value_bytes=1000))
    await transactions(us.bootstrap)
    await everything(copies)


async def everything(copies: Copies) -> None:
    """Until the target has what it will take, by the ends of its logs, and the log tells of the rest."""
    async with topics_of(copies.us.bootstrap) as source, topics_of(copies.eu.bootstrap) as target:
        dense = ("split", "lowered", "gzipped", "inflated", "stamped", "stamped-twice", "plain", "huge")
        wanted = {f"{FINE}.{topic}": await source.end(topic) for topic in dense}
        wanted[f"{FINE}.huge-inside"] = wanted[f"{FINE}.huge"] - START_INSIDE
        wanted[f"{FINE}.transactions"] = COMMITTED
        wanted[f"{LENIENT}.plain"] = wanted[f"{FINE}.plain"]
        wanted |= dict.fromkeys((f"{LENIENT}.poison-{kind}" for kind in ("key", "time", "size")), 48)

        async def is_there() -> bool:
            assert copies.mirror.is_running, copies.mirror.log_lines()[-30:]
            there = [await target.end(topic) >= end for topic, end in wanted.items()]
            return all(there) and sum("QUARANTINED" in line for line in copies.mirror.log_lines()) >= 3

        await until(is_there, "everything is mirrored")


@pytest.fixture(scope="module")
def copies(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    asyncio.run(prepare(us, eu))
    both = {
        key: value
        for flow in (FINE, LENIENT)
        for key, value in {
            f"{flow}.bootstrap.servers": us.bootstrap,
            f"{flow}->eu.enabled": "true",
            f"{flow}->eu.consumer.isolation.level": "read_committed",
        }.items()
    }
    properties = {
        "clusters": f"{FINE}, {LENIENT}, eu",
        "eu.bootstrap.servers": eu.bootstrap,
        **both,
        f"{FINE}->eu.topics": ", ".join(SOURCES),
        f"{LENIENT}->eu.topics": "plain, poison-.*",
        f"{LENIENT}->eu.errors.tolerance": "all",
        f"{LENIENT}->eu.errors.log.enable": "true",
        f"{LENIENT}->eu.producer.override.compression.type": "zstd",
        "tasks.max": "1",
        "copy.epoch.ms": str(EPOCH_MS),
        "eu.offset.flush.interval.ms": "3600000",
        "replication.factor": "1",
        "offset.storage.replication.factor": "1",
    }
    with Mirror(properties, tmp_path_factory.mktemp("every-shape")) as mirror:
        found = Copies(us, eu, mirror)
        mirror.start()
        asyncio.run(write_while_running(us, eu, found))
        mirror.members()
        os.kill(mirror.pid, signal.SIGKILL)
        mirror.reap()
        found.first_lines = mirror.log_lines()
        configure(eu.bootstrap, "fine.poison-size", {"max.message.bytes": "1000000"})
        found.restarted = mirror.log_end()
        mirror.start()
        yield found
        assert mirror.stop() == 0
        assert mirror.leftovers() == []


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
    settings = connection_settings({"bootstrap.servers": copies.eu.bootstrap}, client_id="test", where="eu")
    cluster = Cluster(settings)
    try:
        assert await max_message_bytes(cluster, f"{FINE}.lowered") == 10_000
    finally:
        await cluster.close()


async def test_a_target_that_stamps_its_own_time_gets_all_the_rest(copies: Copies) -> None:
    await copies.assert_copied(FINE, "stamped", own_time=True)


async def test_a_start_inside_seventy_thousand_records_is_exact(copies: Copies) -> None:
    await copies.assert_copied(FINE, "huge-inside", first=START_INSIDE)


async def test_an_emptied_batch_lets_the_copy_pass(copies: Copies) -> None:
    """The source's cleaner goes on: what is left there is a part of what was copied, in the same order."""

    async def holds_what_is_left() -> bool:
        following = iter([plain(one, False) for one in await read(copies.eu, f"{FINE}.emptied")])
        return all(plain(one, False) in following for one in await read(copies.us, "emptied"))

    await until(holds_what_is_left, "emptied is mirrored")


async def test_transactions_over_fetches_and_epochs_leave_no_aborted_record(copies: Copies) -> None:
    await copies.assert_copied(FINE, "transactions")
    values = {one.value for one in await read(copies.eu, f"{FINE}.transactions")}
    assert b"one 0 7" in values and b"two 0 7" not in values
    assert b"two 1 0" in values and b"one 1 0" not in values


async def test_what_comes_uncompressed_is_compressed_as_the_producer_is_told(copies: Copies) -> None:
    await copies.assert_copied(LENIENT, "plain")


@pytest.mark.parametrize("topic", ["poison-key", "poison-time", "poison-size"])
async def test_with_tolerance_just_the_records_that_are_refused_stay_behind(copies: Copies, topic: str) -> None:
    refused = [13, 19, 40, 41, 42]
    await copies.assert_copied(LENIENT, topic, without=refused)
    line = f"lenient->eu: skipped the record of topic {topic} partition 0 at offset "
    assert {int(one.rpartition(line)[2].partition(":")[0]) for one in copies.first_lines if line in one} == set(refused)


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        (
            "poison-key",
            (
                "refuses the record at source offset 13 and 1 others in the batch of source offsets 10 to 19: "
                "INVALID_RECORD (87)"
            ),
        ),
        (
            "poison-time",
            (
                "refuses the record at source offset 13 and 1 others in the batch of source offsets 10 to 19: "
                "INVALID_TIMESTAMP (32)"
            ),
        ),
        (
            "poison-size",
            "refuses the record at source offset 13 in the batch of source offset 13: MESSAGE_TOO_LARGE (10)",
        ),
    ],
)
async def test_without_tolerance_the_partition_is_quarantined_and_says_what_to_do(
    copies: Copies, topic: str, sentence: str
) -> None:
    (line,) = [one for one in copies.first_lines if "QUARANTINED" in one and f" {topic}-0 " in one]
    assert f"target fine.{topic}-0 {sentence}" in line
    assert "errors.tolerance = all" in line
    copied = await read(copies.eu, f"{FINE}.{topic}")
    assert [one.offset for one in await read(copies.us, topic)][:10] == list(range(10))
    if topic != "poison-size":
        assert len(copied) == 10


async def test_a_quarantined_partition_is_tried_again_after_a_start(copies: Copies) -> None:
    await copies.assert_copied(FINE, "poison-size")

    async def are_told_again() -> bool:
        again = [line for line in copies.restarted_lines() if "QUARANTINED" in line]
        return all(any(f" {topic}-0 " in line for line in again) for topic in ("poison-key", "poison-time"))

    await until(are_told_again, "the others are refused again")


async def test_the_proof_finds_its_way_through_every_shape(copies: Copies) -> None:
    async def are_resumed() -> bool:
        return len(copies.mirror.resumed(copies.restarted)) >= len(SOURCES) + 4

    await until(are_resumed, "all partitions are resumed")
    found = copies.mirror.resumed(copies.restarted)
    doubtful = [one.line for one in found if one.at_least_once and "emptied" not in one.partition]
    assert doubtful == []
    surplus = {(one.flow, one.partition): one.surplus_records for one in found}
    assert surplus["fine->eu", "huge-0"] == HUGE_RECORDS + 10
    assert surplus["fine->eu", "huge-inside-0"] == HUGE_RECORDS + 10 - START_INSIDE
    assert surplus["fine->eu", "transactions-0"] == COMMITTED
    assert surplus["fine->eu", "gzipped-0"] == 200
    assert surplus["lenient->eu", "poison-key-0"] == 48
