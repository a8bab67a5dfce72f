"""Declares configs as data, and parses and validates values as Kafka's ``ConfigDef`` does, with its messages.

There are two entry points, because Java treats lists differently in each (KIP-1161): :meth:`ConfigDef.parse` reads a
file at start and accepts a repeated list element; :meth:`ConfigDef.validate` checks a REST request and does not.
Values are converted as in Kafka's ``ConfigDef.parseType``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from connect.core.errors import ConfigError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Type(StrEnum):
    """The type of a setting. CLASS is not loaded here: the code that loads the class checks that it exists."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    SHORT = "short"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    CLASS = "class"
    PASSWORD = "password"


@dataclass(frozen=True, slots=True)
class Password:
    """A secret, printed as ``[hidden]``; ``value`` is the text."""

    value: str

    def __repr__(self) -> str:
        return "[hidden]"


Value = bool | str | int | float | tuple[str, ...] | Password | None


class InvalidValue(ValueError):
    """An invalid value, with Java's complete message."""


#: What Java's ``String.trim`` removes: everything up to the space.
_TRIMMED: Final = "".join(map(chr, range(33)))
_BOUNDS: Final = {Type.SHORT: 2**15, Type.INT: 2**31, Type.LONG: 2**63}
_INTEGER: Final = re.compile(r"[+-]?\d+")
_DOUBLE: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?")
_COMMA: Final = re.compile(r"\s*,\s*", re.ASCII)


def trim(text: str) -> str:
    """Strip ``text`` as Java's ``String.trim`` does."""
    return text.strip(_TRIMMED)


def convert(name: str, text: str, type_: Type) -> Value:
    """Convert ``text``. Raises InvalidValue if ``text`` is not of that type."""
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
    """Split a list as ``ConfigDef`` does: a blank text has no elements; empty elements are kept."""
    trimmed = trim(text)
    return tuple(_COMMA.split(trimmed)) if trimmed else ()


def invalid(name: str, value: object, why: str) -> InvalidValue:
    """Return the error with the message of Kafka's ``ConfigException``."""
    if isinstance(value, tuple):
        value = f"[{', '.join(value)}]"
    return InvalidValue(f"Invalid value {'null' if value is None else value} for configuration {name}: {why}")


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Width(StrEnum):
    """The width of a value's field in a form, as REST returns it."""

    NONE = "none"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


class Required:
    """The marker for a setting without a default."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required()


class Check(Protocol):
    """A validator. ``str(check)`` is the text for the reference's column of valid values."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise :class:`InvalidValue` if ``value`` is invalid."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    Args:
        name: The key.
        default: The converted default; :data:`REQUIRED` if the key must be set.
        doc: One sentence for the reference.
        check: Validates the converted value, also the default.
        group: The heading in REST's definitions; None for no heading.
        order: The place under that heading, -1 if there is none.
        display_name: The label in a form; the key if empty.
        dependents: Keys that are validated after this one.
        recommended: Values that a form offers.
        visible: Whether a form shows the setting.
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

    def under(self, group: str, order: int, display_name: str, width: Width = Width.MEDIUM) -> Setting:
        """Return the setting as a field under a heading of a form."""
        return replace(self, group=group, order=order, display_name=display_name, width=width)


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The result of validating a setting: the value, if the conversion succeeded, and all errors."""

    name: str
    value: Value
    errors: tuple[str, ...] = ()
    recommended: tuple[str, ...] = ()
    visible: bool = True

    def with_error(self, *errors: str) -> ConfigValue:
        return replace(self, errors=(*self.errors, *errors))


def add_errors(values: dict[str, ConfigValue], key: str, *errors: str) -> None:
    """Add errors to the value of a key, which may be missing."""
    if errors:
        values[key] = values.get(key, ConfigValue(key, None)).with_error(*errors)


class Values(Mapping[str, Value]):
    """Converted settings by name. Each typed getter requires that the key is declared with that type."""

    def __init__(self, values: Mapping[str, Value], warnings: Sequence[str] = ()) -> None:
        self._values = dict(values)
        #: Messages for the log about values that were corrected while parsing.
        self.warnings = tuple(warnings)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _of_type(self, name: str, type_: type[T]) -> T:
        value = self._values[name]
        assert isinstance(value, type_), name
        return value

    def string(self, name: str) -> str:
        return self._of_type(name, str)

    def boolean(self, name: str) -> bool:
        return self._of_type(name, bool)

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int) and not isinstance(value, bool), name
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        return self._of_type(name, tuple)

    def integer_or_null(self, name: str) -> int | None:
        return None if self._values[name] is None else self.integer(name)

    def string_or_null(self, name: str) -> str | None:
        return None if self._values[name] is None else self.string(name)


class _HasValues(Protocol):
    @property
    def values(self) -> Values: ...


class Read(Generic[T_co]):
    """An attribute of a class with ``values`` that reads one of them, such as ``Read("group.id", Values.string)``."""

    def __init__(self, name: str, read: Callable[[Values, str], T_co]) -> None:
        self._name = name
        self._read = read

    def __get__(self, owner: _HasValues, _: object = None) -> T_co:
        return self._read(owner.values, self._name)


@dataclass(frozen=True)
class ConfigDef:
    """A set of settings by name. In ``a | b``, settings of ``b`` replace settings of ``a`` with the same name."""

    settings: Mapping[str, Setting] = field(default_factory=dict)

    @classmethod
    def of(cls, *settings: Setting) -> ConfigDef:
        return cls({setting.name: setting for setting in settings})

    def __or__(self, other: ConfigDef) -> ConfigDef:
        return ConfigDef({**self.settings, **other.settings})

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def only(self, *names: str) -> ConfigDef:
        return ConfigDef({name: self.settings[name] for name in names})

    def groups(self) -> tuple[str, ...]:
        """Return the distinct headings in the order of declaration."""
        return tuple(dict.fromkeys(each.group for each in self.settings.values() if each.group is not None))

    def embedded(self, prefix: str, group: str, first_order: int) -> ConfigDef:
        """Return the settings with ``prefix`` before their keys, under the heading ``group`` (``ConfigDef.embed``)."""
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
        """Convert the values in a file and add defaults. Undeclared keys are left out. Raises ConfigError if a value is
        missing or invalid; Java's message for the first one."""
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
        """Convert and validate every setting and collect all errors. A null value does not select the default."""
        return {name: self._validated(setting, props) for name, setting in self.settings.items()}

    def _validated(self, setting: Setting, props: Mapping[str, str | None]) -> ConfigValue:
        errors: list[str] = []
        value: Value = None
        try:
            value = self._converted(setting, props)
        except InvalidValue as error:
            errors.append(str(error))
        if setting.check is not None:
            # Because Java also validates the null that a failed conversion leaves, it reports some errors twice.
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
    # The check reports empty elements.
    if len(unique) < len(value) and "" not in unique:
        warnings.append(f"{name} contains repeated elements; using {','.join(unique)}")
        return unique
    return value


# Checks


@dataclass(frozen=True, slots=True)
class _Embedded:
    """The check of an embedded setting. Like Java's, its messages name the key without the prefix."""

    prefix: str
    check: Check

    def __call__(self, name: str, value: Value) -> None:
        self.check(name.removeprefix(self.prefix), value)

    def __str__(self) -> str:
        return str(self.check)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number of at least ``least`` and, unless that is None, at most ``most``."""

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
    """One of ``words``. ``removed`` maps values of earlier versions to the error message."""

    words: tuple[str, ...]
    any_case: bool = False
    removed: Mapping[str, str] = field(default_factory=dict, hash=False)
    nullable: bool = False

    def __call__(self, name: str, value: Value) -> None:
        if value is None and self.nullable:
            return
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
    """A list without empty or repeated elements (KIP-1161). If ``words`` are given, they are the valid elements."""

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
    """The name of a plugin. ``resolve`` returns its full name, or None if there is no such plugin; ``check`` validates
    the full name; ``known`` returns the valid names for the error message."""

    resolve: Callable[[str], str | None]
    check: Check | None = None
    known: Callable[[], Iterable[str]] | None = None

    def full_name(self, name: str, text: str) -> str:
        """Resolve a name as part of the conversion: as in Java, a class that cannot be found leaves no value."""
        found = self.resolve(text)
        if found is None:
            there = "" if self.known is None else f" Known classes: {', '.join(self.known())}."
            raise invalid(name, text, f"Class {text} could not be found.{there}")
        return found

    def __call__(self, name: str, value: Value) -> None:
        if self.check is not None:
            self.check(name, value)

    def __str__(self) -> str:
        return "" if self.check is None else str(self.check)


@dataclass(frozen=True, slots=True)
class Kind:
    """Declares settings of one type."""

    type: Type

    def __call__(
        self,
        name: str,
        default: Value | Required,
        doc: str,
        importance: Importance = Importance.LOW,
        check: Check | None = None,
    ) -> Setting:
        return Setting(name, self.type, default, doc, check, importance)


text, class_name, secret, strings = Kind(Type.STRING), Kind(Type.CLASS), Kind(Type.PASSWORD), Kind(Type.LIST)
integer, long, short, double = Kind(Type.INT), Kind(Type.LONG), Kind(Type.SHORT), Kind(Type.DOUBLE)
flag = Kind(Type.BOOLEAN)
