"""TLS of the REST server and of requests to other workers, from a worker's properties."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from connect.core.errors import ConfigError
from connect.kafka.tls_stores import tls_settings
from rest.settings import RestTls

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def rest_tls(props: Mapping[str, str]) -> RestTls:
    """Contexts made when they are first needed; they raise ConfigError and SecurityError.

    A server's keys stand behind its prefix (``listeners.https.``); one of them there, and those without it count no
    more (KIP-208).
    """
    return RestTls(
        lambda prefix: _server(props, prefix),
        lambda: tls_settings(_keys(props, "listeners.https."), "rest").ssl_context(),
    )


def _server(props: Mapping[str, str], prefix: str) -> ssl.SSLContext:
    keys = _keys(props, prefix)
    return tls_settings(keys, prefix.rstrip(".")).server_context(_client_auth(keys, prefix))


def _client_auth(keys: Mapping[str, str], prefix: str) -> ssl.VerifyMode:
    """Java takes every word that it does not know for ``none`` here, which leaves open what was to be closed."""
    word = keys.get("ssl.client.auth", "none")
    if word.lower() not in _CLIENT_AUTH:
        raise ConfigError(
            f"{prefix}ssl.client.auth is '{word}'; it can be {', '.join(_CLIENT_AUTH)}", f"{prefix}ssl.client.auth"
        )
    return _CLIENT_AUTH[word.lower()]


def _keys(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    own = {key.removeprefix(prefix): value.strip() for key, value in props.items() if key.startswith(prefix)}
    return own or {key: value.strip() for key, value in props.items() if key.startswith("ssl.")}
