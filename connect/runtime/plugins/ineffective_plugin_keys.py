"""Finds keys of a connector, and of its transforms, predicates, converters and client overrides, that have no effect.

Only the settings of Kafka's own classes are all known. Another class may use more than it declares, and a class that
declares nothing may use any key.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import SourceConnector
from connect.core.config.client_settings import CLIENTS, COMPRESSION_LEVELS
from connect.core.config.config_def import split_list
from connect.core.config.connector_settings import uses_topic_creation
from connect.core.config.worker_config import WorkerConfig, override_notice, unlisted_step
from connect.core.config.worker_settings import converter_notice
from connect.runtime.plugins.plugin_registry import CONVERTERS, InvalidRange, PluginNotFound, Plugins, unknown_keys

#: The lists of aliases, the kind of plugin that each names, and the keys that Connect itself uses.
_STEPS: Final = (
    ("transforms", PluginKind.TRANSFORMATION, ("type", "plugin.version", "predicate", "negate")),
    ("predicates", PluginKind.PREDICATE, ("type", "plugin.version")),
)

#: What begins the keys that belong to something else than the connector.
_OF_OTHERS: Final = (
    *(f"{names}." for names, _, _ in _STEPS),
    *(f"{converter}." for converter, _, _ in CONVERTERS),
    *(f"{kind}.override." for kind in CLIENTS),
    "topic.creation.",
)


def warnings_of(
    plugin: PluginDescription,
    connector: SourceConnector,
    props: Mapping[str, str],
    known: Container[str],
    plugins: Plugins,
    worker: WorkerConfig,
) -> tuple[str, ...]:
    """Return a warning for each key of a config that has no effect; it begins with the key. ``known``: the keys that
    the connector or Connect declares."""
    if type(connector).ignored is SourceConnector.ignored:
        others = [key for key in props if key not in known and not key.startswith(_OF_OTHERS)]
        levels = [f"producer.override.{name}" for name in COMPRESSION_LEVELS]
        own = [
            *unknown_keys(plugin, others, "", ()),
            *(f"{key} has no effect: only a mirror's copy compresses with a level" for key in levels if key in props),
        ]
    else:
        own = [*connector.ignored(props)]  # it knows best what a key was meant for
    return once((*own, *ineffective_plugin_keys(props, plugins), *ineffective_overrides(props, worker)))


def ineffective_plugin_keys(props: Mapping[str, str], plugins: Plugins, before: str = "") -> Iterator[str]:
    """Yield a warning for each key of a transform, a predicate or a converter in a connector's config that has no
    effect; it begins with ``before``, which is what the file has before the keys, and the key. Classes that are not
    here are skipped, because the validation reports them."""
    for names, kind, implied in _STEPS:
        listed, keys = props.get(names, ""), [key for key in props if key.startswith(f"{names}.")]
        yield from (f"{before}{key} {text}" for key in keys if (text := unlisted_step(key, listed, before)) is not None)
        prefixes = sorted((f"{names}.{alias}." for alias in split_list(listed)), key=len, reverse=True)
        for prefix in prefixes:  # "a" and "a.b" may both be aliases; the longest match counts
            own = _without(prefix, keys)
            keys = [key for key in keys if not key.startswith(prefix)]
            found = _plugin(plugins, kind, props.get(f"{prefix}type"), props.get(f"{prefix}plugin.version"))
            if found is not None:
                yield from unknown_keys(found, own, before + prefix, implied)
    for converter, kind, _ in CONVERTERS:
        prefix, implied = f"{converter}.", ("plugin.version", "converter.type")
        for_sinks = {key: text for key in props if key.startswith(prefix) and (text := converter_notice(key))}
        yield from (f"{before}{key} {text}" for key, text in for_sinks.items())
        own = [key for key in _without(prefix, props) if key not in implied and prefix + key not in for_sinks]
        if converter not in props:
            yield from (f"{before}{prefix}{key} has no effect without {before}{converter}" for key in own)
            continue
        found = _plugin(plugins, kind, props[converter], props.get(f"{prefix}plugin.version"))
        if found is not None:
            yield from unknown_keys(found, own, before + prefix, implied)


def ineffective_overrides(props: Mapping[str, str], worker: WorkerConfig) -> Iterator[str]:
    """Yield a warning for each override of a client in a connector's config that has no effect; it begins with the
    key."""
    creates = worker.topic_creation_enable and uses_topic_creation(props)
    # A transaction cannot span clusters, so under exactly-once the offsets are on the cluster of the records.
    is_elsewhere = worker.exactly_once_enabled and "producer.override.bootstrap.servers" in props
    own_offsets = is_elsewhere or "offsets.storage.topic" in props
    needed = {
        "producer": "",
        "consumer": "" if own_offsets else "offsets.storage.topic",
        "admin": "" if own_offsets or creates else "offsets.storage.topic or topic.creation.*",
    }
    for kind, keys in needed.items():
        for name in _without(f"{kind}.override.", props):
            if (text := override_notice(kind, name, keys)) is not None:
                yield f"{kind}.override.{name} {text}"


def once(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the first warning of each key, which begins its text."""
    found: dict[str, str] = {}
    for text in warnings:
        found.setdefault(text.partition(" ")[0], text)
    return tuple(found.values())


def _without(prefix: str, keys: Iterable[str]) -> list[str]:
    """Return those of ``keys`` that begin with ``prefix``, without it."""
    return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]


def _plugin(plugins: Plugins, kind: PluginKind, name: str | None, version: str | None) -> PluginDescription | None:
    try:
        return None if name is None else plugins.find((kind,), name, version)
    except (PluginNotFound, InvalidRange):
        return None
