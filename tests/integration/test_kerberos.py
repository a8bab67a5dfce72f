"""GSSAPI against brokers that ask a real KDC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from kafka.protocol.metadata import MetadataRequest

from connect.core.errors import SecurityError
from connect.core.model import NewTopic
from connect.embedded import cluster_config
from connect.embedded.brokers import QUICK_JVM
from connect.kafka.connection import Connection
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from tests.kit import kerberos
from tests.kit.brokers import KafkaCluster
from tests.kit.kerberos import REALM, Kdc

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(not kerberos.is_possible(), reason="krb5-kdc, krb5-admin-server or gssapi is not installed"),
]

LISTENER = "KERBEROS"
REAUTH_MS = 10_000
USER = "mirror"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with Kdc(tmp_path_factory.mktemp("kdc")) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(kdc: Kdc) -> Iterator[KafkaCluster]:
    service = f"kafka/{cluster_config.HOST}"
    module = (
        f"com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true isInitiator=false "
        f'keyTab="{kdc.keytab(service)}" principal="{service}@{REALM}";'
    )
    prefix = f"listener.name.{LISTENER.lower()}"
    config = {
        f"{prefix}.sasl.enabled.mechanisms": "GSSAPI",
        f"{prefix}.gssapi.sasl.jaas.config": module,
        "sasl.kerberos.service.name": "kafka",
        "connections.max.reauth.ms": str(REAUTH_MS),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
    }
    java = f"-Djava.security.krb5.conf={kdc.config}"
    with KafkaCluster.start(
        "kerberos", config=config, listeners={LISTENER: "SASL_PLAINTEXT"}, jvm_options=(*QUICK_JVM, java)
    ) as started:
        yield started


@pytest.fixture
def settings(kdc: Kdc, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ConnectionSettings:
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/cache")
    properties = {
        "bootstrap.servers": cluster.bootstrap_of(LISTENER),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
    }
    return connection_settings(properties, client_id="a test", where="cluster us")


async def opened(settings: ConnectionSettings) -> Connection:
    ((host, port),) = settings.bootstrap
    return await Connection.open(settings, host, port)


async def test_the_principal_of_a_key_tab_is_let_in_and_proven_again(
    kdc: Kdc, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kdc.keytab(USER)))
    connection = await opened(settings)
    admin = Admin(settings)
    # Only this user may, so the broker knows its name.
    assert await admin.create_topics([NewTopic("kerberos", 1, 1)]) == {"kerberos": None}
    await admin.close()
    async with AIOKafkaProducer(**settings.aiokafka_arguments()) as producer:
        assert (await producer.send_and_wait("kerberos", b"x")).offset == 0
    await connection.call(MetadataRequest(topics=[]))
    while not connection.reauthentications:
        await connection.send(3, 12, [b"\1\0\0\0"])
    await connection.close()


async def test_without_a_ticket_it_is_refused_with_what_to_check(
    settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(tmp_path / "none"))
    with pytest.raises(SecurityError, match=r"failed with SASL_PLAINTEXT GSSAPI: .*; check the credential cache"):
        await opened(settings)
