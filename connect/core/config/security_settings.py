"""Declares the security configs of Kafka's clients, maps names of cipher suites to OpenSSL's, and hides secrets.

Names and defaults are those of Kafka 4.3 (``SslConfigs``, ``SaslConfigs``). Values of ``ssl.cipher.suites`` are Java's
names (IANA's).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from connect.core.config.config_def import AtLeast, ConfigDef, Importance, OneOf, Setting, Type, ValidList, Value

_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


def _text(name: str, doc: str, default: Value = None, importance: Importance = Importance.LOW) -> Setting:
    return Setting(name, Type.STRING, default, doc, importance=importance)


def _secret(name: str, doc: str, importance: Importance = Importance.HIGH) -> Setting:
    return Setting(name, Type.PASSWORD, None, doc, importance=importance)


def _number(name: str, type_: Type, default: Value, doc: str, check: AtLeast | None = None) -> Setting:
    return Setting(name, type_, default, doc, check)


def _class(name: str, doc: str, default: Value = None, importance: Importance = Importance.LOW) -> Setting:
    return Setting(name, Type.CLASS, default, doc, importance=importance)


_SSL: Final = ConfigDef.of(
    _text("ssl.protocol", "Protocol of Java's SSLContext.", "TLSv1.3", importance=_MEDIUM),
    _text("ssl.provider", "Java's security provider.", importance=_MEDIUM),
    Setting(
        "ssl.cipher.suites",
        Type.LIST,
        (),
        "Allowed cipher suites by Java's names; empty: OpenSSL's default. One suite of TLS 1.3 allows all three.",
        ValidList(),
    ),
    Setting(
        "ssl.enabled.protocols",
        Type.LIST,
        ("TLSv1.2", "TLSv1.3"),
        "Allowed versions of TLS.",
        ValidList(),
        importance=_MEDIUM,
    ),
    Setting("ssl.keystore.type", Type.STRING, "JKS", "Key store format: PEM, PKCS12 or JKS.", importance=_MEDIUM),
    Setting("ssl.keystore.location", Type.STRING, None, "File of the key store.", importance=_HIGH),
    _secret("ssl.keystore.password", "Password of the key store; not used for PEM."),
    _secret("ssl.key.password", "Password of the private key."),
    _secret("ssl.keystore.key", "Private key as PEM text, instead of a file."),
    _secret("ssl.keystore.certificate.chain", "Certificate chain of the private key as PEM text."),
    _secret("ssl.truststore.certificates", "Trusted certificates as PEM text, instead of a file."),
    Setting("ssl.truststore.type", Type.STRING, "JKS", "Trust store format: PEM, PKCS12 or JKS.", importance=_MEDIUM),
    Setting("ssl.truststore.location", Type.STRING, None, "File of the trust store.", importance=_HIGH),
    _secret("ssl.truststore.password", "Password of the trust store; not used for PEM."),
    _text("ssl.keymanager.algorithm", "Algorithm of Java's key manager.", "SunX509"),
    _text("ssl.trustmanager.algorithm", "Algorithm of Java's trust manager.", "PKIX"),
    _text("ssl.endpoint.identification.algorithm", "https: verify the broker's host name; empty: do not.", "https"),
    _text("ssl.secure.random.implementation", "Java's random number generator."),
    _class("ssl.engine.factory.class", "Java class that creates TLS engines."),
)

_SASL: Final = ConfigDef.of(
    _text("sasl.kerberos.service.name", "Service name in the brokers' Kerberos principal.", importance=_MEDIUM),
    _text("sasl.kerberos.kinit.cmd", "Path of kinit.", "/usr/bin/kinit"),
    _number("sasl.kerberos.ticket.renew.window.factor", Type.DOUBLE, 0.8, "Share of a ticket's life before renewal."),
    _number("sasl.kerberos.ticket.renew.jitter", Type.DOUBLE, 0.05, "Jitter of the time before a ticket is renewed."),
    _number("sasl.kerberos.min.time.before.relogin", Type.LONG, 60_000, "Minimum time between logins, in ms."),
    _number(
        "sasl.login.refresh.window.factor",
        Type.DOUBLE,
        0.8,
        "Share of a token's life before renewal.",
        AtLeast(0.5, 1.0),
    ),
    _number("sasl.login.refresh.window.jitter", Type.DOUBLE, 0.05, "Jitter of a token's renewal.", AtLeast(0.0, 0.25)),
    _number("sasl.login.refresh.min.period.seconds", Type.SHORT, 60, "Minimum token renewal period.", AtLeast(0, 900)),
    _number("sasl.login.refresh.buffer.seconds", Type.SHORT, 300, "Buffer before a token expires.", AtLeast(0, 3600)),
    Setting("sasl.mechanism", Type.STRING, "GSSAPI", "SASL mechanism.", importance=_MEDIUM),
    Setting("sasl.jaas.config", Type.PASSWORD, None, "Login module, user and password.", importance=_MEDIUM),
    _class("sasl.client.callback.handler.class", "Java class that handles SASL callbacks.", importance=_MEDIUM),
    _class("sasl.login.callback.handler.class", "Java class that handles login callbacks.", importance=_MEDIUM),
    _class("sasl.login.class", "Java class that logs in.", importance=_MEDIUM),
    _number("sasl.login.connect.timeout.ms", Type.INT, None, "Connection timeout to a token endpoint."),
    _number("sasl.login.read.timeout.ms", Type.INT, None, "Read timeout from a token endpoint."),
    _number("sasl.login.retry.backoff.max.ms", Type.LONG, 10_000, "Longest wait between login attempts."),
    _number("sasl.login.retry.backoff.ms", Type.LONG, 100, "First wait between login attempts."),
)

_OAUTH: Final = ConfigDef.of(
    _class(
        "sasl.oauthbearer.jwt.retriever.class",
        "Java class that retrieves tokens.",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        importance=_MEDIUM,
    ),
    _class(
        "sasl.oauthbearer.jwt.validator.class",
        "Java class that validates tokens.",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        importance=_MEDIUM,
    ),
    _text("sasl.oauthbearer.scope", "Scope of requested tokens.", importance=_MEDIUM),
    _text(
        "sasl.oauthbearer.client.credentials.client.id",
        "Client id of the client credentials grant.",
        importance=_MEDIUM,
    ),
    _secret("sasl.oauthbearer.client.credentials.client.secret", "OAuth client secret.", importance=_MEDIUM),
    Setting(
        "sasl.oauthbearer.assertion.algorithm",
        Type.STRING,
        "RS256",
        "Algorithm that signs assertions.",
        OneOf(("ES256", "RS256"), any_case=True),
        importance=_MEDIUM,
    ),
    _text("sasl.oauthbearer.assertion.claim.aud", "Audience of assertions.", importance=_MEDIUM),
    _number("sasl.oauthbearer.assertion.claim.exp.seconds", Type.INT, 300, "Assertion lifetime.", AtLeast(0, 86_400)),
    _text("sasl.oauthbearer.assertion.claim.iss", "Issuer of assertions.", importance=_MEDIUM),
    Setting(
        "sasl.oauthbearer.assertion.claim.jti.include",
        Type.BOOLEAN,
        False,
        "Give each assertion an id.",
        importance=_MEDIUM,
    ),
    _number("sasl.oauthbearer.assertion.claim.nbf.seconds", Type.INT, 60, "Assertion backdating.", AtLeast(0, 3600)),
    _text("sasl.oauthbearer.assertion.claim.sub", "Subject of assertions.", importance=_MEDIUM),
    _text("sasl.oauthbearer.assertion.file", "File that contains an assertion.", importance=_MEDIUM),
    _text("sasl.oauthbearer.assertion.private.key.file", "File of the key that signs assertions.", importance=_MEDIUM),
    _secret("sasl.oauthbearer.assertion.private.key.passphrase", "Passphrase of the signing key.", importance=_MEDIUM),
    _text(
        "sasl.oauthbearer.assertion.template.file", "File with headers and claims of assertions.", importance=_MEDIUM
    ),
    _text("sasl.oauthbearer.scope.claim.name", "Claim that contains the scope.", "scope"),
    _text("sasl.oauthbearer.sub.claim.name", "Claim that contains the subject.", "sub"),
    _text("sasl.oauthbearer.token.endpoint.url", "URL from which tokens are retrieved.", importance=_MEDIUM),
    _text("sasl.oauthbearer.jwks.endpoint.url", "URL from which a broker retrieves keys.", importance=_MEDIUM),
    _number("sasl.oauthbearer.jwks.endpoint.refresh.ms", Type.LONG, 3_600_000, "Interval at which keys are retrieved."),
    _number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Type.LONG, 10_000, "Longest wait between retries."),
    _number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Type.LONG, 100, "First wait between retries."),
    _number("sasl.oauthbearer.clock.skew.seconds", Type.INT, 30, "Allowed difference between clocks."),
    Setting(
        "sasl.oauthbearer.expected.audience",
        Type.LIST,
        (),
        "Audiences that a broker accepts.",
        ValidList(),
        importance=_HIGH,
    ),
    _text("sasl.oauthbearer.expected.issuer", "Issuer that a broker accepts.", importance=_HIGH),
    Setting("sasl.oauthbearer.header.urlencode", Type.BOOLEAN, False, "URL-encode client id and secret in the header."),
)

#: ``security.protocol``, ``ssl.*`` and ``sasl.*`` of any client.
SECURITY: Final = (
    ConfigDef.of(
        Setting(
            "security.protocol",
            Type.STRING,
            "PLAINTEXT",
            "Protocol of connections to brokers.",
            OneOf(("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT"), any_case=True),
            Importance.MEDIUM,
        )
    )
    | _SSL
    | _SASL
    | _OAUTH
)

#: The security keys whose values are secrets.
SECRETS: Final = tuple(name for name, setting in SECURITY.settings.items() if setting.type is Type.PASSWORD)


KEY: Final = "ssl.cipher.suites"

#: Python cannot select among these suites; OpenSSL always allows all three.
TLS_1_3: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"})

#: Encrypting suites of Java 17 up to TLS 1.2 that OpenSSL 3 has. OpenSSL accepts Java's names only since 3.2.
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

#: An element of Java's lists that is not a suite: it signals safe renegotiation, which OpenSSL always does.
_SIGNAL: Final = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"


def unknown_suites(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in OPENSSL_NAMES and name not in TLS_1_3 and name != _SIGNAL]


def suites_notice(key: str, value: str) -> str | None:
    """Return the rest of a warning after ``key`` if more suites are allowed than ``value`` names, else None."""
    if key != KEY and not key.endswith(f".{KEY}"):
        return None
    missing = sorted(TLS_1_3.difference(map(str.strip, value.split(","))))
    if not 0 < len(missing) < len(TLS_1_3):
        return None
    return (
        f"cannot select among the suites of TLS 1.3: {', '.join(missing)} may be used too; "
        "to disable TLS 1.3, name none of its suites"
    )


HIDDEN: Final = "[hidden]"
#: Keys of transforms, converters and filters that probably hold secrets.
_SECRET: Final = re.compile(
    r"(password|passwd|passphrase|secret|token|credentials?|(api|private|secret|access).?key|user\.info|jaas\.config)$",
    re.I,
)
#: A URL with a password, as user information or as a parameter.
_URL_SECRET: Final = re.compile(r"://[^/?#@:\s]*:[^/?#@\s]+@|[?&;](password|passwd|pwd|secret|token)=[^&;\s]", re.I)
_REFERENCE: Final = re.compile(r"\$\{[^${}]*:[^${}]*\}")


def is_secret(key: str) -> bool:
    """Return whether the name of a key says that it holds a secret."""
    return key.endswith(SECRETS) or _SECRET.search(key) is not None


def hidden(config: Mapping[str, str], declared: ConfigDef) -> dict[str, str]:
    """Return a config as written with :data:`HIDDEN` for its secrets: values of type password, and of keys whose name
    says it, and URLs with a password. A reference to a config provider is shown, because it is not the secret."""

    def shown(key: str, value: str) -> str:
        setting = declared.settings.get(key)
        declared_secret = setting is not None and setting.type is Type.PASSWORD
        secret = is_secret(key) or declared_secret or _URL_SECRET.search(value) is not None
        return _masked(value) if secret else value

    return {key: shown(key, value) for key, value in config.items()}


def _masked(value: str) -> str:
    return HIDDEN if value and _REFERENCE.fullmatch(value.strip()) is None else value


def restored(config: Mapping[str, str | None], stored: Mapping[str, str]) -> dict[str, str | None]:
    """Return a config in which a value :data:`HIDDEN` is the stored one. A key without one keeps ``[hidden]``."""
    return {key: stored.get(key, value) if value == HIDDEN else value for key, value in config.items()}


def changed_keys(
    before: Mapping[str, str], after: Mapping[str, str | None], shown: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> dict[str, tuple[str | None, str | None]]:
    """Return the keys whose values differ between a stored config and the next one, in order, with both values as
    ``shown`` masks them; None: not set. A value is masked too if only the other config declares its key as a secret,
    because a config may have no class, or a wrong one."""
    present = {key: value for key, value in restored(after, before).items() if value is not None}
    old_shown, new_shown = shown(before), shown(present)
    differing = (key for key in sorted({*before, *present}) if before.get(key) != present.get(key))

    def both(key: str) -> tuple[str | None, str | None]:
        values = old_shown.get(key), new_shown.get(key)
        if HIDDEN not in values:
            return values
        old, new = (None if value is None else _masked(value) for value in values)
        return old, new

    return {key: both(key) for key in differing}
