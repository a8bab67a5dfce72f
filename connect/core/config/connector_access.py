"""Decides which files, URLs and brokers a connector's config may name: those that the owner of the worker allowed.

A user who can create connectors could otherwise read the worker's files, let the worker fetch any URL, or have its
credentials sent to any broker. What the worker's own file names needs no further permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from connect.core.config.config_def import ConfigDef, ValidList, split_list, strings, trim
from connect.core.config.security_settings import JaasError, is_secret, parse_jaas
from connect.core.errors import ConfigError

PROVIDERS: Final = "org.apache.kafka.automatic.config.providers"
OAUTH_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
OAUTH_FILES: Final = "org.apache.kafka.sasl.oauthbearer.allowed.files"
FILES: Final = "connector.allowed.files"
TOKENS: Final = "connector.allowed.token.sources"

#: Settings of the worker's file. The first three are system properties in Java.
ACCESS: Final = ConfigDef.of(
    strings(
        PROVIDERS,
        None,
        "Classes of config providers that may be declared; null: all, none: no class.",
        check=ValidList(),
    ),
    strings(OAUTH_URLS, (), "Token endpoints that connector configs may name.", check=ValidList()),
    strings(OAUTH_FILES, (), "Token files, or folders of them, that connector configs may name.", check=ValidList()),
    strings(
        FILES,
        (),
        "Key stores and trust stores, or folders of them, that connector configs may name.",
        check=ValidList(),
    ),
    strings(
        TOKENS,
        (),
        "Mechanisms and callback handlers that show a token of this machine and that connector configs may name.",
        check=ValidList(),
    ),
)

_JAAS: Final = "sasl.jaas.config"
#: Settings that name something outside of the config, with the list that allows it.
_LISTS: Final[Mapping[str, str]] = {
    "ssl.keystore.location": FILES,
    "ssl.truststore.location": FILES,
    "sasl.oauthbearer.assertion.file": OAUTH_FILES,
    "sasl.oauthbearer.assertion.private.key.file": OAUTH_FILES,
    "sasl.oauthbearer.assertion.template.file": OAUTH_FILES,
    "sasl.oauthbearer.token.endpoint.url": OAUTH_URLS,
    "sasl.oauthbearer.jwks.endpoint.url": OAUTH_URLS,
    "sasl.mechanism": TOKENS,
    "sasl.login.callback.handler.class": TOKENS,
}
#: Mechanisms and packages of handlers that show only what the config has.
_NO_TOKENS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_NO_TOKEN_PACKAGES: Final = ("org.apache.kafka.", "io.strimzi.kafka.oauth.")
#: Settings that say to whom, and how, a client shows its credentials.
_SHOWS: Final = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "ssl.endpoint.identification.algorithm",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
)
#: What the worker's clients show to the brokers that they connect to.
_CREDENTIALS: Final = (_JAAS, "sasl.oauthbearer.client.credentials.client.secret")
#: Settings that may have a token of this machine shown, instead of what a config has.
_TOKEN_SETTINGS: Final = ("sasl.mechanism", "sasl.login.callback.handler.class")
_KINDS: Final = ("producer", "consumer", "admin")
_NAMES: Final = (*_LISTS, _JAAS, *_SHOWS)


class NotAllowed(ConfigError):
    """A connector config asks for something that only the worker's file can allow."""


class ConnectorAccess:
    """The permissions of connectors. ``owner``: the properties of the worker's file. ``trusted``: further configs that
    its owner wrote, such as the connectors of an ``mm2.properties``."""

    def __init__(self, owner: Mapping[str, str], trusted: Iterable[Mapping[str, str]] = ()) -> None:
        self._owner = owner
        written = [(key, trim(value)) for each in (owner, *trusted) for key, value in each.items()]
        self._trusted = {(_setting(key), value) for key, value in written}
        self._written = frozenset(written)

    def check(self, raw: Mapping[str, str], resolved: Mapping[str, str], resolve: Callable[[str], str]) -> None:
        """Check a connector config, as written and with references resolved; ``resolve`` does so for a value of the
        worker's file. Raises NotAllowed."""
        for key, value in resolved.items():
            if not key.endswith(_NAMES):  # quick, because most keys of thousands of tasks end here
                continue
            setting = _setting(key)
            # As written, so that no secret of the owner has to be read to compare with.
            written = trim(raw[key])
            if (key, written) in self._written:
                continue
            kind = next((each for each in _KINDS if key == f"{each}.override.{setting}"), None)
            own = kind and self._own(kind, setting)
            if own is not None and written == trim(own):
                continue  # as this client of the worker has it; what another one has may be less safe
            # A file or URL of the owner is as safe in another client; a token is not, because it has other brokers.
            if setting in _TOKEN_SETTINGS or (setting, written) not in self._trusted:
                if setting == _JAAS:
                    self._check_jaas(key, value)
                elif setting in _LISTS:
                    self._check_listed(key, trim(value), _LISTS[setting], key)
            if setting in _SHOWS and kind is not None:
                self._check_credentials(key, kind, raw, resolved, resolve)

    def _own(self, kind: str, setting: str) -> str | None:
        """Return what a client of the worker has in the worker's file, as written."""
        return self._owner.get(f"{kind}.{setting}", self._owner.get(setting))

    def _check_jaas(self, key: str, line: str) -> None:
        for option, value in _jaas_options(line).items():
            name = option.lower()
            if name.endswith(("location", "file", "keytab", "cache")):
                self._check_listed(key, value, OAUTH_FILES if name.startswith("oauth") else FILES, f"{option} in {key}")
            elif name.endswith(("uri", "url")):
                self._check_listed(key, value, OAUTH_URLS, f"{option} in {key}")

    def _check_listed(self, key: str, value: str, list_key: str, what: str) -> None:
        if not self._is_allowed(value, list_key):
            raise NotAllowed(
                f"{what} is not one of those that connectors of this worker may name; add it to {list_key} in the "
                "worker's file",
                key,
            )

    def _is_allowed(self, value: str, list_key: str) -> bool:
        allowed = split_list(self._owner.get(list_key, ""))
        if list_key == TOKENS:
            return value in (*allowed, *_NO_TOKENS) or value.startswith(_NO_TOKEN_PACKAGES)
        if list_key == OAUTH_URLS:
            return value in allowed
        return any(_is_within(value, each) for each in allowed if each)  # empty would be the current folder

    def _check_credentials(
        self, key: str, kind: str, raw: Mapping[str, str], props: Mapping[str, str], resolve: Callable[[str], str]
    ) -> None:
        """Refuse to send the worker's credentials to others than its file says, or in another way, as ``key`` does."""

        def inherited(name: str) -> str | None:
            # Producers and consumers have only what has their prefix.
            return self._own(kind, name) if kind == "admin" else self._owner.get(f"{kind}.{name}")

        for name in _CREDENTIALS:
            own, override = inherited(name), f"{kind}.override.{name}"
            if own is None:
                continue
            if override not in props:
                raise NotAllowed(f"{key} changes to whom or how the worker's {name} is shown; set {override} too", key)
            # Who writes a reference need not know what it stands for.
            if raw[override] != props[override] and _shares_secret(resolve(own), props[override]):
                raise NotAllowed(
                    f"{key} changes to whom or how the worker's {name} is shown, and {override} refers to the same "
                    "secret; set credentials of its own",
                    override,
                )
        for name in _TOKEN_SETTINGS:
            shown = props.get(f"{kind}.override.{name}", resolve(inherited(name) or ""))
            if shown and not self._is_allowed(trim(shown), TOKENS):
                raise NotAllowed(
                    f"{key} changes to whom a token of this machine is shown; set {kind}.override.{name} too, or add "
                    f"it to {TOKENS} in the worker's file",
                    key,
                )


def _shares_secret(own: str, other: str) -> bool:
    """Return whether a credential contains another one, or the secret of its JAAS line."""
    own = trim(own)
    secrets = [own, *(value for option, value in _jaas_options(own).items() if is_secret(option))]
    shown = [other, *_jaas_options(other).values()]
    return any(secret in text for secret in secrets if secret for text in shown)


def _jaas_options(line: str) -> Mapping[str, str]:
    """Return the options of a JAAS line, none of a broken one: the client reports it, and reads and shows nothing."""
    try:
        return parse_jaas(trim(line)).options
    except JaasError:
        return {}


def allowed_providers(owner: Mapping[str, str]) -> frozenset[str] | None:
    """Return the names of the classes that may be declared as config providers; None: all."""
    return frozenset(split_list(owner[PROVIDERS])) if PROVIDERS in owner else None


def _setting(key: str) -> str:
    """Return a key without the prefix of a client, a cluster or a flow."""
    return next((name for name in _NAMES if key.endswith(name) and f".{key}".endswith(f".{name}")), key)


def _is_within(path: str, allowed: str) -> bool:
    try:
        return Path(path).resolve().is_relative_to(Path(allowed).resolve())
    except (OSError, ValueError):  # a name that no file can have
        return False
