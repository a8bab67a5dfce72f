"""Reads the key stores and trust stores of ``ssl.*`` configs, as PEM text and TLS settings.

The rules are those of Kafka's ``DefaultSslEngineFactory``. Stores are read at once: a bad store is found at start, and
executors on other machines need no files. PEM, PKCS#12 and JKS stores become PEM text, because OpenSSL accepts it.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

from connect.core.config.config_def import trim
from connect.core.config.security_settings import KEY as SUITES
from connect.core.config.security_settings import OPENSSL_NAMES, TLS_1_3, unknown_suites
from connect.core.errors import ConfigError
from connect.kafka.security import jks_store
from connect.kafka.security.renewal import watch
from connect.kafka.security.tls import VERSIONS, TlsSettings

log = logging.getLogger(__name__)

_CERTIFICATE: Final = re.compile(r"-----BEGIN (CERTIFICATE)-----([^-]+)-----END \1-----")
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----(.+?)-----END \1-----", re.DOTALL)
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_PEM: Final = b"-----BEGIN"
_MOST_STORES: Final = 16
_PROCESS_TIMEOUT_S: Final = 60.0


class StoreError(ValueError):
    """A store cannot be opened; the message never repeats a password or a key."""


@dataclass(frozen=True, slots=True)
class KeyChain:
    """A private key (PKCS#8, not encrypted) and its certificate chain, own certificate first."""

    private_key_pem: str = field(repr=False)
    certificate_chain_pem: str


def pem_certificates(text: str) -> str:
    """Return the certificates in a PEM text. Raises StoreError for an invalid one."""
    found = [_block(match) for match in _CERTIFICATE.finditer(text)]
    if not found:
        raise StoreError("holds no PEM certificate; write PEM, or correct the store's type")
    try:
        for pem in found:
            x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise StoreError("holds a damaged PEM certificate; export it again") from None
    return "".join(found)


def pem_key_chain(text: str, password: str | None) -> KeyChain:
    """Return the decrypted private key and the certificates of a PEM text. Raises StoreError."""
    match = _PRIVATE_KEY.search(text)
    if match is None:
        raise StoreError("holds no PEM private key; write PEM, or correct the store's type")
    key = _block(match)
    encrypted = "ENCRYPTED" in key
    if encrypted and password is None:
        raise StoreError("holds an encrypted key; set ssl.key.password")
    try:
        loaded = serialization.load_pem_private_key(key.encode(), _bytes(password) if encrypted else None)
    except (ValueError, TypeError):
        hint = "correct ssl.key.password" if encrypted else "export it again as PKCS#8"
        raise StoreError(f"holds a private key that cannot be read; {hint}") from None
    return KeyChain(_pkcs8(loaded), pem_certificates(text))


@dataclass(frozen=True, slots=True, repr=False)
class _Binary:
    """A PKCS#12 or JKS store, as hexadecimal text; ``key_password`` None means the store's password, as in Java."""

    name: Literal["truststore", "keystore"]
    data: str
    password: str | None
    key_password: str | None = None

    def open(self) -> KeyChain:
        """Return the content, a trust store as a chain without a key. Raises StoreError."""
        data = bytes.fromhex(self.data)
        if self.name == "truststore":
            return KeyChain("", _trusted_certificates(data, self.password))
        assert self.password is not None
        return _key_chain(data, self.password, self.key_password)


#: The content of stores, or why they do not open. Each client of a flow has settings of its own with the same stores,
#: and opening a PKCS#12 store takes 90 ms of CPU.
_opened: Final[dict[_Binary, KeyChain | str]] = {}
_opening: Final = threading.Lock()


def open_stores(properties: Mapping[str, str]) -> None:
    """Open the binary stores in ``properties``, under any prefix, in another process, because OpenSSL does not let
    other threads run meanwhile. :func:`tls_settings` then finds them opened. Errors are left to it."""
    with _opening:
        if not (missing := [one for one in dict.fromkeys(_binaries(properties)) if one not in _opened]):
            return
        try:
            answer = subprocess.run(
                [sys.executable, "-P", "-m", __name__],  # else modules are first looked for in the current folder
                input=json.dumps([astuple(one) for one in missing]).encode(),
                stdout=subprocess.PIPE,
                timeout=_PROCESS_TIMEOUT_S,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("key and trust stores are opened in this process, because another one failed: %s", error)
            return
        for one, found in zip(missing, json.loads(answer), strict=True):
            _keep(one, found if isinstance(found, str) else KeyChain(*found))


def _binaries(properties: Mapping[str, str]) -> Iterator[_Binary]:
    names: tuple[Literal["truststore", "keystore"], ...] = ("truststore", "keystore")
    for key, value in properties.items():
        for name in names:
            if not f".{key}".endswith(f".ssl.{name}.location"):  # only what ConnectorAccess checks is read
                continue
            prefix = key.removesuffix(f"{name}.location")
            password, key_password = properties.get(f"{prefix}{name}.password"), properties.get(f"{prefix}key.password")
            try:
                data = Path(trim(value)).read_bytes()
            except OSError:
                continue
            if data.lstrip().startswith(_PEM):
                continue
            if name == "truststore":
                yield _Binary(name, data.hex(), _trimmed(password))
            elif password is not None:
                yield _Binary(name, data.hex(), _trimmed(password), _trimmed(key_password))


def _trimmed(value: str | None) -> str | None:
    return None if value is None else trim(value)


def _content(store: _Binary) -> KeyChain:
    found = _opened.get(store)
    if found is None:
        found = _keep(store, _open(store))
    if isinstance(found, str):
        raise StoreError(found)
    return found


def _keep(store: _Binary, found: KeyChain | str) -> KeyChain | str:
    _opened[store] = found
    while len(_opened) > _MOST_STORES:
        _opened.pop(list(_opened)[0], None)  # noqa: RUF015 because another thread may add one meanwhile
    return found


def _open(store: _Binary) -> KeyChain | str:
    try:
        return store.open()
    except StoreError as error:
        return str(error)


def _trusted_certificates(data: bytes, password: str | None) -> str:
    """Return the certificates of a binary trust store as PEM. Raises StoreError. Without a password a JKS store is read
    without its integrity check, and a PKCS#12 store only if it is not encrypted, as in Java."""
    if data.startswith(jks_store.MAGIC):
        ders = list(_open_jks(data, password).certificates.values())
    else:
        opened = _open_pkcs12(data, password)
        ders = [_der(each.certificate) for each in opened.additional_certs]
    if not ders:
        raise StoreError("holds no trusted certificate; import the issuer's: keytool -importcert")
    return _pem(ders)


def _key_chain(data: bytes, password: str, key_password: str | None) -> KeyChain:
    """Return the first key of a binary key store."""
    if not data.startswith(jks_store.MAGIC):
        opened = _open_pkcs12(data, password)
        if opened.key is None or opened.cert is None:
            raise StoreError("holds no private key with its certificate; name the store that has them")
        chain = [opened.cert, *opened.additional_certs]
        return KeyChain(_pkcs8(opened.key), _pem(_der(each.certificate) for each in chain))
    keys = _open_jks(data, password).keys
    if not keys:
        raise StoreError("holds no private key; name the store that has it")
    protected, ders = keys[min(keys)]
    try:
        key = jks_store.unprotected_key(protected, key_password if key_password is not None else password)
        loaded = serialization.load_der_private_key(key, None)
    except (ValueError, TypeError):
        raise StoreError("holds a private key that cannot be decrypted; correct ssl.key.password") from None
    return KeyChain(_pkcs8(loaded), _pem(ders))


def _open_jks(data: bytes, password: str | None) -> jks_store.JksStore:
    try:
        return jks_store.read_jks(data, password)
    except jks_store.WrongPassword:
        raise StoreError("does not open with the password given; correct the store's password") from None
    except jks_store.DamagedStore:
        raise StoreError("is a damaged JKS store; copy or export it again") from None


def _open_pkcs12(data: bytes, password: str | None) -> pkcs12.PKCS12KeyAndCertificates:
    if data.lstrip().startswith(_PEM):
        raise StoreError("holds PEM; set the store's type to PEM")
    if data.startswith(_JCEKS_MAGIC):
        raise StoreError("is a JCEKS store; convert it: keytool -importkeystore -deststoretype PKCS12")
    if not data.startswith(b"\x30"):
        raise StoreError("is neither a PKCS#12 nor a JKS store; correct its path or its type")
    try:
        return pkcs12.load_pkcs12(data, _bytes(password))
    except ValueError:
        given, change = (
            ("with the password given", "correct") if password is not None else ("without a password", "set")
        )
        raise StoreError(f"does not open {given}; {change} the store's password") from None


def _block(match: re.Match[str]) -> str:
    r"""Return a PEM block with its line breaks restored: in properties, lines are often joined by spaces or ``\n``."""
    label, body = match.groups()
    if ":" not in body:  # headers, of keys encrypted in the old format, need their original lines
        body = "\n".join(textwrap.wrap("".join(body.replace("\\n", "").split()), 64))
    return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"


def _pkcs8(key: PrivateKeyTypes) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _pem(ders: Iterable[bytes]) -> str:
    try:
        certificates = [x509.load_der_x509_certificate(der) for der in ders]
    except ValueError:
        raise StoreError("holds a damaged certificate; export it again") from None
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in certificates)


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()


_DEFAULT_VERSIONS: Final = "TLSv1.2,TLSv1.3"
#: Kafka's default; as in Java, either of the binary types opens both kinds of files.
_DEFAULT_STORE_TYPE: Final = "JKS"
_STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")

_T = TypeVar("_T")
_P = ParamSpec("_P")


def tls_settings(properties: Mapping[str, str], where: str) -> TlsSettings:
    """Return the TLS settings in the ``ssl.*`` keys of a Java client. Their files are watched from now on.
    ``properties``: Java client properties. ``where``: the owner of the settings for messages, such as ``cluster us``.
    Raises ConfigError if keys contradict each other, or a store cannot be read or opened, or holds nothing usable."""
    own = {key: value for key, value in properties.items() if key.startswith("ssl.")}
    files = watch(own, where, _read_again)  # before they are read, so that no change is missed
    return replace(_read({key: trim(str(value)) for key, value in own.items()}, where), files=files)


def _read_again(properties: Mapping[str, str], where: str) -> TlsSettings:
    open_stores(properties)  # because the event loop runs meanwhile
    return _read(properties, where)


def _read(properties: Mapping[str, str], where: str) -> TlsSettings:
    chain = _key_store(properties, where)
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("", "https"):
        raise ConfigError(
            f"{where}: ssl.endpoint.identification.algorithm is '{algorithm}'; it can be https, or empty for no check",
            "ssl.endpoint.identification.algorithm",
        )
    versions, ciphers = _ciphers(properties, _versions(properties, where), where)
    made = TlsSettings(
        trusted_pem=_trust_store(properties, where),
        certificate_chain_pem=None if chain is None else chain.certificate_chain_pem,
        private_key_pem=None if chain is None else chain.private_key_pem,
        check_hostname=algorithm != "",
        versions=versions,
        ciphers=ciphers,
    )
    return _note_ends(where, made)


#: When the certificates of the stores end that this process has read, in s since 1970, by owner and kind of store.
_ends: Final[dict[tuple[str, str], tuple[float, ...]]] = {}
_MOST_ENDS: Final = 256


def certificate_ends() -> list[tuple[str, str, tuple[float, ...]]]:
    """Return owner, ``keystore`` or ``truststore``, and the ends of the certificates in seconds since 1970, of the
    stores that were read last."""
    return [(where, store, ends) for (where, store), ends in list(_ends.items())]


@lru_cache(maxsize=64)
def _ends_of(pem: str) -> tuple[float, ...]:
    return tuple(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(pem.encode()))


def _note_ends(where: str, settings: TlsSettings) -> TlsSettings:
    for store, pem in (("keystore", settings.certificate_chain_pem), ("truststore", settings.trusted_pem)):
        _ends.pop((where, store), None)
        if pem is not None:
            _ends[where, store] = _ends_of(pem)
    while len(_ends) > _MOST_ENDS:
        _ends.pop(next(iter(_ends)), None)
    return settings


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
    """Return the ``versions`` that have a suite in ``ssl.cipher.suites``, as in Java, and the suites up to TLS 1.2."""
    names = tuple(part.strip() for part in properties.get(SUITES, "").split(",") if part.strip())
    if not names:
        return versions, ()
    unknown = unknown_suites(names)
    if unknown:
        raise ConfigError(
            f"{where}: {SUITES} contains {unknown[0]}, which is not supported; remove it, or write it as Java does, "
            "such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            SUITES,
        )
    older = tuple(OPENSSL_NAMES[name] for name in names if name in OPENSSL_NAMES)
    newest = not TLS_1_3.isdisjoint(names)
    left = tuple(version for version in versions if (newest if version == "TLSv1.3" else older))
    if not left:
        raise ConfigError(f"{where}: {SUITES} has no suite for the versions in ssl.enabled.protocols", SUITES)
    return left, older


def _trust_store(properties: Mapping[str, str], where: str) -> str | None:
    store = _Store(properties, "truststore", where)
    certificates = properties.get("ssl.truststore.certificates")
    location, password = store.get("location"), store.get("password")
    if certificates is not None:
        store.refuse("type", store.type != "PEM", "must be PEM if ssl.truststore.certificates is set")
        store.refuse("location", location is not None, "and ssl.truststore.certificates exclude each other")
        store.refuse("password", password is not None, "has no meaning for PEM")
        return store.opened("certificates", pem_certificates, certificates)
    if location is None:
        store.refuse("password", password is not None, "is set, but ssl.truststore.location is not")
        return None
    if store.type == "PEM":
        store.refuse("password", password is not None, "has no meaning for PEM")
        return store.opened("location", pem_certificates, store.read_text(location))
    binary = _Binary("truststore", store.read(location).hex(), password)
    return store.opened("location", _content, binary).certificate_chain_pem


def _key_store(properties: Mapping[str, str], where: str) -> KeyChain | None:
    store = _Store(properties, "keystore", where)
    key, chain = store.get("key"), store.get("certificate.chain")
    location, password = store.get("location"), store.get("password")
    key_password = properties.get("ssl.key.password")
    if key is not None or chain is not None:
        store.refuse("type", store.type != "PEM", "must be PEM if ssl.keystore.key is set")
        store.refuse("location", location is not None, "and ssl.keystore.key exclude each other")
        store.refuse("password", password is not None, "has no meaning for PEM; set ssl.key.password instead")
        store.refuse("certificate.chain", chain is None, "is missing; it is required with ssl.keystore.key")
        store.refuse("key", key is None, "is missing; it is required with ssl.keystore.certificate.chain")
        return store.opened("key", pem_key_chain, f"{key}\n{chain}\n", key_password)
    if location is None:
        store.refuse("password", password is not None, "is set, but ssl.keystore.location is not")
        return None
    if store.type == "PEM":
        store.refuse("password", password is not None, "has no meaning for PEM; set ssl.key.password instead")
        return store.opened("location", pem_key_chain, store.read_text(location), key_password)
    if password is None:
        raise ConfigError(
            f"{where}: ssl.keystore.password is missing; it is required with ssl.keystore.location",
            store.key("password"),
        )
    binary = _Binary("keystore", store.read(location).hex(), password, key_password)
    return store.opened("location", _content, binary)


class _Store:
    """The keys of one store, ``ssl.truststore.*`` or ``ssl.keystore.*``, with checks whose errors name them."""

    def __init__(self, properties: Mapping[str, str], name: Literal["truststore", "keystore"], where: str) -> None:
        self._properties = properties
        self._name = name
        self._where = where
        self.type = properties.get(self.key("type"), _DEFAULT_STORE_TYPE).upper()
        self.refuse("type", self.type not in _STORE_TYPES, f"is '{self.type}'; it can be {', '.join(_STORE_TYPES)}")

    def key(self, name: str) -> str:
        return f"ssl.{self._name}.{name}"

    def get(self, name: str) -> str | None:
        return self._properties.get(self.key(name))

    def refuse(self, name: str, wrong: bool, why: str) -> None:
        """Raise :class:`ConfigError` for the key if ``wrong``."""
        if wrong:
            raise ConfigError(f"{self._where}: {self.key(name)} {why}", self.key(name))

    def read(self, location: str) -> bytes:
        try:
            return Path(location).read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigError(
                f"{self._where}: {self.key('location')} {location} cannot be read: {reason}; correct the path, or "
                "the file's permissions",
                self.key("location"),
            ) from None

    def read_text(self, location: str) -> str:
        return self.read(location).decode("utf-8", errors="replace")

    def opened(self, name: str, open_store: Callable[_P, _T], *of: _P.args, **more: _P.kwargs) -> _T:
        """Return the result of ``open_store``; its error becomes a :class:`ConfigError` with the key."""
        try:
            return open_store(*of, **more)
        except StoreError as error:
            place = f" {self._properties[self.key(name)]}" if name == "location" else ""
            raise ConfigError(f"{self._where}: {self.key(name)}{place} {error}", self.key(name)) from None


def main() -> None:
    """Open the stores on standard input, and write what :func:`open_stores` reads."""
    found = (_open(_Binary(*one)) for one in json.load(sys.stdin))
    json.dump([one if isinstance(one, str) else astuple(one) for one in found], sys.stdout)


if __name__ == "__main__":
    main()
