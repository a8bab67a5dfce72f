"""The converters of bytes, strings, numbers and booleans, which also convert headers, and SimpleHeaderConverter.

SimpleHeaderConverter, Kafka's default header converter, stores headers as text.
"""

from __future__ import annotations

import codecs
import struct
from typing import Any, ClassVar, Final

from connect.api.connector import Props
from connect.api.convert import Converter, DataError, HeaderConverter
from connect.api.source import Schema
from connect.core.config.config_def import REQUIRED, ConfigDef, Importance, OneOf, Setting, Type, Width, text
from connect.core.errors import ConfigError
from connect.plugins.java_values import java_class, to_string, values_text

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
        Setting(
            "converter.encoding",
            Type.STRING,
            "UTF-8",
            "Character set in which strings are encoded.",
            importance=Importance.HIGH,
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
        # As in Java, a question mark replaces characters that the character set lacks.
        data = to_string(value, schema).encode(self._ordered(), errors="replace")
        # Java writes a byte order mark in UTF-16, but not in UTF-32.
        return codecs.BOM_UTF16_BE + data if data and self._encoding == "utf-16" else data

    def _ordered(self) -> str:
        """Return the character set without byte order marks, independent of this machine's byte order."""
        return f"{self._encoding}-be" if self._encoding in _MARKED else self._encoding


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
