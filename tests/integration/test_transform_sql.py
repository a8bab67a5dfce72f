"""Records through ``transform.sql`` and transforms in the real thing: masked, filtered, exact across a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from connect.embedded.brokers import KafkaCluster
from tests.integration.test_mirror import read, until
from tests.kit.mirror import SMALL, Mirror
from tests.kit.spark_cluster import ConnectServer, StandaloneSpark, bare_python
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ALIAS = "cards"
ATOMIC = "cards-atomic"
QUERY = (
    "SELECT key, IF(topic LIKE '%-numbers', CAST(CAST(CAST(value AS STRING) AS INT) + 1 AS STRING), "
    "regexp_replace(value, '[0-9]{16}', '****')) AS value, "
    "IF(topic LIKE '%-orders' AND pmod(offset, 5) = 4, concat(topic, '.fifth'), NULL) AS topic FROM records "
    "WHERE topic NOT LIKE '%.test' AND coalesce(value <> 'drop me', true)"
)
RECORDS = 4000
BEGAN_MS = int(time.time() * 1000)


def number(index: int) -> bytes | None:
    """The value of a record."""
    if index % 10 == 3:
        return b"drop me"
    if index % 50 == 7:
        return None
    return b"order %d, card %016d" % (index, index)


def masked(index: int) -> bytes | None:
    value = number(index)
    return None if value is None else b"order %d, card ****" % index


def headers(index: int) -> list[tuple[str, bytes]]:
    """Some have one that is kept; all one that a transform drops, and a few one by which another drops them."""
    kept = [("n", b"%d" % index)] if index % 3 else []
    return [*kept, ("secret", b"%d" % index), *([("spam", b"")] if index % 100 == 11 else [])]


async def write(cluster: KafkaCluster, topic: str, first: int, count: int) -> None:
    client = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5)
    await client.start()
    try:
        sent = [
            await client.send(
                topic, number(index), key=b"%d" % index, partition=index % 2, timestamp_ms=BEGAN_MS + index,
                headers=headers(index),
            )
            for index in range(first, first + count)
        ]  # fmt: skip
        await asyncio.gather(*sent)
    finally:
        await client.stop()


def properties(us: KafkaCluster, eu: KafkaCluster, alias: str) -> dict[str, str]:
    return {
        f"{alias}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{alias}->eu.enabled": "true",
        f"{alias}->eu.topics": f"{alias}-orders, {alias}-orders\\\\.test, {alias}-numbers",
        f"{alias}->eu.transform.sql": QUERY,
        f"{alias}->eu.transforms": "sift, short, lean",
        f"{alias}->eu.transforms.sift.type": "Filter",
        f"{alias}->eu.transforms.sift.predicate": "spam",
        f"{alias}->eu.transforms.short.type": "RegexRouter",
        f"{alias}->eu.transforms.short.regex": "(.*)-numbers",
        f"{alias}->eu.transforms.short.replacement": "$1-figures",
        f"{alias}->eu.transforms.lean.type": "org.apache.kafka.connect.transforms.DropHeaders",
        f"{alias}->eu.transforms.lean.headers": "secret",
        f"{alias}->eu.predicates": "spam",
        f"{alias}->eu.predicates.spam.type": "HasHeaderKey",
        f"{alias}->eu.predicates.spam.name": "spam",
        f"{alias}->eu.transform.other.topics": "${topic}.fifth",
        **of_the_fifth(us, alias),
        **SMALL,
        "copy.epoch.ms": "4000",
    }


def of_the_fifth(us: KafkaCluster, alias: str) -> dict[str, str]:
    """The same cluster by another name: what the query sends elsewhere goes there."""
    other = f"{alias}-other"
    return {
        "clusters": f"{alias}, {other}, eu",
        f"{other}.bootstrap.servers": us.bootstrap,
        f"{other}->eu.enabled": "true",
        f"{other}->eu.topics": f"{alias}-orders",
        f"{other}->eu.transform.sql": QUERY,
        f"{other}->eu.transform.topic": "${topic}.fifth",
        f"{other}->eu.transform.other.topics": "${topic}",
    }


def fill(us: KafkaCluster, alias: str) -> None:
    """The first half of the records; and numbers, of which one is none."""

    async def write_all() -> None:
        await make_topics(us.bootstrap, {f"{alias}-orders": 2, f"{alias}-orders.test": 2, f"{alias}-numbers": 1})
        await write(us, f"{alias}-orders", 0, RECORDS // 2)
        await write(us, f"{alias}-orders.test", 0, 20)
        client = AIOKafkaProducer(bootstrap_servers=us.bootstrap)
        await client.start()
        try:
            for value in (b"1", b"2", b"three", b"4"):
                await client.send_and_wait(f"{alias}-numbers", value)
        finally:
            await client.stop()

    asyncio.run(write_all())


@pytest.fixture
def mirror(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[Mirror]:
    fill(us, ALIAS)
    with Mirror(properties(us, eu, ALIAS), tmp_path) as running:
        running.start()
        yield running


@pytest.fixture
def atomic(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[Mirror]:
    fill(us, ATOMIC)
    once = {
        "eu.exactly.once.source.support": "enabled",
        f"{ATOMIC}->eu.consumer.isolation.level": "read_committed",
    }
    with Mirror({**properties(us, eu, ATOMIC), **once}, tmp_path) as running:
        running.start()
        yield running


@pytest.fixture(params=[StandaloneSpark, ConnectServer])
def elsewhere(
    request: pytest.FixtureRequest, us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> Iterator[tuple[Mirror, str]]:
    """A mirror whose executors have not got this project, and the alias of its source."""
    alias = f"cards-{request.param.__name__.lower()}"
    fill(us, alias)
    with (
        request.param(bare_python(tmp_path / "python")) as spark,
        Mirror({**properties(us, eu, alias), **spark.properties}, tmp_path) as running,
    ):
        running.start()
        yield running, alias


async def test_records_are_masked_and_dropped_once_each_also_after_a_kill(
    us: KafkaCluster, eu: KafkaCluster, mirror: Mirror
) -> None:
    await masked_once_each(us, eu, mirror, ALIAS)
    assert not any(one.at_least_once for one in mirror.resumed()), mirror.log_lines()


@pytest.mark.long
async def test_so_they_are_under_exactly_once(us: KafkaCluster, eu: KafkaCluster, atomic: Mirror) -> None:
    await masked_once_each(us, eu, atomic, ATOMIC)
    assert any("aborted=" in one.line for one in atomic.resumed()), "positions were stored with their records"


@pytest.mark.long
async def test_so_they_are_where_spark_is_elsewhere(
    us: KafkaCluster, eu: KafkaCluster, elsewhere: tuple[Mirror, str]
) -> None:
    mirror, alias = elsewhere
    await masked_once_each(us, eu, mirror, alias)
    assert not any(one.at_least_once for one in mirror.resumed()), mirror.log_lines()


async def masked_once_each(us: KafkaCluster, eu: KafkaCluster, mirror: Mirror, alias: str) -> None:
    async def some() -> bool:
        assert mirror.is_running, mirror.log_lines()[-20:]
        return len(await read(eu, f"{alias}.{alias}-orders")) > RECORDS // 4

    await until(some, "some are copied")
    writing = asyncio.create_task(write(us, f"{alias}-orders", RECORDS // 2, RECORDS // 2))
    mirror.kill()
    mirror.start()
    await writing
    kept = [index for index in range(RECORDS) if number(index) != b"drop me"]
    fifth = [index for index in kept if index // 2 % 5 == 4]
    usual = [index for index in kept if index // 2 % 5 != 4 and index % 100 != 11]
    await there_once_each(eu, mirror, f"{alias}.{alias}-orders", usual, ["secret"])
    await there_once_each(eu, mirror, f"{alias}-other.{alias}-orders.fifth", fifth, [])
    assert not await read(eu, f"{alias}.{alias}-orders.test")

    async def stopped() -> bool:
        return any(f"{alias}-numbers-0: the record at offset 2 cannot be" in line for line in mirror.log_lines())

    await until(stopped, "the partition of a number that is none is quarantined")
    assert [record.value for record in await read(eu, f"{alias}.{alias}-figures")] == [b"2", b"3"]


async def there_once_each(eu: KafkaCluster, mirror: Mirror, topic: str, wanted: list[int], dropped: list[str]) -> None:
    """Records of these numbers are, in order; of their headers those are gone that are ``dropped``."""

    async def all_there() -> bool:
        assert mirror.is_running, mirror.log_lines()[-20:]
        return len(await read(eu, topic)) >= len(wanted)

    await until(all_there, f"all are copied to {topic}")
    found = await read(eu, topic)
    for partition in (0, 1):
        here = [record for record in found if record.partition == partition]
        expected = [index for index in wanted if index % 2 == partition]
        assert [record.key for record in here] == [b"%d" % index for index in expected]
        assert [record.value for record in here] == [masked(index) for index in expected]
        assert [record.timestamp for record in here] == [BEGAN_MS + index for index in expected]
        assert [dict(record.headers) for record in here] == [
            {name: value for name, value in headers(index) if name not in dropped} for index in expected
        ]


@pytest.mark.long
async def test_what_cannot_be_computed_is_left_out_and_a_group_that_still_copies_is_warned_of(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    """From a MirrorMaker 1 that was not stopped, with ``errors.tolerance = all``."""
    alias, topic, group = "wary", "wary-numbers", "wary-mirror-maker-1"
    await make_topics(us.bootstrap, {topic: 1})
    async with AIOKafkaProducer(bootstrap_servers=us.bootstrap) as producer:
        for index in range(40):
            await producer.send_and_wait(topic, b"none" if index % 10 == 3 else b"%d" % index)
    settings = {
        "clusters": f"{alias}, eu",
        f"{alias}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{alias}->eu.enabled": "true",
        f"{alias}->eu.topics": topic,
        f"{alias}->eu.initial.offsets.group": group,
        f"{alias}->eu.errors.tolerance": "all",
        f"{alias}->eu.transform.sql": "SELECT string(int(string(value)) + 1) AS value FROM records",
        **SMALL,
    }
    member = AIOKafkaConsumer(topic, bootstrap_servers=us.bootstrap, group_id=group, enable_auto_commit=False)
    async with member:
        await member.commit({TopicPartition(topic, 0): 20})
        with Mirror(settings, tmp_path) as mirror:
            mirror.start()
            wanted = [b"%d" % (index + 1) for index in range(20, 40) if index % 10 != 3]

            async def all_there() -> bool:
                assert mirror.is_running, mirror.log_lines()[-20:]
                return [record.value for record in await read(eu, f"{alias}.{topic}")] == wanted

            await until(all_there, "what can be computed behind the group's offset is copied")
            mirror.await_line(0, [f"group {group} of initial.offsets.group has 1 members"], 60)
            assert mirror.stop() == 0
    assert "23" in "".join(line for line in mirror.log_lines() if "left out" in line), mirror.log_lines()
