"""A store that Java's keytool made is read, and hostile bytes are refused with one of two errors."""

from __future__ import annotations

import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.security.jks_store import DamagedStore, WrongPassword, read_jks, unprotected_key

#: ``keytool -genkeypair -alias Mine -keyalg EC -groupname secp256r1 -dname CN=mine -validity 36500 -storetype JKS
#: -keystore t.jks -storepass store-secret -keypass key-secret``
STORE = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAQAEbWluZQAAAaIZfTQaAAAAfzB9MA4GCisGAQQBKgIRAQEFAARrshToJCiJagYqZgVcoOAHHNM2Rb4z"
    "GyPt81cjS8/FL/CNh5CcD/q6AAz1r2vM16bgVOmYLX1zDgmvC7dHn73nCXqgGSyIfYaVuYbUfSVVTGS07x8AowSycrLcSdRtAQRO"
    "7syjd0cCHOtIMTYAAAABAAVYLjUwOQAAATwwggE4MIHeoAMCAQICCQDtY4ZzSKFliTAKBggqhkjOPQQDAjAPMQ0wCwYDVQQDEwRt"
    "aW5lMCAXDTI2MTEyNjIwMTI0NVoYDzIxMjYxMTAyMjAxMjQ1WjAPMQ0wCwYDVQQDEwRtaW5lMFkwEwYHKoZIzj0CAQYIKoZIzj0D"
    "AQcDQgAEHAy5nkD9kpMZzCSgygAqhNrmc8z85GNZk6P65Excxq/gyj/gN1lgiJLUj0BKPAQUBEp2d2MvMAAhHrw/NZAs56MhMB8w"
    "HQYDVR0OBBYEFHUzMNyFRmmPG/8vXbxFC9cTUyhmMAoGCCqGSM49BAMCA0kAMEYCIQDNcuzR5GMEjTGVT2mmQEa7Zd6SCLpt2Yee"
    "4gkP7lirjgIhAPNOQHF458XUDp8Nu9ANp/nix7JJI4QpfHbuvII6wNWay9/Oa5qpxATKDr8haZoRpNYgnJE="
)


def test_a_store_of_keytool() -> None:
    store = read_jks(STORE, "store-secret")
    assert store == read_jks(STORE, None)
    assert not store.certificates
    ((alias, (protected, [chain])),) = store.keys.items()
    assert alias == b"mine"
    key = serialization.load_der_private_key(unprotected_key(protected, "key-secret"), None)
    certificate = x509.load_der_x509_certificate(chain)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate.public_key()
    with pytest.raises(WrongPassword):
        read_jks(STORE, "guess")
    with pytest.raises(WrongPassword):
        unprotected_key(protected, "guess")


@given(st.lists(st.tuples(st.integers(0, len(STORE) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(STORE)))
def test_damaged_stores(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(STORE)
    for at, byte in changes:
        data[at] = byte
    try:
        for protected, _ in read_jks(bytes(data[:end]), None).keys.values():
            unprotected_key(protected, "key-secret")
    except (DamagedStore, WrongPassword):
        return
