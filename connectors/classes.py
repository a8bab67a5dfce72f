"""Classes that settings name: those of this project under Java's names too, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from connect.api.entry_points import named
from connect.core.errors import ConfigError

#: Makes one from a connector's whole configuration.
Factory = Callable[[Mapping[str, str]], Any]

TOPIC_FILTERS: Final = "heliograph.topic_filters"
GROUP_FILTERS: Final = "heliograph.group_filters"
CONFIG_PROPERTY_FILTERS: Final = "heliograph.config_property_filters"
REPLICATION_POLICIES: Final = "heliograph.replication_policies"


@cache
def offered(group: str) -> Mapping[str, Factory]:
    """What installed packages offer, by name; a package that is installed later is seen at the next start."""
    return {name: found for name, found in named(group) if callable(found)}


def make(key: str, name: str, known: Mapping[str, Factory], group: str, props: Mapping[str, str]) -> Any:
    """The object that the setting ``key`` names.

    Raises:
        ConfigError: There is no such class (the message says which there are), or it refuses ``props``.
    """
    factory = known.get(name) or offered(group).get(name)
    if factory is None:
        there = ", ".join([*known, *offered(group)])
        raise ConfigError(
            f"{key} {name} is not known; there are {there}. Others are found by entry points of {group}", key
        )
    try:
        return factory(props)
    except ConfigError:
        raise
    except Exception as error:
        # Code of other people. What it says may hold a secret of the configuration: its type is all that is told.
        raise ConfigError(f"{key} {name} cannot be made: {type(error).__name__}", key) from error
