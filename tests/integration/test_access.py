"""Access rules between two clusters with an authorizer each; the connector runs as in a worker, without its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from uuid import uuid4

import pytest

from connect.core.errors import SecurityError
from connect.core.model import NewTopic
from connect.kafka.authorization import AclBinding, AclFilter, SecurityDisabled, create_acls, delete_acls, describe_acls
from connect.kafka.cluster import NotAuthorized
from connect.kafka.log.active_producers import ProducersRefused, describe_producers
from connect.kafka.log.transactions import FenceRefused, TopicsRefused, fence
from connectors.source.plugin import MirrorSource
from connectors.source.worker_context import MirrorHost, SharedSpark
from connectors.transforms.target_names import FindPlugin
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_and_admin, cluster_at
from tests.kit.members import until
from tests.kit.rules import BOB, Guarded, two_guarded
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

_DEADLINE_S: Final = 120.0
_BOB: Final = {key.replace(".", "_"): value for key, value in BOB.items()}


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Guarded, Guarded]]:
    """Source and target; a test leaves rules and topics behind, and begins with clearing rules."""
    with two_guarded() as (us, eu):
        yield us, eu


@pytest.fixture
def both(clusters: tuple[Guarded, Guarded]) -> tuple[Guarded, Guarded]:
    for side in clusters:
        side.clear()
    return clusters


class _Context:
    """What a worker is to a connector, as far as this one asks."""

    def request_task_reconfiguration(self) -> None:
        pass

    def raise_error(self, error: Exception) -> None:
        raise error


@asynccontextmanager
async def connector(source: Guarded, target: Guarded, alias: str, back: str, **own: str) -> AsyncIterator[None]:
    """The flow's connector, running; keys of ``own`` with underscores for dots."""
    props = {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": alias,
        "target.cluster.alias": back,
        "source.cluster.bootstrap.servers": source.cluster.bootstrap,
        "target.cluster.bootstrap.servers": target.cluster.bootstrap,
        "topics": f"{alias}-.*|orders.*",
        "replication.factor": "1",
        "refresh.look.interval.ms": "200",
        "refresh.topics.interval.seconds": "1",
        "sync.topic.acls.interval.seconds": "2",
        **{key.replace("_", "."): value for key, value in own.items()},
    }
    worker = {
        "bootstrap.servers": target.cluster.bootstrap,
        "group.id": f"{alias}-mm2",
        "offset.storage.topic": f"mm2-offsets.{alias}.internal",
        "offset.storage.replication.factor": "1",
        "offset.storage.partitions": "3",
    }
    plugin = MirrorSource(MirrorHost(worker, cast(SharedSpark, None), cast(FindPlugin, None), lambda: True))
    plugin.initialize(cast(Any, _Context()))
    await plugin.start(props)
    try:
        yield
    finally:
        await plugin.stop()


async def until_rules(side: Guarded, wanted: Collection[str]) -> None:
    await until(lambda: asyncio.to_thread(lambda: side.rules() == set(wanted)), f"the rules are {wanted}")


async def test_javas_rule(both: tuple[Guarded, Guarded]) -> None:
    us, eu = both
    us.add(
        "ALLOW READ User:bob TOPIC LITERAL orders",
        "ALLOW WRITE User:bob TOPIC LITERAL orders",
        "ALLOW ALL User:ann TOPIC LITERAL orders",
        "DENY ALL User:eve TOPIC LITERAL orders",
        "ALLOW READ User:bob TOPIC PREFIXED or",
        "ALLOW READ User:bob TOPIC LITERAL secret",
        "ALLOW READ User:bob GROUP LITERAL app",
    )
    eu.add("ALLOW READ User:zoe TOPIC LITERAL us.orders")
    expected = {
        "ALLOW READ User:zoe TOPIC LITERAL us.orders",
        "ALLOW READ User:bob TOPIC LITERAL us.orders",
        "ALLOW READ User:ann TOPIC LITERAL us.orders",
        "DENY ALL User:eve TOPIC LITERAL us.orders",
    }
    async with connector(us, eu, "us", "eu"):
        await until_rules(eu, expected)
        us.remove("ALLOW READ User:bob TOPIC LITERAL orders")
        us.add("ALLOW DESCRIBE User:joe TOPIC LITERAL orders-2")
        await until_rules(eu, expected | {"ALLOW DESCRIBE User:joe TOPIC LITERAL us.orders-2"})


async def test_in_full(both: tuple[Guarded, Guarded]) -> None:
    us, eu = both
    same = (
        "ALLOW READ User:bob GROUP PREFIXED app",
        "DENY READ User:* GROUP PREFIXED app-private",
        "ALLOW ALL User:bob TRANSACTIONAL_ID LITERAL tx",
    )
    us.add(
        *same,
        "ALLOW READ User:bob TOPIC PREFIXED ny-",
        "ALLOW WRITE User:bob TOPIC LITERAL orders",
        "DENY READ User:eve TOPIC LITERAL *",
        "ALLOW READ User:bob GROUP LITERAL console-consumer-7",
        "ALLOW ALTER User:bob CLUSTER LITERAL kafka-cluster",
    )
    # Here before the flow was.
    zoes = "ALLOW READ User:zoe GROUP LITERAL zoe"
    eu.add("ALLOW ALL User:bob TRANSACTIONAL_ID LITERAL tx", zoes)
    on_eu = {*same, zoes, "ALLOW WRITE User:bob TOPIC LITERAL ny.orders"}
    full = {"sync_acls_mode": "full", "sync_acls_write_enabled": "true"}
    async with connector(us, eu, "ny", "eu", **full), connector(eu, us, "eu", "ny", **full):
        await until_rules(eu, on_eu)
        # With the first topic come the patterns that it fits.
        await make_topics(us.cluster.bootstrap, {"ny-orders": 1})
        patterns = {"ALLOW READ User:bob TOPIC PREFIXED ny.ny-", "DENY READ User:eve TOPIC PREFIXED ny."}
        await until_rules(eu, on_eu | patterns)
        await until(lambda: asyncio.to_thread(lambda: zoes in us.rules()), "the rule comes back")
        # What the flow made goes, and does not come back from the other direction; what was there stays.
        us.remove("ALLOW READ User:bob GROUP PREFIXED app", "ALLOW ALL User:bob TRANSACTIONAL_ID LITERAL tx")
        gone = {"ALLOW READ User:bob GROUP PREFIXED app"}
        await until_rules(eu, (on_eu | patterns) - gone)
    # A rule that went while nobody looked goes with the next start.
    us.remove("DENY READ User:eve TOPIC LITERAL *")
    async with connector(us, eu, "ny", "eu", **full):
        await until_rules(eu, (on_eu | patterns) - gone - {"DENY READ User:eve TOPIC PREFIXED ny."})
    assert not gone & us.rules()


async def test_a_dry_run_only_says(both: tuple[Guarded, Guarded], caplog: pytest.LogCaptureFixture) -> None:
    us, eu = both
    us.add("ALLOW READ User:bob GROUP LITERAL app")
    caplog.set_level(logging.INFO)
    async with connector(us, eu, "dry", "eu", sync_acls_mode="full", sync_acls_dry_run="true"):
        line = "dry->eu: would create: ALLOW READ to User:bob from * on LITERAL GROUP app"
        await until(lambda: line in caplog.messages, "the log says what it would create")
    assert not eu.rules()


async def test_missing_rights_name_the_grant(both: tuple[Guarded, Guarded]) -> None:
    rule = AclBinding("GROUP", "app", "LITERAL", "User:bob", "*", "READ", "ALLOW")
    async with cluster_at(both[1].cluster.bootstrap_of("BOBS"), **_BOB) as cluster:
        with pytest.raises(NotAuthorized, match=r"describe ACLs: .*; grant DESCRIBE on the cluster"):
            await describe_acls(cluster)
        for change in (create_acls, delete_acls):
            refused = (await change(cluster, [rule]))[rule]
            assert isinstance(refused, NotAuthorized) and "grant ALTER on the cluster" in str(refused)


async def test_missing_rights_of_producers_are_named(both: tuple[Guarded, Guarded]) -> None:
    """Each grant is named in turn by what is refused without it."""
    eu = both[1]
    topic, secret, txn = f"guarded-{uuid4()}", f"secret-{uuid4()}", f"task-{uuid4()}"
    await make_topics(eu.cluster.bootstrap, {topic: 1, secret: 1})
    async with cluster_and_admin(eu.cluster.bootstrap_of("BOBS"), **_BOB) as (cluster, admin):
        with pytest.raises(FenceRefused, match=rf"grant WRITE and DESCRIBE on transactional id {txn}"):
            await fence(cluster, txn, [(topic, 0)])
        await asyncio.to_thread(eu.add, f"ALLOW WRITE User:bob TRANSACTIONAL_ID LITERAL {txn}")
        with pytest.raises(TopicsRefused, match=rf"grant WRITE on topic {secret}, {topic}|{topic}, {secret}") as denied:
            await fence(cluster, txn, [(topic, 0), (secret, 0)])
        assert denied.value.partitions == {(topic, 0), (secret, 0)}
        await asyncio.to_thread(eu.add, f"ALLOW WRITE User:bob TOPIC LITERAL {topic}")
        with pytest.raises(NotAuthorized, match=rf"grant DESCRIBE on topic {secret}"):
            await cluster.topics([secret])
        await fence(cluster, txn, [(topic, 0)])
        with pytest.raises(ProducersRefused, match=rf"grant READ on topic {topic}") as unread:
            await describe_producers(cluster, [(topic, 0)])
        assert unread.value.partitions == {(topic, 0)}
        refused = (await admin.create_topics([NewTopic("wanted", 1, 1)]))["wanted"]
        assert isinstance(refused, SecurityError)
        assert "grant CREATE on topic wanted" in str(refused)


async def test_many_rules_of_every_type(both: tuple[Guarded, Guarded]) -> None:
    eu = both[1]
    rules = [
        AclBinding("TOPIC", f"topic-{index}", "LITERAL", "User:bob", "10.0.0.1", "READ", "DENY") for index in range(600)
    ]
    rules += [
        AclBinding("USER", "User:bob", "LITERAL", "User:ann", "*", "CREATE_TOKENS", "ALLOW"),
        AclBinding("DELEGATION_TOKEN", "token", "LITERAL", "User:ann", "*", "DESCRIBE", "ALLOW"),
        AclBinding("CLUSTER", "kafka-cluster", "LITERAL", "User:ann", "*", "CLUSTER_ACTION", "ALLOW"),
    ]
    wrong = AclBinding("CLUSTER", "other", "LITERAL", "User:ann", "*", "ALL", "ALLOW")
    unknown = AclBinding("TOPIC", "a", "LITERAL", "User:ann", "*", "CODE_99", "ALLOW")
    async with cluster_at(eu.cluster.bootstrap) as cluster:
        outcomes = await create_acls(cluster, [*rules, wrong, unknown])
        assert {rule for rule, error in outcomes.items() if error} == {wrong, unknown}
        # The controller answers; the broker hears of it a moment later.
        while len(await describe_acls(cluster)) < len(rules):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert await describe_acls(cluster) == sorted(rules)
        assert await describe_acls(cluster, AclFilter(resource_type="USER")) == [rules[600]]
        assert not any((await delete_acls(cluster, rules)).values())
    await until_rules(eu, ())


async def test_a_cluster_without_an_authorizer(us: KafkaCluster) -> None:
    async with cluster_at(us.bootstrap) as cluster:
        with pytest.raises(SecurityDisabled):
            await describe_acls(cluster)
