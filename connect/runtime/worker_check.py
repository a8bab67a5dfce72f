"""Whether the plugins that a worker's file names are there, before anything is started."""

from __future__ import annotations

from typing import Final

from connect.api.plugins import PluginKind
from connect.core.errors import ConfigError
from connect.core.versions import InvalidRange
from connect.core.worker_config import WorkerConfig
from connect.runtime.plugins import PluginNotFound, Plugins, VersionNotFound

_CONVERTERS: Final = (
    ("key.converter", PluginKind.CONVERTER, "key"),
    ("value.converter", PluginKind.CONVERTER, "value"),
    ("header.converter", PluginKind.HEADER_CONVERTER, "header"),
)


def check_worker(worker: WorkerConfig, plugins: Plugins) -> None:
    """Raise ConfigError for a converter or an override policy that is not there, or a converter's wrong setting."""
    try:
        plugins.override_policy(worker)
        for key, kind, type_ in _CONVERTERS:
            _check_converter(worker, plugins, key, kind, type_)
    except ConfigError as error:
        raise worker.located(error) from None


def _check_converter(worker: WorkerConfig, plugins: Plugins, key: str, kind: PluginKind, type_: str) -> None:
    version = f"{key}.plugin.version"
    name = worker.values.string(key)
    try:
        found = plugins.find((kind,), name, worker.props.get(version))
    except (VersionNotFound, InvalidRange) as error:
        raise ConfigError(str(error), version) from None
    except PluginNotFound:
        known = ", ".join(plugins.names_of(kind))
        raise ConfigError(
            f"Invalid value {name} for configuration {key}: Class {name} could not be found. It can be {known}", key
        ) from None
    try:
        found.config_def.parse({"converter.type": type_, **worker.with_prefix(f"{key}.")})
    except ConfigError as error:
        raise ConfigError(error.message, f"{key}.{error.key}") from None
