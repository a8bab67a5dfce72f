"""Key stores as Java writes them (``sun.security.provider.JavaKeyStore``); no library of the project can write one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

_ALGORITHM = bytes.fromhex("300e060a2b060104012a021101010500")


def jks_store(
    password: str,
    *,
    certificates: Sequence[bytes] = (),
    keys: Mapping[str, tuple[bytes, Sequence[bytes]]] | None = None,
    key_password: str | None = None,
) -> bytes:
    """A store of trusted certificates (DER), and of keys (PKCS#8) with their chains by alias."""
    entries = []
    for alias, (key, chain) in (keys or {}).items():
        protected = _protected(key, key_password or password)
        body = _sized(protected) + struct.pack(">I", len(chain)) + b"".join(map(_certificate, chain))
        entries.append(struct.pack(">I", 1) + _text(alias) + bytes(8) + body)
    for at, each in enumerate(certificates):
        entries.append(struct.pack(">I", 2) + _text(f"c{at}") + bytes(8) + _certificate(each))
    content = struct.pack(">4sII", b"\xfe\xed\xfe\xed", 2, len(entries)) + b"".join(entries)
    return content + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def _protected(key: bytes, password: str) -> bytes:
    secret, block, stream = password.encode("utf-16-be"), bytes(range(20)), b""
    while len(stream) < len(key):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    hidden = bytes(one ^ other for one, other in zip(key, stream, strict=False))
    sealed = bytes(range(20)) + hidden + hashlib.sha1(secret + key).digest()
    return _der(0x30, _ALGORITHM + _der(0x04, sealed))


def _der(tag: int, content: bytes) -> bytes:
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(size))) + size + content


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _certificate(der: bytes) -> bytes:
    return _text("X.509") + _sized(der)
