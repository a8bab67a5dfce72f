"""Describes plugins and finds those of installed packages by their entry points.

An entry point of ``heliograph.connectors`` or of another group of connector plugins leads to a
:class:`~connect.api.plugins.PluginDescription`, or to several of them in a list. An entry point of
``heliograph.config_providers`` leads to a :data:`~connect.core.config.properties.ProviderFactory`, one of
``heliograph.override_policies`` to an :class:`~connect.core.config.client_settings.OverridePolicy`; files name these
two by the entry point's name or by what it leads to, ``package.module.name``.
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

#: The release of Kafka whose plugins are made again here; Java's carry their release as their version too.
KAFKA_VERSION: Final = "4.3.1"


class PluginKind(StrEnum):
    """What a plugin is, in the words of REST (Kafka's ``PluginType``)."""

    SOURCE = "source"
    SINK = "sink"
    CONVERTER = "converter"
    HEADER_CONVERTER = "header_converter"
    TRANSFORMATION = "transformation"
    PREDICATE = "predicate"


@dataclass(frozen=True, slots=True)
class PluginDescription:
    """One plugin: under which class name properties ask for it, and how it is made.

    A class that is both a converter and a header converter has two descriptions. ``factory`` makes an instance that
    was not configured; for a connector it is the class itself.
    """

    kind: PluginKind
    name: str
    factory: Callable[[], object]
    config_def: ConfigDef
    version: str


log = logging.getLogger(__name__)


@cache
def entry_points(group: str) -> EntryPoints:
    """Return those of ``group``. Read once, because what every installed package has is looked through."""
    return metadata.entry_points(group=group)


def loaded(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Every entry point of ``group`` that can be loaded, with what it leads to; what cannot is logged."""
    for point in entry_points(group):
        try:
            yield point, point.load()
        except Exception as error:
            # Code of other people runs when it is imported: whatever it raises, the worker goes on without it.
            log.error(
                "plugin %s of %s cannot be loaded: %s: %s", point.name, package(point), type(error).__name__, error
            )


def named(group: str) -> Iterator[tuple[str, Any]]:
    """The same under both names that files may use: the entry point's, and ``package.module.Name``."""
    for point, found in loaded(group):
        yield point.name, found
        yield point.value.replace(":", "."), found


def package(point: EntryPoint) -> str:
    """Who offers it, for messages."""
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
    """Return what :func:`discovered` gives, looked for once: plugins take long to import, and fail to once."""
    return tuple(discovered())


def discovered() -> Iterator[PluginDescription]:
    """Every description that can be loaded; what cannot is logged, and no reason for the others to be missing."""
    for group in GROUPS:
        for point, found in loaded(group):
            for each in found if isinstance(found, Iterable) else (found,):
                if isinstance(each, PluginDescription):
                    yield each
                else:
                    log.error("plugin %s of %s leads to what is no PluginDescription", point.name, package(point))


def config_providers() -> dict[str, ProviderFactory]:
    """Classes of config providers by the names that files may use."""
    return {name: found for name, found in named("heliograph.config_providers") if callable(found)}


def override_policies() -> dict[str, OverridePolicy]:
    """Override policies by the names that files may use."""
    return {name: found for name, found in named("heliograph.override_policies") if isinstance(found, OverridePolicy)}
