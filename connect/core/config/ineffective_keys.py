"""Finds the keys of a worker's file that have no effect, and says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from connect.core.config.client_settings import (
    ADMIN,
    CLIENTS,
    COMPRESSION_LEVELS,
    IGNORED_SECURITY,
    OF_CONNECTIONS,
    PRODUCER_USED,
)
from connect.core.config.config_def import split_list
from connect.core.config.connector_settings import SOURCE_CONNECTOR
from connect.core.config.properties import provider_notice
from connect.core.config.rest_settings import ADMIN_HTTPS_PREFIX, CLIENT_AUTH, HTTPS_PREFIX
from connect.core.config.security_settings import SECURITY, suites_notice
from connect.core.config.worker_settings import (
    CONVERTER_PREFIXES,
    LINK,
    METRICS_CONTEXT,
    STORAGE_PREFIXES,
    WORKER,
    converter_notice,
    storage_notice,
    why_ignored,
)

NOT_SUPPORTED: Final = "is not supported yet and has no effect"
NOT_KNOWN: Final = "is not known and has no effect"
#: The security keys of https listeners; those that have an effect are in ``SUPPORTED_SECURITY``.
OF_LISTENERS: Final = frozenset(key for key in SECURITY.settings if key.startswith("ssl.")) | {CLIENT_AUTH}
#: The listeners read these themselves, and no client, so a client's engine or provider means nothing to them.
IGNORED_BY_LISTENERS: Final = (IGNORED_SECURITY & OF_LISTENERS) | {"ssl.engine.factory.class", "ssl.provider"}
_USED_BY_PRODUCERS: Final = PRODUCER_USED.settings.keys() | COMPRESSION_LEVELS
_MIRRORS_ADMIN: Final = "forwarding.admin.class"
_OF_CONNECTORS: Final = SOURCE_CONNECTOR.settings.keys() | {_MIRRORS_ADMIN}
_OF_CONNECTORS_PREFIXES: Final = ("transforms.", "predicates.", "topic.creation.")
_PASSED_ON: Final = (*CONVERTER_PREFIXES, "spark.")


def ineffective(props: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each property without effect; it begins with the key."""
    for key, value in props.items():
        text = _of_key(key, value, props)
        if text is not None:
            yield f"{key} {text}"


def meant(key: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a question that names the key in ``known`` that is like ``key``; empty if there is none."""
    return "".join(f"; is {prefix}{name} meant?" for name in get_close_matches(key, known, 1, 0.8))


def listener_notice(key: str, prefix: str) -> str | None:
    """Return why a key of https listeners, here without its ``prefix``, has no effect; None if it has one."""
    if key in OF_LISTENERS:
        return NOT_SUPPORTED if key in IGNORED_BY_LISTENERS else None
    return NOT_KNOWN + meant(key, OF_LISTENERS, prefix)


def unlisted_step(key: str, listed: str, prefix: str = "") -> str | None:
    """Return why a key such as ``transforms.mask.type`` has no effect: ``listed``, the value of ``transforms``,
    does not name the step; None if it does. ``prefix`` is what the file has before both keys."""
    names, _, rest = key.partition(".")
    # What a reference stands for is not known here.
    if "${" in listed or any(rest.startswith(f"{one}.") for one in split_list(listed)):
        return None
    return f"has no effect: {prefix}{names} does not name '{rest.partition('.')[0]}'"


def override_notice(kind: str, name: str, needed: str) -> str | None:
    """Return why the key ``name`` of a connector's override has no effect; None if it has one. ``needed``: the keys
    without one of which the connector has no such client; empty if it has one."""
    prefix = f"{kind}.override."
    if needed and name in CLIENTS[kind].settings:
        return f"has no effect without {needed}"
    return _of_client(kind, name, prefix)


def _of_key(key: str, value: str, props: Mapping[str, str]) -> str | None:
    for prefix in (ADMIN_HTTPS_PREFIX, HTTPS_PREFIX):
        if key.startswith(prefix):
            return listener_notice(key.removeprefix(prefix), prefix) or suites_notice(key, value)
    kind, dot, name = key.partition(".")
    if dot and kind in CLIENTS and key not in WORKER:
        return _of_client(kind, name, f"{kind}.") or suites_notice(key, value)
    if key.startswith(("internal.key.converter", "internal.value.converter")):
        return "has no effect: internal converters are JsonConverter without schemas"
    if key in ("plugin.path", "plugin.discovery"):
        return "has no effect: plugins here are Python packages, found by their entry points"
    if key.startswith(STORAGE_PREFIXES):
        return storage_notice(key)
    if key.startswith("config.providers."):
        return provider_notice(key, props)
    if key.startswith(METRICS_CONTEXT) or why_ignored(key) is not None:
        return why_ignored(key)
    if key in ADMIN and (key not in WORKER or key in IGNORED_SECURITY):
        return NOT_SUPPORTED
    if key in WORKER or key in LINK or key.startswith(_PASSED_ON):
        return suites_notice(key, value) or converter_notice(key)
    if key in _OF_CONNECTORS or key.startswith(_OF_CONNECTORS_PREFIXES):
        place = "a mirror's connector, or a mm2.properties" if key == _MIRRORS_ADMIN else "a connector"
        return f"has no effect in a worker's file: set it in the config of {place}"
    if key.startswith(f"metrics.{HTTPS_PREFIX}"):
        return f"{NOT_KNOWN}; https addresses of metrics.listeners use {key.removeprefix('metrics.')}"
    return NOT_KNOWN + meant(key, (*WORKER.settings, *LINK))


def _of_client(kind: str, name: str, prefix: str) -> str | None:
    """Return why a key of connectors' clients has no effect; None if it has one. ``prefix`` is what the config has
    before it."""
    known = CLIENTS[kind].settings
    if name.startswith("override."):
        of_all = f"{kind}.{name.removeprefix('override.')}"
        return f"has no effect in a worker's file: set it in a connector's config, or {of_all} for all connectors"
    if name not in known:
        return NOT_KNOWN + meant(name, known, prefix)
    if name in OF_CONNECTIONS or (name in SECURITY.settings and name not in IGNORED_SECURITY):
        return None  # a consumer's too, because it reads the offset topic that a connector has of its own
    if kind == "consumer":
        return "has no effect: sinks, which would use it, do not run here"
    if name == "interceptor.classes":
        return "has no effect: Java classes cannot be loaded here"
    if kind == "producer" and name in _USED_BY_PRODUCERS:
        return None
    return why_ignored(name) or NOT_SUPPORTED
