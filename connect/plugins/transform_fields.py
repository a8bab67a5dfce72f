"""Holds what transforms of fields share: key or value, fields of records, paths to fields, checks of settings.

Values with fields are dicts: maps without a schema, structs with a schema. Unlike Java's, maps keep the order of their
fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from connect.api.convert import DataError, Transformation
from connect.api.source import Schema, SourceRecord
from connect.core.config.config_def import Importance, Value, flag, invalid
from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.config.validation import Valid, valid
from connect.core.errors import ConfigError
from connect.plugins.java_values import java_class

#: Has no effect, because schemas here have no defaults.
REPLACE_NULL_WITH_DEFAULT: Final = flag(
    "replace.null.with.default",
    True,
    "Replace null by the schema's default. No effect here, because schemas have no defaults.",
    Importance.MEDIUM,
)


class FieldTransformation(Transformation):
    """A transformation of the value of records, or of their key."""

    of_key = False

    def schema_of(self, record: SourceRecord) -> Schema | None:
        return record.key_schema if self.of_key else record.value_schema

    def value_of(self, record: SourceRecord) -> Any:
        return record.key if self.of_key else record.value

    def changed(self, record: SourceRecord, schema: Schema | None, value: Any) -> SourceRecord:
        if self.of_key:
            return replace(record, key_schema=schema, key=value)
        return replace(record, value_schema=schema, value=value)


T = TypeVar("T", bound=FieldTransformation)


def of_key_and_value(transformation: type[T]) -> tuple[type[T], type[T]]:
    """Return the classes of a transformation for keys and for values, Java's ``$Key`` and ``$Value``."""
    name, module = transformation.__name__, transformation.__module__
    of_key, of_value = (
        type(f"{name}{part}", (transformation,), {"__module__": module, "of_key": part == "Key"})
        for part in ("Key", "Value")
    )
    return of_key, of_value


def require_fields(schema: Schema | None, value: Any, purpose: str) -> Mapping[str, Any]:
    """Return the fields of a value. Raises DataError if the value has no fields; the message of Java's
    ``Requirements``."""
    if schema is None:
        if not isinstance(value, Mapping):
            raise DataError(
                f"Only Map objects supported in absence of schema for [{purpose}], found: {java_class(value)}"
            )
        return value
    if schema.type != "struct" or not isinstance(value, Mapping):
        raise DataError(f"Only Struct objects supported for [{purpose}], found: {java_class(value)}")
    return value


def field_schema(schema: Schema | None, name: str) -> Schema | None:
    """Return the schema of a struct's field; None if there is no schema or no such field."""
    return None if schema is None else dict(schema.fields).get(name)


class FieldPath:
    """The path to a field (``SingleFieldPath``, KIP-821): its name in syntax V1, in V2 the steps between dots. Raises
    ConfigError if a backtick is not closed."""

    def __init__(self, text: str, *, nested: bool) -> None:
        self.text = text
        self._steps = _steps(text) if nested else [text]

    def schema_in(self, schema: Schema) -> Schema | None:
        """Return the field's schema; None if a struct has no such field."""
        current: Schema | None = schema
        for step in self._steps:
            current = field_schema(current, step)
        return current

    def value_in(self, schema: Schema | None, fields: Mapping[str, Any]) -> Any:
        """Return the field's value; None if the field is missing. Raises DataError if a value on the path has no
        fields."""
        current: Any = fields
        for step in self._steps[:-1]:
            schema, current = field_schema(schema, step), current.get(step)
            if current is None:
                return None
            current = require_fields(schema, current, "nested field access")
        return current.get(self._steps[-1])


def _steps(path: str) -> list[str]:
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            step, at = _quoted_step(path, at)
        else:
            end = path.find(".", at)
            step, at = (path[at:], len(path)) if end < 0 else (path[at:end], end + 1)
        steps.append(step)
    if path.endswith(".") or not steps:
        steps.append("")
    return steps


def _quoted_step(path: str, start: int) -> tuple[str, int]:
    """Return the step in backticks at ``start`` and the start of the next one. A backtick closes the step only before a
    dot or at the end."""
    step = ""
    begin = at = start + 1
    while (at := path.find("`", at)) >= 0:
        escaped = path[at - 1] == "\\"
        if at == len(path) - 1:
            if escaped:
                break
            return step + path[begin:at], len(path)
        if path[at + 1] == ".":
            if not escaped:
                return step + path[begin:at], at + 2
            step += path[begin : at - 1] + "`"
            begin = at + 1
        at += 1
    raise ConfigError(
        f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick at position {start} "
        "to escape it"
    )


@valid("non-empty list")
def non_empty_list(name: str, value: Value) -> None:
    """Require a list with at least one element (``NonEmptyListValidator``)."""
    if not value:
        raise invalid(name, value, "Empty list")


def java_regex(*, required: bool = False) -> Valid:
    """Require a Java regular expression (``RegexValidator``), not empty if ``required``."""

    def check(name: str, value: Value) -> None:
        if value == "" and required:
            raise invalid(name, value, "String must be non-empty")
        try:
            compile_java(value if isinstance(value, str) else "")
        except UnsupportedRegex as error:
            raise invalid(name, value, f"Invalid regex: {error}") from None

    return Valid("non-empty string, valid regex" if required else "valid regex", check)
