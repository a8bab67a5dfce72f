"""TimestampConverter: timestamps as text, numbers and Connect's types of dates."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from connect.api.connector import Props
from connect.api.convert import DataError
from connect.api.source import STRING, Schema, SourceRecord
from connect.core.config import REQUIRED, ConfigDef, Importance, OneOf, Setting, Type
from connect.core.errors import ConfigError
from connect.plugins.java_values import DATE, EPOCH, TIME, TIMESTAMP, date_of, java_class, milliseconds
from connect.plugins.simple_date_format import BadPattern, NoDate, SimpleDateFormat
from connect.plugins.transforms.fields import (
    REPLACE_NULL_WITH_DEFAULT,
    FieldTransformation,
    OfKey,
    OfValue,
    require_fields,
)

_TARGETS: Final = {
    "string": STRING,
    "unix": Schema("int64"),
    "Date": DATE,
    "Time": TIME,
    "Timestamp": TIMESTAMP,
}
_NS_PER_MS: Final = 1_000_000
#: Nanoseconds of one.
_PRECISIONS: Final = {"nanoseconds": 1, "microseconds": 1000, "milliseconds": _NS_PER_MS, "seconds": 1_000_000_000}
_DAY: Final = timedelta(days=1)
_LONG: Final = 1 << 63


class TimestampConverter(FieldTransformation):
    """``org.apache.kafka.connect.transforms.TimestampConverter``; dates are ``datetime`` in UTC."""

    def __init__(self) -> None:
        self._field = ""
        self._target = "Timestamp"
        self._format: SimpleDateFormat | None = None
        self._unit_ns = _NS_PER_MS

    @classmethod
    def config_def(cls) -> ConfigDef:
        return ConfigDef.of(
            Setting(
                "field",
                Type.STRING,
                "",
                "Field of the timestamp; empty: the whole is one.",
                importance=Importance.HIGH,
            ),
            Setting(
                "target.type",
                Type.STRING,
                REQUIRED,
                "What timestamps become.",
                OneOf(tuple(_TARGETS)),
                Importance.HIGH,
            ),
            Setting(
                "format",
                Type.STRING,
                "",
                "Form of text, as of java.text.SimpleDateFormat.",
                importance=Importance.MEDIUM,
            ),
            Setting(
                "unix.precision",
                Type.STRING,
                "milliseconds",
                "What numbers since 1970 count; parts of milliseconds are lost.",
                OneOf(tuple(_PRECISIONS)),
            ),
            REPLACE_NULL_WITH_DEFAULT,
        )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._field, self._target = values.string("field"), values.string("target.type")
        self._unit_ns = _PRECISIONS[values.string("unix.precision")]
        pattern = values.string("format")
        if self._target == "string" and not pattern.strip():
            raise ConfigError("TimestampConverter requires format option to be specified when using string timestamps")
        try:
            self._format = SimpleDateFormat(pattern) if pattern.strip() else None
        except BadPattern as error:
            raise ConfigError(
                "TimestampConverter requires a SimpleDateFormat-compatible pattern for string timestamps: "
                f"{pattern} ({error})",
                "format",
            ) from None

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if not self._field:
            new_schema = None if schema is None else replace(_TARGETS[self._target], optional=schema.optional)
            return self.changed(record, new_schema, self._converted(value, schema))
        if value is None:
            return self.changed(record, schema and self._with_field(schema), None)
        updated = dict(require_fields(schema, value, "converting timestamp formats"))
        of_field = None if schema is None else dict(schema.fields).get(self._field)
        if schema is None or of_field is not None:
            updated[self._field] = self._converted(updated.get(self._field), of_field)
        return self.changed(record, schema and self._with_field(schema), updated)

    def _with_field(self, schema: Schema) -> Schema:
        target = _TARGETS[self._target]
        return replace(
            schema,
            fields=tuple(
                (name, replace(target, optional=each.optional) if name == self._field else each)
                for name, each in schema.fields
            ),
        )

    def _converted(self, value: Any, schema: Schema | None) -> Any:
        return None if value is None else self._written(self._read(value, _kind(value, schema)))

    def _read(self, value: Any, kind: str) -> datetime:
        if kind == "string":
            return self._parsed(value)
        if kind == "unix":
            if not isinstance(value, int) or isinstance(value, bool):
                raise DataError(f"Expected Unix timestamp to be a Long, but found class {java_class(value)}")
            return date_of(_towards_zero(value * self._unit_ns, _NS_PER_MS))
        if not isinstance(value, datetime):
            raise DataError(f"Expected {kind} to be a java.util.Date, but found class {java_class(value)}")
        return value

    def _parsed(self, value: Any) -> datetime:
        if not isinstance(value, str):
            raise DataError(f"Expected string timestamp to be a String, but found class {java_class(value)}")
        if self._format is None:
            raise DataError(f"Could not parse timestamp: value ({value}): the transformation has no format")
        try:
            return self._format.parse(value)
        except NoDate as error:
            raise DataError(
                f"Could not parse timestamp: value ({value}) does not match pattern ({self._format.pattern})"
            ) from error

    def _written(self, date: datetime) -> str | int | datetime:
        match self._target:
            case "string":
                assert self._format is not None  # configure has seen to it
                return self._format.format(date)
            case "unix":
                # Java stays at the limits of a long.
                number = _towards_zero(milliseconds(date) * _NS_PER_MS, self._unit_ns)
                return min(max(number, -_LONG), _LONG - 1)
            case "Date":
                return date.replace(hour=0, minute=0, second=0, microsecond=0)
            case "Time":
                return EPOCH + (date - EPOCH) % _DAY
            case _:
                return date


class TimestampConverterKey(OfKey, TimestampConverter):
    """``org.apache.kafka.connect.transforms.TimestampConverter$Key``."""


class TimestampConverterValue(OfValue, TimestampConverter):
    """``org.apache.kafka.connect.transforms.TimestampConverter$Value``."""


def _kind(value: Any, schema: Schema | None) -> str:
    """What a timestamp is: by its schema, else by itself."""
    if schema is not None:
        for name in ("Timestamp", "Date", "Time"):
            if schema.name == _TARGETS[name].name:
                return name
        kind = {"string": "string", "int64": "unix"}.get(schema.type)
        if kind is None:
            raise DataError(
                f"Schema Schema{{{schema.type.upper()}}} does not correspond to a known timestamp type format"
            )
        return kind
    if isinstance(value, datetime):
        return "Timestamp"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int) and not isinstance(value, bool):
        return "unix"
    raise DataError(f"TimestampConverter does not support class {java_class(value)} objects as timestamps")


def _towards_zero(number: int, unit: int) -> int:
    """``TimeUnit``'s division."""
    return number // unit if number >= 0 else -(-number // unit)
