"""Represents values as Java does: class names, inferred types, and texts.

A Python int represents Java's four integers and counts as a Long; a float is a Double; a ``datetime`` in UTC is a
``java.util.Date``, a ``Decimal`` a ``BigDecimal``.

Texts are parsed as by Kafka's ``Values.parseString``, for headers in SimpleHeaderConverter and the literal of
InsertHeader: ``null``, booleans, numbers in the smallest type that holds them, dates, times, lists and maps; any other
text is a string.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from connect.api.convert import DataError
from connect.api.source import STRING, Schema
from connect.core.jackson import float32_text, float64_text, to_float32
from connect.plugins.simple_date_format import NoDate, SimpleDateFormat

_DATA: Final = "org.apache.kafka.connect.data."
DATE: Final = Schema("int32", name=_DATA + "Date", version=1)
TIME: Final = Schema("int32", name=_DATA + "Time", version=1)
TIMESTAMP: Final = Schema("int64", name=_DATA + "Timestamp", version=1)
DECIMAL_NAME: Final = _DATA + "Decimal"

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS: Final = 86_400_000

#: Python type, Java's class, and Connect's type if there is one. bool is before int, because it is a subclass.
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
    """Return the name of the Java class of such a value; the name of its Python class if there is none."""
    if value is None:
        return "null"
    return next((java for types, java, _ in _TYPES if isinstance(value, types)), type(value).__qualname__)


def inferred_type(value: object) -> str | None:
    """Return Connect's type of a value without a schema (``ConnectSchema.schemaType``); None if there is none."""
    return next((connect for types, _, connect in _TYPES if isinstance(value, types)), None)


def milliseconds(value: datetime) -> int:
    """Return the milliseconds since 1970."""
    return (value - EPOCH) // timedelta(milliseconds=1)


def date_of(milliseconds: int) -> datetime:
    """Return the date for milliseconds since 1970. Raises DataError if the date is outside the years 1 to 9999."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise DataError(f"{milliseconds} ms since 1970 is outside the years 1 to 9999") from None


def logical_number(value: datetime, schema: Schema) -> int:
    """Return the stored number for a date of a logical type (``fromLogical`` of Connect's types). Raises DataError if a
    Date has a time of day, or a Time has a date."""
    since_1970 = milliseconds(value)
    if schema.name == DATE.name:
        if since_1970 % DAY_MS:
            raise DataError("Kafka Connect Date type should not have any time fields set to non-zero values.")
        return since_1970 // DAY_MS
    if schema.name == TIME.name and not 0 <= since_1970 <= DAY_MS:
        raise DataError("Kafka Connect Time type should not have any date fields set to non-zero values.")
    return since_1970


def number_text(value: int | float | Decimal, schema: Schema | None = None) -> str:
    """Return the ``toString`` of a number."""
    if isinstance(value, float):
        return float32_text(value) if schema is not None and schema.type == "float32" else float64_text(value)
    return str(value)


def values_text(value: Any, schema: Schema | None = None, *, embedded: bool = False) -> str:
    """Return the text of a header (``Values.convertToString``); strings ``embedded`` in a list or map are quoted.
    Raises DataError if the value has no text."""
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
    """Format a date as ``Values.dateFormatFor``: as a time, a date or both, depending on its value."""
    since_1970 = milliseconds(value)
    if since_1970 < DAY_MS:
        return _TIME_FORMAT.format(value)
    return (_TIMESTAMP_FORMAT if since_1970 % DAY_MS else _DATE_FORMAT).format(value)


def to_string(value: Any, schema: Schema | None = None) -> str:
    """Return ``value.toString()`` in Java. Raises DataError if Java's text does not contain the value, as for bytes."""
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
            # Struct.toString omits null fields.
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
            raise DataError(f"A value of class {java_class(value)} cannot be converted to text; use another converter")


def _schema_in(schema: Schema | None, name: Any) -> Schema | None:
    """Return the schema of the value of a map or struct under ``name``."""
    if schema is None:
        return None
    return dict(schema.fields).get(name) if schema.type == "struct" else schema.values


#: A schema and a value; both None for null.
Parsed = tuple[Schema | None, Any]

_NULL: Final[Parsed] = (None, None)
_DELIMITERS: Final = ':,{}[]"'
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGERS: Final = (("int8", 7), ("int16", 15), ("int32", 31), ("int64", 63))
_NUMBERS: Final = ("int8", "int16", "int32", "int64", "float32", "float64")
#: Date formats by the length of the text.
_TEMPORAL: Final = {10: (DATE, _DATE_FORMAT), 13: (TIME, _TIME_FORMAT), 24: (TIMESTAMP, _TIMESTAMP_FORMAT)}
#: Above this power of ten a number fits neither an int64 nor a float64.
_MOST_DIGITS: Final = 400
#: The limit for nested lists and maps; Java's is the depth of its stack.
_DEEPEST: Final = 100


class _NotParsed(Exception):
    """A text that begins like a list or a map is not a valid one."""


def parse_string(text: str) -> Parsed:
    return _ValueParser(text).value(0) if text else (STRING, text)


class _ValueParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> Parsed:
        """Parse the next value. At ``depth`` 0 it is the whole text, which is a string unless it is another value.
        Raises _NotParsed if a value in a list or a map is invalid."""
        embedded = depth > 0
        if embedded and self._consume('"'):
            return self._quoted()
        for literal, parsed in (
            ("null", _NULL),
            ("true", (Schema("boolean"), True)),
            ("false", (Schema("boolean"), False)),
        ):
            if self._literal(literal, embedded):
                return parsed
        start = self._at
        try:
            if depth >= _DEEPEST:
                raise _NotParsed
            if self._consume("["):
                return self._list(depth + 1)
            if self._consume("{"):
                return self._map(depth + 1)
        except _NotParsed:
            self._at = start
        token = self._token()
        if not token.strip():
            return STRING, token
        return self._scalar(token.strip(), embedded)

    def _scalar(self, token: str, embedded: bool) -> Parsed:
        if token[0].isdigit():
            temporal = self._temporal(token)
            if temporal is not None:
                return temporal
        if token[0].isdigit() or token[0] in "+-":
            number = _number(token)
            if number is not None:
                return number
        if embedded:
            raise _NotParsed
        return STRING, self._text

    def _temporal(self, token: str) -> Parsed | None:
        # Because colons are delimiters, an unquoted time is split into five tokens.
        start = self._at
        tokens = [self._token() for _ in range(4) if self._at < len(self._text)]
        whole = _temporal(token + "".join(tokens)) if len(tokens) == 4 else None
        if whole is None:
            self._at = start
        return whole or _temporal(token)

    def _quoted(self) -> Parsed:
        content = ""
        while self._at < len(self._text) and not self._consume('"', skip_blank=False):
            content += self._token()
        return _temporal(content) or (STRING, content)

    def _list(self, depth: int) -> Parsed:
        parsed: list[Parsed] = []
        while self._at < len(self._text):
            if self._consume("]"):
                common, values = _aligned(parsed)
                return Schema("array", values=common), values
            if self._consume(","):
                raise _NotParsed
            parsed.append(self.value(depth))
            if not self._is_next("]") and not self._consume(","):
                raise _NotParsed
        raise _NotParsed

    def _map(self, depth: int) -> Parsed:
        names: list[Parsed] = []
        parsed: list[Parsed] = []
        while self._at < len(self._text):
            if self._consume("}"):
                keys, aligned_names = _aligned(names)
                # Without a common type of the keys there is none of the values.
                common, values = _aligned(parsed) if keys is not None else (None, [value for _, value in parsed])
                return Schema("map", keys=keys, values=common), dict(zip(aligned_names, values, strict=True))
            if self._consume(","):
                raise _NotParsed
            schema, name = self.value(depth)
            if name is None or isinstance(name, list | dict) or not self._consume(":"):
                raise _NotParsed
            names.append((schema, name))
            parsed.append(self.value(depth))
            self._consume(",")
        raise _NotParsed

    def _literal(self, literal: str, embedded: bool) -> bool:
        """Consume the next token if it is ``literal`` and, unless embedded, the last; return whether it was."""
        start = self._at
        if self._consume(literal) and (embedded or self._at == len(self._text)):
            return True
        self._at = start
        return False

    def _consume(self, expected: str, *, skip_blank: bool = True) -> bool:
        """Consume the next token if it is ``expected``, ignoring blanks; return whether it was."""
        start = self._at
        token = self._token()
        while skip_blank and not token.strip() and self._at < len(self._text):
            token = self._token()
        if (token.strip() if skip_blank else token) == expected:
            return True
        self._at = start
        return False

    def _is_next(self, expected: str) -> bool:
        start = self._at
        found = self._consume(expected)
        self._at = start
        return found

    def _token(self) -> str:
        """Return the next delimiter, or the text before it; a backslash escapes a delimiter."""
        start = self._at
        escaped = False
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in _DELIMITERS and not escaped:
                if start == self._at:
                    self._at += 1
                break
            escaped = char == "\\" and not escaped
            self._at += 1
        return self._text[start : self._at]


def _number(token: str) -> Parsed | None:
    """Parse a number as the smallest type that holds it."""
    if _DECIMAL.fullmatch(token) is None:
        return None
    decimal = Decimal(token)
    scale = -int(decimal.as_tuple().exponent)
    if -_MOST_DIGITS <= decimal.adjusted() <= _MOST_DIGITS:
        if decimal == decimal.to_integral_value():
            for name, bits in _INTEGERS:
                if -(1 << bits) <= int(decimal) < 1 << bits:
                    return Schema(name), int(decimal)
        double = float(decimal)
        single = to_float32(double)
        if scale and abs(single) != float("inf"):
            return Schema("float32"), single
        if scale and abs(double) != float("inf"):
            return Schema("float64"), double
    return Schema("bytes", name=DECIMAL_NAME, version=1, parameters=(("scale", str(scale)),)), decimal


def _temporal(token: str) -> Parsed | None:
    unescaped = token.replace("\\:", ":")
    schema, form = _TEMPORAL.get(len(unescaped), (None, None))
    if form is None:
        return None
    try:
        return schema, form.parse(unescaped)
    except NoDate:
        return None


def _common(schemas: Sequence[Schema | None]) -> Schema | None:
    """Return the common schema, ignoring nulls, which is the widest one for numbers; None if there is none."""
    common: Schema | None = None
    for schema in schemas:
        if schema is None:
            continue
        if common is None or common.type == schema.type:
            common = schema
        elif common.type in _NUMBERS and schema.type in _NUMBERS:
            common = max(common, schema, key=lambda each: _NUMBERS.index(each.type))
        else:
            return None
    return common


def _aligned(parsed: Sequence[Parsed]) -> tuple[Schema | None, list[Any]]:
    """Return the common schema and the values, converted to it. Raises _NotParsed if a value is null, which the common
    type does not allow."""
    common, values = _common([schema for schema, _ in parsed]), [value for _, value in parsed]
    if common is None:
        return None, values
    if any(value is None for value in values):
        raise _NotParsed
    if common.type in ("float32", "float64"):
        values = [float(value) if isinstance(value, int | float) else value for value in values]
    return common, values
