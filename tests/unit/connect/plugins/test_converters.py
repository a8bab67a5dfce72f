"""Converters of single values, against the vectors of Java's own tests."""

from __future__ import annotations

from datetime import UTC, datetime
from signal import SIGINT
from typing import Any

import pytest

from connect.api.convert import DataError
from connect.api.source import BYTES, OPTIONAL_BYTES, OPTIONAL_STRING, STRING, Schema
from connect.core.errors import ConfigError
from connect.plugins.converters import (
    BooleanConverter,
    ByteArrayConverter,
    ConverterOfBoth,
    DoubleConverter,
    FloatConverter,
    IntegerConverter,
    LongConverter,
    ShortConverter,
    StringConverter,
)

NUMBERS: list[tuple[type[ConverterOfBoth], str, Any, bytes]] = [
    (ShortConverter, "int16", -2, b"\xff\xfe"),
    (IntegerConverter, "int32", 1, b"\0\0\0\1"),
    (LongConverter, "int64", -(2**63), b"\x80" + bytes(7)),
    (FloatConverter, "float32", 1.5, b"\x3f\xc0\0\0"),
    (DoubleConverter, "float64", -2.0, b"\xc0" + bytes(7)),
    (IntegerConverter, "int32", SIGINT, b"\0\0\0\2"),  # of a class below int
]


@pytest.mark.parametrize(("kind", "type_", "value", "data"), NUMBERS)
def test_numbers_are_big_endian(kind: type[ConverterOfBoth], type_: str, value: Any, data: bytes) -> None:
    converter = kind()
    converter.configure({"converter.type": "value"})
    assert converter.from_connect("t", Schema(type_), value) == data
    assert converter.from_connect_header("t", "h", None, value) == data
    assert converter.from_connect("t", None, None) is None


@pytest.mark.parametrize("kind", [each[0] for each in NUMBERS])
def test_numbers_of_another_type_are_refused(kind: type[ConverterOfBoth]) -> None:
    for wrong in ("text", True, b"\0"):
        with pytest.raises(DataError, match=r"^Failed to serialize to \w+ \(was class java.lang.String|Boolean|\[B\)"):
            kind().from_connect("t", None, wrong)


def test_numbers_beyond_their_type_are_refused() -> None:
    for converter, value in ((ShortConverter(), 2**15), (IntegerConverter(), -(2**31) - 1), (FloatConverter(), 1e300)):
        with pytest.raises(DataError, match="out of its range"):
            converter.from_connect("t", None, value)


def test_bytes_pass_as_they_are() -> None:
    converter = ByteArrayConverter()
    assert converter.from_connect("t", BYTES, b"\0\xff") == b"\0\xff"
    assert converter.from_connect("t", None, memoryview(b"ab")) == b"ab"
    assert converter.from_connect("t", OPTIONAL_BYTES, None) is None
    with pytest.raises(DataError, match=r"^Invalid schema type for ByteArrayConverter: STRING$"):
        converter.from_connect("t", STRING, b"x")
    with pytest.raises(DataError, match=r"not compatible with objects of type class java\.lang\.String$"):
        converter.from_connect("t", BYTES, "x")


@pytest.mark.parametrize(
    ("value", "schema", "text"),
    [
        ("héllo", None, "héllo"),
        (True, None, "true"),
        (42, None, "42"),
        (0.1, None, "0.1"),
        (0.10000000149011612, Schema("float32"), "0.1"),
        (1e10, None, "1.0E10"),
        ([1, "a", None], None, "[1, a, null]"),
        ({"a": 1, "b": [True]}, None, "{a=1, b=[true]}"),
        ({"a": 1, "b": None}, Schema("struct", fields=(("a", Schema("int8")), ("b", OPTIONAL_STRING))), "Struct{a=1}"),
        (datetime(2020, 2, 29, 13, 5, 6, tzinfo=UTC), None, "Sat Feb 29 13:05:06 UTC 2020"),
    ],
)
def test_strings_are_what_to_string_says(value: Any, schema: Schema | None, text: str) -> None:
    assert StringConverter().from_connect("t", schema, value) == text.encode()


def test_strings_in_another_character_set() -> None:
    converter = StringConverter()
    converter.configure({"converter.type": "key", "converter.encoding": "ISO-8859-1"})
    assert converter.from_connect("t", STRING, "é€") == b"\xe9?"
    with pytest.raises(ConfigError, match=r"converter\.encoding nonsense is an unknown character set"):
        converter.configure({"converter.type": "key", "converter.encoding": "nonsense"})


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("UTF-16", "feff006100e9"), ("utf_16", "feff006100e9"), ("UTF-16LE", "6100e900"), ("UTF-32", "00000061000000e9")],
)
def test_wide_characters_are_ordered_and_marked_as_in_java(encoding: str, data: str) -> None:
    converter = StringConverter()
    converter.configure({"converter.type": "value", "converter.encoding": encoding})
    assert converter.from_connect("t", STRING, "aé") == bytes.fromhex(data)
    assert converter.from_connect("t", STRING, "") == b""


def test_bytes_have_no_text() -> None:
    with pytest.raises(DataError, match=r"class \[B cannot be converted to text"):
        StringConverter().from_connect("t", None, b"x")


def test_booleans() -> None:
    converter = BooleanConverter()
    assert converter.from_connect("t", Schema("boolean"), True) == b"\1"
    assert converter.from_connect("t", None, False) == b"\0"
    with pytest.raises(DataError, match=r"^Invalid schema type for BooleanConverter: INT32$"):
        converter.from_connect("t", Schema("int32"), True)
    with pytest.raises(DataError, match=r"not compatible with objects of type class java\.lang\.Long$"):
        converter.from_connect("t", None, 1)


def test_the_use_of_a_converter_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match=r"String must be one of: key, value, header"):
        LongConverter().configure({"converter.type": "payload"})
