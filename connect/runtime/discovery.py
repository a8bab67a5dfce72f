"""Plugins of installed packages, by their entry points.

An entry point of ``heliograph.connectors`` and its kin leads to a :class:`~connect.api.plugins.PluginDescription`, or
to several of them in a list. One of ``heliograph.config_providers`` leads to a
:data:`~connect.core.providers.ProviderFactory`, one of ``heliograph.override_policies`` to an
:class:`~connect.core.overrides.OverridePolicy`; files name these two by the entry point's name or by what it leads to,
``package.module.name``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from connect.api.entry_points import loaded, named, package
from connect.api.plugins import PluginDescription
from connect.core.overrides import OverridePolicy
from connect.core.providers import ProviderFactory

log = logging.getLogger(__name__)

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
