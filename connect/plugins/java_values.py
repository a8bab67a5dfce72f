"""Values as Java sees them: the classes that its messages name, the types it infers, the texts it writes.

A Python int stands for Java's four integers and is taken as a Long; a float is a Double; a ``datetime`` in UTC is a
``java.util.Date``, a ``Decimal`` a ``BigDecimal``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from connect.api.convert import DataError
from connect.api.source import Schema
from connect.core.jackson import float32_text, float64_text
from connect.plugins.simple_date_format import SimpleDateFormat

_DATA: Final = "org.apache.kafka.connect.data."
DATE: Final = Schema("int32", name=_DATA + "Date", version=1)
TIME: Final = Schema("int32", name=_DATA + "Time", version=1)
TIMESTAMP: Final = Schema("int64", name=_DATA + "Timestamp", version=1)
DECIMAL_NAME: Final = _DATA + "Decimal"

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS: Final = 86_400_000

#: By Python type: Java's class, and Connect's type where there is one. bool stands before int, which it is too.
_TYPES: Final[tuple[tuple[type | tuple[type, ...], str, str | None], ...]] = (
    (bool, "java.lang.Boolean", "boolean"),
    (int, "java.lang.Long", "int64"),
    (float, "java.lang.Double", "float64"),
    (str, "java.lang.String", "string"),
    ((bytes, bytearray, memoryview), "[B", "bytes"),
    (Mapping, "java.util.HashMap", "map"),
    (datetime, "java.util.Date", None),
    (Decimal, "java.math.BigDecimal", None),
    (Sequence, "java.util.ArrayList", "array"),
)
_DATE_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd")
_TIME_FORMAT: Final = SimpleDateFormat("HH:mm:ss.SSS'Z'")
_TIMESTAMP_FORMAT: Final = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
_DATE_TO_STRING: Final = SimpleDateFormat("EEE MMM dd HH:mm:ss zzz y")


def java_class(value: object) -> str:
    """The name of the Java class that holds such a value; Python's own where there is none."""
    if value is None:
        return "null"
    return next((java for types, java, _ in _TYPES if isinstance(value, types)), type(value).__qualname__)


def inferred_type(value: object) -> str | None:
    """Connect's type of a value without a schema (``ConnectSchema.schemaType``); None where it has none."""
    return next((connect for types, _, connect in _TYPES if isinstance(value, types)), None)


def milliseconds(value: datetime) -> int:
    """Milliseconds since 1970."""
    return (value - EPOCH) // timedelta(milliseconds=1)


def date_of(milliseconds: int) -> datetime:
    """The date of milliseconds since 1970.

    Raises:
        DataError: It lies outside the years 1 to 9999.
    """
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise DataError(f"{milliseconds} ms since 1970 lies outside the years 1 to 9999") from None


def logical_number(value: datetime, schema: Schema) -> int:
    """The number that is stored for a date of a logical type (``fromLogical`` of Connect's types).

    Raises:
        DataError: A date has a time of day, or a time of day is none.
    """
    since_1970 = milliseconds(value)
    if schema.name == DATE.name:
        if since_1970 % DAY_MS:
            raise DataError("Kafka Connect Date type should not have any time fields set to non-zero values.")
        return since_1970 // DAY_MS
    if schema.name == TIME.name and not 0 <= since_1970 <= DAY_MS:
        raise DataError("Kafka Connect Time type should not have any date fields set to non-zero values.")
    return since_1970


def number_text(value: int | float | Decimal, schema: Schema | None = None) -> str:
    """A number as ``toString`` gives it."""
    if isinstance(value, float):
        return float32_text(value) if schema is not None and schema.type == "float32" else float64_text(value)
    return str(value)


def values_text(value: Any, schema: Schema | None = None, *, embedded: bool = False) -> str:
    """``Values.convertToString``: what a header says; ``embedded`` in a list or map, where strings are quoted.

    Raises:
        DataError: The value has no text.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return number_text(value, schema)
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if embedded else value
        case bytes() | bytearray() | memoryview():
            text = base64.b64encode(value).decode()
            return f'"{text}"' if embedded else text
        case datetime():
            return date_text(value)
        case Mapping():
            entries = (
                values_text(name, schema and schema.keys, embedded=True)
                + ":"
                + values_text(each, _schema_in(schema, name), embedded=True)
                for name, each in value.items()
            )
            return "{" + ",".join(entries) + "}"
        case Sequence():
            return "[" + ",".join(values_text(each, schema and schema.values, embedded=True) for each in value) + "]"
        case _:
            raise DataError(f"Failed to serialize unexpected value type {java_class(value)}: {value}")


def date_text(value: datetime) -> str:
    """A date in the form of ``Values.dateFormatFor``: time, date or both, by what it holds."""
    since_1970 = milliseconds(value)
    if since_1970 < DAY_MS:
        return _TIME_FORMAT.format(value)
    return (_TIMESTAMP_FORMAT if since_1970 % DAY_MS else _DATE_FORMAT).format(value)


def to_string(value: Any, schema: Schema | None = None) -> str:
    """``value.toString()`` in Java.

    Raises:
        DataError: Java's text says nothing of the value, as of bytes.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return number_text(value, schema)
        case str():
            return value
        case datetime():
            return _DATE_TO_STRING.format(value)
        case Mapping() if schema is not None and schema.type == "struct":
            # Struct.toString leaves out what is null.
            named = (
                f"{name}={to_string(value.get(name), each)}"
                for name, each in schema.fields
                if value.get(name) is not None
            )
            return "Struct{" + ",".join(named) + "}"
        case Mapping():
            entries = (
                f"{to_string(name, schema and schema.keys)}={to_string(each, schema and schema.values)}"
                for name, each in value.items()
            )
            return "{" + ", ".join(entries) + "}"
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return "[" + ", ".join(to_string(each, schema and schema.values) for each in value) + "]"
        case _:
            raise DataError(
                f"A value of class {java_class(value)} has no text of its own; use a converter that fits it"
            )


def _schema_in(schema: Schema | None, name: Any) -> Schema | None:
    """The schema of what a map or struct holds under ``name``."""
    if schema is None:
        return None
    return dict(schema.fields).get(name) if schema.type == "struct" else schema.values
