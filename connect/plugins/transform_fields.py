"""What transforms of fields share: the key's side or the value's, records' fields, paths to them, checks of settings.

Values with fields are dicts: maps where there is no schema, structs where there is one. Where Java leaves the order of
a map's fields to chance, here they keep it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from connect.api.convert import DataError, Transformation
from connect.api.source import Schema, SourceRecord
from connect.core.config.config_def import Importance, Setting, Type, Value, invalid
from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.errors import ConfigError
from connect.plugins.java_values import java_class

#: Schemas here have no defaults.
REPLACE_NULL_WITH_DEFAULT: Final = Setting(
    "replace.null.with.default",
    Type.BOOLEAN,
    True,
    "Replace null by the default of its schema; of no effect here, where schemas have none.",
    importance=Importance.MEDIUM,
)


class FieldTransformation(Transformation):
    """A transformation of the key or of the value; :class:`OfKey` and :class:`OfValue` decide."""

    @abstractmethod
    def schema_of(self, record: SourceRecord) -> Schema | None: ...

    @abstractmethod
    def value_of(self, record: SourceRecord) -> Any: ...

    @abstractmethod
    def changed(self, record: SourceRecord, schema: Schema | None, value: Any) -> SourceRecord:
        """The record with another schema and value on this side."""


class OfKey(FieldTransformation):
    def schema_of(self, record: SourceRecord) -> Schema | None:
        return record.key_schema

    def value_of(self, record: SourceRecord) -> Any:
        return record.key

    def changed(self, record: SourceRecord, schema: Schema | None, value: Any) -> SourceRecord:
        return replace(record, key_schema=schema, key=value)


class OfValue(FieldTransformation):
    def schema_of(self, record: SourceRecord) -> Schema | None:
        return record.value_schema

    def value_of(self, record: SourceRecord) -> Any:
        return record.value

    def changed(self, record: SourceRecord, schema: Schema | None, value: Any) -> SourceRecord:
        return replace(record, value_schema=schema, value=value)


def require_fields(schema: Schema | None, value: Any, purpose: str) -> Mapping[str, Any]:
    """The value as fields.

    Raises:
        DataError: It has none, in the words of Java's ``Requirements``.
    """
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
    """The schema of a struct's field; None where there is no schema, or no such field."""
    return None if schema is None else dict(schema.fields).get(name)


class FieldPath:
    """Where a field stands (``SingleFieldPath``, KIP-821): its name in syntax V1, in V2 the steps between dots.

    Raises:
        ConfigError: A backtick is not closed.
    """

    def __init__(self, text: str, *, nested: bool) -> None:
        self.text = text
        self._steps = _steps(text) if nested else [text]

    def schema_in(self, schema: Schema) -> Schema | None:
        """The field's schema, None where a struct has no such field."""
        current: Schema | None = schema
        for step in self._steps:
            current = field_schema(current, step)
        return current

    def value_in(self, schema: Schema | None, fields: Mapping[str, Any]) -> Any:
        """The field's value, None where it is not there.

        Raises:
            DataError: What a step leads to has no fields.
        """
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
    """The step in the backticks at ``start``, and where the next begins; only one before a dot or the end closes."""
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


@dataclass(frozen=True, slots=True)
class NonEmptyList:
    """At least one element (``NonEmptyListValidator``)."""

    def __call__(self, name: str, value: Value) -> None:
        if not value:
            raise invalid(name, value, "Empty list")

    def __str__(self) -> str:
        return "non-empty list"


@dataclass(frozen=True, slots=True)
class JavaRegex:
    """A Java regular expression (``RegexValidator``), not empty where ``required``."""

    required: bool = False

    def __call__(self, name: str, value: Value) -> None:
        if value == "" and self.required:
            raise invalid(name, value, "String must be non-empty")
        try:
            compile_java(value if isinstance(value, str) else "")
        except UnsupportedRegex as error:
            raise invalid(name, value, f"Invalid regex: {error}") from None

    def __str__(self) -> str:
        return "non-empty string, valid regex" if self.required else "valid regex"
