"""GSSAPI against brokers that ask a real KDC."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

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
from tests.kit.brokers import KafkaCluster
from tests.kit.processes import wait_until

REALM: Final = "EXAMPLE.COM"
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
_DEADLINE_S: Final = 120.0
LISTENER = "KERBEROS"
REAUTH_MS = 10_000
USER = "mirror"


def is_possible() -> bool:
    programs = ("krb5kdc", "kdb5_util", "kadmin.local")
    return all(shutil.which(each, path=_PATH) for each in programs) and find_spec("gssapi") is not None


@dataclass
class Kdc:
    """A KDC with its database in ``folder``; a context."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "krb5.conf"

    def __enter__(self) -> Self:
        (port,) = cluster_config.choose(1)
        address = f"{cluster_config.HOST}:{port}"
        program = shutil.which("krb5kdc", path=_PATH)
        assert program is not None
        plugins = next(Path(program).resolve().parents[1].glob("lib/*/krb5/plugins/kdb"), None)
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = {address}\n }}\n"
        )
        files = {"database_name": "principal", "key_stash_file": "stash", "acl_file": "acl"}
        own = "".join(f"  {key} = {self.folder / name}\n" for key, name in files.items())
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n"
            f"[realms]\n {REALM} = {{\n{own} }}\n" + (f"[dbmodules]\n db_module_dir = {plugins}\n" if plugins else "")
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._process = subprocess.Popen([program, "-n"], env=self._environment())
        try:
            wait_until(lambda: self._answers(port), _DEADLINE_S, "the KDC serves")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_DEADLINE_S)

    def _answers(self, port: int) -> bool:
        assert self._process.poll() is None, "the KDC has ended"
        with contextlib.suppress(OSError), socket.create_connection((cluster_config.HOST, port), 1):
            return True
        return False

    def keytab(self, principal: str) -> Path:
        file = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-q", f"ktadd -k {file} {principal}")
        return file

    def _run(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=_PATH)
        assert found is not None
        command = [found, *arguments]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True, timeout=_DEADLINE_S)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}


pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(not is_possible(), reason="krb5-kdc, krb5-admin-server or gssapi is not installed"),
]


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
        "sasl.service.name": "kafka",
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
        "sasl.service.name": "kafka",
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
