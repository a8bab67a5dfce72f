"""Declares the configs that a connector's aliases add: of transformations, predicates and topic creation groups.

They follow Kafka's ``ConnectorConfig.enrich`` and ``TopicCreationConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from connect.core.config.config_def import (
    REQUIRED,
    ConfigDef,
    Importance,
    InvalidValue,
    PluginClass,
    Required,
    Setting,
    Type,
    Value,
    Width,
    split_list,
)
from connect.core.config.connector_settings import PREDICATES_GROUP, TOPIC_CREATION_GROUP, TRANSFORMS_GROUP
from connect.core.config.validation import PARTITIONS, REPLICATION_FACTOR, Valid, java_patterns

#: A kind of plugin that a connector names by alias.
AliasKind = Literal["transformation", "predicate"]


class Definitions(Protocol):
    """The plugin classes that aliases can name."""

    def full_name(self, name: str) -> str | None:
        """Return the full name of a class of any kind; None if there is no such class."""
        ...

    def definition(self, kind: AliasKind, name: str, version: str | None) -> ConfigDef:
        """Return the configs of a class. Raises InvalidValue if it is of another kind or the version is missing."""
        ...

    def names(self, kind: AliasKind) -> Sequence[str]:
        """Return the classes that a form offers."""
        ...

    def versions(self, kind: AliasKind, name: str) -> Sequence[str]:
        """Return the versions of a class, the newest last; empty if it is of another kind."""
        ...


@dataclass(frozen=True, slots=True)
class _Aliases:
    kind: AliasKind
    key: str
    group: str
    interface: str
    implicit: ConfigDef


_TRANSFORMS: Final = _Aliases(
    "transformation",
    "transforms",
    TRANSFORMS_GROUP,
    "Transformation",
    ConfigDef.of(
        Setting(
            "predicate",
            Type.STRING,
            None,
            "Alias of the predicate that selects the records to transform.",
            importance=Importance.MEDIUM,
        ),
        Setting("negate", Type.BOOLEAN, False, "Negate the predicate.", importance=Importance.MEDIUM),
    ),
)
_PREDICATES: Final = _Aliases("predicate", "predicates", PREDICATES_GROUP, "Predicate", ConfigDef())


def _type_check(aliases: _Aliases, alias: str, props: Mapping[str, str | None], definitions: Definitions) -> Valid:
    """Return the check of ``<alias>.type`` in Java's ``EnrichablePlugin``."""

    def check(name: str, value: Value) -> None:
        prefix = f"{aliases.key}.{alias}."
        negate, predicate = f"{prefix}negate", f"{prefix}predicate"
        if aliases is _TRANSFORMS and negate in props and predicate not in props:
            raise InvalidValue(
                f"Config '{negate}' was provided but there is no config '{predicate}' defining a predicate to be "
                "negated."
            )
        if isinstance(value, str):
            definitions.definition(aliases.kind, value, props.get(f"{prefix}plugin.version"))

    return Valid(f"valid configs for {alias} {aliases.interface.lower()}", check)


def _version_check(kind: AliasKind, class_name: str | None, definitions: Definitions) -> Valid:
    """Return the check that a class is available in the requested version; :func:`_type_check` reports a missing
    class."""

    def check(name: str, value: Value) -> None:
        if isinstance(value, str) and class_name is not None and definitions.versions(kind, class_name):
            definitions.definition(kind, class_name, value)

    return Valid("a version, or a range of versions", check)


def enrich(base: ConfigDef, props: Mapping[str, str | None], definitions: Definitions) -> ConfigDef:
    """Return ``base`` with the configs that the aliases in ``props`` add (Kafka's ``ConnectorConfig.enrich``)."""
    for aliases in (_TRANSFORMS, _PREDICATES):
        for alias in dict.fromkeys(split_list(props.get(aliases.key) or "")):
            base |= _of_alias(aliases, alias, props, definitions)
    return base


def _of_alias(aliases: _Aliases, alias: str, props: Mapping[str, str | None], definitions: Definitions) -> ConfigDef:
    prefix, group = f"{aliases.key}.{alias}.", f"{aliases.group}: {alias}"
    kind = aliases.interface.lower()

    name = props.get(f"{prefix}type")
    full_name = None if name is None else definitions.full_name(name.strip())
    versions = definitions.versions(aliases.kind, full_name) if full_name is not None else ()
    type_ = Setting(
        f"{prefix}type",
        Type.CLASS,
        REQUIRED,
        f"Class for the '{alias}' {kind}.",
        PluginClass(definitions.full_name, _type_check(aliases, alias, props, definitions)),
        Importance.HIGH,
        group,
        0,
        Width.LONG,
        f"{aliases.interface} type for {alias}",
        recommended=tuple(definitions.names(aliases.kind)),
    )
    version = Setting(
        f"{prefix}plugin.version",
        Type.STRING,
        versions[-1] if versions else None,
        f"Version of the '{alias}' {kind}.",
        _version_check(aliases.kind, full_name, definitions),
        Importance.HIGH,
        group,
        1,
        Width.LONG,
        f"{aliases.interface} version for {alias}",
        recommended=tuple(versions),
    )
    found = ConfigDef.of(type_, version)
    if full_name is None:
        return found
    try:
        own = definitions.definition(aliases.kind, full_name, props.get(version.name))
    except InvalidValue:
        return found
    return found | (own | aliases.implicit).embedded(prefix, group, 2)


def uses_topic_creation(props: Mapping[str, str | None]) -> bool:
    return any(key.startswith("topic.creation.") for key in props)


def topic_creation(props: Mapping[str, str]) -> ConfigDef:
    """Return the configs of a connector's topic creation groups, including the group default (KIP-158).

    Raises:
        ConfigError: A config of the default group, to which the other groups fall back, is missing or invalid.
    """
    default = topic_group("default", REQUIRED, REQUIRED, include=(".*",))
    values = default.parse(props)
    factor = values["topic.creation.default.replication.factor"]
    partitions = values["topic.creation.default.partitions"]
    for group in dict.fromkeys(split_list(props.get("topic.creation.groups", ""))):
        if group != "default":
            default |= topic_group(group, factor, partitions)
    return default


def topic_group(
    name: str, factor: Value | Required, partitions: Value | Required, include: tuple[str, ...] = ()
) -> ConfigDef:
    """Return the configs of a topic creation group with the defaults for its numbers."""
    form, prefix = f"{TOPIC_CREATION_GROUP}: {name}", f"topic.creation.{name}."
    patterns = java_patterns
    settings = (
        Setting("include", Type.LIST, include, "Topics in the group: names and regular expressions.", patterns),
        Setting("exclude", Type.LIST, (), "Topics excluded from the group; takes precedence over include.", patterns),
        Setting("replication.factor", Type.SHORT, factor, "Replication factor; -1: the broker's.", REPLICATION_FACTOR),
        Setting("partitions", Type.INT, partitions, "Number of partitions; -1: the broker's.", PARTITIONS),
    )
    return ConfigDef.of(*(replace(each, order=order) for order, each in enumerate(settings))).embedded(prefix, form, 1)
