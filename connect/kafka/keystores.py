"""PEM, PKCS#12 and JKS stores as PEM text: what OpenSSL takes, whatever a Java client was given."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import jks  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

_CERTIFICATE: Final = re.compile(r"-----BEGIN (CERTIFICATE)-----([^-]+)-----END \1-----")
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----(.+?)-----END \1-----", re.DOTALL)
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


class StoreError(ValueError):
    """A store cannot be opened; the text never repeats a password or a key."""


@dataclass(frozen=True, slots=True)
class KeyChain:
    """A private key (PKCS#8, not encrypted) and its certificate chain, own certificate first."""

    private_key_pem: str = field(repr=False)
    certificate_chain_pem: str


def pem_certificates(text: str) -> str:
    """The certificates in a PEM text, each checked to be one."""
    found = [_block(match) for match in _CERTIFICATE.finditer(text)]
    if not found:
        raise StoreError("holds no PEM certificate")
    try:
        for pem in found:
            x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise StoreError("holds a damaged PEM certificate") from None
    return "".join(found)


def pem_key_chain(text: str, password: str | None) -> KeyChain:
    """The private key, decrypted, and the certificates of a PEM text."""
    match = _PRIVATE_KEY.search(text)
    if match is None:
        raise StoreError("holds no PEM private key")
    key = _block(match)
    encrypted = "ENCRYPTED" in key
    if encrypted and password is None:
        raise StoreError("holds an encrypted key; set ssl.key.password")
    try:
        loaded = serialization.load_pem_private_key(key.encode(), _bytes(password) if encrypted else None)
    except (ValueError, TypeError):
        hint = "; is ssl.key.password right?" if encrypted else ""
        raise StoreError(f"holds a private key that cannot be read{hint}") from None
    return KeyChain(_pkcs8(loaded), pem_certificates(text))


def trusted_certificates(data: bytes, password: str | None) -> str:
    """The certificates of a binary trust store, as PEM.

    Without a password a JKS store is read without its integrity check and a PKCS#12 one where it is not encrypted,
    as Java does.
    """
    if data.startswith(_JKS_MAGIC):
        store = _open_jks(data, password, decrypt=False)
        ders = [entry.cert for entry in store.certs.values()]
    else:
        opened = _open_pkcs12(data, password)
        ders = [_der(each.certificate) for each in opened.additional_certs]
    if not ders:
        raise StoreError("holds no trusted certificate")
    return _pem(ders)


def key_chain(data: bytes, password: str, key_password: str | None) -> KeyChain:
    """The first key of a binary key store; ``key_password`` None means the store's password, as in Java."""
    if not data.startswith(_JKS_MAGIC):
        opened = _open_pkcs12(data, password)
        if opened.key is None or opened.cert is None:
            raise StoreError("holds no private key with its certificate")
        chain = [opened.cert, *opened.additional_certs]
        return KeyChain(_pkcs8(opened.key), _pem(_der(each.certificate) for each in chain))
    store = _open_jks(data, password, decrypt=False)
    if not store.private_keys:
        raise StoreError("holds no private key")
    entry = store.private_keys[min(store.private_keys)]
    try:
        entry.decrypt(key_password if key_password is not None else password)
        loaded = serialization.load_der_private_key(entry.pkey_pkcs8, None)
    except (jks.util.KeystoreException, ValueError, TypeError):
        raise StoreError("holds a private key that cannot be decrypted; is ssl.key.password right?") from None
    return KeyChain(_pkcs8(loaded), _pem(der for _, der in entry.cert_chain))


def _open_jks(data: bytes, password: str | None, *, decrypt: bool) -> jks.KeyStore:
    try:
        return jks.KeyStore.loads(data, password, try_decrypt_keys=decrypt)
    except jks.util.KeystoreSignatureException:
        raise StoreError("does not open with the password given") from None
    except (jks.util.KeystoreException, ValueError, TypeError):
        raise StoreError("is a damaged JKS store") from None


def _open_pkcs12(data: bytes, password: str | None) -> pkcs12.PKCS12KeyAndCertificates:
    if data.lstrip().startswith(b"-----BEGIN"):
        raise StoreError("holds PEM; set the store's type to PEM")
    if not data.startswith(b"\x30"):
        raise StoreError("is neither a PKCS#12 nor a JKS store")
    try:
        return pkcs12.load_pkcs12(data, _bytes(password))
    except ValueError:
        hint = "with the password given" if password is not None else "without a password"
        raise StoreError(f"does not open {hint}") from None


def _block(match: re.Match[str]) -> str:
    r"""A PEM block with its lines put right: inside a property they are often joined by spaces or a literal ``\n``."""
    label, body = match.groups()
    if ":" not in body:  # headers, of keys encrypted the old way, need the lines they have
        body = "\n".join(textwrap.wrap("".join(body.replace("\\n", "").split()), 64))
    return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"


def _pkcs8(key: PrivateKeyTypes) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _pem(ders: Iterable[bytes]) -> str:
    try:
        certificates = [x509.load_der_x509_certificate(der) for der in ders]
    except ValueError:
        raise StoreError("holds a damaged certificate") from None
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in certificates)


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()
