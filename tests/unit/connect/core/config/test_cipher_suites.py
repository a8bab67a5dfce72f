"""Java's names of cipher suites."""

from __future__ import annotations

import ssl

import pytest

from connect.core.config.security_settings import OPENSSL_NAMES, TLS_1_3, suites_notice, unknown_suites


def test_openssl_has_what_each_name_means() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for java, ours in OPENSSL_NAMES.items():
        context.set_ciphers(f"{ours}:@SECLEVEL=0")
        (found,) = (each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3")
        assert found == ours, java


def test_a_name_and_its_translation_are_the_same_suite() -> None:
    for java, ours in OPENSSL_NAMES.items():
        exchange, _, cipher = java.removeprefix("TLS_").partition("_WITH_")
        cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
        assert "-".join([*exchange.replace("_", "-").split(), cipher.replace("_", "-")]).removeprefix("RSA-") == ours


def test_unknown_names() -> None:
    names = ["TLS_AES_256_GCM_SHA384", "TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_EMPTY_RENEGOTIATION_INFO_SCSV", "X"]
    assert unknown_suites(names) == ["X"]


@pytest.mark.parametrize(
    ("key", "value", "missing"),
    [
        ("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384 , X", "TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256 may"),
        ("us.ssl.cipher.suites", "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256", ": TLS_CHACHA20_POLY1305_SHA256 may"),
        ("ssl.cipher.suites", ",".join(sorted(TLS_1_3)), None),
        ("ssl.cipher.suites", "TLS_RSA_WITH_AES_128_CBC_SHA", None),
        ("ssl.cipher.suites", "", None),
        ("ssl.protocol", "TLS_AES_256_GCM_SHA384", None),
    ],
)
def test_suites_that_nobody_named_are_told(key: str, value: str, missing: str | None) -> None:
    text = suites_notice(key, value)
    assert text is None if missing is None else text is not None and missing in text
