"""Records through ``transform.sql`` and transforms in the real thing: masked, filtered, exact across a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from tests.kit.brokers import KafkaCluster
from tests.kit.copies import read_all, send, until_records
from tests.kit.masking import masking
from tests.kit.members import until
from tests.kit.mirror import SMALL, Mirror, one_flow
from tests.kit.processes import slices, wait_until
from tests.kit.shared_mirror import MASKED as ALIAS
from tests.kit.shared_mirror import MASKED_LISTENER, SharedMirror
from tests.kit.spark_cluster import ConnectServer, StandaloneSpark, bare_python
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ATOMIC = "cards-atomic"
RECORDS = 4000
_DEADLINE_S = 120.0
BEGAN_MS = int(time.time() * 1000)


def number(index: int) -> bytes | None:
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
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5) as client:
        sent = [
            await client.send(
                topic, number(index), key=b"%d" % index, partition=index % 2, timestamp_ms=BEGAN_MS + index,
                headers=headers(index),
            )
            for index in range(first, first + count)
        ]  # fmt: skip
        await asyncio.gather(*sent)


def properties(us: KafkaCluster, eu: KafkaCluster, alias: str) -> dict[str, str]:
    other = f"{alias}-other"
    return {
        "clusters": f"{alias}, {other}, eu",
        f"{alias}.bootstrap.servers": us.bootstrap,
        f"{other}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        **masking(alias, other, "eu"),
        **SMALL,
        "copy.epoch.ms": "4000",
    }


def fill(us: KafkaCluster, alias: str) -> None:
    """The first half of the records; and numbers, of which one is none."""

    async def write_all() -> None:
        await make_topics(us.bootstrap, {f"{alias}-orders": 2, f"{alias}-orders.test": 2, f"{alias}-numbers": 1})
        await write(us, f"{alias}-orders", 0, RECORDS // 2)
        await write(us, f"{alias}-orders.test", 0, 20)
        await send(us.bootstrap, f"{alias}-numbers", (b"1", b"2", b"three", b"4"))

    asyncio.run(write_all())


@pytest.fixture
def atomic(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[Mirror]:
    fill(us, ATOMIC)
    once = {"eu.exactly.once.source.support": "enabled", f"{ATOMIC}->eu.consumer.isolation.level": "read_committed"}
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


async def test_records_are_masked_and_dropped_also_after_a_kill(shared: SharedMirror) -> None:
    """Records may come twice after the kill, if the log announces it."""
    us, eu, mirror, start = shared.us, shared.eu, shared.mirror, shared.mirror.log_end()

    def kill_slices() -> None:
        listeners = [node[MASKED_LISTENER].port for node in eu.listeners]
        for member in wait_until(lambda: slices(mirror.pid, listeners), _DEADLINE_S, "a slice writes to the target"):
            member.process.kill()

    await asyncio.to_thread(fill, us, ALIAS)
    await masked_each(us, eu, mirror, ALIAS, kill_slices, start)


@pytest.mark.long
async def test_so_they_are_under_exactly_once(us: KafkaCluster, eu: KafkaCluster, atomic: Mirror) -> None:
    await masked_each(us, eu, atomic, ATOMIC, lambda: restart(atomic))
    assert not any(one.may_double for one in atomic.resumed()), "nothing comes twice"
    assert any("aborted=" in one.line for one in atomic.resumed()), "positions were stored with their records"


@pytest.mark.long
async def test_so_they_are_where_spark_is_elsewhere(
    us: KafkaCluster, eu: KafkaCluster, elsewhere: tuple[Mirror, str]
) -> None:
    mirror, alias = elsewhere
    await masked_each(us, eu, mirror, alias, lambda: restart(mirror))


def restart(mirror: Mirror) -> None:
    mirror.kill()
    mirror.start()


async def masked_each(
    us: KafkaCluster, eu: KafkaCluster, mirror: Mirror, alias: str, kill: Callable[[], None], start: int = 0
) -> None:
    await until_records(mirror, eu.bootstrap, f"{alias}.{alias}-orders", RECORDS // 4)
    writing = asyncio.create_task(write(us, f"{alias}-orders", RECORDS // 2, RECORDS // 2))
    await asyncio.to_thread(kill)
    await writing
    kept = [index for index in range(RECORDS) if number(index) != b"drop me"]
    fifth = [index for index in kept if index // 2 % 5 == 4]
    usual = [index for index in kept if index // 2 % 5 != 4 and index % 100 != 11]

    def doubled(flow: str, partition: int) -> int:
        """Return how many records of a source partition may come twice, by the log."""
        found = [one for one in mirror.resumed(start) if one.flow.startswith(f"{flow}->")]
        return sum(one.may_double for one in found if one.partition == f"{alias}-orders-{partition}")

    await there_each(eu, mirror, f"{alias}.{alias}-orders", usual, ["secret"], partial(doubled, alias))
    other = f"{alias}-other"
    await there_each(eu, mirror, f"{other}.{alias}-orders.fifth", fifth, [], partial(doubled, other))
    assert not await read_all(eu.bootstrap, f"{alias}.{alias}-orders.test")

    async def stopped() -> bool:
        return any(f"{alias}-numbers-0: the record at offset 2 cannot be" in line for line in mirror.log_lines())

    await until(stopped, "the partition of a number that is none is quarantined")
    assert {record.value for record in await read_all(eu.bootstrap, f"{alias}.{alias}-figures")} == {b"2", b"3"}


async def there_each(
    eu: KafkaCluster, mirror: Mirror, topic: str, wanted: list[int], dropped: list[str], doubled: Callable[[int], int]
) -> None:
    """Wait for the records of these numbers: in order, without the headers ``dropped``, and twice only as announced."""

    async def all_there() -> bool:
        return len({record.key for record in await read_all(eu.bootstrap, topic)}) >= len(wanted)

    await mirror.until(all_there, f"all are copied to {topic}")
    found = await read_all(eu.bootstrap, topic)
    for partition in (0, 1):
        all_here = [record for record in found if record.partition == partition]
        first_of: dict[bytes, Any] = {}
        for record in all_here:
            first_of.setdefault(record.key, record)
        here = list(first_of.values())
        assert len(all_here) - len(here) <= doubled(partition)
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
    await send(us.bootstrap, topic, (b"none" if index % 10 == 3 else b"%d" % index for index in range(40)))
    settings = {
        **one_flow(us.bootstrap, eu.bootstrap, topic, alias, tasks=1),
        f"{alias}->eu.initial.offsets.group": group,
        f"{alias}->eu.errors.tolerance": "all",
        f"{alias}->eu.transform.sql": "SELECT string(int(string(value)) + 1) AS value FROM records",
    }
    member = AIOKafkaConsumer(topic, bootstrap_servers=us.bootstrap, group_id=group, enable_auto_commit=False)
    async with member:
        await member.commit({TopicPartition(topic, 0): 20})
        with Mirror(settings, tmp_path) as mirror:
            mirror.start()
            wanted = [b"%d" % (index + 1) for index in range(20, 40) if index % 10 != 3]

            async def all_there() -> bool:
                return [record.value for record in await read_all(eu.bootstrap, f"{alias}.{topic}")] == wanted

            await mirror.until(all_there, "what can be computed behind the group's offset is copied")
            mirror.await_line(0, [f"group {group} of initial.offsets.group has 1 members"], 60)
            assert mirror.stop() == 0
    assert "23" in "".join(line for line in mirror.log_lines() if "left out" in line), mirror.log_lines()
