"""TLS and SASL against real brokers: every way in, sessions that are proven anew, and what refusals say."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from aiokafka import AIOKafkaProducer
from kafka.protocol.metadata import MetadataRequest

from connect.core.errors import ClusterUnreachable, ConfigError, SecurityError
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.kafka.framing_and_sasl import ConnectionLost
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from tests.kit.certificates import make_party
from tests.kit.secured import PLAIN, SCRAM, Secured, jaas, set_password, start_secured

pytestmark = pytest.mark.integration

#: Half of a short session passes before it is proven anew; for as long as the other half may both sides stand still.
REAUTH_MS = 8_000
DEADLINE_S = 180.0
METADATA_OF_NOTHING = b"\1\0\0\0"
PEM = {"ssl.truststore.type": "PEM", "ssl.truststore.location": None, "ssl.truststore.password": None}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with start_secured("secured", tmp_path_factory.mktemp("secured"), reauth_ms=REAUTH_MS) as started:
        yield started


def by(secured: Secured, listener: str, changes: dict[str, str | None]) -> ConnectionSettings:
    """The settings for a listener; None takes a key away."""
    properties = {**secured.properties(listener), **changes}
    given = {key: value for key, value in properties.items() if value is not None}
    return connection_settings(given, client_id="us->eu|a test", where="cluster us")


async def opened(settings: ConnectionSettings) -> Connection:
    ((host, port),) = settings.bootstrap
    return await Connection.open(settings, host, port)


async def opened_soon(settings: ConnectionSettings) -> Connection:
    """For a user that was made just now: who has stored it answers before the listener has heard of it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await opened(settings)
            except SecurityError:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("listener", "changes"),
    [
        ("TLS", {}),
        ("MUTUAL", {}),
        ("PLAIN", {"sasl.jaas.config": jaas(PLAIN).replace('username="bob"', "username=bob")}),
        ("SCRAM", {"sasl.mechanism": "SCRAM-SHA-256"}),
        ("SCRAM_TLS", {}),
        ("OAUTH", {}),
    ],
    ids=["TLS", "mutual TLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512 over TLS", "OAUTHBEARER"],
)
async def test_every_way_in_for_every_library(secured: Secured, listener: str, changes: dict[str, str | None]) -> None:
    # As a slice gets them: without files, from the wire.
    settings = ConnectionSettings.from_wire(by(secured, listener, changes).to_wire())
    connection = await opened(settings)
    bodies = await asyncio.gather(*(connection.send(3, 12, [METADATA_OF_NOTHING]) for _ in range(300)))
    assert len(bodies) == 300
    await connection.close()
    admin = Admin(settings)
    assert await admin.create_topics([NewTopic(f"by-{listener}", 1, 1)]) == {f"by-{listener}": None}
    await admin.close()
    async with AIOKafkaProducer(**settings.aiokafka_arguments()) as producer:
        sent = await producer.send_and_wait(f"by-{listener}", b"x")
    assert sent.offset == 0


async def keep_asking(secured: Secured) -> None:
    """Eight requests are always under way on each, so each exchange comes between others."""
    connections = [await opened(secured.settings(listener)) for listener in ("PLAIN", "SCRAM", "OAUTH")]
    answered = dict.fromkeys(connections, 0)

    async def ask(connection: Connection) -> None:
        while connection.reauthentications < 2:
            await connection.send(3, 12, [METADATA_OF_NOTHING])
            answered[connection] += 1

    await asyncio.gather(*(ask(connection) for connection in connections for _ in range(8)))
    for connection in connections:
        assert not connection.closed
        assert answered[connection] > 8
        await connection.close()


async def ask_after_the_end(secured: Secured) -> None:
    connection = await opened(secured.settings("SCRAM"))
    await asyncio.sleep(REAUTH_MS / 1000 + 0.2)  # a broker's clock cannot be waited for otherwise
    await connection.call(MetadataRequest(topics=[]))
    assert connection.reauthentications == 1
    await connection.close()


async def use_libraries(secured: Secured) -> None:
    """The admin client is kept for long; a topic is read with a client of its own, which may outlast a session."""
    settings = secured.settings("SCRAM_TLS")
    admin, cluster = Admin(settings, "eager"), Cluster(settings, "eager")
    assert await admin.create_topics([NewTopic("read", 1, 1)]) == {"read": None}
    producer = AIOKafkaProducer(**settings.aiokafka_arguments())
    await producer.start()
    for _ in range(3):
        await producer.send_and_wait("read", b"x")
    await producer.stop()
    found: list[LogRecord] = []
    clock = asyncio.get_running_loop().time
    end_s = clock() + 1.3 * REAUTH_MS / 1000
    while clock() < end_s:
        assert "read" in await admin.describe_topics(["read"])
        await read_to_end(cluster, "read", found.append)
        await asyncio.sleep(0.02)
    assert {record.offset for record in found} == {0, 1, 2}
    await cluster.close()
    await admin.close()


async def test_sessions_that_end_every_few_seconds_cost_no_request(secured: Secured) -> None:
    """Brokers want to be shown who we are (KIP-368): under load, after a silence, and by the clients of libraries."""
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(keep_asking(secured), ask_after_the_end(secured), use_libraries(secured))


async def test_who_is_no_longer_let_in_loses_the_connection_and_is_told_on_the_next(secured: Secured) -> None:
    set_password(secured.cluster, "carol", "old secret")
    settings = secured.settings("SCRAM", sasl_jaas_config=jaas(SCRAM, "old secret", "carol"))
    connection = await opened_soon(settings)
    set_password(secured.cluster, "carol", "new secret")
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ConnectionLost, match="re-authentication with SCRAM-SHA-512 failed: ") as caught:
            await ask_for_ever(connection)
    assert "old secret" not in str(caught.value)
    await connection.close()
    with pytest.raises(SecurityError, match=r"sasl\.jaas\.config"):
        await opened(settings)


async def ask_for_ever(connection: Connection) -> None:
    while True:
        await connection.send(3, 12, [METADATA_OF_NOTHING])
        await asyncio.sleep(0.02)


def presenting(
    secured: Secured, *, by_stranger: bool = False, valid: timedelta = timedelta(hours=1)
) -> dict[str, str | None]:
    signer = make_party("stranger", None) if by_stranger else secured.authority
    party = make_party("client", signer, "client", valid=valid)
    return {
        **dict.fromkeys(("ssl.keystore.location", "ssl.key.password")),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": party.key_pem(),
        "ssl.keystore.certificate.chain": party.pem,
    }


Changes = Callable[[Secured], dict[str, str | None]]
REFUSED: dict[str, tuple[str, Changes, str]] = {
    "password of PLAIN": (
        "PLAIN",
        lambda _: {"sasl.jaas.config": jaas(PLAIN, "guess")},
        r"authentication failed with SASL_SSL PLAIN: .*; check sasl\.mechanism and sasl\.jaas\.config",
    ),
    "password of SCRAM": (
        "SCRAM_TLS",
        lambda _: {"sasl.jaas.config": jaas(SCRAM, "guess")},
        r"authentication failed with SASL_SSL SCRAM-SHA-512: .*; check sasl\.mechanism and sasl\.jaas\.config",
    ),
    "mechanism": (
        "SCRAM_TLS",
        lambda _: {"sasl.mechanism": "PLAIN"},
        r"does not offer sasl\.mechanism PLAIN; choose one that the listener offers",
    ),
    "no SASL there": (
        "SCRAM_TLS",
        lambda secured: {"bootstrap.servers": secured.cluster.bootstrap_of("TLS")},
        r"the listener does not use SASL; change security\.protocol",
    ),
    "unknown signer": (
        "TLS",
        lambda _: {**PEM, "ssl.truststore.certificates": make_party("stranger", None).pem},
        r"no trusted CA has signed the broker's certificate; check ssl\.truststore",
    ),
    "no signer of ours": (
        "TLS",
        lambda _: dict.fromkeys(PEM),
        r"no trusted CA has signed the broker's certificate; check ssl\.truststore",
    ),
    "host name": (
        "ELSEWHERE",
        lambda _: {},
        r"does not name 127\.0\.0\.1; .* ssl\.endpoint\.identification\.algorithm",
    ),
    "expired broker": (
        "EXPIRED",
        lambda _: {},
        r"certificate has expired; a certificate of the broker is not valid today; renew it on the broker",
    ),
    "no certificate of ours": (
        "MUTUAL",
        lambda _: dict.fromkeys(("ssl.keystore.type", "ssl.keystore.location", "ssl.key.password")),
        r"the broker requires a client certificate; set ssl\.keystore",
    ),
    "expired certificate of ours": (
        "MUTUAL",
        lambda secured: {**presenting(secured, valid=timedelta(minutes=-5))},
        r"the client certificate in ssl\.keystore\.\* has expired \(\d{4}-\d\d-\d\d \d\d:\d\d UTC\); renew it",
    ),
    "our signer unknown there": (
        "MUTUAL",
        lambda secured: {**presenting(secured, by_stranger=True)},
        r"the broker rejects the client certificate in ssl\.keystore",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_who_is_refused_is_told_in_one_line_what_to_do(secured: Secured, what: str) -> None:
    listener, changes, said = REFUSED[what]
    settings = by(secured, listener, changes(secured))
    with pytest.raises(SecurityError, match=said) as caught:
        await Cluster(settings, "us").metadata(())
    line = str(caught.value)
    assert line.startswith(f"cluster us (127.0.0.1:{settings.bootstrap[0][1]}): ")
    assert "\n" not in line
    assert "guess" not in "".join(traceback.format_exception(caught.value)), "along the chain of causes"
    with pytest.raises(SecurityError, match=said):
        await Admin(settings, "us").describe_topics(["read"])


@pytest.mark.parametrize(
    ("listener", "speaking"),
    [
        ("TLS", "PLAINTEXT"),
        ("SCRAM_TLS", "SASL_PLAINTEXT"),
        ("SCRAM", "PLAINTEXT"),
        ("SCRAM", "SASL_SSL"),
        ("PLAINTEXT", "SSL"),
    ],
)
async def test_the_wrong_protocol_is_tried_again_and_named(secured: Secured, listener: str, speaking: str) -> None:
    """A broker on its way down looks the same, so this alone ends nothing."""
    address = secured.cluster.bootstrap_of(listener)
    settings = by(secured, "SCRAM_TLS", {"bootstrap.servers": address, "security.protocol": speaking})
    with pytest.raises(ClusterUnreachable, match=rf"check that the listener uses security\.protocol {speaking}"):
        await Cluster(settings, "us").metadata(())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ssl.keystore.location": "/nowhere.pem"}, r"ssl\.keystore\.location /nowhere\.pem cannot be"),
        ({"ssl.keystore.location": "/"}, r"ssl\.keystore\.location / cannot be read: Is a directory"),
        ({"ssl.key.password": "guess"}, r"cannot be read; correct ssl\.key\.password"),
        ({"ssl.truststore.password": "guess"}, "does not open with the password given"),
        ({"sasl.mechanism": "SCRAM-MD5", "security.protocol": "SASL_SSL"}, "'SCRAM-MD5' is unknown; it"),
    ],
)
def test_what_cannot_be_used_is_named_before_anybody_is_dialled(
    secured: Secured, changes: dict[str, str | None], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        by(secured, "MUTUAL", changes)
    assert str(caught.value).startswith("cluster us: ")
    assert "guess" not in str(caught.value)
