"""Signatures against published vectors, the check's order, and when a key has had its time."""

from __future__ import annotations

import base64

import pytest

from connect.core.herder_api import (
    ALGORITHMS,
    BadRequest,
    Forbidden,
    NotReady,
    RequestRefused,
    SessionKey,
    Signature,
    check,
    is_known,
    key_bytes,
    must_be_replaced,
    sign,
)

KEY = SessionKey(b"0" * 32, "HmacSHA256", 1_000)
ALLOWED = ("HmacSHA256", "HmacSHA512")
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        ("HmacMD5", "750c783e6ab0b503eaa86e310a5db738"),
        ("HmacSHA1", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
        ("HmacSHA256", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    ],
)
def test_macs_are_those_of_their_names(algorithm: str, digest: str) -> None:
    """RFC 2202 and 4231, second test case of each."""
    key = SessionKey(b"Jefe", algorithm, 0)
    assert base64.b64decode(sign(key, algorithm, b"what do ya want for nothing?")).hex() == digest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_signed_passes_the_check(algorithm: str) -> None:
    for body in (b"", b'[{"a":"b"}]'):
        check(Signature(sign(KEY, algorithm, body), algorithm, body), KEY, (algorithm,))
    assert is_known(algorithm.upper())


def signed(body: bytes = b"body", algorithm: str = "HmacSHA256") -> Signature:
    return Signature(sign(KEY, algorithm, body), algorithm, body)


def test_padding_may_be_missing() -> None:
    signature = signed()
    assert signature.signature is not None
    check(Signature(signature.signature.rstrip("="), "HmacSHA256", b"body"), KEY, ALLOWED)


@pytest.mark.parametrize(
    ("signature", "refusal", "words"),
    [
        (Signature(None, "HmacSHA256", b"body"), BadRequest, "missing required signature"),
        (Signature("AAAA", None, b"body"), BadRequest, "missing required signature"),
        (Signature("AAAA", "HmacSHA255", b"body"), BadRequest, "HmacSHA255"),
        (Signature("!?", "HmacSHA256", b"body"), BadRequest, "base64"),
        (Signature("A", "HmacSHA256", b"body"), BadRequest, "base64"),
        (signed(algorithm="HmacSHA1"), BadRequest, r"currently configured to use: \[HmacSHA256, HmacSHA512\]\. "),
        (Signature(signed().signature, "HmacSHA256", b"another"), Forbidden, "contained invalid signature"),
        (Signature(signed().signature, "HmacSHA512", b"body"), Forbidden, "contained invalid signature"),
        (Signature("", "HmacSHA256", b"body"), Forbidden, "contained invalid signature"),
    ],
)
def test_refusals(signature: Signature, refusal: type[RequestRefused], words: str) -> None:
    with pytest.raises(refusal, match=words):
        check(signature, KEY, ALLOWED)


def test_another_key_is_refused_and_none_is_not_ready() -> None:
    with pytest.raises(Forbidden):
        check(signed(), SessionKey(b"1" * 32, "HmacSHA256", 1_000), ALLOWED)
    with pytest.raises(NotReady):
        check(signed(), None, ALLOWED)
    with pytest.raises(BadRequest):
        check(Signature(None, None, b""), None, ALLOWED)


def test_a_key_is_not_shown() -> None:
    assert "0000" not in repr(KEY)


@pytest.mark.parametrize(
    ("key", "algorithm", "size_bits", "ttl_ms", "now_ms", "replaced"),
    [
        (None, "HmacSHA256", None, HOUR_MS, 0, True),
        (KEY, "HmacSHA256", None, HOUR_MS, 1_000, False),
        (KEY, "HmacSHA256", 256, HOUR_MS, HOUR_MS + 999, False),
        (KEY, "HmacSHA256", None, HOUR_MS, HOUR_MS + 1_000, True),
        (KEY, "HmacSHA256", None, 0, 10**12, False),
        (KEY, "HmacSHA512", 256, HOUR_MS, 1_000, True),
        (KEY, "HmacSHA256", 512, HOUR_MS, 1_000, True),
    ],
)
def test_when_a_leader_makes_a_new_key(
    key: SessionKey | None, algorithm: str, size_bits: int | None, ttl_ms: int, now_ms: int, replaced: bool
) -> None:
    assert must_be_replaced(key, algorithm, size_bits, ttl_ms, now_ms) is replaced


@pytest.mark.parametrize(
    ("algorithm", "size_bits", "expected"),
    [("HmacSHA1", None, 64), ("HmacSHA256", None, 32), ("HmacSHA512", None, 64), ("HmacSHA256", 100, 13)],
)
def test_keys_are_as_long_as_javas(algorithm: str, size_bits: int | None, expected: int) -> None:
    assert key_bytes(algorithm, size_bits) == expected
