"""Parses ``sasl.jaas.config`` and provides tokens for OAUTHBEARER.

* The parser follows Kafka's ``JaasConfig`` and Java's ``StreamTokenizer``. Users rely on the tokenizer's details:
  quotes may be double or single, a backslash escapes inside them, ``/`` outside of them starts a comment, and a bare
  number is not a value.
* Tokens are unsecured ones for trials (Kafka's ``OAuthBearerUnsecuredLoginCallbackHandler``), tokens of an endpoint
  with the client credentials grant (``OAuthBearerLoginCallbackHandler``), or configured ones. The last two also support
  the options of Strimzi's ``JaasClientOauthLoginCallbackHandler``.
"""

from __future__ import annotations

import base64
import json
import string
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

from connect.core.errors import ConfigError, RetriableError, SecurityError

_WORD_START: Final = frozenset(string.ascii_letters + "_$")
_WORD_GOES_ON: Final = _WORD_START | frozenset(string.digits + ".-")
_NUMBER: Final = frozenset(string.digits + ".")
_ESCAPES: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
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


@dataclass(frozen=True, slots=True)
class _JaasToken:
    """``word`` is None for a number or a single character, as ``StreamTokenizer.sval`` is null for them."""

    char: str
    word: str | None = None


def parse_jaas(line: str) -> JaasEntry:
    """Return the single login module of the line. Raises JaasError if the line is invalid by ``JaasConfig`` and
    ``JaasContext``: no module or several, an unknown control flag, an option without a value, no semicolon at the
    end."""
    tokens = _tokens(line)
    entries: list[JaasEntry] = []
    for token in tokens:
        entries.append(_entry(token, tokens))
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
    at = 0
    while at < len(text):
        char = text[at]
        if char <= " ":
            at += 1
        elif char == "/":
            at = _after_comment(text, at)
        elif char in "\"'":
            value, at = _quoted(text, at)
            yield _JaasToken(char, value)
        elif char in _WORD_START or char >= "\xa0":
            end = at + 1
            while end < len(text) and (text[end] in _WORD_GOES_ON or text[end] >= "\xa0"):
                end += 1
            yield _JaasToken("", text[at:end])
            at = end
        else:
            at += 1
            if char in _NUMBER:
                while at < len(text) and text[at] in _NUMBER:
                    at += 1
            yield _JaasToken(char)


def _after_comment(text: str, at: int) -> int:
    """Return the position after a comment: a star comment ends at its mark, any other at the end of the line."""
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return len(text) if end < 0 else end + 2
    while at < len(text) and text[at] not in "\r\n":
        at += 1
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the value whose quote is at ``at``, and the position after it; the end of the line also ends it."""
    quote, at = text[at], at + 1
    value: list[str] = []
    while at < len(text) and text[at] != quote and text[at] not in "\r\n":
        if text[at] != "\\" or at + 1 == len(text):
            value.append(text[at])
            at += 1
            continue
        escaped = text[at + 1]
        if escaped in "01234567":
            end = at + 2
            # Java reads a third octal digit only if the number still fits in a byte.
            limit = at + (4 if escaped <= "3" else 3)
            while end < min(limit, len(text)) and text[end] in "01234567":
                end += 1
            value.append(chr(int(text[at + 1 : end], 8)))
            at = end
        else:
            value.append(_ESCAPES.get(escaped, escaped))
            at += 2
    closed = at < len(text) and text[at] == quote
    return "".join(value), at + 1 if closed else at


_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE: Final = "sasl.oauthbearer.scope"
#: Options of Strimzi's login module, in ``sasl.jaas.config``.
_STRIMZI: Final = "oauth."
_STRIMZI_ENDPOINT: Final = "oauth.token.endpoint.uri"
_STRIMZI_ID: Final = "oauth.client.id"
_STRIMZI_SECRET: Final = "oauth.client.secret"
#: Strimzi's other ways to get a token, which are not supported.
_STRIMZI_OTHERS: Final = (
    "oauth.refresh.token",
    "oauth.password.grant.",
    "oauth.client.assertion",
    "oauth.sasl.extension.",
)
_STRING_CLAIM: Final = "unsecuredLoginStringClaim_"
_NUMBER_CLAIM: Final = "unsecuredLoginNumberClaim_"
_LIFETIME: Final = "unsecuredLoginLifetimeSeconds"
_TIMEOUT_S: Final = 10.0
#: Share of a token's lifetime after which it is renewed (``sasl.login.refresh.window.factor``).
_REFRESH_AT: Final = 0.8
#: For responses without the token's lifetime.
_UNKNOWN_LIFE_S: Final = 60.0


@dataclass(frozen=True)
class OAuthSettings:
    """The source of tokens: an ``endpoint``, a fixed ``token``, a ``token_file`` that is read each time, or ``claims``
    (a JSON object) of an unsecured token. ``lifetime_s`` applies to unsecured tokens."""

    claims: str | None = None
    lifetime_s: int = 3600
    endpoint: str | None = None
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None
    audience: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return a JSON-compatible form; it includes the secret."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        return cls(**wire)


def oauth_settings(properties: Mapping[str, str], options: Mapping[str, str], where: str) -> OAuthSettings:
    """Return the settings in a Java client's properties and its JAAS options. Raises ConfigError if neither an endpoint
    with a client, nor a token, nor claims of an unsecured one are set."""
    if any(name.startswith(_STRIMZI) for name in options):
        return _strimzi_settings(options, where)
    endpoint = properties.get(_ENDPOINT)
    if endpoint is not None:
        _check_endpoint(endpoint, _ENDPOINT, _ENDPOINT, where)
        client_id = properties.get(_CLIENT_ID, options.get("clientId"))
        secret = properties.get(_CLIENT_SECRET, options.get("clientSecret"))
        if client_id is None or secret is None:
            missing = _CLIENT_ID if client_id is None else _CLIENT_SECRET
            raise ConfigError(f"{where}: {missing} is missing; it is required with {_ENDPOINT}", missing)
        scope = properties.get(_SCOPE, options.get("scope"))
        return OAuthSettings(endpoint=endpoint, client_id=client_id, client_secret=secret, scope=scope)
    claims: dict[str, Any] = {}
    try:
        for name, value in options.items():
            if name.startswith(_STRING_CLAIM):
                claims[name.removeprefix(_STRING_CLAIM)] = value
            elif name.startswith(_NUMBER_CLAIM):
                claims[name.removeprefix(_NUMBER_CLAIM)] = float(value)
        lifetime_s = int(options.get(_LIFETIME, "3600"))
    except ValueError:
        raise ConfigError(f"{where}: sasl.jaas.config has an invalid number", "sasl.jaas.config") from None
    if "sub" not in claims:
        raise ConfigError(
            f"{where}: for sasl.mechanism OAUTHBEARER set {_ENDPOINT}, {_CLIENT_ID} and {_CLIENT_SECRET}; or, for "
            f"trials, {_STRING_CLAIM}sub in sasl.jaas.config",
            _ENDPOINT,
        )
    return OAuthSettings(claims=json.dumps(claims), lifetime_s=lifetime_s)


def _check_endpoint(endpoint: str, name: str, key: str, where: str) -> None:
    """Check an endpoint, which messages repeat, so it must not hold a secret. Raises ConfigError."""
    if "@" in endpoint.partition("://")[2].partition("/")[0]:
        raise ConfigError(f"{where}: {name} contains a user; set the client's id and secret instead", key)
    if not endpoint.startswith(("https://", "http://")):
        raise ConfigError(f"{where}: {name} is '{endpoint}'; only http and https are supported", key)


def _strimzi_settings(options: Mapping[str, str], where: str) -> OAuthSettings:
    """Choose as ``JaasClientOauthLoginCallbackHandler`` does: a configured token, else the endpoint."""
    if "oauth.access.token" in options or "oauth.access.token.location" in options:
        return OAuthSettings(
            token=options.get("oauth.access.token"), token_file=options.get("oauth.access.token.location")
        )
    for name in options:
        if name.startswith(_STRIMZI_OTHERS):
            raise ConfigError(
                f"{where}: sasl.jaas.config has {name}, which is not supported; it can be {_STRIMZI_SECRET} with "
                f"{_STRIMZI_ENDPOINT}, or oauth.access.token.location",
                "sasl.jaas.config",
            )
    for name in (_STRIMZI_ENDPOINT, _STRIMZI_ID, _STRIMZI_SECRET):
        if not options.get(name):
            raise ConfigError(f"{where}: {name} is missing in sasl.jaas.config", "sasl.jaas.config")
    endpoint = options[_STRIMZI_ENDPOINT]
    _check_endpoint(endpoint, _STRIMZI_ENDPOINT, "sasl.jaas.config", where)
    return OAuthSettings(
        endpoint=endpoint,
        client_id=options[_STRIMZI_ID],
        client_secret=options[_STRIMZI_SECRET],
        scope=options.get("oauth.scope"),
        audience=options.get("oauth.audience"),
    )


class Tokens:
    """One token at a time for all connections of a process."""

    def __init__(self, settings: OAuthSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._token = ""
        self._refresh_s = 0.0

    def token(self) -> str:
        """Return a valid token. Raises SecurityError if the endpoint rejects the client, RetriableError if the endpoint
        does not answer or the token file cannot be read."""
        with self._lock:
            if time.monotonic() >= self._refresh_s:
                self._token, lifetime_s = self._new()
                self._refresh_s = time.monotonic() + _REFRESH_AT * lifetime_s
            return self._token

    def _new(self) -> tuple[str, float]:
        settings = self._settings
        if settings.endpoint is not None:
            return _from_endpoint(settings)
        if settings.token_file is not None:
            return _from_file(settings.token_file), _UNKNOWN_LIFE_S
        if settings.token is not None:
            return settings.token, _UNKNOWN_LIFE_S
        now_s = int(time.time())
        claims = {**json.loads(settings.claims or "{}"), "iat": now_s, "exp": now_s + settings.lifetime_s}
        return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}.", float(settings.lifetime_s)


@lru_cache(maxsize=64)
def tokens_of(settings: OAuthSettings) -> Tokens:
    return Tokens(settings)


def _from_endpoint(settings: OAuthSettings) -> tuple[str, float]:
    # Imported late, because a start without an endpoint should not wait for them.
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request

    form = {"grant_type": "client_credentials"}
    form |= {"scope": settings.scope} if settings.scope else {}
    form |= {"audience": settings.audience} if settings.audience else {}
    client = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {client}", "Accept": "application/json"}
    endpoint = settings.endpoint or ""
    request = urllib.request.Request(endpoint, urllib.parse.urlencode(form).encode(), headers)
    where = f"token endpoint {endpoint}"
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found = json.load(answer)
        return str(found["access_token"]), float(found.get("expires_in", _UNKNOWN_LIFE_S))
    except urllib.error.HTTPError as error:
        said = f"{where} refuses client id {settings.client_id}: HTTP {error.code}"
        if error.code >= 500 or error.code == 429:
            raise RetriableError(said) from None
        raise SecurityError(f"{said}; check {_CLIENT_ID}, {_CLIENT_SECRET} and {_SCOPE}") from None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", None) or error
        raise RetriableError(f"{where} returned no token: {reason}; check {_ENDPOINT}") from None


def _from_file(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as source:
            return source.read().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RetriableError(f"token file {file} cannot be read: {reason}") from None


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
