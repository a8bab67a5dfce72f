"""Tokens for OAUTHBEARER: unsecured ones, as Kafka's own for trials, and those of a token endpoint.

Kafka's ``OAuthBearerUnsecuredLoginCallbackHandler``, and the client credentials grant of its
``OAuthBearerLoginCallbackHandler``. That grant, and tokens that are given, also by the options of Strimzi's
``JaasClientOauthLoginCallbackHandler``.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

from connect.core.errors import ConfigError, RetriableError, SecurityError

_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE: Final = "sasl.oauthbearer.scope"
#: Options of Strimzi's login, in ``sasl.jaas.config``.
_STRIMZI: Final = "oauth."
_STRIMZI_ENDPOINT: Final = "oauth.token.endpoint.uri"
_STRIMZI_ID: Final = "oauth.client.id"
_STRIMZI_SECRET: Final = "oauth.client.secret"
#: Ways of Strimzi's to get a token that are not here.
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
#: Share of a token's life after which another one is got (``sasl.login.refresh.window.factor``).
_REFRESH_AT: Final = 0.8
#: Where an answer does not say how long its token lives.
_UNKNOWN_LIFE_S: Final = 60.0


@dataclass(frozen=True)
class OAuthSettings:
    """Where tokens come from: ``endpoint``, a ``token`` as it is, a file that holds one, which is read anew each time,
    or ``claims`` (a JSON object) of an unsecured one.

    ``lifetime_s`` is that of an unsecured token.
    """

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
        """A JSON-able form; it holds the secret."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        return cls(**wire)


def oauth_settings(properties: Mapping[str, str], options: Mapping[str, str], where: str) -> OAuthSettings:
    """The settings in a Java client's properties and its JAAS options.

    Raises:
        ConfigError: neither an endpoint with a client nor a token, or claims of an unsecured one, is named.
    """
    if any(name.startswith(_STRIMZI) for name in options):
        return _strimzi_settings(options, where)
    endpoint = properties.get(_ENDPOINT)
    if endpoint is not None:
        _check_endpoint(endpoint, _ENDPOINT, _ENDPOINT, where)
        client_id = properties.get(_CLIENT_ID, options.get("clientId"))
        secret = properties.get(_CLIENT_SECRET, options.get("clientSecret"))
        if client_id is None or secret is None:
            missing = _CLIENT_ID if client_id is None else _CLIENT_SECRET
            raise ConfigError(f"{where}: {missing} is missing beside {_ENDPOINT}", missing)
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
        raise ConfigError(f"{where}: sasl.jaas.config has a number that is none", "sasl.jaas.config") from None
    if "sub" not in claims:
        raise ConfigError(
            f"{where}: for sasl.mechanism OAUTHBEARER set {_ENDPOINT}, {_CLIENT_ID} and {_CLIENT_SECRET}; or, for "
            f"trials, {_STRING_CLAIM}sub in sasl.jaas.config",
            _ENDPOINT,
        )
    return OAuthSettings(claims=json.dumps(claims), lifetime_s=lifetime_s)


def _check_endpoint(endpoint: str, name: str, key: str, where: str) -> None:
    """Messages name the endpoint, so it may hold no secret."""
    if "@" in endpoint.partition("://")[2].partition("/")[0]:
        raise ConfigError(f"{where}: {name} has a user in it; the client is named by id and secret", key)
    if not endpoint.startswith(("https://", "http://")):
        raise ConfigError(f"{where}: {name} is '{endpoint}'; only http and https are supported", key)


def _strimzi_settings(options: Mapping[str, str], where: str) -> OAuthSettings:
    """As ``JaasClientOauthLoginCallbackHandler`` chooses: a token that is given, else the endpoint."""
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
    """One token at a time, for all connections of a process."""

    def __init__(self, settings: OAuthSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._token = ""
        self._refresh_s = 0.0

    def token(self) -> str:
        """Raises SecurityError where the endpoint refuses us, RetriableError where it does not answer."""
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
    # What they load in turn takes a start longer that needs no endpoint.
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
        raise RetriableError(f"{where} gives no token: {reason}; check {_ENDPOINT}") from None


def _from_file(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as source:
            return source.read().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise RetriableError(f"token file {file} cannot be read: {reason}") from None


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
