"""MirrorSource with records and positions in the same transactions: real brokers, Spark, a slice that is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from connect.embedded.brokers import DEFAULT_VERSION
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.producer import OutRecord
from connect.kafka.log.shared_transactions import SharedTransactions
from connect.kafka.log.transactions import Superseded
from connectors.formats.position import KeyKind, Position, decode_kind, decode_position, decode_position_key
from connectors.verification.direct import compare_topics
from tests.kit.batches import topics_of
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at, settings_of
from tests.kit.copies import read_all, until_records, write, write_transactions
from tests.kit.kill import run
from tests.kit.members import until
from tests.kit.mirror import Mirror, one_flow
from tests.kit.processes import Role, gone, slices, wait_until
from tests.kit.rounds import plan
from tests.kit.shared_mirror import ONCE as ALIAS
from tests.kit.shared_mirror import ONCE_LISTENER, SharedMirror
from tests.kit.stage import Stage
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PLAIN: Final = "once-plain"
TRANSACTIONS: Final = "once-txn"
KILLED: Final = "once-killed"


def mirror_properties(eos: str, us: KafkaCluster, eu: KafkaCluster) -> dict[str, str]:
    return {
        **one_flow(us.bootstrap, eu.bootstrap, "once-.*", ALIAS, tasks=1),
        "eu.exactly.once.source.support": eos,
        f"{ALIAS}->eu.consumer.isolation.level": "read_committed",
    }


class Site:
    def __init__(self, us: KafkaCluster, eu: KafkaCluster, mirror: Mirror) -> None:
        self.us = us
        self.eu = eu
        self.mirror = mirror

    async def arrives(self, topic: str, records: int) -> None:
        """Every record once, in order, with all that it has, as a read_committed consumer sees it."""
        await until_records(self.mirror, self.eu.bootstrap, f"{ALIAS}.{topic}", records)
        sides = settings_of(self.us.bootstrap), settings_of(self.eu.bootstrap)
        report = await compare_topics(*sides, {topic: f"{ALIAS}.{topic}"})
        assert report.difference is None, report.difference
        assert report.records == records

    async def positions(self, target: Cluster) -> dict[tuple[str, int], Position]:
        found: dict[tuple[str, int], Position] = {}

        def fold(record: LogRecord) -> None:
            if decode_kind(record.key) is KeyKind.POSITION and record.value is not None:
                key = decode_position_key(record.key or b"")
                found[key.source_topic, key.source_partition] = decode_position(key, record.value)

        await read_to_end(target, f"mm2-offset-map.{ALIAS}.internal", fold, read_committed=True)
        return found


@pytest.fixture(scope="module")
def site(shared: SharedMirror) -> Site:
    us = shared.us

    async def prepare() -> None:
        await make_topics(us.bootstrap, {PLAIN: 2, KILLED: 2, TRANSACTIONS: 1})
        await write(us, PLAIN, 300, compression_type="zstd")
        await write(us, KILLED, 100)
        await write_transactions(us, TRANSACTIONS)

    asyncio.run(prepare())
    return Site(us, shared.eu, shared.mirror)


async def test_records_and_positions_are_committed_together(site: Site) -> None:
    await site.arrives(PLAIN, 600)
    await site.arrives(TRANSACTIONS, len(await read_all(site.us.bootstrap, TRANSACTIONS)))
    async with topics_of(site.eu.bootstrap) as topics:
        batches = await topics.headers(f"{ALIAS}.{PLAIN}")
    async with cluster_at(site.eu.bootstrap) as target:
        assert all(header.is_transactional for header in batches)
        assert {header.codec for header in batches if not header.is_control} == {4}, "as the producer compressed them"
        positions = await site.positions(target)
        ends = {partition: positions[PLAIN, partition].next_source_offset for partition in (0, 1)}
        assert ends == {0: 300, 1: 300}
        assert all(position.is_atomic for position in positions.values())


async def test_a_slice_that_is_killed_leaves_neither_gap_nor_duplicate(site: Site) -> None:
    await site.arrives(KILLED, 200)
    ports = [node[ONCE_LISTENER].port for node in site.eu.listeners]
    before = site.mirror.log_end()
    struck = wait_until(lambda: slices(site.mirror.pid, ports), 120, "a slice is connected to the target")
    writing = asyncio.create_task(write(site.us, KILLED, 2_000))
    for member in struck:
        member.process.kill()
    await writing
    await until(lambda: asyncio.sleep(0, gone(struck)), "the slice is gone")
    site.mirror.await_line(before, ["resumed", f"{KILLED}-0:", "fallback=none"], 120)
    await site.arrives(KILLED, 4_200)


async def test_one_id_has_one_owner_whose_records_are_seen_when_it_commits(eu: KafkaCluster) -> None:
    topic = "once-shared"
    await make_topics(eu.bootstrap, {topic: 1})
    async with cluster_at(eu.bootstrap) as cluster:
        one, two = (SharedTransactions(cluster, "once-shared-0") for _ in range(2))
        await one.open()
        epochs = []
        for number in range(3):
            epochs.append(one.identity.epoch)
            await one.write([OutRecord(topic, b"key", b"%d" % number)])
        assert one.restarts
        assert epochs == sorted(set(epochs)), "each transaction has an epoch of its own"
        await two.open()
        with pytest.raises(Superseded):
            await one.write([OutRecord(topic, b"key", b"late")])
        await two.write([OutRecord(topic, b"key", b"3")])

        async def is_all_committed() -> bool:
            """The marker of a transaction comes a moment after its commit was answered."""
            return len(await read_all(eu.bootstrap, topic)) >= 4

        await until(is_all_committed, "all is committed")
        assert [record.value for record in await read_all(eu.bootstrap, topic)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.long
async def test_it_is_switched_off_and_on_after_kills(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    """Each goes on from what the other left: positions without a proof, and with one."""
    await make_topics(us.bootstrap, {"once-switched": 2})
    with Mirror(mirror_properties("enabled", us, eu), tmp_path) as mirror:
        site, total = Site(us, eu, mirror), 0
        turns = ("enabled", "disabled", "enabled", "disabled", "disabled", "enabled")
        for turn, eos in enumerate(turns):
            mirror.configure(mirror_properties(eos, us, eu))
            start = mirror.log_end()
            mirror.start()
            await write(us, "once-switched", 400)
            total += 800
            await site.arrives("once-switched", total)
            if turn in (1, len(turns) - 1):
                # Slices of a killed one may have copied all before this one is up.
                mirror.await_line(start, ["task MirrorSourceConnector-0 is RUNNING"], 120)
                assert mirror.stop() == 0
            else:
                writing = asyncio.create_task(write(us, "once-switched", 1_000))
                await asyncio.to_thread(mirror.kill)
                await writing
                total += 2_000


@pytest.mark.long
def test_a_target_with_transactions_of_the_first_kind(tmp_path: Path) -> None:
    """3.9 has no ``transaction.version`` 2: partitions are enlisted, and sequences run on."""
    rounds = plan(5, kills=3, stops=1, victims=(Role.PYTHON_WORKER, Role.WORKER), load_bytes=(100_000, 1_000_000))
    with Stage(tmp_path, seed=5, records_per_s=4_000, versions=(DEFAULT_VERSION, "3.9.1"), exactly_once=True) as stage:
        report = run(stage, rounds, seed=5, surplus_rounds=0)
    assert not report.all_faults, report.markdown()
