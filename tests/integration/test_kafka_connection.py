"""Connections to real brokers: pipelined, over TLS, cut, stalled, refused."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from connect.core.errors import ClusterUnreachable, RetriableError, SecurityError
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.connection import Connection, RequestTimedOut, UnsupportedVersion
from connect.kafka.framing_and_sasl import ConnectionLost
from connect.kafka.log.active_producers import ProducersRefused, describe_producers
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import FenceRefused, TopicsRefused, fence
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings, format_address
from connect.wire import records
from tests.kit.brokers import KafkaCluster
from tests.kit.pipe import Direction
from tests.kit.processes import wait_until
from tests.kit.proxy import FaultProxy
from tests.kit.topics import until_led

pytestmark = pytest.mark.integration

DEADLINE_S = 120.0
LITERAL = ACLResourcePatternType.LITERAL
METADATA_OF_NOTHING = b"\x01\x00\x00\x00"  # MetadataRequest 12: no topics, no creation, no rights, no tags
PASSWORD = "never-to-be-seen"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def settings_of(bootstrap: str, **properties: str) -> ConnectionSettings:
    keys = {key.replace("_", "."): value for key, value in properties.items()}
    return connection_settings({"bootstrap.servers": bootstrap, **keys}, client_id="probe", where="cluster us")


@pytest.fixture
async def plain(us: KafkaCluster) -> AsyncIterator[Connection]:
    connection = await Connection.open(settings_of(us.bootstrap), "127.0.0.1", us.nodes[0].port)
    yield connection
    await connection.close()


@pytest.fixture
def proxy(us: KafkaCluster) -> Iterator[FaultProxy]:
    with FaultProxy.start("127.0.0.1", us.nodes[0].port) as proxy:
        yield proxy


async def through(proxy: FaultProxy, **properties: str) -> Connection:
    host, port = proxy.address
    return await Connection.open(settings_of(f"{host}:{port}", **properties), host, port)


async def test_many_requests_in_flight(plain: Connection) -> None:
    began_s = time.monotonic()
    answers = [plain.send(3, 12, [METADATA_OF_NOTHING]) for _ in range(200)]
    assert plain.in_flight == 200
    bodies = await asyncio.gather(*answers)
    assert len({bytes(body) for body in bodies}) == 1
    assert not bodies[0].readonly
    assert plain.idle_s <= time.monotonic() - began_s


async def test_answers_far_larger_than_the_scratch_buffer(us: KafkaCluster, plain: Connection) -> None:
    topic, value = f"large-{uuid4()}", bytes(range(256)) * 3000
    admin = Admin(settings_of(us.bootstrap))
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    cluster = Cluster(settings_of(us.bootstrap))
    await until_led(cluster, {topic: 1})
    await cluster.close()
    batch = bytes(records.build([records.Record(0, int(time.time() * 1000), None, value, [])], 0, -1, -1, -1))
    row = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=batch)
    produce = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[row])],
    )
    for _ in range(3):
        answer = await plain.call(produce, at_most=11)
        assert answer.responses[0].partition_responses[0].error_code == 0
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=10_000_000, current_leader_epoch=-1, last_fetched_epoch=-1
    )
    fetch = FetchRequest(
        max_wait_ms=1000,
        min_bytes=3 * len(value),
        max_bytes=10_000_000,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    answers = await asyncio.gather(*(plain.call(fetch, 12) for _ in range(4)))
    for answer in answers:
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.high_watermark) == (0, 3)
        fetched = bytes(row.records)
        assert fetched.count(value) == 3


async def test_socket_buffers_are_as_they_are_set(us: KafkaCluster) -> None:
    settings = replace(settings_of(us.bootstrap), send_buffer_bytes=32_000, receive_buffer_bytes=48_000)
    connection = await Connection.open(settings, "127.0.0.1", us.nodes[0].port)
    try:
        opened = connection._transport.get_extra_info("socket")
        # Linux gives twice what it is asked for.
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 64_000
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 96_000
    finally:
        await connection.close()


async def test_versions_are_negotiated(plain: Connection) -> None:
    request = MetadataRequest(topics=[])
    assert plain.version_of(request) == min(MetadataRequest.max_version, plain.versions[3][1])
    assert plain.version_of(request, at_most=5) == 5
    with pytest.raises(UnsupportedVersion, match=r"no common version of AddPartitionsToTxnRequest"):
        plain.version_of(AddPartitionsToTxnRequest, at_most=-1)


async def test_a_cut_fails_what_is_in_flight(proxy: FaultProxy) -> None:
    connection = await through(proxy)
    proxy.hold(Direction.ANSWERS)
    answers = [connection.send(3, 12, [METADATA_OF_NOTHING]) for _ in range(3)]
    await asyncio.to_thread(proxy.cut)
    for answer in answers:
        with pytest.raises(ConnectionLost, match=r"connection to 127\.0\.0\.1:\d+ lost"):
            await answer
    assert connection.closed
    with pytest.raises(ConnectionLost):
        await connection.send(3, 12, [METADATA_OF_NOTHING])
    await connection.close()


async def test_no_answer_in_time_closes_the_connection(proxy: FaultProxy) -> None:
    connection = await through(proxy)
    proxy.hold(Direction.ANSWERS)
    with pytest.raises(RequestTimedOut, match=r"did not answer MetadataRequest within 0\.05 s"):
        await connection.call(MetadataRequest(topics=[]), timeout_ms=50)
    assert connection.closed


async def test_writers_see_that_the_socket_takes_no_more(proxy: FaultProxy) -> None:
    connection = await through(proxy)
    proxy.stall(Direction.REQUESTS)
    answers = []
    while not connection.write_paused:
        answers.append(connection.send(3, 12, [METADATA_OF_NOTHING, bytes(100_000)]))
        await asyncio.sleep(0)
    await connection.close()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ConnectionLost}


async def test_a_throttle_holds_the_next_call(plain: Connection) -> None:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    plain.mute(60)
    plain.mute(20)
    await plain.call(MetadataRequest(topics=[]))
    assert clock() - began_s >= 0.06


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ClusterUnreachable, match=rf"127\.0\.0\.1:{port} is not reachable"):
            await Connection.open(settings_of(f"127.0.0.1:{port}"), "127.0.0.1", port)


async def test_a_port_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings = settings_of(f"127.0.0.1:{port}", request_timeout_ms="50")
        with pytest.raises(ClusterUnreachable, match=rf"127\.0\.0\.1:{port} did not answer within 0\.05 s"):
            await Connection.open(settings, "127.0.0.1", port)


class TestCluster:
    async def test_metadata(self, us: KafkaCluster) -> None:
        topic = f"seen-{uuid4()}"
        settings = settings_of(us.bootstrap)
        admin, cluster = Admin(settings), Cluster(settings, "us")
        await admin.create_topics([NewTopic(topic, 2, 1)])
        await admin.close()
        await until_led(cluster, {topic: 2})
        found, missing, everything = await asyncio.gather(
            cluster.metadata({topic}), cluster.metadata({"nowhere"}), cluster.metadata(None)
        )
        node = next(iter(found.brokers))
        assert (found.brokers[node].host, found.brokers[node].port) == ("127.0.0.1", us.nodes[0].port)
        assert found.topics[topic].topic_id == everything.topics[topic].topic_id is not None
        assert [found.leader(topic, partition) for partition in range(3)] == [node, node, None]
        assert missing.topics["nowhere"].error_code == 3
        assert missing.leader("nowhere", 0) is None
        assert await cluster.connection(node) is await cluster.connection(node)
        assert await cluster.connection(node) is not await cluster.connection(node, "copy")
        with pytest.raises(ClusterUnreachable, match="has no broker 99"):
            await cluster.connection(99)
        await cluster.close()
        with pytest.raises(RetriableError, match="its client was closed"):
            await cluster.metadata(())

    async def test_it_goes_on_after_a_cut(self, us: KafkaCluster) -> None:
        with FaultProxy.start("127.0.0.1", us.nodes[0].port) as proxy:
            host, port = proxy.address
            cluster = Cluster(settings_of(f"{host}:{port}"), "us")
            await cluster.metadata(())
            await asyncio.to_thread(proxy.cut)
            assert (await cluster.metadata(())).brokers
            await cluster.close()

    async def test_it_waits_for_a_cluster_and_says_so(self, us: KafkaCluster) -> None:
        with FaultProxy.start("127.0.0.1", us.nodes[0].port) as proxy:
            await asyncio.to_thread(proxy.refuse)
            host, port = proxy.address
            cluster, said = Cluster(settings_of(f"{host}:{port}"), "us"), asyncio.Queue[Exception]()
            waiting = asyncio.ensure_future(cluster.wait_reachable(said.put_nowait, every_s=0.01))
            assert f"{host}:{port} is not reachable" in str(await said.get())
            assert f"{host}:{port} is not reachable" in str(await said.get())
            await asyncio.to_thread(proxy.accept)
            await waiting
            await cluster.close()


def certificate() -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1 and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM).decode(), pem.decode()


class Secured:
    """A broker with a listener for each way to be secure, and the settings that fit."""

    def __init__(self, cluster: KafkaCluster, trusted: str) -> None:
        self._cluster = cluster
        self._trusted = trusted

    def settings(
        self, listener: str, protocol: str, password: str = PASSWORD, *, user: str = "u", trust: bool = True
    ) -> ConnectionSettings:
        jaas = f'{PLAIN_LOGIN} required username="{user}" password="{password}";'
        properties = {"bootstrap.servers": self._cluster.bootstrap_of(listener), "security.protocol": protocol}
        if protocol.startswith("SASL"):
            properties |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
        if protocol.endswith("SSL") and trust:
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self._trusted}
        return connection_settings(properties, client_id="secured", where="cluster safe")


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    chain, key = certificate()
    jaas = f'{PLAIN_LOGIN} required user_u="{PASSWORD}" user_limited="{PASSWORD}";'
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:u",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.pass.plain.sasl.jaas.config": jaas,
        "listener.name.both.plain.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": chain.replace("\n", " \n"),
        "ssl.keystore.key": key.replace("\n", " \n"),
    }
    listeners = {"PASS": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}
    with KafkaCluster.start("safe", config=config, listeners=listeners) as cluster:
        yield Secured(cluster, chain)


def leaks(error: BaseException | None) -> bool:
    """Whether the password shows anywhere along the chain of causes."""
    while error is not None:
        if PASSWORD in str(error) or PASSWORD in repr(error):
            return True
        error = error.__cause__ or error.__context__
    return False


class TestSecured:
    @pytest.mark.parametrize(
        ("listener", "protocol"), [("TLS", "SSL"), ("PASS", "SASL_PLAINTEXT"), ("BOTH", "SASL_SSL")]
    )
    async def test_everything_works_behind_it(self, secured: Secured, listener: str, protocol: str) -> None:
        settings = secured.settings(listener, protocol)
        cluster, admin = Cluster(settings), Admin(settings)
        topic = f"safe-{uuid4()}"
        assert await admin.create_topics([NewTopic(topic, 1, 1)]) == {topic: None}
        await until_led(cluster, {topic: 1})
        assert (await cluster.metadata({topic})).topics[topic].partitions
        connection = await cluster.any_connection()
        bodies = await asyncio.gather(*(connection.send(3, 12, [METADATA_OF_NOTHING]) for _ in range(300)))
        assert len(bodies) == 300
        await admin.close()
        await cluster.close()

    async def test_a_wrong_password(self, secured: Secured) -> None:
        settings = secured.settings("PASS", "SASL_PLAINTEXT", password=f"{PASSWORD}-wrong")
        for ask in (Cluster(settings).metadata(()), Admin(settings).describe_topics(["t"])):
            with pytest.raises(SecurityError, match="authentication failed with SASL_PLAINTEXT PLAIN") as raised:
                await ask
            assert not leaks(raised.value)

    async def test_a_mechanism_that_the_broker_does_not_offer(self, secured: Secured) -> None:
        settings = replace(secured.settings("PASS", "SASL_PLAINTEXT"), sasl_mechanism="SCRAM-SHA-256")
        with pytest.raises(SecurityError, match=r"does not offer sasl\.mechanism SCRAM-SHA-256") as raised:
            await Cluster(settings).metadata(())
        assert not leaks(raised.value)

    async def test_a_certificate_that_is_not_trusted(self, secured: Secured) -> None:
        with pytest.raises(SecurityError, match=r"TLS with 127\.0\.0\.1:\d+ failed: self.signed certificate"):
            await Cluster(secured.settings("TLS", "SSL", trust=False)).metadata(())

    @pytest.mark.parametrize(
        ("listener", "protocol"),
        [("TLS", "PLAINTEXT"), ("PASS", "PLAINTEXT"), ("PASS", "SASL_SSL"), ("PLAINTEXT", "SSL")],
    )
    async def test_the_wrong_protocol_is_named(self, secured: Secured, listener: str, protocol: str) -> None:
        with pytest.raises(ClusterUnreachable, match=rf"check that the listener uses security\.protocol {protocol}"):
            await Cluster(secured.settings(listener, protocol)).metadata(())

    async def test_a_listener_without_sasl(self, secured: Secured) -> None:
        with pytest.raises(SecurityError, match="authentication failed with SASL_PLAINTEXT PLAIN"):
            await Cluster(secured.settings("PLAINTEXT", "SASL_PLAINTEXT")).metadata(())

    async def test_missing_rights_are_named(self, secured: Secured) -> None:
        """Each grant is named in turn by what is refused without it."""
        topic, secret, txn = f"guarded-{uuid4()}", f"secret-{uuid4()}", f"task-{uuid4()}"
        settings = secured.settings("PASS", "SASL_PLAINTEXT", user="limited")
        all_rights = secured.settings("PLAINTEXT", "PLAINTEXT")
        cluster, admin, limited = Cluster(settings, "safe"), Admin(all_rights), Admin(settings)
        await admin.create_topics([NewTopic(topic, 1, 1), NewTopic(secret, 1, 1)])
        with pytest.raises(FenceRefused, match=rf"grant WRITE and DESCRIBE on transactional id {txn}"):
            await fence(cluster, txn, [(topic, 0)])
        await asyncio.to_thread(grant, all_rights, ResourceType.TRANSACTIONAL_ID, txn, ACLOperation.WRITE)
        with pytest.raises(TopicsRefused, match=rf"grant WRITE on topic {secret}, {topic}|{topic}, {secret}") as denied:
            await fence(cluster, txn, [(topic, 0), (secret, 0)])
        assert denied.value.partitions == {(topic, 0), (secret, 0)}
        await asyncio.to_thread(grant, all_rights, ResourceType.TOPIC, topic, ACLOperation.WRITE)
        with pytest.raises(NotAuthorized, match=rf"grant DESCRIBE on topic {secret}"):
            await cluster.topics([secret])
        await fence(cluster, txn, [(topic, 0)])
        with pytest.raises(ProducersRefused, match=rf"grant READ on topic {topic}") as unread:
            await describe_producers(cluster, [(topic, 0)])
        assert unread.value.partitions == {(topic, 0)}
        refused = (await limited.create_topics([NewTopic("wanted", 1, 1)]))["wanted"]
        assert isinstance(refused, SecurityError)
        assert "grant CREATE on topic wanted" in str(refused)
        for each in (cluster, admin, limited):
            await each.close()


def grant(settings: ConnectionSettings, kind: ResourceType, name: str, right: ACLOperation) -> None:
    """Returns once the broker goes by it; the controller makes it a moment before."""
    client: Any = KafkaAdminClient(bootstrap_servers=[format_address(*each) for each in settings.bootstrap])
    rule = ACL("User:limited", "*", right, ACLPermissionType.ALLOW, ResourcePattern(kind, name))
    asked = ACLFilter("User:limited", "*", right, ACLPermissionType.ALLOW, ResourcePatternFilter(kind, name, LITERAL))
    try:
        client.create_acls([rule])
        wait_until(lambda: client.describe_acls(asked)[0], DEADLINE_S, "the broker knows the rule", 0.02)
    finally:
        client.close()
