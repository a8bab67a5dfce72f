"""Holds validators that several declarations share, and converts configs and values to REST's form.

Messages are Kafka's if Kafka has the same check. REST's form follows ``AbstractHerder.convertConfigKey``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from connect.core.config.config_def import ConfigValue, Required, Setting, Value, invalid
from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.herder_api import ConfigKeyInfo, ConfigValueInfo


@dataclass(frozen=True, slots=True)
class Valid:
    """The check of a function; ``text`` is for the reference."""

    text: str
    function: Callable[[str, Value], None]

    def __call__(self, name: str, value: Value) -> None:
        self.function(name, value)

    def __str__(self) -> str:
        return self.text


def valid(text: str) -> Callable[[Callable[[str, Value], None]], Valid]:
    """Make a check of a function that raises InvalidValue."""
    return partial(Valid, text)


def _positive_or_broker_default(what: str) -> Valid:
    """Require at least 1, or -1 for the broker's default (Kafka's ``TopicCreationConfig``)."""

    def check(name: str, value: Value) -> None:
        if not isinstance(value, int) or not (value == -1 or value >= 1):
            raise invalid(name, value, f"{what}, or -1 to use the broker's default")

    return Valid("-1 or [1,...]", check)


PARTITIONS: Final = _positive_or_broker_default("Number of partitions must be positive")
REPLICATION_FACTOR: Final = _positive_or_broker_default(
    "Replication factor must be positive and not larger than the number of brokers in the Kafka cluster"
)


@valid("non-empty string")
def non_empty(name: str, value: Value) -> None:
    """Require a non-empty text, or null (Kafka's ``NonEmptyString``)."""
    if value == "":
        raise invalid(name, value, "String must be non-empty")


@valid("regular expressions")
def java_patterns(name: str, value: Value) -> None:
    assert value is None or isinstance(value, tuple)
    for each in value or ():
        try:
            compile_java(each)
        except UnsupportedRegex as error:
            raise invalid(name, value, f"Syntax error in regular expression: {error}") from None


@valid("-1 or [1,...,9]")
def gzip_level(name: str, value: Value) -> None:
    """Require 1 to 9, or -1 for the codec's default (Kafka's ``CompressionType.GZIP``)."""
    if not isinstance(value, int) or not (value == -1 or 1 <= value <= 9):
        raise invalid(name, value, "Value must be 1 to 9, or -1")


@valid("unique aliases")
def unique_aliases(name: str, value: Value) -> None:
    """Require different aliases, such as those of ``transforms``, also in a file."""
    if value is None:
        raise invalid(name, value, "entry must be non null")
    assert isinstance(value, tuple)
    if len(set(value)) < len(value):
        raise invalid(name, value, "Duplicate alias provided.")


@valid("non-empty string without ISO control characters")
def connector_name(name: str, value: Value) -> None:
    """Require a connector's name that is not empty and has no ISO control characters."""
    if value is None:
        return
    assert isinstance(value, str)
    if not value:
        raise invalid(name, value, "String may not be empty")
    controls = [str(ord(char)) for char in value if ord(char) < 32 or 127 <= ord(char) < 160]
    if controls:
        raise invalid(
            name,
            value,
            "String may not contain control sequences but had the following ASCII chars: " + ", ".join(controls),
        )


def key_info(setting: Setting, prefix: str = "") -> ConfigKeyInfo:
    """Return a setting's definition with ``prefix`` before its key."""
    required = isinstance(setting.default, Required)
    return ConfigKeyInfo(
        name=prefix + setting.name,
        type=setting.type.name,
        required=required,
        default_value=None if isinstance(setting.default, Required) else text_of(setting.default),
        importance=setting.importance.name,
        documentation=setting.doc,
        group=setting.group,
        order_in_group=setting.order,
        width=setting.width.name,
        display_name=setting.display_name or setting.name,
        dependents=setting.dependents,
    )


def value_info(value: ConfigValue, prefix: str = "") -> ConfigValueInfo:
    return ConfigValueInfo(prefix + value.name, text_of(value.value), value.recommended, value.errors, value.visible)


def text_of(value: Value) -> str | None:
    """Return a value as REST shows it (``ConfigDef.convertToString``)."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case _:
            return str(value)
