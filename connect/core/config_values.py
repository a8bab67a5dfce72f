"""Values of settings: their types, and how a text becomes one, as Kafka's ``ConfigDef.parseType`` does it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final


class Type(StrEnum):
    """What a setting's text is converted to. CLASS stays a name: who loads classes checks that it exists."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    SHORT = "short"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    CLASS = "class"
    PASSWORD = "password"


class Password:
    """A secret: shown as ``[hidden]`` wherever it is printed; ``value`` is the text."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


Value = bool | str | int | float | tuple[str, ...] | Password | None


class InvalidValue(ValueError):
    """A value is refused; the text is Java's whole sentence."""


#: What Java's ``String.trim`` removes: everything up to the space.
_TRIMMED: Final = "".join(map(chr, range(33)))
_BOUNDS: Final = {Type.SHORT: 2**15, Type.INT: 2**31, Type.LONG: 2**63}
_INTEGER: Final = re.compile(r"[+-]?\d+")
_DOUBLE: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?")
_COMMA: Final = re.compile(r"\s*,\s*", re.ASCII)


def trim(text: str) -> str:
    """``text`` as Java's ``String.trim`` leaves it."""
    return text.strip(_TRIMMED)


def convert(name: str, text: str, type_: Type) -> Value:
    """The value of ``text``.

    Raises:
        InvalidValue: It is no value of that type.
    """
    trimmed = trim(text)
    match type_:
        case Type.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case Type.INT | Type.SHORT | Type.LONG:
            if _INTEGER.fullmatch(trimmed) is None or not -_BOUNDS[type_] <= int(trimmed) < _BOUNDS[type_]:
                raise invalid(name, text, f"Not a number of type {type_.name}")
            return int(trimmed)
        case Type.DOUBLE:
            match = _DOUBLE.fullmatch(trimmed)
            if match is None:
                raise invalid(name, text, f"Not a number of type {type_.name}")
            return float(match.group(1))
        case Type.LIST:
            return split_list(trimmed)
        case Type.PASSWORD:
            return Password(trimmed)
        case Type.STRING | Type.CLASS:
            return trimmed


def split_list(text: str) -> tuple[str, ...]:
    """The elements of a list's text, as ``ConfigDef`` splits it: nothing for a blank text, empty ones kept."""
    trimmed = trim(text)
    return tuple(_COMMA.split(trimmed)) if trimmed else ()


def invalid(name: str, value: object, why: str) -> InvalidValue:
    """The sentence of Kafka's ``ConfigException``."""
    if isinstance(value, tuple):
        value = f"[{', '.join(value)}]"
    return InvalidValue(f"Invalid value {'null' if value is None else value} for configuration {name}: {why}")
