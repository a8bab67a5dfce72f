"""One mirror between secured clusters: sessions that end every few seconds, blows, rights that are taken away.

SCRAM over TLS at the source, mutual TLS and SCRAM at the target. The tests share the mirror, in any order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psutil
import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from connect.embedded.brokers import KafkaCluster
from connect.kafka.settings import connection_settings
from connectors.verify import compare_topics
from tests.integration.test_mirror import read, until, write, write_transactions
from tests.kit.processes import Member, Role, gone, wait_until
from tests.kit.rounds import Moment, Path, Round
from tests.kit.secured import REAUTH_MS, SecuredStage
from tests.kit.strike import Strike, faults_of
from tests.kit.topics import make_topics
from tests.kit.writer import Load

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEED = 4
LOADS = (
    Load("orders", 2),
    Load("payments", 1, "zstd", value_bytes=300),
    Load("clicks", 1, "lz4", value_bytes=60, batch_records=300),
    Load("audit", 1, "gzip", value_bytes=900, batch_records=20),
    Load("stock", 1, "snappy", value_bytes=40),
)
DEADLINE_S = 240.0
LOAD_BYTES = 80_000
#: Of every id of the flow: its tasks' and their stores'.
IDS = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "us-mm2-MirrorSourceConnector-", ACLResourcePatternType.PREFIXED)
#: As long as somebody has a right to them, nobody has who is not named.
OTHER = "User:somebody-else"


class BothWays(SecuredStage):
    target_protocol = "SASL_SSL"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWays]:
    properties = {
        "lease.ms": "2000",
        "us->eu.topics": f"{', '.join(load.topic for load in LOADS)}, shape-.*",
        "us->eu.consumer.isolation.level": "read_committed",
    }
    folder = tmp_path_factory.mktemp("secured-mirror")
    with BothWays(folder, seed=SEED, loads=LOADS, records_per_s=2_000, properties=properties) as opened:
        asyncio.run(write_shapes(opened.us))
        assert opened.set_going(DEADLINE_S) == []
        yield opened
        ending = opened.wind_up()
        assert not ending.faults
        assert ending.comparison.is_exact, ending.comparison.summary()


async def write_shapes(us: KafkaCluster) -> None:
    """What is not passed on as it is; every codec is among the loads."""
    await make_topics(us.bootstrap, {"shape-txn": 1})
    await make_topics(us.bootstrap, {"shape-append": 2}, {"message.timestamp.type": "LogAppendTime"})
    await write_transactions(us, "shape-txn")
    await write(us, "shape-append", 100)


async def test_shapes_arrive_as_consumers_of_the_source_see_them(stage: BothWays) -> None:
    for topic in ("shape-txn", "shape-append"):
        wanted = len(await read(stage.us, topic))

        async def is_there(topic: str = topic, wanted: int = wanted) -> bool:
            return len(await read(stage.eu, f"us.{topic}")) >= wanted

        await until(is_there, f"{topic} is mirrored")
    source, target = (
        connection_settings({"bootstrap.servers": cluster.bootstrap}, client_id="test", where="test")
        for cluster in (stage.us, stage.eu)
    )
    topics = {topic: f"us.{topic}" for topic in ("shape-txn", "shape-append")}
    report = await compare_topics(source, target, topics, isolation_level="read_committed")
    assert report.difference is None, report.difference
    assert report.records > 200


def under_load(stage: BothWays) -> None:
    loaded = stage.passed_bytes() + LOAD_BYTES
    wait_until(lambda: stage.passed_bytes() >= loaded, DEADLINE_S, "the mirror copies under load")
    wait_until(stage.slices, DEADLINE_S, "a slice writes to the target")


def compare(stage: BothWays, begin: int) -> None:
    """The copy catches up and is exact; nobody took a guess since byte ``begin`` of the log."""
    stage.writer.pause()
    report = stage.caught_up(DEADLINE_S)
    assert report.is_exact, "\n".join([*faults_of(report), *stage.mirror.log_lines(begin)])
    stage.writer.resume()
    assert not [line for line in stage.mirror.log_lines(begin) if "at-least-once" in line or "Traceback" in line]


def links(stage: BothWays, member: Member) -> set[int]:
    """The local ports of a slice's connections to both clusters; empty when it is gone."""
    brokers = {listener.listeners["SCRAM_TLS"].port for listener in stage.us.addresses}
    brokers |= {proxy.port for proxy in stage.proxies}
    try:
        found = member.process.net_connections("tcp")
    except psutil.NoSuchProcess:
        return set()
    return {each.laddr.port for each in found if each.status == psutil.CONN_ESTABLISHED and each.raddr.port in brokers}


def outlived(stage: BothWays) -> bool:
    """Whether a slice has lived on for long after its sessions' end without losing a connection; False where an epoch
    ended meanwhile, and with it all slices. Short sessions are proven anew at half of their life: four times and more.
    """
    held = {member: links(stage, member) for member in stage.slices()}
    end_s = time.monotonic() + 2.6 * REAUTH_MS / 1000
    while time.monotonic() < end_s and held:
        time.sleep(0.1)
        held = {member: ports for member, ports in held.items() if not gone([member])}
        for member, ports in held.items():
            lost = ports - links(stage, member)
            assert not lost or gone([member]), "a connection was closed and made anew"
    return bool(held)


def test_sessions_that_are_proven_anew_cost_no_beat(stage: BothWays) -> None:
    """No connection of the copy is lost under load, and nothing is said."""
    under_load(stage)
    begin = stage.mirror.log_end()
    assert outlived(stage) or outlived(stage), "no slice lives for so long"
    assert not [line for line in stage.mirror.log_lines(begin) if " INFO " not in line]
    compare(stage, begin)


def strike(stage: BothWays, victim: Role, path: Path, let_go: Moment) -> None:
    """A seeded blow; the copy is exact behind it, or this fails."""
    for attempt in range(3):
        played = Strike(stage, Round(1, victim, False, path, let_go, LOAD_BYTES), SEED + attempt).play()
        assert not played.faults, "\n".join(played.faults)
        if not played.missed:
            return
    pytest.fail("three blows in turn hit nobody")


def test_a_blow_leaves_neither_gap_nor_duplicate_nor_disorder(stage: BothWays) -> None:
    strike(stage, Role.PYTHON_WORKER, Path.HELD, Moment.RESUMED)


def refuse_ids(stage: BothWays) -> None:
    admin = KafkaAdminClient(bootstrap_servers=stage.eu.bootstrap)
    try:
        admin.create_acls([ACL(OTHER, "*", ACLOperation.ALL, ACLPermissionType.ALLOW, IDS)])
    finally:
        admin.close()


def grant_ids(stage: BothWays) -> None:
    admin = KafkaAdminClient(bootstrap_servers=stage.eu.bootstrap)
    try:
        admin.delete_acls([ACLFilter(OTHER, "*", ACLOperation.ANY, ACLPermissionType.ANY, IDS)])
    finally:
        admin.close()


def grants(stage: BothWays, begin: int) -> list[str]:
    return [line for line in stage.mirror.log_lines(begin) if "grant" in line]


def test_without_rights_to_transactional_ids_a_killed_copy_resumes_exactly(stage: BothWays) -> None:
    """Taken away under load, missed at a start, and given back: the copy is exact throughout. Batches whose answers
    are held are found; those that arrive when a successor copies already are recognised, or refused and found then."""
    begin = stage.mirror.log_end()
    refuse_ids(stage)
    try:
        wait_until(lambda: grants(stage, begin), DEADLINE_S, "the missing right is named")
        begin = stage.mirror.log_end()
        strike(stage, Role.WORKER, Path.UNANSWERED, Moment.RESUMED)
        (said,) = grants(stage, begin)
        assert "WRITE and DESCRIBE on transactional ids that begin with us-mm2-MirrorSourceConnector-" in said
        strike(stage, Role.PYTHON_WORKER, Path.HELD, Moment.COPYING)
        assert len(grants(stage, begin)) == 1, "said once"
    finally:
        grant_ids(stage)
    begin = stage.mirror.log_end()
    strike(stage, Role.PYTHON_WORKER, Path.PLAIN, Moment.RESUMED)
    assert not grants(stage, begin)
    assert not [line for line in stage.mirror.log_lines(begin) if "Traceback" in line]
