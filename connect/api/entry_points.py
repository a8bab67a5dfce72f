"""What installed packages offer under the name of a group of entry points."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

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
