"""Kafka's converters: of bytes, strings, numbers, booleans and headers, and JsonConverter.

* SimpleHeaderConverter, the default header converter, stores headers as text. The others convert headers too.
* JsonConverter (Java's ``org.apache.kafka.connect.json.JsonConverter``) writes values as JSON with or without schemas.
  Schemas are written as in ``JsonSchema``, without documentation and defaults. Connect's ``Decimal``
  (``org.apache.kafka.connect.data.Decimal``) is an integer with its scale in the schema.
"""

from __future__ import annotations

import base64
import codecs
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

from connect.api.connector import Props
from connect.api.convert import Converter, DataError, HeaderConverter
from connect.api.source import Schema
from connect.core.config.config_def import REQUIRED, ConfigDef, Importance, OneOf, Width, flag, integer, text
from connect.core.errors import ConfigError
from connect.core.jackson import float32_text, json_text, string_text, to_float32
from connect.plugins.java_values import (
    DATE,
    DECIMAL_NAME,
    TIME,
    TIMESTAMP,
    inferred_type,
    java_class,
    logical_number,
    to_string,
    values_text,
)

#: Configs of every converter (Kafka's ``ConverterConfig``), which the worker sets.
CONVERTER: Final = ConfigDef.of(
    text("converter.type", REQUIRED, "How this converter is used.", check=OneOf(("key", "value", "header")))
)


class ConverterOfBoth(Converter, HeaderConverter):
    """A converter that treats keys, values and headers alike."""

    CONFIG_DEF = CONVERTER

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return self.from_connect(topic, schema, value)


#: Character sets with a byte order mark. Without a mark the order is big endian, as in Java.
_MARKED: Final = ("utf-16", "utf-32")


class ByteArrayConverter(ConverterOfBoth):
    """``org.apache.kafka.connect.converters.ByteArrayConverter``: leaves bytes unchanged."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        _require_type("ByteArrayConverter", "bytes", schema)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise DataError(f"ByteArrayConverter is not compatible with objects of type class {java_class(value)}")


class StringConverter(ConverterOfBoth):
    """``org.apache.kafka.connect.storage.StringConverter``: the ``toString`` of a value."""

    _encoding = "utf-8"

    CONFIG_DEF = CONVERTER | ConfigDef.of(
        replace(
            text("converter.encoding", "UTF-8", "Character set in which strings are encoded.", Importance.HIGH),
            width=Width.MEDIUM,
            display_name="Encoding",
        )
    )

    def configure(self, props: Props) -> None:
        name = self.config_def().parse(props).string("converter.encoding")
        try:
            self._encoding = codecs.lookup(name).name
        except LookupError:
            raise ConfigError(
                f"converter.encoding {name} is an unknown character set; it can be UTF-8", "converter.encoding"
            ) from None

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        # Without byte order marks, and independent of this machine's byte order.
        encoding = f"{self._encoding}-be" if self._encoding in _MARKED else self._encoding
        # As in Java, a question mark replaces characters that the character set lacks.
        data = to_string(value, schema).encode(encoding, errors="replace")
        # Java writes a byte order mark in UTF-16, but not in UTF-32.
        return codecs.BOM_UTF16_BE + data if data and self._encoding == "utf-16" else data


class _NumberConverter(ConverterOfBoth):
    """A converter of one type of numbers, big endian."""

    #: The type of values, its name in messages, and the format of ``struct``.
    _python: ClassVar[type]
    _name: ClassVar[str]
    _format: ClassVar[str]

    def configure(self, props: Props) -> None:
        self.config_def().parse(props)

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, self._python) or isinstance(value, bool):  # True is an int, and no number
            raise DataError(f"Failed to serialize to {self._name} (was class {java_class(value)}): ")
        try:
            return struct.pack(self._format, value)
        except (struct.error, OverflowError) as error:
            raise DataError(f"Failed to serialize to {self._name}: {value} is out of its range") from error


class ShortConverter(_NumberConverter):
    """``org.apache.kafka.connect.converters.ShortConverter``."""

    _python, _name, _format = int, "short", ">h"


class IntegerConverter(_NumberConverter):
    """``org.apache.kafka.connect.converters.IntegerConverter``."""

    _python, _name, _format = int, "integer", ">i"


class LongConverter(_NumberConverter):
    """``org.apache.kafka.connect.converters.LongConverter``."""

    _python, _name, _format = int, "long", ">q"


class FloatConverter(_NumberConverter):
    """``org.apache.kafka.connect.converters.FloatConverter``."""

    _python, _name, _format = float, "float", ">f"


class DoubleConverter(_NumberConverter):
    """``org.apache.kafka.connect.converters.DoubleConverter``."""

    _python, _name, _format = float, "double", ">d"


class BooleanConverter(ConverterOfBoth):
    """``org.apache.kafka.connect.converters.BooleanConverter``: one byte, 0 or 1."""

    def configure(self, props: Props) -> None:
        self.config_def().parse(props)

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        _require_type("BooleanConverter", "boolean", schema)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise DataError(f"BooleanConverter is not compatible with objects of type class {java_class(value)}")
        return b"\x01" if value else b"\x00"


def _require_type(converter: str, type_: str, schema: Schema | None) -> None:
    if schema is not None and schema.type != type_:
        raise DataError(f"Invalid schema type for {converter}: {schema.type.upper()}")


class SimpleHeaderConverter(HeaderConverter):
    """``org.apache.kafka.connect.storage.SimpleHeaderConverter``; it has no settings."""

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else values_text(value, schema).encode(errors="replace")


#: Types by Connect's name and by the name in JSON.
_TYPES: Final = {
    **{name: name for name in ("boolean", "int8", "int16", "int32", "int64", "string", "bytes")},
    "float32": "float",
    "float64": "double",
    "array": "array",
    "map": "map",
    "struct": "struct",
}


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Return the schema as a JSON object, with keys in Java's order. Raises DataError if the type is unknown."""
    if schema.type not in _TYPES:
        raise DataError(f"Couldn't translate unsupported schema type Schema{{{schema.type}}}.")
    made: dict[str, Any] = {"type": _TYPES[schema.type]}
    match schema.type:
        case "array":
            made["items"] = _optional(schema.values)
        case "map":
            made["keys"] = _optional(schema.keys)
            made["values"] = _optional(schema.values)
        case "struct":
            made["fields"] = [{**schema_to_json(each), "field": name} for name, each in schema.fields]
    made["optional"] = schema.optional
    if schema.name is not None:
        made["name"] = schema.name
    if schema.version is not None:
        made["version"] = schema.version
    if schema.parameters:
        made["parameters"] = dict(schema.parameters)
    return made


def _optional(schema: Schema | None) -> dict[str, Any] | None:
    # A list of values without a common schema has no element schema.
    return None if schema is None else schema_to_json(schema)


#: Python converts no longer text to an integer, and a short text such as 1E+999999999 would fill the memory.
_MOST_DIGITS: Final = 4300


def bytes_of_decimal(schema: Schema, value: Decimal) -> bytes:
    """Encode the unscaled value as big endian two's complement (``Decimal.fromLogical``). Java rejects a value with
    another scale than its schema's. Arithmetic in Python changes scales (``Decimal("1E+3")``), so here a value is
    written at the schema's scale if no digit is lost. Raises DataError if a digit would be lost, or the schema has no
    scale."""
    scale = _scale(schema)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _no_number(value)
    text = "".join(map(str, digits)).lstrip("0")
    missing = scale + exponent
    if text and len(text) + missing > _MOST_DIGITS:
        raise DataError(f"Decimal value has {len(text) + missing} digits at scale {scale}, which is too many")
    if missing < 0:
        text, lost = text[:missing], text[missing:]
        if lost.strip("0"):
            raise DataError(
                "Decimal value has mismatching scale for given Decimal schema. "
                f"Schema has scale {scale}, value has scale {-exponent}."
            )
    elif text:
        text += "0" * missing
    unscaled = int(text or "0") * (-1 if sign else 1)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def number_of_decimal(value: Decimal) -> str:
    """Format a decimal as a JSON number with its own scale: as in Java, the schema's scale is ignored. Raises DataError
    if the value is infinite or NaN, which JSON does not have."""
    if not value.is_finite():
        raise _no_number(value)
    return str(value)


def _scale(schema: Schema) -> int:
    scale = dict(schema.parameters).get("scale", "")
    if not scale.removeprefix("-").isdecimal():
        raise DataError("Invalid Decimal schema: the parameter scale is missing or not an integer")
    return int(scale)


def _no_number(value: Decimal) -> DataError:
    return DataError(f"{value} is not a decimal number")


_LOGICAL: Final = (DATE.name, TIME.name, TIMESTAMP.name, DECIMAL_NAME)
_WHOLE: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class JsonConverter(ConverterOfBoth):
    """``org.apache.kafka.connect.json.JsonConverter``. Arrays, maps and structs are lists and dicts, which keep their
    order."""

    def __init__(self) -> None:
        self._schemas = True
        self._numeric_decimals = False

    CONFIG_DEF = CONVERTER | ConfigDef.of(
        flag("schemas.enable", True, "Write each value together with its schema.", Importance.HIGH).under(
            "Schemas", 0, "Enable Schemas"
        ),
        integer("schemas.cache.size", 1000, "Size of Java's cache of schemas. No effect here.", Importance.HIGH).under(
            "Schemas", 1, "Schema Cache Size"
        ),
        text(
            "schema.content",
            None,
            "Schema of the values that sinks read. No effect here, because there are no sinks.",
            Importance.HIGH,
        ).under("Schemas", 2, "Schema Content"),
        text(
            "decimal.format",
            "BASE64",
            "Format of serialized decimals: BASE64 or NUMERIC.",
            check=OneOf(("BASE64", "NUMERIC"), any_case=True),
        ).under("Serialization", 0, "Decimal Format"),
        flag(
            "replace.null.with.default",
            True,
            "Replace null by the schema's default. No effect here, because schemas have no defaults.",
        ).under("Serialization", 1, "Replace null with default"),
    )

    def configure(self, props: Props) -> None:
        values = self.config_def().parse(props)
        self._schemas = values.boolean("schemas.enable")
        self._numeric_decimals = values.string("decimal.format").upper() == "NUMERIC"

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if schema is None and value is None:
            return None
        text = self._text(schema, value)
        if self._schemas:
            said = "null" if schema is None else json_text(schema_to_json(schema))
            text = f'{{"schema":{said},"payload":{text}}}'
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                "Converting Kafka Connect data to byte[] failed due to serialization error: "
                f"half of a surrogate pair at character {error.start}"
            ) from None

    def _text(self, schema: Schema | None, value: Any) -> str:
        """Return ``value`` as JSON. Raises DataError if the value is null although it is required, or is not of its
        schema's type."""
        if value is None:
            if schema is None or schema.optional:
                return "null"
            raise DataError("Conversion error: null value for field that is required and has no default value")
        if schema is not None and schema.name in _LOGICAL:
            return self._logical(schema, value)
        type_ = inferred_type(value) if schema is None else schema.type
        if type_ is None:
            raise DataError(f"Java class class {java_class(value)} does not have corresponding schema type.")
        match type_, value:
            case "array", Sequence() if not isinstance(value, str | bytes):
                return "[" + ",".join(self._text(schema and schema.values, each) for each in value) + "]"
            case "map", Mapping():
                return self._map(schema, value)
            case "struct", Mapping() if schema is not None:
                return "{" + ",".join(self._field(name, each, value) for name, each in schema.fields) + "}"
            case "bytes", bytes() | bytearray() | memoryview():
                return string_text(base64.b64encode(value).decode())
            case "float32", float():
                if math.isinf(to_float32(value)) and math.isfinite(value):
                    raise _out_of_range(type_, value)
                text = float32_text(value)
                return string_text(text) if text[-1].isalpha() else text
            case ("string", str()) | ("boolean", bool()) | ("float64", float()):
                return json_text(value)
            case "int8" | "int16" | "int32" | "int64", int() if not isinstance(value, bool):
                border = 1 << _WHOLE[type_] - 1
                if not -border <= value < border:
                    raise _out_of_range(type_, value)
                return str(value)
            case _:
                raise DataError(f"Invalid type for {type_.upper()}: class {java_class(value)}")

    def _field(self, name: str, schema: Schema, struct: Mapping[Any, Any]) -> str:
        try:
            return f"{string_text(name)}:{self._text(schema, struct.get(name))}"
        except DataError as error:
            raise DataError(f"Field {name}: {error}") from None

    def _map(self, schema: Schema | None, value: Mapping[Any, Any]) -> str:
        """Return an object if the keys are strings, else a list of pairs."""
        keys, values = (None, None) if schema is None else (schema.keys, schema.values)
        named = all(isinstance(name, str) for name in value) if keys is None else keys.type == "string"
        if named:
            return "{" + ",".join(f"{self._text(keys, k)}:{self._text(values, v)}" for k, v in value.items()) + "}"
        return "[" + ",".join(f"[{self._text(keys, k)},{self._text(values, v)}]" for k, v in value.items()) + "]"

    def _logical(self, schema: Schema, value: Any) -> str:
        kind = (schema.name or "").rpartition(".")[2]
        if kind == "Decimal":
            if not isinstance(value, Decimal):
                raise DataError(f"Invalid type for Decimal, expected BigDecimal but was class {java_class(value)}")
            if self._numeric_decimals:
                return number_of_decimal(value)
            return string_text(base64.b64encode(bytes_of_decimal(schema, value)).decode())
        if not isinstance(value, datetime):
            raise DataError(f"Invalid type for {kind}, expected Date but was class {java_class(value)}")
        return str(logical_number(value, schema))


def _out_of_range(type_: str, value: float) -> DataError:
    return DataError(f"Invalid value for {type_.upper()}: {value} is out of its range")
