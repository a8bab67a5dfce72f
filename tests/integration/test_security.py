"""TLS and SASL against a real broker, with the three libraries that are handed our settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaAdminClient
from kafka.admin import NewTopic, ScramMechanism, UserScramCredentialUpsertion

from connect.core.errors import SecurityError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.connection import Connection
from connect.kafka.settings import ConnectionSettings, connection_settings
from tests.kit.certificates import Party, make_party

pytestmark = pytest.mark.integration

PASSWORD = 'p"\\;= {}s'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def quoted(password: str) -> str:
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class Secured:
    """A broker with a listener for every way in, and what its clients need."""

    cluster: KafkaCluster
    authority: Party
    client: Party

    def settings(self, listener: str, **properties: str) -> ConnectionSettings:
        """The settings for a listener; keys with underscores instead of dots."""
        named = {key.replace("_", "."): value for key, value in properties.items()}
        protocol = {"TLS": "SSL", "MUTUAL": "SSL", "PLAIN": "SASL_SSL", "SCRAM": "SASL_PLAINTEXT"}[listener]
        return connection_settings(
            {
                "bootstrap.servers": self.cluster.bootstrap_of(listener),
                "security.protocol": protocol,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": self.authority.pem,
                **named,
            },
            client_id="us->eu|a test",
            where="cluster us",
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = make_party("authority", None)
    broker = make_party("broker", authority, "localhost")
    store: Path = tmp_path_factory.mktemp("secured") / "broker.pem"
    store.write_text(broker.key_pem() + broker.pem)
    config = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem.replace("\n", " "),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": f"{PLAIN} required user_bob={quoted(PASSWORD)};",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
    }
    listeners = {"TLS": "SSL", "MUTUAL": "SSL", "PLAIN": "SASL_SSL", "SCRAM": "SASL_PLAINTEXT"}
    with KafkaCluster.start("secured", config=config, listeners=listeners) as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            # One call each: a user's credentials cannot be altered twice in one request.
            refused = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", mechanism, PASSWORD)])
            assert not any(refused.values()), refused
        admin.close()
        yield Secured(cluster, authority, make_party("client", authority, "client"))


WAYS: dict[str, dict[str, str]] = {
    "TLS": {},
    "MUTUAL": {"ssl_keystore_type": "PEM"},
    "PLAIN": {
        "sasl_mechanism": "PLAIN",
        "sasl_jaas_config": f"{PLAIN} required username=bob password={quoted(PASSWORD)};",
    },
    "SCRAM-SHA-256": {
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_jaas_config": f"{SCRAM} required username='bob' password={quoted(PASSWORD)};",
    },
    "SCRAM-SHA-512": {
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_jaas_config": f'{SCRAM} required username="bob" password={quoted(PASSWORD)};',
    },
}


def by(secured: Secured, way: str, **more: str) -> ConnectionSettings:
    properties = WAYS[way] | more
    if way == "MUTUAL":
        properties["ssl_keystore_key"] = secured.client.key_pem()
        properties["ssl_keystore_certificate_chain"] = secured.client.pem
    return secured.settings(way.partition("-")[0], **properties)


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_in_for_every_library(secured: Secured, way: str) -> None:
    # As a slice gets them: without files, from the wire.
    settings = ConnectionSettings.from_wire(by(secured, way).to_wire())
    ((host, port),) = settings.bootstrap
    connection = await Connection.open(settings, host, port)
    assert connection.versions
    await connection.close()
    admin = KafkaAdminClient(**settings.kafka_python_arguments())
    try:
        admin.create_topics([NewTopic(f"by-{way}", num_partitions=1, replication_factor=1)])
    finally:
        admin.close()
    producer: Any = AIOKafkaProducer(**settings.aiokafka_arguments())
    await producer.start()
    try:
        sent = await producer.send_and_wait(f"by-{way}", b"x")
    finally:
        await producer.stop()
    assert sent.offset == 0


@pytest.mark.parametrize(
    ("way", "more"),
    [
        ("PLAIN", {"sasl_jaas_config": f'{PLAIN} required username="bob" password="guess";'}),
        ("SCRAM-SHA-512", {"sasl_jaas_config": f'{SCRAM} required username="bob" password="guess";'}),
        ("TLS", {"ssl_truststore_certificates": make_party("stranger", None).pem}),
    ],
    ids=["PLAIN password", "SCRAM password", "trust"],
)
async def test_who_is_refused_is_told_so_without_the_secret(secured: Secured, way: str, more: dict[str, str]) -> None:
    settings = by(secured, way, **more)
    ((host, port),) = settings.bootstrap
    with pytest.raises(SecurityError) as caught:
        await Connection.open(settings, host, port)
    assert f"{host}:{port}" in str(caught.value)
    assert "guess" not in str(caught.value)
