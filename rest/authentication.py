"""Authenticates users of REST: Basic from a file, bearer tokens (JWT) by public keys, and client certificates.

Passwords and tokens are in no log and no answer. Files and keys are read again while the worker runs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx
import orjson
from cryptography import x509
from joserfc import jwk, jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from starlette.types import Scope

from connect.core.config.properties import load_properties
from connect.core.config.rest_settings import ADMIN_HTTPS_PREFIX, HTTPS_PREFIX, JWKS_URL, LOGIN_CONFIG, is_loopback
from connect.core.config.security_settings import JaasError, parse_jaas
from connect.core.errors import ConfigError, HeliographError
from connect.kafka import concurrency
from rest.access import ANYONE, Caller, Roles
from rest.rest_config import JwtSettings, RestAccess, RestSettings, RestTls

log = logging.getLogger(__name__)

#: The key of an ASGI scope that holds the client's verified certificate (DER).
CERTIFICATE: Final = "heliograph.certificate"
#: The key of an ASGI scope that holds a function, which lets other connections replace the request's.
GIVE_WAY: Final = "heliograph.give_way"

_LOOK_AGAIN_S: Final = 1.0
#: A wrong password is answered this much later, against guessing.
_WRONG_PASSWORD_S: Final = 1.0
_LONGEST_TOKEN: Final = 8192
_LARGEST_JWKS: Final = 256 << 10
_JWKS_TIMEOUT_S: Final = 10.0
#: How long a request waits for newer keys than those that are known.
_JWKS_WAIT_S: Final = 1.0
#: Between two attempts to read keys, so that tokens with unknown keys cannot flood the issuer.
_JWKS_AGAIN_S: Final = 10.0
#: Keys that could not be read again for this long are no longer used.
_JWKS_LAST_S: Final = 86_400.0
_CLOCKS_DIFFER_S: Final = 60
#: Signatures with a private key only: with HMAC, who verifies could also sign.
_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
_ENTRY: Final = re.compile(r"KafkaConnect\s*\{(.*?)\}\s*;", re.DOTALL)
_MODULE: Final = "PropertyFileLoginModule"


class Unauthenticated(HeliographError):
    """The request has no credentials, or wrong ones."""


class KeysMissing(HeliographError):
    """The keys that verify tokens could not be read yet."""


class PasswordFile:
    """Users and passwords of a properties file, which is read again when it changes. Raises ConfigError if the file
    cannot be read or has no users: Java would then let everyone in."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._stat: tuple[int, ...] = ()
        self._digests: Mapping[str, bytes] = {}
        self._looked_s = time.monotonic()
        #: A warning about the file, empty without one.
        self.notice = ""
        self._read()

    async def verify(self, user: str, password: str) -> bool:
        """Return whether this is the user's password."""
        if time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
            self._looked_s = time.monotonic()
            try:
                if await asyncio.to_thread(self._read) and self.notice:
                    log.warning("%s", self.notice)
            except ConfigError as error:
                log.warning("%s; the users read before remain", error)
        expected = self._digests.get(user, b"\0" * 32)
        return hmac.compare_digest(expected, _digest(password))

    def _read(self) -> bool:
        """Read the file if it has changed, and return whether it has."""
        try:
            found = self._file.stat()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(self._file)) from None
        stat = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stat == self._stat:
            return False
        users = load_properties(self._file)
        if not users:
            raise ConfigError("has no users; add a line user=password", file=str(self._file))
        if without := sorted(user for user, password in users.items() if not password):
            raise ConfigError(f"has no password for {without[0]}; add one or remove the line", file=str(self._file))
        text = f"{self._file}: other users of this machine may read passwords; set its mode to 0600"
        self.notice = text if found.st_mode & 0o077 else ""
        self._digests, self._stat = {user: _digest(password) for user, password in users.items()}, stat
        return True


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogateescape")).digest()


def file_of_login_config(path: str) -> str:
    """Return the file that ``PropertyFileLoginModule`` reads, from Java's JAAS file. Raises ConfigError."""
    try:
        entry = _ENTRY.search(Path(path).read_text("utf-8"))
        if entry is None:
            raise JaasError("has no entry KafkaConnect { ... };")
        module = parse_jaas(entry.group(1))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", "") or type(error).__name__
        raise ConfigError(f"{LOGIN_CONFIG} = {path} cannot be read: {why}", LOGIN_CONFIG) from None
    except JaasError as error:
        raise ConfigError(f"{LOGIN_CONFIG} = {path} {error}", LOGIN_CONFIG) from None
    if not module.login_module.endswith(_MODULE) or not module.options.get("file"):
        raise ConfigError(f"{LOGIN_CONFIG} = {path}: KafkaConnect needs {_MODULE} with a file", LOGIN_CONFIG)
    return module.options["file"]


class BearerTokens:
    """Verifies bearer tokens by the public keys of their issuer, from a URL or a file."""

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._keys: jwk.KeySet | None = None
        self._read_s = self._tried_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None  # ends by itself, by its timeout
        self._scope = concurrency.Scope("keys of tokens")
        self._context: ssl.SSLContext | None = None
        self._claims = jwt.JWTClaimsRegistry(
            leeway=_CLOCKS_DIFFER_S,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "values": list(settings.audiences)},
            exp={"essential": True},
        )

    async def user(self, token: str) -> tuple[str, list[str]]:
        """Return the user and the groups of a token. Raises Unauthenticated, KeysMissing."""
        if len(token) > _LONGEST_TOKEN:
            raise Unauthenticated("the token is too long")
        try:
            try:
                found = jwt.decode(token, await self._current(), algorithms=_ALGORITHMS)
            except InvalidKeyIdError:
                # The issuer may have new keys.
                found = jwt.decode(token, await self._current(renew=True), algorithms=_ALGORITHMS)
            self._claims.validate(found.claims)
        except (JoseError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise Unauthenticated(f"the token is not valid: {type(error).__name__}") from None
        name = _claim(found.claims, self._settings.principal_claim)
        if not isinstance(name, str) or not name:
            raise Unauthenticated(f"the token has no claim {self._settings.principal_claim}")
        groups = _claim(found.claims, self._settings.groups_claim)
        if isinstance(groups, str):
            return name, groups.split()
        return name, [one for one in groups if isinstance(one, str)] if isinstance(groups, list) else []

    async def _current(self, *, renew: bool = False) -> jwk.KeySet:
        """Return the keys, after reading them again if that is due. If there are some, an issuer that does not answer
        delays only ``renew``: its tokens have a key that is not known."""
        now_s = time.monotonic()
        due = renew or now_s - self._read_s > min(self._settings.refresh_ms / 1000, _JWKS_LAST_S)
        if self._reading is None and due and now_s - self._tried_s > _JWKS_AGAIN_S:
            self._tried_s = now_s
            self._reading = self._scope.spawn(self._read(), "keys of tokens")
        if due and (reading := self._reading) is not None:
            has_some = self._keys is not None and not renew
            await asyncio.wait({reading}, timeout=_JWKS_WAIT_S if has_some else None)
            if reading.done():
                reading.result()
        if self._keys is None or time.monotonic() - self._read_s > _JWKS_LAST_S:
            raise KeysMissing("The keys that verify tokens cannot be read now; see the worker's log.")
        return self._keys

    async def _read(self) -> None:
        try:
            self._keys, self._read_s = await self._fetched(), time.monotonic()
        except (httpx.HTTPError, JoseError, OSError, ValueError, TypeError, LookupError) as error:
            why = str(error) or type(error).__name__
            log.warning("%s = %s: no keys: %s", JWKS_URL, self._settings.url, why)
        finally:
            self._reading = None

    async def _fetched(self) -> jwk.KeySet:
        url = self._settings.url
        if url.startswith("file:"):
            data = await asyncio.to_thread(_read_bounded, url2pathname(urlsplit(url).path))
        else:
            if self._context is None:
                self._context = await asyncio.to_thread(ssl.create_default_context)
            data = await _downloaded(url, self._context)
        keys = orjson.loads(data)["keys"]
        # Only public keys for signatures.
        wanted = [key for key in keys if key.get("kty") != "oct" and key.get("use", "sig") == "sig"]
        return jwk.KeySet.import_key_set({"keys": wanted})


def _read_bounded(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_LARGEST_JWKS)


async def _downloaded(url: str, context: ssl.SSLContext) -> bytes:
    """Return the body of an answer 200, without redirects. Raises ValueError if it is another or too large."""
    client = httpx.AsyncClient(verify=context, timeout=_JWKS_TIMEOUT_S, follow_redirects=False, trust_env=False)
    async with asyncio.timeout(_JWKS_TIMEOUT_S), client, client.stream("GET", url) as answer:
        if answer.status_code != 200:
            raise ValueError(f"the answer is {answer.status_code}")
        data = bytearray()
        async for chunk in answer.aiter_bytes():
            data += chunk
            if len(data) > _LARGEST_JWKS:
                raise ValueError(f"the answer has more than {_LARGEST_JWKS} bytes")
        return bytes(data)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim, whose name may contain dots itself, or lead by dots into nested claims."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


class Authenticator:
    """All ways to authenticate of a worker; ``by_certificate``: a listener asks clients for certificates. Raises
    ConfigError if a file cannot be used."""

    def __init__(self, settings: RestAccess, *, by_certificate: bool) -> None:
        files = [] if settings.basic_file is None else [settings.basic_file]
        if settings.login_config is not None:
            files.append(file_of_login_config(settings.login_config))
        self._files = [PasswordFile(each) for each in files]
        self._tokens = None if settings.jwt is None else BearerTokens(settings.jwt)
        self._roles: Roles = settings.roles
        #: Warnings about the files of users.
        self.notices = tuple(each.notice for each in self._files if each.notice)
        #: Whether users must authenticate.
        self.is_needed = bool(self._files or self._tokens or by_certificate)
        #: The header of an answer 401, which names what a client may use.
        ways = ('Basic realm="Kafka Connect"' if self._files else "", "Bearer" if self._tokens else "")
        self.challenge = ", ".join(filter(None, ways))

    async def caller(self, scope: Scope, authorization: str | None) -> Caller:
        """Return the user of a request. Raises Unauthenticated, KeysMissing."""
        if not self.is_needed:
            return ANYONE
        scheme, _, credentials = (authorization or "").partition(" ")
        match scheme.lower():
            case "basic" if self._files:
                return await self._by_password(scope, credentials)
            case "bearer" if self._tokens is not None:
                return self._roles.caller(*await self._tokens.user(credentials.strip()))
        certificate = scope.get(CERTIFICATE)
        if certificate is None:
            raise Unauthenticated("no credentials")
        return self._roles.caller(x509.load_der_x509_certificate(certificate).subject.rfc4514_string())

    async def _by_password(self, scope: Scope, credentials: str) -> Caller:
        try:
            user, colon, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeError):
            raise Unauthenticated("malformed credentials") from None
        if colon:
            for file in self._files:
                if await file.verify(user, password):
                    return self._roles.caller(user)
        # Else delayed answers could hold all connections.
        if (give_way := scope.get(GIVE_WAY)) is not None:
            give_way()
        await asyncio.sleep(_WRONG_PASSWORD_S)
        raise Unauthenticated("unknown user or wrong password")


class OpenedAccess(NamedTuple):
    """What decides who is served: TLS contexts by the prefix of their keys, users, and warnings about both."""

    contexts: Mapping[str, ssl.SSLContext]
    authenticator: Authenticator
    notices: Sequence[str]


def open_access(settings: RestSettings, tls: RestTls | None) -> OpenedAccess:
    """Read the keys of https listeners and the files of users, and bind nothing. It blocks. Raises ConfigError if a
    listener is https and there are no keys, or a file of users cannot be read; SecurityError if keys cannot be used."""
    of_prefix = (
        (HTTPS_PREFIX, (*settings.listeners, *settings.metrics_listeners)),
        (ADMIN_HTTPS_PREFIX, settings.admin_listeners or ()),
    )
    contexts = {}
    for prefix, listeners in of_prefix:
        if any(each.scheme == "https" for each in listeners):
            if tls is None:
                raise ConfigError("an https listener needs the ssl.keystore keys of this server", "listeners")
            contexts[prefix] = tls.server(prefix)
    by_certificate = any(context.verify_mode is not ssl.CERT_NONE for context in contexts.values())
    authenticator = Authenticator(settings.access, by_certificate=by_certificate)
    notices = authenticator.notices
    if authenticator.challenge and any(
        each.scheme == "http" and not is_loopback(each.host) for each in settings.listeners
    ):
        notices = (*notices, "listeners: passwords and tokens of users travel over http unencrypted; use https")
    return OpenedAccess(contexts, authenticator, notices)
