"""The transforms Cast and TimestampConverter.

* Cast converts fields, or the whole key or value, to another type.
* TimestampConverter converts timestamps between text, numbers and Connect's types of dates.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from connect.api.connector import Props
from connect.api.convert import DataError
from connect.api.source import STRING, Schema, SourceRecord
from connect.core.config.config_def import (
    REQUIRED,
    ConfigDef,
    Importance,
    InvalidValue,
    OneOf,
    Value,
    invalid,
    strings,
    text,
)
from connect.core.config.validation import valid
from connect.core.errors import ConfigError
from connect.core.jackson import to_float32
from connect.plugins import transform_fields
from connect.plugins.java_values import (
    DATE,
    EPOCH,
    TIME,
    TIMESTAMP,
    date_of,
    date_text,
    inferred_type,
    java_class,
    logical_number,
    milliseconds,
    to_string,
)
from connect.plugins.simple_date_format import BadPattern, NoDate, SimpleDateFormat

_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TO: Final = (*_BITS, "float32", "float64", "boolean", "string")
_FROM: Final = (*_TO, "bytes")
_ALL: Final = (*_FROM, "array", "map", "struct")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)[fFdD]?)", re.ASCII)


@valid("list of colon-delimited pairs, e.g. foo:bar,abc:xyz")
def _spec(name: str, value: Value) -> None:
    """Require a list of ``field:type`` pairs, or a single type."""
    if not isinstance(value, tuple) or not value:
        raise InvalidValue("Must specify at least one field to cast.")
    _casts(value)


def _casts(spec: Sequence[str]) -> dict[str | None, str]:
    """Parse the types by field; the key None is the whole value. Raises InvalidValue if the spec is invalid; Java's
    message."""
    casts: dict[str | None, str] = {}
    for each in spec:
        field, colon, type_ = each.partition(":")
        if ":" in type_:
            # Java's message names a setting of another transformation.
            raise invalid("spec", tuple(spec), f"Invalid rename mapping: {each}")
        named = (type_ if colon else field).strip().lower()
        if named not in _ALL:
            raise InvalidValue(f"Invalid type found in casting spec: {(type_ if colon else field).strip()}")
        if named not in _TO:
            raise InvalidValue(
                f"Cast transformation does not support casting to {named.upper()}; "
                f"supported types are [{', '.join(_TO).upper()}]"
            )
        casts[field.strip() if colon else None] = named
    if None in casts and len(spec) > 1:
        raise InvalidValue(
            "Cast transformations that specify a type to cast the entire value to may only specify a single cast in "
            "their spec"
        )
    return casts


class Cast(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.Cast``."""

    _casts: Mapping[str | None, str] = {}

    CONFIG_DEF = ConfigDef.of(
        strings(
            "spec",
            REQUIRED,
            "Fields and their types, field1:type,field2:type, or one type for the whole key or value; types are "
            + ", ".join(_TO)
            + ". Bytes can only be cast to strings.",
            Importance.HIGH,
            _spec,
        ),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
    )

    def configure(self, props: Props) -> None:
        self._casts = _casts(self.config_def().parse(props).strings("spec"))

    def apply(self, record: SourceRecord) -> SourceRecord:
        schema, value = self.schema_of(record), self.value_of(record)
        if value is None:
            return record
        whole = self._casts.get(None)
        if whole is not None:
            new_schema = None if schema is None else Schema(whole, optional=schema.optional)
            return self.changed(record, new_schema, cast(value, schema, whole))
        updated = dict(transform_fields.require_fields(schema, value, "cast types"))
        schemas = {} if schema is None else dict(schema.fields)
        for name, type_ in self._casts.items():
            if name is None or (schema is not None and name not in schemas):
                continue
            updated[name] = cast(updated.get(name), schemas.get(name), type_)
            if name in schemas:
                schemas[name] = Schema(type_, optional=schemas[name].optional)
        return self.changed(record, schema and replace(schema, fields=tuple(schemas.items())), updated)


CastKey, CastValue = transform_fields.of_key_and_value(Cast)


def cast(value: Any, schema: Schema | None, type_: str) -> Any:
    """Cast ``value`` to another type, with overflow and truncation as in Java's casts. Raises DataError if the value
    cannot be cast to this type."""
    if value is None:
        return None
    from_ = inferred_type(value) if schema is None else schema.type
    if from_ is None:
        raise DataError(
            f"Cast transformation was passed a value of type class {java_class(value)} which is not supported by "
            "Connect's data API"
        )
    if from_ not in _FROM:
        raise DataError(
            f"Cast transformation does not support casting from {from_.upper()}; "
            f"supported types are [{', '.join(_FROM).upper()}]"
        )
    if type_ == "string":
        return _string(value, schema)
    if isinstance(value, datetime):
        assert schema is not None  # without one it has no type
        value = logical_number(value, schema)
    if not isinstance(value, bool | int | float | str | Decimal):
        raise DataError(f"Unexpected type in Cast transformation: class {java_class(value)}")
    if type_ == "boolean":
        return value.lower() == "true" if isinstance(value, str) else _whole(value, 64) != 0
    if type_ in _BITS:
        return _parsed_integer(value, type_) if isinstance(value, str) else _integer(value, type_)
    real = _parsed_float(value) if isinstance(value, str) else float(value)
    return to_float32(real) if type_ == "float32" else real


def _string(value: Any, schema: Schema | None) -> str:
    if isinstance(value, datetime):
        return date_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return to_string(value, schema)


def _whole(value: float | Decimal, bits: int) -> int:
    """Truncate a number to an integer; a float is limited to the range of ``bits`` (``Double.intValue``)."""
    if isinstance(value, int | Decimal):
        return int(value)
    if math.isnan(value):
        return 0
    most = 1 << (bits - 1)
    return int(min(max(value, -most), most - 1)) if math.isfinite(value) else (most - 1 if value > 0 else -most)


def _integer(value: float | Decimal, type_: str) -> int:
    """Return the lowest bits of a number. As in Java, a float is cast to int before short or byte."""
    bits = _BITS[type_]
    wrapped = _whole(value, max(bits, 32)) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped


def _parsed_integer(value: str, type_: str) -> int:
    most = 1 << (_BITS[type_] - 1)
    if _INTEGER.fullmatch(value) is None or not -most <= int(value) < most:
        raise _out_of_range(value)
    return int(value)


def _parsed_float(value: str) -> float:
    # Double.parseDouble trims the text and accepts Java's suffixes.
    trimmed = value.strip()
    if _FLOAT.fullmatch(trimmed) is None:
        raise _out_of_range(value)
    return float(trimmed if trimmed.endswith(("Infinity", "NaN")) else trimmed.rstrip("fFdD"))


def _out_of_range(value: str) -> DataError:
    return DataError(f"Value ({value}) was out of range for requested data type")


_TARGETS: Final = {"string": STRING, "unix": Schema("int64"), "Date": DATE, "Time": TIME, "Timestamp": TIMESTAMP}
_NS_PER_MS: Final = 1_000_000
#: Nanoseconds per unit.
_PRECISIONS: Final = {"nanoseconds": 1, "microseconds": 1000, "milliseconds": _NS_PER_MS, "seconds": 1_000_000_000}
_DAY: Final = timedelta(days=1)
_LONG: Final = 1 << 63


class TimestampConverter(transform_fields.FieldTransformation):
    """``org.apache.kafka.connect.transforms.TimestampConverter``; dates are ``datetime`` in UTC."""

    _field = ""
    _target = "Timestamp"
    _format: SimpleDateFormat | None = None
    _unit_ns = _NS_PER_MS

    CONFIG_DEF = ConfigDef.of(
        text("field", "", "Field with the timestamp; empty: the whole key or value.", Importance.HIGH),
        text("target.type", REQUIRED, "Type of converted timestamps.", Importance.HIGH, OneOf(tuple(_TARGETS))),
        text("format", "", "Format of timestamps as text, as in java.text.SimpleDateFormat.", Importance.MEDIUM),
        text(
            "unix.precision",
            "milliseconds",
            "Unit of numeric timestamps since 1970; fractions of milliseconds are lost.",
            check=OneOf(tuple(_PRECISIONS)),
        ),
        transform_fields.REPLACE_NULL_WITH_DEFAULT,
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
        updated = dict(transform_fields.require_fields(schema, value, "converting timestamp formats"))
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
                assert self._format is not None  # because configure requires it
                return self._format.format(date)
            case "unix":
                # As in Java, the result is limited to the range of a long.
                number = _towards_zero(milliseconds(date) * _NS_PER_MS, self._unit_ns)
                return min(max(number, -_LONG), _LONG - 1)
            case "Date":
                return date.replace(hour=0, minute=0, second=0, microsecond=0)
            case "Time":
                return EPOCH + (date - EPOCH) % _DAY
            case _:
                return date


TimestampConverterKey, TimestampConverterValue = transform_fields.of_key_and_value(TimestampConverter)


def _kind(value: Any, schema: Schema | None) -> str:
    """Return the type of a timestamp from its schema, else from its value."""
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
    """Divide like ``TimeUnit``."""
    return number // unit if number >= 0 else -(-number // unit)
