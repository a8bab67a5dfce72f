"""Declares the security configs of Kafka's clients, parses ``sasl.jaas.config``, maps names of cipher suites to those
of OpenSSL, and hides secrets.

Names and defaults are those of Kafka 4.3 (``SslConfigs``, ``SaslConfigs``). Values of ``ssl.cipher.suites`` are Java's
names (IANA's). ``sasl.jaas.config`` follows Kafka's ``JaasConfig`` and Java's ``StreamTokenizer``. Users rely on the
tokenizer's details: quotes may be double or single, a backslash escapes inside them, ``/`` outside of them starts a
comment, and a bare number is not a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connect.core.config.config_def import (
    AtLeast,
    ConfigDef,
    Importance,
    OneOf,
    Type,
    ValidList,
    class_name,
    double,
    flag,
    integer,
    long,
    secret,
    short,
    strings,
    text,
)

_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


_SSL: Final = ConfigDef.of(
    text("ssl.protocol", "TLSv1.3", "Protocol of Java's SSLContext.", _MEDIUM),
    text("ssl.provider", None, "Java's security provider.", _MEDIUM),
    strings(
        "ssl.cipher.suites",
        (),
        "Allowed cipher suites by Java's names; empty: OpenSSL's default. One suite of TLS 1.3 allows all three.",
        check=ValidList(),
    ),
    strings("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), "Allowed versions of TLS.", _MEDIUM, ValidList()),
    text("ssl.keystore.type", "JKS", "Key store format: PEM, PKCS12 or JKS.", _MEDIUM),
    text("ssl.keystore.location", None, "File of the key store.", _HIGH),
    secret("ssl.keystore.password", None, "Password of the key store; not used for PEM.", _HIGH),
    secret("ssl.key.password", None, "Password of the private key.", _HIGH),
    secret("ssl.keystore.key", None, "Private key as PEM text, instead of a file.", _HIGH),
    secret("ssl.keystore.certificate.chain", None, "Certificate chain of the private key as PEM text.", _HIGH),
    secret("ssl.truststore.certificates", None, "Trusted certificates as PEM text, instead of a file.", _HIGH),
    text("ssl.truststore.type", "JKS", "Trust store format: PEM, PKCS12 or JKS.", _MEDIUM),
    text("ssl.truststore.location", None, "File of the trust store.", _HIGH),
    secret("ssl.truststore.password", None, "Password of the trust store; not used for PEM.", _HIGH),
    text("ssl.keymanager.algorithm", "SunX509", "Algorithm of Java's key manager."),
    text("ssl.trustmanager.algorithm", "PKIX", "Algorithm of Java's trust manager."),
    text("ssl.endpoint.identification.algorithm", "https", "https: verify the broker's host name; empty: do not."),
    text("ssl.secure.random.implementation", None, "Java's random number generator."),
    class_name("ssl.engine.factory.class", None, "Java class that creates TLS engines."),
)

_SASL: Final = ConfigDef.of(
    text("sasl.kerberos.service.name", None, "Service name in the brokers' Kerberos principal.", _MEDIUM),
    text("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "Path of kinit."),
    double("sasl.kerberos.ticket.renew.window.factor", 0.8, "Share of a ticket's life before renewal."),
    double("sasl.kerberos.ticket.renew.jitter", 0.05, "Jitter of the time before a ticket is renewed."),
    long("sasl.kerberos.min.time.before.relogin", 60_000, "Minimum time between logins, in ms."),
    double("sasl.login.refresh.window.factor", 0.8, "Share of a token's life before renewal.", check=AtLeast(0.5, 1.0)),
    double("sasl.login.refresh.window.jitter", 0.05, "Jitter of a token's renewal.", check=AtLeast(0.0, 0.25)),
    short("sasl.login.refresh.min.period.seconds", 60, "Minimum token renewal period.", check=AtLeast(0, 900)),
    short("sasl.login.refresh.buffer.seconds", 300, "Buffer before a token expires.", check=AtLeast(0, 3600)),
    text("sasl.mechanism", "GSSAPI", "SASL mechanism.", _MEDIUM),
    secret("sasl.jaas.config", None, "Login module, user and password.", _MEDIUM),
    class_name("sasl.client.callback.handler.class", None, "Java class that handles SASL callbacks.", _MEDIUM),
    class_name("sasl.login.callback.handler.class", None, "Java class that handles login callbacks.", _MEDIUM),
    class_name("sasl.login.class", None, "Java class that logs in.", _MEDIUM),
    integer("sasl.login.connect.timeout.ms", None, "Connection timeout to a token endpoint."),
    integer("sasl.login.read.timeout.ms", None, "Read timeout from a token endpoint."),
    long("sasl.login.retry.backoff.max.ms", 10_000, "Longest wait between login attempts."),
    long("sasl.login.retry.backoff.ms", 100, "First wait between login attempts."),
)

_OAUTH: Final = ConfigDef.of(
    class_name(
        "sasl.oauthbearer.jwt.retriever.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "Java class that retrieves tokens.",
        _MEDIUM,
    ),
    class_name(
        "sasl.oauthbearer.jwt.validator.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "Java class that validates tokens.",
        _MEDIUM,
    ),
    text("sasl.oauthbearer.scope", None, "Scope of requested tokens.", _MEDIUM),
    text("sasl.oauthbearer.client.credentials.client.id", None, "Client id of the client credentials grant.", _MEDIUM),
    secret("sasl.oauthbearer.client.credentials.client.secret", None, "OAuth client secret.", _MEDIUM),
    text(
        "sasl.oauthbearer.assertion.algorithm",
        "RS256",
        "Algorithm that signs assertions.",
        _MEDIUM,
        OneOf(("ES256", "RS256"), any_case=True),
    ),
    text("sasl.oauthbearer.assertion.claim.aud", None, "Audience of assertions.", _MEDIUM),
    integer("sasl.oauthbearer.assertion.claim.exp.seconds", 300, "Assertion lifetime.", check=AtLeast(0, 86_400)),
    text("sasl.oauthbearer.assertion.claim.iss", None, "Issuer of assertions.", _MEDIUM),
    flag("sasl.oauthbearer.assertion.claim.jti.include", False, "Give each assertion an id.", _MEDIUM),
    integer("sasl.oauthbearer.assertion.claim.nbf.seconds", 60, "Assertion backdating.", check=AtLeast(0, 3600)),
    text("sasl.oauthbearer.assertion.claim.sub", None, "Subject of assertions.", _MEDIUM),
    text("sasl.oauthbearer.assertion.file", None, "File that contains an assertion.", _MEDIUM),
    text("sasl.oauthbearer.assertion.private.key.file", None, "File of the key that signs assertions.", _MEDIUM),
    secret("sasl.oauthbearer.assertion.private.key.passphrase", None, "Passphrase of the signing key.", _MEDIUM),
    text("sasl.oauthbearer.assertion.template.file", None, "File with headers and claims of assertions.", _MEDIUM),
    text("sasl.oauthbearer.scope.claim.name", "scope", "Claim that contains the scope."),
    text("sasl.oauthbearer.sub.claim.name", "sub", "Claim that contains the subject."),
    text("sasl.oauthbearer.token.endpoint.url", None, "URL from which tokens are retrieved.", _MEDIUM),
    text("sasl.oauthbearer.jwks.endpoint.url", None, "URL from which a broker retrieves keys.", _MEDIUM),
    long("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "Interval at which keys are retrieved."),
    long("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000, "Longest wait between retries."),
    long("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100, "First wait between retries."),
    integer("sasl.oauthbearer.clock.skew.seconds", 30, "Allowed difference between clocks."),
    strings("sasl.oauthbearer.expected.audience", (), "Audiences that a broker accepts.", _HIGH, ValidList()),
    text("sasl.oauthbearer.expected.issuer", None, "Issuer that a broker accepts.", _HIGH),
    flag("sasl.oauthbearer.header.urlencode", False, "URL-encode client id and secret in the header."),
)

#: ``security.protocol``, ``ssl.*`` and ``sasl.*`` of any client.
SECURITY: Final = (
    ConfigDef.of(
        text(
            "security.protocol",
            "PLAINTEXT",
            "Protocol of connections to brokers.",
            Importance.MEDIUM,
            OneOf(("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT"), any_case=True),
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


#: Blanks and comments; a word; a quoted value, which the end of the line also ends; a number or a single character.
_TOKEN: Final = re.compile(
    r"""(?P<ignored>[\x00-\x20]+|/\*.*?(?:\*/|\Z)|/[^\r\n]*)"""
    r"""|(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)"""
    r"""|"(?P<double>(?:\\.|[^"\\\r\n])*\\?)"?|'(?P<single>(?:\\.|[^'\\\r\n])*\\?)'?"""
    r"""|[0-9.]+|.""",
    re.DOTALL,
)
#: Java reads a third octal digit only if the number still fits in a byte.
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
#: Any other word may be part of a badly quoted password, so no message repeats it.
_KNOWN_OPTIONS: Final = frozenset({"username", "password", "tokenauth", "serviceName", "principal", "keyTab"})


class JaasError(ValueError):
    """The line cannot be parsed; the message never repeats a value of it."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module with its options; the options hold secrets, so ``repr`` omits them."""

    login_module: str
    options: dict[str, str] = field(repr=False)


class _JaasToken(NamedTuple):
    """``word`` is None for a number or a single character, as ``StreamTokenizer.sval`` is null for them."""

    char: str
    word: str | None


def parse_jaas(line: str) -> JaasEntry:
    """Return the single login module of the line. Raises JaasError if the line is invalid by ``JaasConfig`` and
    ``JaasContext``: no module or several, an unknown control flag, an option without a value, no semicolon at the
    end."""
    tokens = _tokens(line)
    entries = [_entry(token, tokens) for token in tokens]
    if not entries:
        raise JaasError("names no login module")
    if len(entries) > 1:
        raise JaasError(f"holds {len(entries)} login modules and should hold one; is a semicolon or a quote misplaced?")
    return entries[0]


def _entry(first: _JaasToken, tokens: Iterator[_JaasToken]) -> JaasEntry:
    if first.word is None:
        raise JaasError("does not begin with the name of a login module")
    flag = next(tokens, None)
    if flag is None or flag.word is None or flag.word.upper() not in _FLAGS:
        raise JaasError("has no control flag (such as 'required') after the login module")
    options: dict[str, str] = {}
    for token in tokens:
        if token.char == ";":
            return JaasEntry(first.word, options)
        equals, value = next(tokens, None), next(tokens, None)
        if token.word is None or equals is None or equals.char != "=" or value is None or value.word is None:
            name = f"option '{token.word}'" if token.word in _KNOWN_OPTIONS else "an option"
            raise JaasError(f'has {name} without a value; write options as name="value", with the quotes')
        options[token.word] = value.word
    raise JaasError("does not end with a semicolon")


def _tokens(text: str) -> Iterator[_JaasToken]:
    for match in _TOKEN.finditer(text):
        quoted = match["double"] if match["single"] is None else match["single"]
        if match["word"] is not None:
            yield _JaasToken("", match["word"])
        elif quoted is not None:
            yield _JaasToken(match[0][0], _ESCAPE.sub(_unescaped, quoted))
        elif match["ignored"] is None:
            yield _JaasToken(match[0][0], None)


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 8)) if match[2] is None else _ESCAPES.get(match[2], match[2])
