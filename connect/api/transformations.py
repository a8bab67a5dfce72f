"""Reads a connector's ``transforms`` settings: the steps, each with its optional predicate (KIP-66, KIP-585)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connect.api.convert import Predicate, Transformation
from connect.api.source import SourceRecord
from connect.core.config.config_def import split_list
from connect.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NamedPlugin:
    """A transformation or predicate in a config: its class name, its settings and the prefix of their keys. ``version``
    is a version range, or None for any version."""

    prefix: str
    name: str
    version: str | None
    props: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A transform. With a predicate, it applies to the records that match, or with ``negate`` to those that do not."""

    transformation: NamedPlugin
    predicate: NamedPlugin | None = None
    negate: bool = False


@dataclass(frozen=True, slots=True)
class TransformationStep:
    """A configured transform, with the same conditions as :class:`NamedStep`."""

    transformation: Transformation
    predicate: Predicate | None = None
    negate: bool = False

    def apply(self, record: SourceRecord) -> SourceRecord | None:
        if self.predicate is not None and self.predicate.test(record) == self.negate:
            return record
        return self.transformation.apply(record)

    def close(self) -> None:
        self.transformation.close()
        if self.predicate is not None:
            self.predicate.close()


def named_steps(props: Mapping[str, str]) -> tuple[NamedStep, ...]:
    """Return the steps that ``transforms`` lists, in order. Raises ConfigError if one has no class."""
    return tuple(_step(alias, props) for alias in split_list(props.get("transforms", "")))


def _step(alias: str, props: Mapping[str, str]) -> NamedStep:
    own = _with_prefix(props, f"transforms.{alias}.")
    named, negate = own.pop("predicate", None), own.pop("negate", "false").strip().lower() == "true"
    transformation = _plugin(f"transforms.{alias}.", own)
    if named is None:
        return NamedStep(transformation)
    prefix = f"predicates.{named}."
    return NamedStep(transformation, _plugin(prefix, _with_prefix(props, prefix)), negate)


def _plugin(prefix: str, own: dict[str, str]) -> NamedPlugin:
    if "type" not in own:
        raise ConfigError(f"{prefix}type is missing; name a class", f"{prefix}type")
    version = own.pop("plugin.version", None)
    return NamedPlugin(prefix, own["type"], version, own)


def _with_prefix(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key[len(prefix) :]: value for key, value in props.items() if key.startswith(prefix)}
