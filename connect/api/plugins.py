"""Describes plugins and finds those of installed packages through their entry points.

An entry point of ``heliograph.connectors`` or another group of connector plugins refers to a
:class:`~connect.api.plugins.PluginDescription` or a list of them. An entry point of ``heliograph.config_providers``
refers to a :data:`~connect.core.config.properties.ProviderFactory`, one of ``heliograph.override_policies`` to an
:class:`~connect.core.config.client_settings.OverridePolicy`. Configs name these two by the entry point's name or by its
target, ``package.module.name``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, Final

from connect.core.config.client_settings import OverridePolicy
from connect.core.config.config_def import ConfigDef
from connect.core.config.properties import ProviderFactory

#: The Kafka release whose plugins are reimplemented here. As in Java, the release is also the version of the plugins.
KAFKA_VERSION: Final = "4.3.1"


class PluginKind(StrEnum):
    """The type of a plugin as REST names it (Kafka's ``PluginType``)."""

    SOURCE = "source"
    SINK = "sink"
    CONVERTER = "converter"
    HEADER_CONVERTER = "header_converter"
    TRANSFORMATION = "transformation"
    PREDICATE = "predicate"


@dataclass(frozen=True, slots=True)
class PluginDescription:
    """A plugin: the class ``name`` that configs use, and the ``factory`` that creates it. A class that is both a
    converter and a header converter has two descriptions. ``factory`` returns an instance that is not configured; for a
    connector it is the class itself."""

    kind: PluginKind
    name: str
    factory: Callable[[], object]
    config_def: ConfigDef
    version: str


log = logging.getLogger(__name__)


@cache
def entry_points(group: str) -> EntryPoints:
    """Return the entry points of ``group``. Cached, because the metadata of every installed package is read."""
    return metadata.entry_points(group=group)


def loaded(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield every entry point of ``group`` with the object it refers to; log those that cannot be loaded."""
    for point in entry_points(group):
        try:
            yield point, point.load()
        except Exception as error:
            # Imports run third-party code: whatever it raises, the worker continues without the plugin.
            log.error(
                "plugin %s of %s cannot be loaded: %s: %s", point.name, package(point), type(error).__name__, error
            )


def named(group: str) -> Iterator[tuple[str, Any]]:
    """Yield the same objects, each under both of its names: the entry point's name and ``package.module.Name``."""
    for point, found in loaded(group):
        yield point.name, found
        yield point.value.replace(":", "."), found


def package(point: EntryPoint) -> str:
    """Return the package that provides ``point``, for messages."""
    return "an unknown package" if point.dist is None else f"package {point.dist.name}"


GROUPS: Final = (
    "heliograph.connectors",
    "heliograph.converters",
    "heliograph.header_converters",
    "heliograph.transforms",
    "heliograph.predicates",
)


@cache
def installed() -> Sequence[PluginDescription]:
    """Return the plugins of :func:`discovered`. Cached: imports take long, and each failure is logged once."""
    return tuple(discovered())


def discovered() -> Iterator[PluginDescription]:
    """Yield every description that can be loaded; log the others and continue."""
    for group in GROUPS:
        for point, found in loaded(group):
            for each in found if isinstance(found, Iterable) else (found,):
                if isinstance(each, PluginDescription):
                    yield each
                else:
                    log.error("plugin %s of %s is ignored: it is not a PluginDescription", point.name, package(point))


def config_providers() -> dict[str, ProviderFactory]:
    """Return the factories of config providers by the names that configs may use."""
    return {name: found for name, found in named("heliograph.config_providers") if callable(found)}


def override_policies() -> dict[str, OverridePolicy]:
    """Return the override policies by the names that configs may use."""
    return {name: found for name, found in named("heliograph.override_policies") if isinstance(found, OverridePolicy)}
