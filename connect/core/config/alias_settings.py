"""The settings that a connector's own aliases bring in: of transformations, of predicates, of groups of topics to make.

Kafka's ``ConnectorConfig.enrich`` and ``TopicCreationConfig``.
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
from connect.core.config.validation import PARTITIONS, REPLICATION_FACTOR, JavaPatterns

#: One of the two kinds of plugins that a connector names by alias.
AliasKind = Literal["transformation", "predicate"]


class Definitions(Protocol):
    """Where the classes behind aliases are found."""

    def full_name(self, name: str) -> str | None:
        """The full name of a class, of whatever kind; None where there is none."""
        ...

    def definition(self, kind: AliasKind, name: str, version: str | None) -> ConfigDef:
        """Its own settings. Raises InvalidValue where it is of another kind or there is no such version."""
        ...

    def names(self, kind: AliasKind) -> Sequence[str]:
        """The classes that a form offers."""
        ...

    def versions(self, kind: AliasKind, name: str) -> Sequence[str]:
        """The versions of a class, the newest last; none where it is of another kind."""
        ...


@dataclass(frozen=True, slots=True)
class _Aliases:
    """How one kind of aliases reads."""

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
            "Alias of the predicate that says which records are meant.",
            importance=Importance.MEDIUM,
        ),
        Setting("negate", Type.BOOLEAN, False, "Whether the others are meant.", importance=Importance.MEDIUM),
    ),
)
_PREDICATES: Final = _Aliases("predicate", "predicates", PREDICATES_GROUP, "Predicate", ConfigDef())


@dataclass(frozen=True, slots=True)
class _TypeCheck:
    """What Java's ``EnrichablePlugin`` looks at beside the class itself."""

    aliases: _Aliases
    alias: str
    props: Mapping[str, str | None]
    definitions: Definitions

    def __call__(self, name: str, value: Value) -> None:
        prefix = f"{self.aliases.key}.{self.alias}."
        negate, predicate = f"{prefix}negate", f"{prefix}predicate"
        if self.aliases is _TRANSFORMS and negate in self.props and predicate not in self.props:
            raise InvalidValue(
                f"Config '{negate}' was provided but there is no config '{predicate}' defining a predicate to be "
                "negated."
            )
        if isinstance(value, str):
            self.definitions.definition(self.aliases.kind, value, self.props.get(f"{prefix}plugin.version"))

    def __str__(self) -> str:
        return f"valid configs for {self.alias} {self.aliases.interface.lower()}"


@dataclass(frozen=True, slots=True)
class _VersionCheck:
    """Whether a class is there in the version that is asked for; what is no such class its type's check tells."""

    aliases: _Aliases
    class_name: str | None
    definitions: Definitions

    def __call__(self, name: str, value: Value) -> None:
        kind = self.aliases.kind
        if isinstance(value, str) and self.class_name is not None and self.definitions.versions(kind, self.class_name):
            self.definitions.definition(kind, self.class_name, value)

    def __str__(self) -> str:
        return "a version, or a range of versions"


def enrich(base: ConfigDef, props: Mapping[str, str | None], definitions: Definitions) -> ConfigDef:
    """``base`` with the settings that the aliases in ``props`` bring in (Kafka's ``ConnectorConfig.enrich``)."""
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
        PluginClass(definitions.full_name, _TypeCheck(aliases, alias, props, definitions)),
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
        _VersionCheck(aliases, full_name, definitions),
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
    """Whether a connector has topics made by ``topic.creation.*``."""
    return any(key.startswith("topic.creation.") for key in props)


def topic_creation(props: Mapping[str, str]) -> ConfigDef:
    """The settings of the groups that a connector names, the group default among them (KIP-158).

    Raises:
        ConfigError: The default group's own settings, which the others fall back to, are missing or refused.
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
    """The settings of one group of topics, with what stands in for its numbers."""
    form, prefix = f"{TOPIC_CREATION_GROUP}: {name}", f"topic.creation.{name}."
    patterns = JavaPatterns()
    settings = (
        Setting("include", Type.LIST, include, "Topics of the group: names and regular expressions.", patterns),
        Setting("exclude", Type.LIST, (), "Topics that are not of the group; wins over include.", patterns),
        Setting("replication.factor", Type.SHORT, factor, "Of new topics; -1 for the broker's.", REPLICATION_FACTOR),
        Setting("partitions", Type.INT, partitions, "Of new topics; -1 for the broker's.", PARTITIONS),
    )
    return ConfigDef.of(*(replace(each, order=order) for order, each in enumerate(settings))).embedded(prefix, form, 1)
