"""Stores that change while connections are made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import pytest
from aiokafka.conn import AIOKafkaConnection
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from connect.core.config.properties import ConfigTransformer
from connect.kafka.security import renewal
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connect.kafka.security.tls_stores import tls_settings
from tests.kit.certificates import Party, make_party
from tests.kit.jks_stores import jks_store


@pytest.fixture(scope="module")
def roots() -> tuple[Party, Party]:
    return make_party("old root", None), make_party("new root", None)


def put(path: Path, text: str) -> None:
    """Replace a file at once, as secret mounts do."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def store(path: Path, name: str, root: Party) -> None:
    party = make_party(name, root, "localhost")
    put(path, party.key_pem() + party.pem)


def keys(folder: Path, name: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / f"{name}.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "trust.pem"),
    }


class Listener:
    """A listener that wants client certificates and tells the client's name."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def __aenter__(self) -> Listener:
        self._server = await asyncio.start_server(self._answer, "localhost", 0, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name_in(writer).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def names(self, client: ssl.SSLContext) -> tuple[str, str]:
        """Return the names in the certificates of a new connection: the listener's, the client's."""
        port = self._server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("localhost", port, ssl=client)
        try:
            return name_in(writer), (await reader.readline()).decode().strip()
        finally:
            writer.close()


def name_in(writer: asyncio.StreamWriter) -> str:
    subject = writer.get_extra_info("peercert")["subject"]
    return str(dict(pair for names in subject for pair in names)["commonName"])


async def test_new_connections_use_renewed_files_on_both_sides(tmp_path: Path, roots: tuple[Party, Party]) -> None:
    old, new = roots
    store(tmp_path / "client.pem", "first client", old)
    store(tmp_path / "listener.pem", "first listener", old)
    put(tmp_path / "trust.pem", old.pem)
    client = tls_settings(keys(tmp_path, "client"), "cluster us").ssl_context()
    async with Listener(tls_settings(keys(tmp_path, "listener"), "rest").server_context(ssl.CERT_REQUIRED)) as listener:
        assert await listener.names(client) == ("first listener", "first client")
        store(tmp_path / "client.pem", "second client", new)
        store(tmp_path / "listener.pem", "second listener", new)
        put(tmp_path / "trust.pem", new.pem)
        renewal.renew()
        assert await listener.names(client) == ("second listener", "second client")
        # Trust has moved, too: the old root has no say any more.
        store(tmp_path / "client.pem", "late client", old)
        renewal.renew()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await listener.names(client) == ("second listener", "")


async def test_a_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, roots: tuple[Party, Party], caplog: pytest.LogCaptureFixture
) -> None:
    root = roots[0]
    put(tmp_path / "trust.pem", root.pem)
    store(tmp_path / "client.pem", "client", root)
    store(tmp_path / "listener.pem", "listener", root)
    client = tls_settings(keys(tmp_path, "client"), "cluster eu").ssl_context()
    async with Listener(
        tls_settings(keys(tmp_path, "listener"), "rest 2").server_context(ssl.CERT_REQUIRED)
    ) as listener:
        put(tmp_path / "client.pem", "half a certif")
        for _ in range(3):
            renewal.renew()
        assert await listener.names(client) == ("listener", "client")
        assert caplog.text.count("new connections use what was there before the change") == 1
        (tmp_path / "client.pem").unlink()
        renewal.renew()
        assert await listener.names(client) == ("listener", "client")
        store(tmp_path / "client.pem", "another client", root)
        renewal.renew()
        assert await listener.names(client) == ("listener", "another client")


def test_slices_get_the_newest_contents(tmp_path: Path, roots: tuple[Party, Party]) -> None:
    put(tmp_path / "trust.pem", roots[0].pem)
    properties = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "trust.pem"),
    }
    wire = connection_settings(properties, client_id="x", where="cluster us").to_wire()
    assert ConnectionSettings.renewed_wire(wire) == wire
    put(tmp_path / "trust.pem", roots[1].pem)
    renewal.renew()
    renewed = ConnectionSettings.renewed_wire(wire)
    assert (wire["tls"]["trusted_pem"], renewed["tls"]["trusted_pem"]) == (roots[0].pem, roots[1].pem)
    assert ConnectionSettings.renewed_wire(renewed) == renewed
    put(tmp_path / "trust.pem", roots[0].pem)
    renewal.renew()
    assert ConnectionSettings.renewed_wire(renewed) == wire


SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def resolved(folder: Path, properties: dict[str, str]) -> dict[str, str]:
    declared = {"config.providers": "dir", "config.providers.dir.class": "directory"}
    return ConfigTransformer(declared).transform(
        {key: value.replace("SECRET", f"${{dir:{folder}:password}}") for key, value in properties.items()}
    )


def login(folder: Path, mechanism: str = "PLAIN", *, user: str = "me", **others: str) -> ConnectionSettings:
    """A client whose password is in a file of the folder."""
    properties = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{SCRAM} username="{user}" password="SECRET";',
        **others,
    }
    return connection_settings(resolved(folder, properties), client_id="x", where="cluster us")


def test_a_password_of_a_file_is_renewed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "password", "first")
    made = login(tmp_path, "SCRAM-SHA-512")
    wire = made.to_wire()
    assert made.create_conn_arguments()["sasl_plain_password"] == wire["password"] == "first"
    put(tmp_path / "password", "second")
    renewal.renew()
    assert made.with_client_id("y").create_conn_arguments()["sasl_plain_password"] == "second"
    assert ConnectionSettings.renewed_wire(wire)["password"] == "second"
    (tmp_path / "password").unlink()
    renewal.renew()
    put(tmp_path / "password", 'half a "')
    renewal.renew()
    assert made.to_wire()["password"] == "second"
    put(tmp_path / "password", "third")
    renewal.renew()
    assert made.to_wire()["password"] == "third"
    assert not {"first", "second", "third"} & set(caplog.text.split())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_client_that_lives_long_logs_in_with_the_newest_password(tmp_path: Path, mechanism: str) -> None:
    """aiokafka's producers keep their arguments; a connection that it opens or authenticates again begins here."""
    put(tmp_path / "password", "first")
    made = login(tmp_path, mechanism)
    kept = AIOKafkaConnection("a", 1, **made.create_conn_arguments())
    put(tmp_path / "password", "second")
    renewal.renew()
    exchange = kept.authenticator_plain() if mechanism == "PLAIN" else kept.authenticator_scram()
    assert exchange._sasl_plain_password in ("second", b"second")


def test_equal_passwords_of_two_files_are_renewed_apart(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "password", "first")
        made.append(login(tmp_path / name))
    put(tmp_path / "two" / "password", "second")
    renewal.renew()
    assert [each.to_wire()["password"] for each in made] == ["first", "second"]


def test_files_of_owners_that_are_gone_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "MOST_OWNERS", len(renewal._by_name) + 3)
    put(tmp_path / "password", "first")
    used = login(tmp_path, user="used")
    assert login(tmp_path, user="used").files == used.files
    for number in range(2 * renewal.MOST_OWNERS):
        login(tmp_path, user=f"gone {number}")
        used.to_wire()
    assert len(renewal._by_name) == renewal.MOST_OWNERS
    put(tmp_path / "password", "second")
    renewal.renew()
    assert used.to_wire()["password"] == "second"
    assert "first" not in used.files + repr(renewal._by_name)


def test_a_client_secret_of_a_file_is_renewed(tmp_path: Path) -> None:
    put(tmp_path / "password", "first")
    client = {
        "sasl.jaas.config": f"{OAUTH};",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "SECRET",
    }
    made = login(tmp_path, "OAUTHBEARER", **client)
    assert made.to_wire()["oauth"]["client_secret"] == "first"
    put(tmp_path / "password", "second")
    renewal.renew()
    assert made.to_wire()["oauth"]["client_secret"] == "second"


def test_a_store_is_renewed_together_with_its_password(tmp_path: Path, roots: tuple[Party, Party]) -> None:
    put(tmp_path / "password", "first")
    party = make_party("client", roots[0])
    put(tmp_path / "client.pem", party.key_pem("first") + party.pem)
    keys = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "client.pem"),
        "ssl.key.password": "SECRET",
    }
    tls = tls_settings(resolved(tmp_path, keys), "cluster us")
    late = make_party("late client", roots[0])
    put(tmp_path / "client.pem", late.key_pem("second") + late.pem)
    renewal.renew()
    assert tls.to_wire()["certificate_chain_pem"] == party.pem
    put(tmp_path / "password", "second")
    renewal.renew()
    assert tls.to_wire()["certificate_chain_pem"] == late.pem


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_a_binary_store_is_renewed_in_another_process(
    tmp_path: Path, roots: tuple[Party, Party], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(password: str, root: Party) -> None:
        (tmp_path / "trust").write_bytes(
            jks_store(password, certificates=[root.der])
            if kind == "jks"
            else pkcs12.serialize_java_truststore(
                [pkcs12.PKCS12Certificate(root.certificate, None)], BestAvailableEncryption(password.encode())
            )
        )
        put(tmp_path / "password", password)

    def load(*_: object) -> None:
        pytest.fail("the store is opened in the process of the event loop")

    write("first", roots[0])
    keys = {"ssl.truststore.location": str(tmp_path / "trust"), "ssl.truststore.password": "SECRET"}
    tls = tls_settings(resolved(tmp_path, keys), "cluster us")
    monkeypatch.setattr(pkcs12, "load_pkcs12", load)
    monkeypatch.setattr("connect.kafka.security.jks_store.read_jks", load)
    write("second", roots[1])
    renewal.renew()
    assert tls.to_wire()["trusted_pem"] == roots[1].pem


def test_values_without_files_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_WORD", "hush")
    declared = {"config.providers": "env", "config.providers.env.class": "env"}
    found = ConfigTransformer(declared).transform({"a": "${env:SECRET_WORD}", "b": "${none:x}", "c": "plain"})
    assert {type(value) for value in found.values()} == {str}
