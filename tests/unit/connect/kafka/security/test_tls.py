"""Trust and key stores of every kind, shown by a TLS handshake in memory."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from connect.core.errors import ConfigError, SecurityError
from connect.kafka.security import tls_stores
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings, open_stores
from connect.kafka.security.tls import TlsSettings
from connect.kafka.security.tls_stores import tls_settings
from tests.kit.certificates import Party, make_party
from tests.kit.jks_stores import jks_store

PASSWORD = "s3cret"


ROOT, STRANGER = make_party("root", None), make_party("stranger", None)
MIDDLE = make_party("middle", ROOT)
BROKER, CLIENT = make_party("broker", MIDDLE, "broker.example.com"), make_party("client", MIDDLE, "client.example.com")
Store = dict[str, str | bytes]


def server_context(tmp_path: Path, *, wants_client: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = tmp_path / "broker.pem"
    file.write_text(BROKER.key_pem() + BROKER.pem + MIDDLE.pem)
    context.load_cert_chain(file)
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=ROOT.pem)
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "broker.example.com") -> str:
    """A handshake without a network; gives the client's common name as the server saw it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    pending: list[ssl.SSLObject] = [one, other]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not pending
    certificate = other.getpeercert()
    if not certificate:
        return ""
    pairs = [pair for names in certificate["subject"] for pair in names if isinstance(pair, tuple)]
    return str(dict(pairs)["commonName"])


def jks_trust_store(password: str, *certificates: Party) -> bytes:
    return jks_store(password, certificates=[each.der for each in certificates])


def jks_key_store(password: str, key_password: str | None = None) -> bytes:
    keys = {"client": (CLIENT.key_der, [CLIENT.der, MIDDLE.der])}
    return jks_store(password, keys=keys, key_password=key_password)


def pkcs12_store(*others: Party) -> bytes:
    """The client's key and certificate."""
    certificates, encryption = [each.certificate for each in others], BestAvailableEncryption(PASSWORD.encode())
    return pkcs12.serialize_key_and_certificates(b"x", CLIENT.key, CLIENT.certificate, certificates, encryption)


def java_trust_store(party: Party) -> bytes:
    certificates = [pkcs12.PKCS12Certificate(party.certificate, b"c")]
    return pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(PASSWORD.encode()))


def pem_key_file(key_password: str | None = None) -> bytes:
    return (CLIENT.key_pem(key_password) + CLIENT.pem + MIDDLE.pem).encode()


def trust(location: bytes | str = b"", **others: str) -> Store:
    """Settings of a trust store, in a file of these bytes if there are any."""
    named: Store = {"location": location, **others}
    return {f"truststore_{key}": value for key, value in named.items() if value}


def keys(location: bytes = b"", key_password: str = "", **others: str) -> Store:
    """Those of a key store."""
    named: Store = {"keystore_location": location, "key_password": key_password}
    named |= {f"keystore_{key}": value for key, value in others.items()}
    return {key: value for key, value in named.items() if value}


def properties(tmp_path: Path, **named: str | bytes) -> dict[str, str]:
    """Client properties; a value of bytes becomes a file, of which the property gives the path."""
    found = {}
    for name, value in named.items():
        key = "ssl." + name.replace("_", ".")
        if isinstance(value, bytes):
            path = tmp_path / name
            path.write_bytes(value)
            found[key] = str(path)
        else:
            found[key] = value
    return found


JKS, JAVA = jks_trust_store(PASSWORD, ROOT), java_trust_store(ROOT)
TRUSTED = trust(type="PEM", certificates=ROOT.pem)
TRUST = {
    "PEM file": trust(ROOT.pem.encode(), type="PEM"),
    "PEM text": trust(type="pem", certificates=ROOT.pem),
    "PEM text on one line": trust(type="PEM", certificates=ROOT.pem.replace("\n", "\\n")),
    "PEM text with spaces": trust(type="PEM", certificates=ROOT.pem.replace("\n", " ")),
    "JKS": trust(jks_trust_store(PASSWORD, STRANGER, ROOT), password=PASSWORD),
    "JKS without a password": trust(JKS),
    "PKCS12 by its name": trust(JAVA, type="PKCS12", password=PASSWORD),
    "PKCS12 under the default name": trust(JAVA, password=PASSWORD),
    "an intermediate alone": trust(type="PEM", certificates=MIDDLE.pem),
    "the broker alone": trust(type="PEM", certificates=BROKER.pem),
}


@pytest.mark.parametrize("store", TRUST)
def test_trust_stores(tmp_path: Path, store: str) -> None:
    tls = tls_settings(properties(tmp_path, **TRUST[store]), "cluster us")
    shake_hands(tls.ssl_context(), server_context(tmp_path, wants_client=False))


def test_a_store_is_opened_once_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls_stores._opened.clear()
    opened: list[bytes] = []

    def load(data: bytes, password: bytes | None) -> Any:
        opened.append(data)
        return load_pkcs12(data, password)

    load_pkcs12 = pkcs12.load_pkcs12
    monkeypatch.setattr(pkcs12, "load_pkcs12", load)
    props = properties(tmp_path, **TRUST["PKCS12 by its name"])
    assert tls_settings(props, "cluster us") == tls_settings(props, "cluster eu")
    assert len(opened) == 1
    (tmp_path / "truststore_location").write_bytes(java_trust_store(STRANGER))
    tls_settings(props, "cluster us")
    assert len(opened) == 2, "a store that was replaced is read"


async def test_several_clients_that_start_have_their_stores_opened_once_and_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In another process, because OpenSSL does not let other threads run meanwhile."""
    named = keys(pkcs12_store(MIDDLE), password=f" {PASSWORD}") | trust(JKS, password="wrong")
    given = properties(tmp_path, **named)
    key_store = {key: value for key, value in given.items() if "keystore" in key}
    bootstrap = {"bootstrap.servers": "us:1", "security.protocol": "SSL"}
    tls_stores._opened.clear()
    expected = connection_settings({**bootstrap, **key_store}, client_id="", where="cluster us")
    tls_stores._opened.clear()
    began: list[object] = []

    def run(*arguments: Any, **more: Any) -> Any:
        began.append(arguments)
        return subprocess_run(*arguments, **more)

    def load(*_: object) -> None:
        pytest.fail("the store is opened in the process of the event loop")

    subprocess_run = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(pkcs12, "load_pkcs12", load)
    monkeypatch.setattr("connect.kafka.security.jks_store.read_jks", load)
    prefixed = {f"source.cluster.{key}": value for key, value in given.items()}
    await asyncio.gather(open_stores(given), open_stores(prefixed), open_stores({**given, **prefixed}))
    assert len(began) == 1, caplog.text
    assert connection_settings({**bootstrap, **key_store}, client_id="", where="cluster us") == expected
    with pytest.raises(ConfigError, match=r"truststore\.location .* does not open with the password given"):
        connection_settings({**bootstrap, **given}, client_id="", where="cluster us")
    assert PASSWORD not in repr([*tls_stores._opened])
    await open_stores({"ssl.keystore.location": "/nothing/here", "ssl.keystore.password": "x"})
    assert len(began) == 1


def test_files_under_names_that_nothing_checks_stay_closed(tmp_path: Path) -> None:
    """A connector config may name any file there (``ConnectorAccess``), such as one without end."""
    given = properties(tmp_path, truststore_location=JAVA)
    assert [*tls_stores._binaries(given)]
    assert not [*tls_stores._binaries({f"x{name}": value for name, value in given.items()})]


def test_a_stranger_is_not_trusted(tmp_path: Path) -> None:
    named = trust(type="PEM", certificates=STRANGER.pem)
    tls = tls_settings(properties(tmp_path, **named), "cluster us")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls.ssl_context(), server_context(tmp_path, wants_client=False))


@pytest.mark.parametrize(("algorithm", "host", "accepted"), [("https", "other", False), ("", "other", True)])
def test_a_host_name_is_checked_unless_switched_off(tmp_path: Path, algorithm: str, host: str, accepted: bool) -> None:
    given = properties(tmp_path, **TRUSTED) | {"ssl.endpoint.identification.algorithm": algorithm}
    context = tls_settings(given, "cluster us").ssl_context()
    server = server_context(tmp_path, wants_client=False)
    if accepted:
        shake_hands(context, server, host)
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="other"):
            shake_hands(context, server, host)


CHAIN = CLIENT.pem + MIDDLE.pem
KEYS = {
    "PEM file": keys(pem_key_file(), type="PEM"),
    "PEM file, encrypted": keys(pem_key_file("other"), "other", type="PEM"),
    "PEM text": keys(key_password="other", type="PEM", key=CLIENT.key_pem("other"), certificate_chain=CHAIN),
    "PEM text, encrypted the old way": keys(
        key_password="other", type="PEM", key=CLIENT.old_key_pem("other"), certificate_chain=CHAIN
    ),
    "JKS": keys(jks_key_store(PASSWORD), password=PASSWORD),
    "JKS with a key password": keys(jks_key_store(PASSWORD, "other"), "other", password=PASSWORD),
    "PKCS12": keys(pkcs12_store(MIDDLE), type="PKCS12", password=PASSWORD),
}


@pytest.mark.parametrize("store", KEYS)
def test_key_stores(tmp_path: Path, store: str) -> None:
    named = KEYS[store] | TRUSTED
    tls = tls_settings(properties(tmp_path, **named), "cluster us")
    server = server_context(tmp_path, wants_client=True)
    assert shake_hands(tls.ssl_context(), server) == "client"
    travelled = TlsSettings.from_wire(json.loads(json.dumps(tls.to_wire())))
    assert travelled == tls
    assert shake_hands(travelled.ssl_context(), server) == "client"


WRONG: dict[str, tuple[Store, str, str]] = {
    "no such file": (trust("/nowhere/at.all"), "truststore.location", "No such file"),
    "unknown type": (trust(type="BKS"), "truststore.type", "PEM, PKCS12, JKS"),
    "wrong password, JKS": (trust(JKS, password="guess"), "truststore.location", "not open with the password given"),
    "wrong password, PKCS12": (
        keys(pkcs12_store(), password="guess"),
        "keystore.location",
        "does not open with the password given",
    ),
    "wrong key password": (
        keys(jks_key_store(PASSWORD, "other"), "guess", password=PASSWORD),
        "keystore.location",
        "correct ssl.key.password",
    ),
    "wrong key password, PEM": (
        keys(pem_key_file("other"), "guess", type="PEM"),
        "keystore.location",
        "correct ssl.key.password",
    ),
    "no key password": (keys(pem_key_file("other"), type="PEM"), "keystore.location", "set ssl.key.password"),
    "PEM under a binary type": (trust(ROOT.pem.encode()), "truststore.location", "set the store's type to PEM"),
    "no store at all": (trust(b"hello"), "truststore.location", "neither a PKCS#12 nor a JKS store"),
    "damaged JKS": (trust(JKS[:40]), "truststore.location", "damaged"),
    "empty PEM": (trust(type="PEM", certificates="hello"), "truststore.certificates", "no PEM certificate"),
    "a key store as trust store": (
        trust(pkcs12_store(), password=PASSWORD),
        "truststore.location",
        "no trusted certificate",
    ),
    "a trust store as key store": (keys(JKS, password=PASSWORD), "keystore.location", "no private key"),
    "password without a store": (trust(password=PASSWORD), "truststore.password", "location is not"),
    "store without a password": (keys(jks_key_store(PASSWORD)), "keystore.password", "is missing"),
    "text and file": (TRUSTED | trust(ROOT.pem.encode()), "truststore.location", "exclude each other"),
    "text under a binary type": (trust(certificates=ROOT.pem), "truststore.type", "must be PEM"),
    "key without a chain": (keys(type="PEM", key=CLIENT.key_pem()), "keystore.certificate.chain", "is missing"),
    "password beside PEM": (
        keys(pem_key_file(), type="PEM", password=PASSWORD),
        "keystore.password",
        "no meaning for PEM",
    ),
    "unknown version": ({"enabled_protocols": "TLSv1.2,SSLv9"}, "enabled.protocols", "TLSv1.3"),
    "unknown suite": (
        {"cipher_suites": "TLS_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_ROT13"},
        "cipher.suites",
        "contains TLS_ECDHE_RSA_WITH_ROT13, which is not supported",
    ),
    "suites of other versions": (
        {"cipher_suites": "TLS_RSA_WITH_AES_128_CBC_SHA", "enabled_protocols": "TLSv1.3"},
        "cipher.suites",
        "no suite for the versions in ssl.enabled.protocols",
    ),
    "unknown check": ({"endpoint_identification_algorithm": "ldaps"}, "endpoint.identification.algorithm", "https"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_name_the_key_and_no_secret(tmp_path: Path, case: str) -> None:
    named, key, message = WRONG[case]
    with pytest.raises(ConfigError, match=message) as caught:
        tls_settings(properties(tmp_path, **named), "cluster us")
    text = str(caught.value)
    assert (caught.value.key or "").startswith("ssl.")
    assert text.startswith("cluster us: ")
    assert f"ssl.{key}" in text
    assert PASSWORD not in text
    assert "guess" not in text


def test_nothing_set_trusts_what_the_machine_trusts() -> None:
    tls = tls_settings({}, "cluster us")
    assert tls == TlsSettings()
    assert tls.ssl_context().verify_mode is ssl.CERT_REQUIRED


def test_allowed_versions_bound_the_context() -> None:
    context = tls_settings({"ssl.enabled.protocols": "TLSv1.3"}, "cluster us").ssl_context()
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_3,) * 2


def spoken(context: ssl.SSLContext) -> list[str]:
    """The suites up to TLS 1.2."""
    return [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]


NEWEST = "TLS_AES_256_GCM_SHA384"
OLDER = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("suites", "least", "most"),
    [
        (NEWEST, ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
        (OLDER, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        (f"{NEWEST} , {OLDER}", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
        (f"{OLDER},TLS_EMPTY_RENEGOTIATION_INFO_SCSV", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        ("", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_allowed_suites_bound_the_context(suites: str, least: ssl.TLSVersion, most: ssl.TLSVersion) -> None:
    tls = tls_settings({"ssl.cipher.suites": suites}, "cluster us")
    for each in (tls, TlsSettings.from_wire(json.loads(json.dumps(tls.to_wire())))):
        context = each.ssl_context()
        assert (context.minimum_version, context.maximum_version) == (least, most)
        if OLDER in suites:
            assert spoken(context) == ["ECDHE-ECDSA-AES128-GCM-SHA256"]


def test_brokers_with_other_suites_are_not_talked_to(tmp_path: Path) -> None:
    given = properties(tmp_path, **TRUST["JKS"]) | {"ssl.cipher.suites": OLDER}
    client, server = tls_settings(given, "cluster us").ssl_context(), server_context(tmp_path, wants_client=False)
    shake_hands(client, server)
    server.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError):
        shake_hands(client, server)


def test_suites_that_openssl_lacks_are_refused() -> None:
    with pytest.raises(SecurityError, match=r"allows none of the suites in ssl\.cipher\.suites"):
        TlsSettings(ciphers=("ROT13",)).ssl_context()


def test_one_context_per_process() -> None:
    assert TlsSettings().ssl_context() is replace(TlsSettings()).ssl_context()


def test_repr_holds_no_key() -> None:
    assert "KEEP" not in repr(TlsSettings(private_key_pem="KEEP"))


def test_a_secured_connection_travels_whole(tmp_path: Path) -> None:
    named = KEYS["JKS"] | TRUST["JKS"]
    given = properties(tmp_path, **named) | {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    connection = connection_settings(given, client_id="x", where="cluster us")
    for path in tmp_path.iterdir():
        path.unlink()
    travelled = ConnectionSettings.from_wire(json.loads(json.dumps(connection.to_wire())))
    assert travelled == connection
    assert isinstance(travelled.create_conn_arguments()["ssl_context"], ssl.SSLContext)
    assert "PRIVATE KEY" not in repr(travelled)
