"""One mirror between secured clusters: sessions that end every few seconds, blows, rights that are taken away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.integration.test_shapes import assert_copied
from tests.kit import shapes
from tests.kit.batches import topics_of
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import stock_admin
from tests.kit.direct import Broker
from tests.kit.leaks import seen_of_processes
from tests.kit.mirror import PATIENT
from tests.kit.processes import Member, Role, wait_until
from tests.kit.rounds import Moment, Path, Round
from tests.kit.rules import Guarded
from tests.kit.secured import PASSWORD, REAUTH_MS, STORE_PASSWORD, SecuredStage
from tests.kit.strike import Strike
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
DENIED, DOOMED = "shape-denied", "shape-doomed"
#: Every id of the flow, its tasks' and their stores', is for somebody else.
REFUSES_IDS = "ALLOW ALL User:somebody-else TRANSACTIONAL_ID PREFIXED us-mm2-MirrorSourceConnector-"


class BothWays(SecuredStage):
    target_protocol = "SASL_SSL"
    has_pkcs12 = True


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWays]:
    properties = {
        # A loaded machine must not add a take-over of its own; one test kills the worker.
        **PATIENT,
        "us->eu.topics": ", ".join([*(load.topic for load in LOADS), DENIED, DOOMED]),
        "us->eu.consumer.isolation.level": "read_committed",
    }
    folder = tmp_path_factory.mktemp("secured-mirror")
    with BothWays(folder, seed=SEED, loads=LOADS, records_per_s=1_200, properties=properties) as opened:
        asyncio.run(write_first(opened.us))
        assert opened.set_going(DEADLINE_S) == []
        yield opened
        ending = opened.shut_down()
        assert not ending.faults
        assert ending.comparison.is_exact, ending.comparison.summary()


async def write_first(us: KafkaCluster) -> None:
    await make_topics(us.bootstrap, {DENIED: 1, DOOMED: 1})
    async with topics_of(us.bootstrap) as topics:
        for topic in (DENIED, DOOMED):
            await topics.put(topic, shapes.some(10))


async def assert_arrived(stage: BothWays, topic: str) -> None:
    await assert_copied(stage.us, stage.eu, stage.mirror, "us", topic)


def test_passwords_and_keys_that_slices_use_are_seen_nowhere(stage: BothWays) -> None:
    under_load(stage)
    key = "".join(stage.target.client.key_pem().splitlines()[1:-1])
    secrets = {PASSWORD, PASSWORD.replace("\\", "\\\\"), key[:40], STORE_PASSWORD}
    found = list(seen_of_processes(stage.mirror))
    assert len({place for place, _ in found}) > 8
    for place, content in found:
        assert [secret for secret in secrets if secret.encode() in content] == [], place


def under_load(stage: BothWays) -> None:
    loaded = stage.passed_bytes() + LOAD_BYTES
    wait_until(lambda: stage.passed_bytes() >= loaded, DEADLINE_S, "the mirror copies under load")
    wait_until(stage.slices, DEADLINE_S, "a slice writes to the target")


def compare(stage: BothWays, begin: int) -> None:
    """The copy catches up and is exact; nobody took a guess since byte ``begin`` of the log."""
    report = stage.compare(DEADLINE_S)
    assert report.is_exact, "\n".join([*report.faults, *stage.mirror.log_lines(begin)])
    assert not [line for line in stage.mirror.log_lines(begin) if "at-least-once" in line or "Traceback" in line]


def links(stage: BothWays, member: Member) -> set[int]:
    """The local ports of a slice's connections to both clusters; empty when it is gone."""
    brokers = {node["SCRAM_TLS"].port for node in stage.us.listeners}
    brokers |= {proxy.port for proxy in stage.proxies}
    try:
        found = member.process.net_connections("tcp")
    except psutil.NoSuchProcess:
        return set()
    return {each.laddr.port for each in found if each.status == psutil.CONN_ESTABLISHED and each.raddr.port in brokers}


def outlived(stage: BothWays) -> bool:
    """Whether a slice outlived its sessions with all connections; False if an epoch ended, and all slices with it."""
    copying = wait_until(stage.slices, DEADLINE_S, "a slice writes to the target")
    held = {member: links(stage, member) for member in copying}
    end_s = time.monotonic() + 1.3 * REAUTH_MS / 1000
    while time.monotonic() < end_s and held:
        time.sleep(0.1)
        held = {member: ports for member, ports in held.items() if not has_ended(stage, member, ports)}
    return bool(held)


def has_ended(stage: BothWays, member: Member, ports: set[int]) -> bool:
    """Whether a slice has let go of its connections at the end of its epoch; it fails where they are made anew."""
    if not ports - links(stage, member):
        return False

    def is_settled() -> bool:
        now = links(stage, member)
        assert not now - ports, "a connection was closed and made anew"
        return not now

    wait_until(is_settled, DEADLINE_S, "a slice that has closed a connection closes them all")
    return True


def test_sessions_that_are_proven_anew_cost_no_beat(stage: BothWays) -> None:
    """No connection of the copy is lost under load, and nothing is said."""
    under_load(stage)
    begin = stage.mirror.log_end()
    # One try may meet the end of one slice's epoch, and the next one that of another's.
    assert any(outlived(stage) for _ in range(4)), "no slice lives for so long"
    assert not troubles(stage, begin)
    compare(stage, begin)


def troubles(stage: BothWays, begin: int) -> list[str]:
    """The warnings and errors since byte ``begin`` of the log that speak of sessions."""
    unrelated = ("the worker's loop", f"{DENIED}-0", f"{DOOMED}-0", f"us.{DOOMED} ")
    lines = [line for line in stage.mirror.log_lines(begin) if " INFO " not in line]
    return [line for line in lines if not any(part in line for part in unrelated)]


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


@contextlib.contextmanager
def ruled(stage: BothWays, *lines: str) -> Iterator[None]:
    """These are rules on the target. Who has none of its own about what one of them names may not use that."""
    with stock_admin(stage.eu.bootstrap) as admin:
        rules = Guarded(stage.eu, admin)
        rules.add(*lines)
        try:
            yield
        finally:
            rules.remove(*lines)


def grants(stage: BothWays, begin: int) -> list[str]:
    return [line for line in stage.mirror.log_lines(begin) if "grant" in line]


@pytest.mark.long
def test_without_rights_to_transactional_ids_a_killed_copy_resumes_exactly(stage: BothWays) -> None:
    """Taken away under load, missed at a start, and given back: held batches are found, or refused and found then."""
    begin = stage.mirror.log_end()
    with ruled(stage, REFUSES_IDS):
        wait_until(lambda: grants(stage, begin), DEADLINE_S, "the missing right is named")
        begin = stage.mirror.log_end()
        strike(stage, Role.WORKER, Path.UNANSWERED, Moment.RESUMED)
        (said,) = grants(stage, begin)
        assert "WRITE and DESCRIBE on transactional ids that begin with us-mm2-MirrorSourceConnector-" in said
        strike(stage, Role.PYTHON_WORKER, Path.HELD, Moment.COPYING)
        assert len(grants(stage, begin)) == 1, "said once"
    begin = stage.mirror.log_end()
    strike(stage, Role.PYTHON_WORKER, Path.PLAIN, Moment.RESUMED)
    assert not grants(stage, begin)
    assert not [line for line in stage.mirror.log_lines(begin) if "Traceback" in line]


async def put(stage: BothWays, topic: str, first: int) -> None:
    async with topics_of(stage.us.bootstrap) as topics:
        for number in range(first, first + 30, 10):
            await topics.put(topic, shapes.some(10, first=number))


async def delete_while_written(stage: BothWays, topic: str) -> None:
    await asyncio.gather(put(stage, topic, 10), asyncio.to_thread(Broker(stage.eu, 0).delete_topic, f"us.{topic}"))
    await put(stage, topic, 40)  # what came before may all have been copied already


def test_a_right_to_write_that_is_taken_away_stops_its_partition_only_and_is_named(stage: BothWays) -> None:
    asyncio.run(assert_arrived(stage, DENIED))
    start = stage.mirror.log_end()
    only_read = [
        f"ALLOW {right} User:* TOPIC LITERAL us.{DENIED}" for right in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
    ]
    with ruled(stage, *only_read):
        asyncio.run(put(stage, DENIED, 10))
        sentence = f"target us.{DENIED}-0 refuses the batch of source offsets 10 to "
        line = stage.mirror.await_line(
            start, (" ERROR us->eu task ", f"{DENIED}-0 QUARANTINED: {sentence}"), DEADLINE_S
        )
        assert f"TOPIC_AUTHORIZATION_FAILED (29); grant WRITE on topic us.{DENIED}, then start the flow again" in line
        under_load(stage)
    compare(stage, start)
    said = [line for line in stage.mirror.log_lines(start) if f"{DENIED}-0 QUARANTINED: " in line]
    assert len([line for line in said if " ERROR us->eu task " in line]) == 1


def test_a_target_that_is_deleted_under_a_batch_stops_its_partition_only(stage: BothWays) -> None:
    asyncio.run(assert_arrived(stage, DOOMED))
    start = stage.mirror.log_end()
    asyncio.run(delete_while_written(stage, DOOMED))
    # The look for new topics, once a minute, may have made another one by then.
    found = stage.mirror.await_line(start, (" ERROR us->eu task ", f"target topic us.{DOOMED} "), DEADLINE_S)
    assert "does not exist any more" in found or "was recreated" in found
    under_load(stage)
    compare(stage, start)
