"""Which classes and versions a task is made of, under the names of Java's attributes (KIP-891)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from connect.api.plugins import PluginKind
from connect.core.config import split_list
from connect.core.worker_config import WorkerConfig
from connect.runtime.conversion import Role, converter_settings
from connect.runtime.plugins import Plugins

_CONVERTERS: Final[tuple[tuple[Role, PluginKind], ...]] = (
    ("key", PluginKind.CONVERTER),
    ("value", PluginKind.CONVERTER),
    ("header", PluginKind.HEADER_CONVERTER),
)


def converter_parts(connector: Mapping[str, str], config: WorkerConfig, plugins: Plugins) -> Iterator[tuple[str, str]]:
    """Attribute and value; raises as :func:`connect.runtime.conversion.make_converters`."""
    for role, kind in _CONVERTERS:
        _, name, version = converter_settings(role, connector, config)
        found = plugins.find((kind,), name, version)
        yield f"{role}-converter-class", found.name
        yield f"{role}-converter-version", found.version


def steps(connector: Mapping[str, str], plugins: Plugins) -> Iterator[tuple[str, str, str, str]]:
    """Kind, alias, class and version of the transforms and of their predicates; raises as
    :func:`connect.runtime.transformations.make_chain`."""
    seen: set[str] = set()
    for alias in split_list(connector.get("transforms", "")):
        prefix = f"transforms.{alias}."
        yield "transform", alias, *_found(PluginKind.TRANSFORMATION, prefix, connector, plugins)
        predicate = connector.get(f"{prefix}predicate")
        if predicate is not None and predicate not in seen:
            seen.add(predicate)
            yield "predicate", predicate, *_found(PluginKind.PREDICATE, f"predicates.{predicate}.", connector, plugins)


def _found(kind: PluginKind, prefix: str, connector: Mapping[str, str], plugins: Plugins) -> tuple[str, str]:
    found = plugins.find((kind,), connector[f"{prefix}type"], connector.get(f"{prefix}plugin.version"))
    return found.name, found.version
