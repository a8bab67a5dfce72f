"""Signed requests between workers (KIP-507): the session key, signatures with it, and their check.

Algorithms go by the names of Java's ``Mac`` and ``KeyGenerator``; upper and lower case are one to Java, too.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.core.herding import BadRequest, Forbidden, NotReady, Signature

#: The headers of a signed request.
SIGNATURE_HEADER: Final = "X-Connect-Authorization"
ALGORITHM_HEADER: Final = "X-Connect-Request-Signature-Algorithm"
#: How a request without one is refused, in Java's words.
UNSIGNED: Final = "Internal request missing required signature"


@dataclass(frozen=True, slots=True)
class _Mac:
    digest: str
    #: How long a key is that Java makes where ``inter.worker.key.size`` is not set.
    key_bytes: int


_MACS: Final = {
    "HmacMD5": _Mac("md5", 64),
    "HmacSHA1": _Mac("sha1", 64),
    "HmacSHA224": _Mac("sha224", 28),
    "HmacSHA256": _Mac("sha256", 32),
    "HmacSHA384": _Mac("sha384", 48),
    "HmacSHA512": _Mac("sha512", 64),
    "HmacSHA3-224": _Mac("sha3_224", 28),
    "HmacSHA3-256": _Mac("sha3_256", 32),
    "HmacSHA3-384": _Mac("sha3_384", 48),
    "HmacSHA3-512": _Mac("sha3_512", 64),
}
_BY_NAME: Final = {name.lower(): mac for name, mac in _MACS.items()}

#: What may be set as ``inter.worker.signature.algorithm`` and its relatives.
ALGORITHMS: Final = tuple(_MACS)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The secret that the workers of a group share; ``algorithm`` is that of its generation."""

    key: bytes = field(repr=False)
    algorithm: str
    created_ms: int


def is_known(algorithm: str) -> bool:
    """Whether we can sign, check and make keys with it."""
    return algorithm.lower() in _BY_NAME


def key_bytes(algorithm: str, size_bits: int | None) -> int:
    """How long a new key is; ``size_bits`` as ``inter.worker.key.size`` says, None for the algorithm's own size."""
    return _BY_NAME[algorithm.lower()].key_bytes if size_bits is None else (size_bits + 7) // 8


def must_be_replaced(key: SessionKey | None, algorithm: str, size_bits: int | None, ttl_ms: int, now_ms: int) -> bool:
    """Whether a leader makes a new key: there is none, its time is over, or the settings want another kind.

    ``ttl_ms`` 0: a key's time is never over (Kafka ``DistributedHerder.checkKeyRotation``).
    """
    if key is None or key.algorithm != algorithm or len(key.key) != key_bytes(algorithm, size_bits):
        return True
    return ttl_ms > 0 and key.created_ms + ttl_ms <= now_ms


def sign(key: SessionKey, algorithm: str, body: bytes) -> str:
    """The signature's header for ``body``; no body is signed as nothing."""
    return base64.b64encode(_mac(key, algorithm, body)).decode()


def check(signature: Signature, key: SessionKey | None, algorithms: Sequence[str]) -> None:
    """Check an internal request as Java's ``requestNotSignedProperly`` does, in its order.

    Args:
        signature: The request's headers and body.
        key: The session key that was read last.
        algorithms: ``inter.worker.verification.algorithms``.

    Raises:
        BadRequest: a header is missing or nonsense, or the algorithm is not allowed here.
        NotReady: no key was read yet.
        Forbidden: the signature is wrong.
    """
    if signature.signature is None or signature.algorithm is None:
        raise BadRequest(UNSIGNED)
    if not is_known(signature.algorithm):
        raise BadRequest(f"Algorithm {signature.algorithm} not available")
    presented = _decoded(signature.signature)
    if signature.algorithm not in algorithms:
        raise BadRequest(
            f"This worker does not support the '{signature.algorithm}' key signing algorithm used by other workers. "
            f"This worker is currently configured to use: [{', '.join(algorithms)}]. Check that all workers' "
            "configuration files permit the same set of signature algorithms, and correct any misconfigured worker "
            "and restart it."
        )
    if key is None:
        raise NotReady(
            "This worker is still starting up and has not been able to read a session key from the config topic yet"
        )
    if not hmac.compare_digest(_mac(key, signature.algorithm, signature.body), presented):
        raise Forbidden("Internal request contained invalid signature.")


def _mac(key: SessionKey, algorithm: str, body: bytes) -> bytes:
    return hmac.digest(key.key, body, _BY_NAME[algorithm.lower()].digest)


def _decoded(text: str) -> bytes:
    """The bytes of a header; Java's decoder does without padding."""
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"Signature is not base64: {error}") from error
