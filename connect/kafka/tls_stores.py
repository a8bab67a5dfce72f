"""The ``ssl.*`` keys of Java clients: which stores they name, and their contents as TLS settings.

The rules are those of Kafka's ``DefaultSslEngineFactory``. Contents are read at once: a wrong store is found at
start, and executors on other machines need no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar

from connect.core.cipher_suites import KEY as SUITES
from connect.core.cipher_suites import OPENSSL_NAMES, TLS_1_3, unknown_suites
from connect.core.errors import ConfigError, SecurityError
from connect.kafka import keystores
from connect.kafka.tls import VERSIONS, TlsSettings

_DEFAULT_VERSIONS: Final = "TLSv1.2,TLSv1.3"
#: Kafka's default; under either of the binary names Java opens both kinds of files, and so do we.
_DEFAULT_STORE_TYPE: Final = "JKS"
_STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")

_T = TypeVar("_T")


def tls_settings(properties: Mapping[str, str], where: str) -> TlsSettings:
    """The ``ssl.*`` keys of a Java client.

    Args:
        properties: Java client properties, values trimmed.
        where: Whose settings they are, for messages, such as ``cluster us``.

    Raises:
        ConfigError: Keys contradict each other or name something that is not there.
        SecurityError: A store cannot be opened or holds nothing usable.
    """
    chain = _key_store(properties, where)
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("", "https"):
        raise ConfigError(
            f"{where}: ssl.endpoint.identification.algorithm is '{algorithm}'; it can be https, or empty for no check",
            "ssl.endpoint.identification.algorithm",
        )
    versions, ciphers = _ciphers(properties, _versions(properties, where), where)
    return TlsSettings(
        trusted_pem=_trust_store(properties, where),
        certificate_chain_pem=None if chain is None else chain.certificate_chain_pem,
        private_key_pem=None if chain is None else chain.private_key_pem,
        check_hostname=algorithm != "",
        versions=versions,
        ciphers=ciphers,
    )


def _versions(properties: Mapping[str, str], where: str) -> tuple[str, ...]:
    key = "ssl.enabled.protocols"
    versions = tuple(part.strip() for part in properties.get(key, _DEFAULT_VERSIONS).split(",") if part.strip())
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown or not versions:
        raise ConfigError(f"{where}: {key} takes a list of {', '.join(VERSIONS)}", key)
    return versions


def _ciphers(
    properties: Mapping[str, str], versions: tuple[str, ...], where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of ``versions`` that ``ssl.cipher.suites`` leaves a suite to, as in Java, and the suites up to TLS 1.2."""
    names = tuple(part.strip() for part in properties.get(SUITES, "").split(",") if part.strip())
    if not names:
        return versions, ()
    unknown = unknown_suites(names)
    if unknown:
        raise ConfigError(
            f"{where}: {SUITES} names {unknown[0]}, which is not among the suites that can be spoken here; "
            "take it out, or write it as Java does, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            SUITES,
        )
    older = tuple(OPENSSL_NAMES[name] for name in names if name in OPENSSL_NAMES)
    newest = not TLS_1_3.isdisjoint(names)
    left = tuple(version for version in versions if (newest if version == "TLSv1.3" else older))
    if not left:
        raise ConfigError(f"{where}: {SUITES} names no suite of a version in ssl.enabled.protocols", SUITES)
    return left, older


def _trust_store(properties: Mapping[str, str], where: str) -> str | None:
    store = _Store(properties, "truststore", where)
    certificates = properties.get("ssl.truststore.certificates")
    location, password = store.get("location"), store.get("password")
    if certificates is not None:
        store.refuse(
            "type",
            store.type != "PEM",
            "must be PEM where ssl.truststore.certificates is set",
        )
        store.refuse(
            "location",
            location is not None,
            "and ssl.truststore.certificates exclude each other",
        )
        store.refuse("password", password is not None, "has no meaning for PEM")
        return store.opened("certificates", lambda: keystores.pem_certificates(certificates))
    if location is None:
        store.refuse(
            "password",
            password is not None,
            "is set, but ssl.truststore.location is not",
        )
        return None
    if store.type == "PEM":
        store.refuse("password", password is not None, "has no meaning for PEM")
        text = store.read_text(location)
        return store.opened("location", lambda: keystores.pem_certificates(text))
    data = store.read(location)
    return store.opened("location", lambda: keystores.trusted_certificates(data, password))


def _key_store(properties: Mapping[str, str], where: str) -> keystores.KeyChain | None:
    store = _Store(properties, "keystore", where)
    key, chain = store.get("key"), store.get("certificate.chain")
    location, password = store.get("location"), store.get("password")
    key_password = properties.get("ssl.key.password")
    if key is not None or chain is not None:
        store.refuse("type", store.type != "PEM", "must be PEM where ssl.keystore.key is set")
        store.refuse("location", location is not None, "and ssl.keystore.key exclude each other")
        store.refuse(
            "password",
            password is not None,
            "has no meaning for PEM; ssl.key.password is meant",
        )
        store.refuse("certificate.chain", chain is None, "is missing beside ssl.keystore.key")
        store.refuse("key", key is None, "is missing beside ssl.keystore.certificate.chain")
        pem = f"{key}\n{chain}\n"
        return store.opened("key", lambda: keystores.pem_key_chain(pem, key_password))
    if location is None:
        store.refuse("password", password is not None, "is set, but ssl.keystore.location is not")
        return None
    if store.type == "PEM":
        store.refuse(
            "password",
            password is not None,
            "has no meaning for PEM; ssl.key.password is meant",
        )
        text = store.read_text(location)
        return store.opened("location", lambda: keystores.pem_key_chain(text, key_password))
    if password is None:
        raise ConfigError(
            f"{where}: ssl.keystore.password is missing beside ssl.keystore.location",
            store.key("password"),
        )
    data = store.read(location)
    return store.opened("location", lambda: keystores.key_chain(data, password, key_password))


class _Store:
    """The keys of one store, ``ssl.truststore.*`` or ``ssl.keystore.*``, and errors that name them."""

    def __init__(
        self,
        properties: Mapping[str, str],
        name: Literal["truststore", "keystore"],
        where: str,
    ) -> None:
        self._properties = properties
        self._name = name
        self._where = where
        self.type = properties.get(self.key("type"), _DEFAULT_STORE_TYPE).upper()
        self.refuse(
            "type",
            self.type not in _STORE_TYPES,
            f"is '{self.type}'; it can be {', '.join(_STORE_TYPES)}",
        )

    def key(self, name: str) -> str:
        return f"ssl.{self._name}.{name}"

    def get(self, name: str) -> str | None:
        return self._properties.get(self.key(name))

    def refuse(self, name: str, wrong: bool, why: str) -> None:
        """Raise :class:`ConfigError` for the key where ``wrong``."""
        if wrong:
            raise ConfigError(f"{self._where}: {self.key(name)} {why}", self.key(name))

    def read(self, location: str) -> bytes:
        try:
            return Path(location).read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigError(
                f"{self._where}: {self.key('location')} {location} cannot be read: {reason}",
                self.key("location"),
            ) from None

    def read_text(self, location: str) -> str:
        return self.read(location).decode("utf-8", errors="replace")

    def opened(self, name: str, open_store: Callable[[], _T]) -> _T:
        """The result of ``open_store``, its refusal as a :class:`SecurityError` that names the key and the file."""
        try:
            return open_store()
        except keystores.StoreError as error:
            place = f" {self._properties[self.key(name)]}" if name == "location" else ""
            raise SecurityError(f"{self._where}: {self.key(name)}{place} {error}") from None
