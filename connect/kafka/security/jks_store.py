"""Reads Java's own kind of key store, JKS: certificates, and private keys in Sun's protection.

Layout: ``sun.security.provider.JavaKeyStore``; protection of keys: ``sun.security.provider.KeyProtector``. All numbers
are big-endian, and a text follows its length of two bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

MAGIC: Final = b"\xfe\xed\xfe\xed"
_KEY, _CERTIFICATE = 1, 2
_INT: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_DIGEST_BYTES: Final = 20
_TIME_BYTES: Final = 8
_WHITENER: Final = b"Mighty Aphrodite"
#: 1.3.6.1.4.1.42.2.17.1.1
_PROTECTOR: Final = bytes.fromhex("2b060104012a02110101")
_SEQUENCE, _OCTETS, _OBJECT_ID = 0x30, 0x04, 0x06


class DamagedStore(ValueError):
    """The bytes are not a JKS store."""


class WrongPassword(ValueError):
    """The password does not fit the store, or the key."""


class JksStore(NamedTuple):
    """Protected keys with their chains (DER), and trusted certificates (DER), by the bytes of their alias."""

    keys: dict[bytes, tuple[bytes, list[bytes]]]
    certificates: dict[bytes, bytes]


def read_jks(data: bytes, password: str | None) -> JksStore:
    """Read a store; without a password its integrity is not checked. Raises DamagedStore and WrongPassword."""
    reader = _Reader(data)
    if reader.take(len(MAGIC)) != MAGIC or (version := reader.number()) not in (1, 2):
        raise DamagedStore("it does not begin as one")
    store = JksStore({}, {})
    for _ in range(reader.number()):
        kind, alias = reader.number(), reader.text()
        reader.take(_TIME_BYTES)
        if kind == _KEY:
            protected = reader.take(reader.number())
            store.keys[alias] = protected, [reader.certificate(version) for _ in range(reader.number())]
        elif kind == _CERTIFICATE:
            store.certificates[alias] = reader.certificate(version)
        else:
            raise DamagedStore(f"an entry has the unknown kind {kind}")
    content, digest = data[: reader.at], reader.take(_DIGEST_BYTES)
    if password is not None:
        made = hashlib.sha1(_password(password) + _WHITENER + content).digest()
        if not hmac.compare_digest(made, digest):
            raise WrongPassword("the store has another password")
    return store


def unprotected_key(protected: bytes, password: str) -> bytes:
    """Return a private key (PKCS#8). Raises DamagedStore and WrongPassword."""
    try:
        (whole,) = _elements(protected)
        algorithm, sealed = _elements(_content(whole, _SEQUENCE))
        protection = _content(_elements(_content(algorithm, _SEQUENCE))[0], _OBJECT_ID)
    except (IndexError, ValueError) as error:
        raise DamagedStore(f"a key cannot be read: {error}") from error
    if protection != _PROTECTOR:
        raise DamagedStore("a key has an unknown protection")
    data, secret = _content(sealed, _OCTETS), _password(password)
    salt, hidden, check = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    stream, block = bytearray(), salt
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(one ^ other for one, other in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise WrongPassword("the key has another password")
    return key


def _password(password: str) -> bytes:
    return password.encode("utf-16-be")


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return the DER elements in ``data`` as (tag, content)."""
    found, at = [], 0
    while at < len(data):
        if at + 2 > len(data):
            raise DamagedStore("a key is cut short")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size]), at + size
        if at + length > len(data):
            raise DamagedStore("a key is cut short")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def _content(element: tuple[int, bytes], tag: int) -> bytes:
    if element[0] != tag:
        raise DamagedStore("a key has an unknown form")
    return element[1]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self.at : self.at + size]
        if len(taken) < size:
            raise DamagedStore("it is cut short")
        self.at += size
        return taken

    def number(self) -> int:
        return int(_INT.unpack(self.take(_INT.size))[0])

    def text(self) -> bytes:
        return self.take(_SHORT.unpack(self.take(_SHORT.size))[0])

    def certificate(self, version: int) -> bytes:
        if version == 2:
            self.text()  # its type, X.509
        return self.take(self.number())
