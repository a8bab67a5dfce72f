"""What a source connector was told about access rules, typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connect.core.config import Values
from connectors.filter_classes import make_group_filter


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """``interval_s`` None: access rules are not synced. ``is_full``: not only as Java does. ``resources``: words of
    ``connectors.access.rules.RESOURCES``; ``takes_group``: by name, as checkpoints would take it."""

    interval_s: int | None
    is_full: bool
    resources: frozenset[str]
    writes: bool
    dry_run: bool
    takes_group: Callable[[str], bool]


def access_settings(values: Values, connector: Mapping[str, str]) -> AccessSettings:
    """From a connector's ``values`` of its own settings, and those of its checkpoints in the same properties.

    Raises:
        ConfigError: the group filter is not known, or refuses its settings.
    """
    enabled = values.boolean("sync.topic.acls.enabled")
    return AccessSettings(
        interval_s=values.integer("sync.topic.acls.interval.seconds") if enabled else None,
        is_full=values.string("sync.acls.mode") == "full",
        resources=frozenset(values.strings("sync.acls.resources")),
        writes=values.boolean("sync.acls.write.enabled"),
        dry_run=values.boolean("sync.acls.dry.run"),
        takes_group=make_group_filter(connector).should_replicate_group,
    )
