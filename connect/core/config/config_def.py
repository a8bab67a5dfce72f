"""Declares configs as data, and parses and validates values as Kafka's ``ConfigDef`` does, with its words.

There are two entry points, since Java's lists differ between them (KIP-1161): :meth:`ConfigDef.parse` reads a file at
start and forgives a repeated list element; :meth:`ConfigDef.validate` checks a request over REST and does not. Types
parse texts as Kafka's ``ConfigDef.parseType`` does. Short helpers declare the most common configs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from connect.core.errors import ConfigError


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


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Width(StrEnum):
    """How wide a field a form should give the value; REST's definitions show it."""

    NONE = "none"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


class Required:
    """The default of a setting that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required()


class Check(Protocol):
    """What a value must be beyond its type. ``str(check)`` is the reference's column of valid values."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise :class:`InvalidValue` if ``value`` is refused."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Args:
        name: Its key.
        type: What its text is converted to.
        default: Already converted; :data:`REQUIRED` where the key must be set.
        doc: One sentence for the reference.
        check: Looked at after conversion, also for the default.
        group: The heading it stands under in REST's definitions; None for no heading.
        order: Its place under that heading, -1 where it has none.
        display_name: What a form calls it; its key where empty.
        dependents: Keys that are looked at after this one.
        recommended: Values that a form offers.
        visible: Whether a form shows it.
    """

    name: str
    type: Type
    default: Value | Required
    doc: str
    check: Check | None = None
    importance: Importance = Importance.LOW
    group: str | None = None
    order: int = -1
    width: Width = Width.NONE
    display_name: str = ""
    dependents: tuple[str, ...] = ()
    recommended: tuple[str, ...] = ()
    visible: bool = True


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The outcome of validating one setting: its value where there is one, and every objection to it."""

    name: str
    value: Value
    errors: tuple[str, ...] = ()
    recommended: tuple[str, ...] = ()
    visible: bool = True

    def with_error(self, *errors: str) -> ConfigValue:
        """The same value with further objections to it."""
        return replace(self, errors=(*self.errors, *errors))


class Values(Mapping[str, Value]):
    """Converted settings by name. The typed getters are for keys whose declaration has that type."""

    def __init__(self, values: Mapping[str, Value], warnings: Sequence[str] = ()) -> None:
        self._values = dict(values)
        #: Sentences for the log: what was forgiven while parsing.
        self.warnings = tuple(warnings)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def string(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str), name
        return value

    def boolean(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int) and not isinstance(value, bool), name
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        assert isinstance(value, tuple), name
        return value


@dataclass(frozen=True)
class ConfigDef:
    """A set of settings by name. ``a | b`` has the settings of both, ``b``'s where both name one."""

    settings: Mapping[str, Setting] = field(default_factory=dict)

    @classmethod
    def of(cls, *settings: Setting) -> ConfigDef:
        return cls({setting.name: setting for setting in settings})

    def __or__(self, other: ConfigDef) -> ConfigDef:
        return ConfigDef({**self.settings, **other.settings})

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def only(self, *names: str) -> ConfigDef:
        """The settings of these names."""
        return ConfigDef({name: self.settings[name] for name in names})

    def groups(self) -> tuple[str, ...]:
        """The headings, each once, in the order in which settings name them."""
        return tuple(dict.fromkeys(each.group for each in self.settings.values() if each.group is not None))

    def embedded(self, prefix: str, group: str, first_order: int) -> ConfigDef:
        """The same settings with ``prefix`` before their keys, under the heading ``group`` (``ConfigDef.embed``)."""
        return ConfigDef(
            {
                prefix + each.name: replace(
                    each,
                    name=prefix + each.name,
                    check=None if each.check is None else _Embedded(prefix, each.check),
                    group=group if each.group is None else f"{group}: {each.group}",
                    order=order,
                    display_name=each.display_name or each.name,
                    dependents=tuple(prefix + name for name in each.dependents),
                )
                for order, each in enumerate(self._in_order(), first_order)
            }
        )

    def _in_order(self) -> list[Setting]:
        groups = self.groups()
        importances = list(Importance)

        def place(each: Setting) -> tuple[int, int, bool, int, str]:
            group = -1 if each.group is None else groups.index(each.group)
            has_default = not isinstance(each.default, Required)
            return group, each.order, has_default, importances.index(each.importance), each.name

        return sorted(self.settings.values(), key=place)

    def parse(self, props: Mapping[str, str]) -> Values:
        """Convert what a file says, defaults filled in; keys without a setting are left out.

        Raises:
            ConfigError: With Java's words for the first value that is missing or refused.
        """
        values: dict[str, Value] = {}
        warnings: list[str] = []
        for name, setting in self.settings.items():
            try:
                value = self._converted(setting, props)
                if isinstance(setting.check, ValidList) and isinstance(value, tuple):
                    value = _without_repeats(name, value, warnings)
                if setting.check is not None:
                    setting.check(name, value)
            except InvalidValue as error:
                raise ConfigError(str(error), name) from None
            values[name] = value
        return Values(values, warnings)

    def validate(self, props: Mapping[str, str | None]) -> dict[str, ConfigValue]:
        """Convert and check every setting, collecting all objections instead of raising. A null is not a default."""
        return {name: self._validated(setting, props) for name, setting in self.settings.items()}

    def _validated(self, setting: Setting, props: Mapping[str, str | None]) -> ConfigValue:
        errors: list[str] = []
        value: Value = None
        try:
            value = self._converted(setting, props)
        except InvalidValue as error:
            errors.append(str(error))
        if setting.check is not None:
            # Java checks the null that a failed conversion left as well, and so reports some mistakes twice.
            try:
                setting.check(setting.name, value)
            except InvalidValue as error:
                errors.append(str(error))
        return ConfigValue(setting.name, value, tuple(errors), setting.recommended, setting.visible)

    @staticmethod
    def _converted(setting: Setting, props: Mapping[str, str | None]) -> Value:
        if setting.name in props:
            text = props[setting.name]
            if text is None:
                return None
            if isinstance(setting.check, PluginClass):
                return setting.check.full_name(setting.name, trim(text))
            return convert(setting.name, text, setting.type)
        if isinstance(setting.default, Required):
            raise InvalidValue(f'Missing required configuration "{setting.name}" which has no default value.')
        return setting.default


def _without_repeats(name: str, value: tuple[str, ...], warnings: list[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(value))
    # An empty element is an error of its own, whether repeated or not.
    if len(unique) < len(value) and "" not in unique:
        warnings.append(f"{name} names elements twice; it is taken as {','.join(unique)}")
        return unique
    return value


# Checks


@dataclass(frozen=True, slots=True)
class _Embedded:
    """A check of an embedded setting, which names the key without its prefix, as Java's does."""

    prefix: str
    check: Check

    def __call__(self, name: str, value: Value) -> None:
        self.check(name.removeprefix(self.prefix), value)

    def __str__(self) -> str:
        return str(self.check)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number not below ``least``, nor above ``most`` where there is one."""

    least: float
    most: float | None = None
    nullable: bool = False

    def __call__(self, name: str, value: Value) -> None:
        if value is None and self.nullable:
            return
        if value is None:
            raise invalid(name, value, "Value must be non-null")
        assert isinstance(value, int | float)
        if value < self.least:
            raise invalid(name, value, f"Value must be at least {self.least}")
        if self.most is not None and value > self.most:
            raise invalid(name, value, f"Value must be no more than {self.most}")

    def __str__(self) -> str:
        return f"[{self.least},...]" if self.most is None else f"[{self.least},...,{self.most}]"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words. ``removed``: words of earlier versions, with what to do instead."""

    words: tuple[str, ...]
    any_case: bool = False
    removed: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __call__(self, name: str, value: Value) -> None:
        known = value in self.words
        if self.any_case:
            known = isinstance(value, str) and value.upper() in {word.upper() for word in self.words}
        if isinstance(value, str) and value in self.removed:
            raise invalid(name, value, self.removed[value])
        if not known:
            how = " (case insensitive)" if self.any_case else ""
            raise invalid(name, value, f"String must be one of{how}: {', '.join(self.words)}")

    def __str__(self) -> str:
        return f"{'(case insensitive) ' if self.any_case else ''}[{', '.join(self.words)}]"


@dataclass(frozen=True, slots=True)
class ValidList:
    """A list without empty or repeated elements (KIP-1161), of ``words`` alone where there are any."""

    words: tuple[str, ...] = ()
    may_be_empty: bool = True

    def __call__(self, name: str, value: Value) -> None:
        if value is None:
            return
        assert isinstance(value, tuple)
        if not value and not self.may_be_empty:
            known = f"[{', '.join(self.words)}]" if self.words else "any non-empty value"
            raise InvalidValue(f"Configuration '{name}' must not be empty. Valid values include: {known}")
        if len(set(value)) < len(value):
            raise InvalidValue(f"Configuration '{name}' values must not be duplicated.")
        if "" in value:
            raise InvalidValue(f"Configuration '{name}' values must not be empty.")
        for each in value if self.words else ():
            if each not in self.words:
                raise invalid(name, each, f"String must be one of: {', '.join(self.words)}")

    def __str__(self) -> str:
        return f"[{', '.join(self.words)}]" if self.words else ""


@dataclass(frozen=True, slots=True)
class PluginClass:
    """The name of a plugin: ``resolve`` gives its full name, or None where there is none. ``check`` sees full names.
    ``known`` lists the names that there are, where a message is to have them."""

    resolve: Callable[[str], str | None]
    check: Check | None = None
    known: Callable[[], Iterable[str]] | None = None

    def full_name(self, name: str, text: str) -> str:
        """Part of the conversion, as in Java: a class that cannot be found leaves no value."""
        found = self.resolve(text)
        if found is None:
            there = "" if self.known is None else f" There are {', '.join(self.known())}."
            raise invalid(name, text, f"Class {text} could not be found.{there}")
        return found

    def __call__(self, name: str, value: Value) -> None:
        if self.check is not None:
            self.check(name, value)

    def __str__(self) -> str:
        return "" if self.check is None else str(self.check)


def integer(
    name: str, default: int | None, doc: str, check: Check | None = None, level: Importance = Importance.LOW
) -> Setting:
    return Setting(name, Type.INT, default, doc, check, level)


def long(name: str, default: int, doc: str, check: Check | None = None, level: Importance = Importance.LOW) -> Setting:
    return Setting(name, Type.LONG, default, doc, check, level)


def text(
    name: str, default: Value | Required, doc: str, level: Importance = Importance.LOW, check: Check | None = None
) -> Setting:
    return Setting(name, Type.STRING, default, doc, check, level)
