"""``ssl.cipher.suites``: Java's names (IANA's), and what OpenSSL calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

KEY: Final = "ssl.cipher.suites"

#: Python cannot choose among them; OpenSSL allows all three by itself.
TLS_1_3: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"})

#: Up to TLS 1.2: the suites of Java 17 that OpenSSL 3 has and that encrypt. It reads these names since 3.2 only.
OPENSSL_NAMES: Final = dict(
    line.split()
    for line in """
    TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 ECDHE-ECDSA-AES256-GCM-SHA384
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 ECDHE-ECDSA-AES128-GCM-SHA256
    TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 ECDHE-ECDSA-CHACHA20-POLY1305
    TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384 ECDHE-ECDSA-AES256-SHA384
    TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256 ECDHE-ECDSA-AES128-SHA256
    TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA ECDHE-ECDSA-AES256-SHA
    TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA ECDHE-ECDSA-AES128-SHA
    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 ECDHE-RSA-AES256-GCM-SHA384
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 ECDHE-RSA-AES128-GCM-SHA256
    TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 ECDHE-RSA-CHACHA20-POLY1305
    TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384 ECDHE-RSA-AES256-SHA384
    TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256 ECDHE-RSA-AES128-SHA256
    TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA ECDHE-RSA-AES256-SHA
    TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA ECDHE-RSA-AES128-SHA
    TLS_DHE_RSA_WITH_AES_256_GCM_SHA384 DHE-RSA-AES256-GCM-SHA384
    TLS_DHE_RSA_WITH_AES_128_GCM_SHA256 DHE-RSA-AES128-GCM-SHA256
    TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256 DHE-RSA-CHACHA20-POLY1305
    TLS_DHE_RSA_WITH_AES_256_CBC_SHA256 DHE-RSA-AES256-SHA256
    TLS_DHE_RSA_WITH_AES_128_CBC_SHA256 DHE-RSA-AES128-SHA256
    TLS_DHE_RSA_WITH_AES_256_CBC_SHA DHE-RSA-AES256-SHA
    TLS_DHE_RSA_WITH_AES_128_CBC_SHA DHE-RSA-AES128-SHA
    TLS_DHE_DSS_WITH_AES_256_GCM_SHA384 DHE-DSS-AES256-GCM-SHA384
    TLS_DHE_DSS_WITH_AES_128_GCM_SHA256 DHE-DSS-AES128-GCM-SHA256
    TLS_DHE_DSS_WITH_AES_256_CBC_SHA256 DHE-DSS-AES256-SHA256
    TLS_DHE_DSS_WITH_AES_128_CBC_SHA256 DHE-DSS-AES128-SHA256
    TLS_DHE_DSS_WITH_AES_256_CBC_SHA DHE-DSS-AES256-SHA
    TLS_DHE_DSS_WITH_AES_128_CBC_SHA DHE-DSS-AES128-SHA
    TLS_RSA_WITH_AES_256_GCM_SHA384 AES256-GCM-SHA384
    TLS_RSA_WITH_AES_128_GCM_SHA256 AES128-GCM-SHA256
    TLS_RSA_WITH_AES_256_CBC_SHA256 AES256-SHA256
    TLS_RSA_WITH_AES_128_CBC_SHA256 AES128-SHA256
    TLS_RSA_WITH_AES_256_CBC_SHA AES256-SHA
    TLS_RSA_WITH_AES_128_CBC_SHA AES128-SHA
    """.strip().splitlines()
)

#: Part of Java's lists, and no suite: it says that renegotiation is safe, as OpenSSL always does.
_SIGNAL: Final = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"


def unknown_suites(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that nobody here can speak."""
    return [name for name in names if name not in OPENSSL_NAMES and name not in TLS_1_3 and name != _SIGNAL]


def suites_notice(key: str, value: str) -> str | None:
    """What follows ``key`` in a sentence where more suites are allowed than ``value`` names; else None."""
    if key != KEY and not key.endswith(f".{KEY}"):
        return None
    missing = sorted(TLS_1_3.difference(map(str.strip, value.split(","))))
    if not 0 < len(missing) < len(TLS_1_3):
        return None
    return (
        f"cannot choose among the suites of TLS 1.3: {', '.join(missing)} may be spoken too; "
        "name none of TLS 1.3, and it is not spoken"
    )
