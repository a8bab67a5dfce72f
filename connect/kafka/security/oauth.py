"""Provides tokens for OAUTHBEARER.

Tokens are unsecured ones for trials (Kafka's ``OAuthBearerUnsecuredLoginCallbackHandler``), tokens of an endpoint with
the client credentials grant (``OAuthBearerLoginCallbackHandler``), or configured ones. The last two also support the
options of Strimzi's ``JaasClientOauthLoginCallbackHandler``.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Final, Self
from urllib.parse import urlsplit

from connect.core.errors import ConfigError, RetriableError, SecurityError

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
#: JAAS option that allows an endpoint over http, for the secret and the token are not encrypted then. An endpoint on
#: this machine needs no permission. Java allows all.
_INSECURE: Final = "insecureTokenEndpoint"
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_TIMEOUT_S: Final = 10.0
_LARGEST_ANSWER_BYTES: Final = 1024 * 1024
#: RFC 6750, 2.1. Anything else could add fields to the SASL message.
_TOKEN: Final = re.compile(r"[-A-Za-z0-9._~+/]+=*")
#: Share of a token's lifetime after which it is renewed (``sasl.login.refresh.window.factor``).
_REFRESH_AT: Final = 0.8
#: Until then it is used while no newer one can be had; a token that has ended counts as refused for good.
_USABLE_TO: Final = 0.95
_AGAIN_S: Final = 10.0
#: For responses without the token's lifetime.
_UNKNOWN_LIFE_S: Final = 60.0
#: A token is renewed at least daily, whatever the endpoint says, and not on every connection.
_LONGEST_LIFE_S: Final = 86_400.0
_SHORTEST_LIFE_S: Final = 1.0


@dataclass(frozen=True)
class OAuthSettings:
    """The source of tokens: an ``endpoint``, a fixed ``token``, a ``token_file`` that is read each time, the ``source``
    of an installed package, or ``claims`` of an unsecured token with a ``lifetime_s``. Options and claims are JSON."""

    claims: str | None = None
    lifetime_s: int = 3600
    endpoint: str | None = None
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None
    audience: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    source: str | None = None
    source_options: str = field(default="{}", repr=False)

    def to_wire(self) -> dict[str, Any]:
        """Return a JSON-compatible form; it includes the secret."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        return cls(**wire)


def source_settings(properties: Mapping[str, str], options: Mapping[str, str]) -> OAuthSettings | None:
    """Return the settings of a source of an installed package, if the mechanism or the handler of logins names one."""
    for name in (properties.get("sasl.mechanism", ""), properties.get("sasl.login.callback.handler.class", "")):
        if is_source(name):
            given = {**options, "bootstrap.servers": properties.get("bootstrap.servers", "")}
            return OAuthSettings(source=name, source_options=json.dumps(given))
    return None


def is_source(name: str) -> bool:
    """Return whether an installed package makes tokens for this mechanism or class."""
    return name in _sources().names


def _sources() -> EntryPoints:
    """Return the functions that make tokens: from options to the token and its life in seconds."""
    return entry_points(group="heliograph.token_sources")


def oauth_settings(properties: Mapping[str, str], options: Mapping[str, str], where: str) -> OAuthSettings:
    """Return the settings in a Java client's properties and its JAAS options. Raises ConfigError if neither an endpoint
    with a client, nor a token, nor claims of an unsecured one are set."""
    if any(name.startswith(_STRIMZI) for name in options):
        return _strimzi_settings(options, where)
    endpoint = properties.get(_ENDPOINT)
    if endpoint is not None:
        _check_endpoint(endpoint, _ENDPOINT, _ENDPOINT, where, options)
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


def _check_endpoint(endpoint: str, name: str, key: str, where: str, options: Mapping[str, str]) -> None:
    """Check an endpoint, which messages repeat, so it must not hold a secret. Raises ConfigError."""
    try:
        url = urlsplit(endpoint)
        host, user = url.hostname, url.username
    except ValueError:
        raise ConfigError(f"{where}: {name} is not a URL", key) from None
    if user is not None:
        raise ConfigError(f"{where}: {name} contains a user; set the client's id and secret instead", key)
    if url.scheme not in ("https", "http") or not host:
        raise ConfigError(f"{where}: {name} is '{endpoint}'; only http and https are supported", key)
    is_allowed = url.scheme == "https" or host in _LOCAL
    if not is_allowed and options.get(_INSECURE, "false").lower() != "true":
        raise ConfigError(
            f"{where}: {name} is '{endpoint}', which would send the client's secret unencrypted; use https, or add "
            f'{_INSECURE}="true" to sasl.jaas.config',
            key,
        )


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
    _check_endpoint(endpoint, _STRIMZI_ENDPOINT, "sasl.jaas.config", where, options)
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
        self._refresh_s = self._usable_s = 0.0

    def token(self) -> str:
        """Return a valid token. Raises SecurityError if the endpoint rejects the client. Raises RetriableError if the
        endpoint does not answer, or the token file cannot be read, and the last token has ended."""
        with self._lock:
            if time.monotonic() >= self._refresh_s:
                try:
                    self._token, lifetime_s = self._new()
                except RetriableError:
                    if (now_s := time.monotonic()) >= self._usable_s:
                        raise
                    self._refresh_s = now_s + _AGAIN_S
                else:
                    now_s = time.monotonic()
                    self._refresh_s, self._usable_s = (now_s + at * lifetime_s for at in (_REFRESH_AT, _USABLE_TO))
            return self._token

    def _new(self) -> tuple[str, float]:
        settings = self._settings
        if settings.endpoint is not None:
            return _from_endpoint(settings)
        if settings.source is not None:
            token, life_s = _sources()[settings.source].load()(json.loads(settings.source_options))
            return _checked(token, settings.source), _life_s(life_s)
        if settings.token_file is not None:
            token = _from_file(settings.token_file)
            return _checked(token, f"token file {settings.token_file}"), _UNKNOWN_LIFE_S
        if settings.token is not None:
            return _checked(settings.token, "oauth.access.token"), _UNKNOWN_LIFE_S
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

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Would else send the client's secret to another host, or without encryption."""

        def redirect_request(self, *_: object) -> None:
            return None

    form = {"grant_type": "client_credentials"}
    form |= {"scope": settings.scope} if settings.scope else {}
    form |= {"audience": settings.audience} if settings.audience else {}
    client = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {client}", "Accept": "application/json"}
    endpoint = settings.endpoint or ""
    request = urllib.request.Request(endpoint, urllib.parse.urlencode(form).encode(), headers)
    where = f"token endpoint {endpoint}"
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            found = json.loads(_body(answer, time.monotonic() + _TIMEOUT_S))
        return _checked(found["access_token"], where), _life_s(found.get("expires_in", _UNKNOWN_LIFE_S))
    except urllib.error.HTTPError as error:
        with error:
            if 300 <= error.code < 400:
                raise SecurityError(f"{where} redirects, which is not followed; check {_ENDPOINT}") from None
            said = f"{where} refuses client id {settings.client_id}: HTTP {error.code}"
            if error.code >= 500 or error.code == 429:
                raise RetriableError(said) from None
            raise SecurityError(f"{said}; check {_CLIENT_ID}, {_CLIENT_SECRET} and {_SCOPE}") from None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "reason", None) or error
        raise RetriableError(f"{where} returned no token: {reason}; check {_ENDPOINT}") from None


def _body(answer: Any, deadline_s: float) -> bytes:
    """Return a response's body. Raises ValueError if it is too large, or arrives too slowly."""
    body = b""
    while piece := answer.read1(_LARGEST_ANSWER_BYTES):
        body += piece
        if len(body) > _LARGEST_ANSWER_BYTES:
            raise ValueError(f"the answer is larger than {_LARGEST_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline_s:
            raise ValueError(f"the answer took longer than {_TIMEOUT_S:.0f} s")
    return body


def _life_s(value: object) -> float:
    """Return a token's lifetime within its limits. Raises ValueError if it is not a positive number."""
    life_s = float(str(value))
    if not life_s > 0:
        raise ValueError("expires_in is not a positive number")
    return min(max(life_s, _SHORTEST_LIFE_S), _LONGEST_LIFE_S)


def _checked(token: object, source: str) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise RetriableError(f"{source} has something that is not a token")
    return token


def _from_file(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as source:
            return source.read(_LARGEST_ANSWER_BYTES).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RetriableError(f"token file {file} cannot be read: {reason}") from None


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
