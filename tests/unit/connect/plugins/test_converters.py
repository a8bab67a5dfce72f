"""The bytes that Kafka's converters write, and JsonConverter's JSON with and without schemas."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from signal import SIGINT
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.convert import DataError
from connect.api.source import BYTES, OPTIONAL_BYTES, OPTIONAL_STRING, STRING, Schema
from connect.core.errors import ConfigError
from connect.plugins import converters
from connect.plugins.java_values import DATE, DECIMAL_NAME, TIME, TIMESTAMP

NUMBERS: list[tuple[type[converters.ConverterOfBoth], str, Any, bytes]] = [
    (converters.ShortConverter, "int16", -2, b"\xff\xfe"),
    (converters.IntegerConverter, "int32", 1, b"\0\0\0\1"),
    (converters.LongConverter, "int64", -(2**63), b"\x80" + bytes(7)),
    (converters.FloatConverter, "float32", 1.5, b"\x3f\xc0\0\0"),
    (converters.DoubleConverter, "float64", -2.0, b"\xc0" + bytes(7)),
    (converters.IntegerConverter, "int32", SIGINT, b"\0\0\0\2"),  # of a class below int
]


@pytest.mark.parametrize(("kind", "type_", "value", "data"), NUMBERS)
def test_numbers_are_big_endian(kind: type[converters.ConverterOfBoth], type_: str, value: Any, data: bytes) -> None:
    converter = kind()
    converter.configure({"converter.type": "value"})
    assert converter.from_connect("t", Schema(type_), value) == data
    assert converter.from_connect_header("t", "h", None, value) == data
    assert converter.from_connect("t", None, None) is None


@pytest.mark.parametrize("kind", [each[0] for each in NUMBERS])
def test_numbers_of_another_type_are_refused(kind: type[converters.ConverterOfBoth]) -> None:
    for wrong in ("text", True, b"\0"):
        with pytest.raises(DataError, match=r"^Failed to serialize to \w+ \(was class java.lang.String|Boolean|\[B\)"):
            kind().from_connect("t", None, wrong)


def test_numbers_beyond_their_type_are_refused() -> None:
    for converter, value in (
        (converters.ShortConverter(), 2**15),
        (converters.IntegerConverter(), -(2**31) - 1),
        (converters.FloatConverter(), 1e300),
    ):
        with pytest.raises(DataError, match="out of its range"):
            converter.from_connect("t", None, value)


def test_bytes_pass_as_they_are() -> None:
    converter = converters.ByteArrayConverter()
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
    assert converters.StringConverter().from_connect("t", schema, value) == text.encode()


def test_strings_in_another_character_set() -> None:
    converter = converters.StringConverter()
    converter.configure({"converter.type": "key", "converter.encoding": "ISO-8859-1"})
    assert converter.from_connect("t", STRING, "é€") == b"\xe9?"
    with pytest.raises(ConfigError, match=r"converter\.encoding nonsense is an unknown character set"):
        converter.configure({"converter.type": "key", "converter.encoding": "nonsense"})


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("UTF-16", "feff006100e9"), ("utf_16", "feff006100e9"), ("UTF-16LE", "6100e900"), ("UTF-32", "00000061000000e9")],
)
def test_wide_characters_are_ordered_and_marked_as_in_java(encoding: str, data: str) -> None:
    converter = converters.StringConverter()
    converter.configure({"converter.type": "value", "converter.encoding": encoding})
    assert converter.from_connect("t", STRING, "aé") == bytes.fromhex(data)
    assert converter.from_connect("t", STRING, "") == b""


def test_bytes_have_no_text() -> None:
    with pytest.raises(DataError, match=r"class \[B cannot be converted to text"):
        converters.StringConverter().from_connect("t", None, b"x")


def test_booleans() -> None:
    converter = converters.BooleanConverter()
    assert converter.from_connect("t", Schema("boolean"), True) == b"\1"
    assert converter.from_connect("t", None, False) == b"\0"
    with pytest.raises(DataError, match=r"^Invalid schema type for BooleanConverter: INT32$"):
        converter.from_connect("t", Schema("int32"), True)
    with pytest.raises(DataError, match=r"not compatible with objects of type class java\.lang\.Long$"):
        converter.from_connect("t", None, 1)


def test_the_use_of_a_converter_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match=r"String must be one of: key, value, header"):
        converters.LongConverter().configure({"converter.type": "payload"})


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STRUCT = Schema("struct", fields=(("line", STRING), ("source", OPTIONAL_STRING)))
INT8 = Schema("int8")
DECIMAL = Schema("bytes", name=DECIMAL_NAME, version=1, parameters=(("scale", "2"),))


def converter(**settings: str) -> converters.JsonConverter:
    made = converters.JsonConverter()
    made.configure({"converter.type": "value", **{key.replace("_", "."): value for key, value in settings.items()}})
    return made


#: Java's bytes of the schemas themselves are in ``tests/interop/plugins``.
PAYLOADS: list[tuple[Schema, Any, str]] = [
    *((Schema(type_), 12, "12") for type_ in ("int8", "int64")),
    (Schema("boolean"), True, "true"),
    (Schema("float32"), 12.5, "12.5"),
    (Schema("float64"), 1e10, "1.0E10"),
    (BYTES, b"test-string", '"dGVzdC1zdHJpbmc="'),
    (STRING, 'a"é\n', '"a\\"é\\n"'),
    (OPTIONAL_STRING, None, "null"),
    (Schema("array", values=Schema("int32")), [1, 2, 3], "[1,2,3]"),
    (Schema("map", keys=STRING, values=Schema("int32")), {"key1": 12}, '{"key1":12}'),
    (STRUCT, {"line": "foo", "source": None}, '{"line":"foo","source":null}'),
    (DATE, EPOCH + timedelta(days=10000), "10000"),
    (TIME, EPOCH + timedelta(milliseconds=14400000), "14400000"),
    (TIMESTAMP, EPOCH + timedelta(milliseconds=4000000000), "4000000000"),
]
INT32_TEXT = '{"type":"int32","optional":false}'


@pytest.mark.parametrize(("schema", "value", "payload"), PAYLOADS)
def test_payloads_of_values_with_their_schemas(schema: Schema, value: Any, payload: str) -> None:
    data = converter().from_connect("t", schema, value)
    assert data is not None
    assert data.endswith(f',"payload":{payload}}}'.encode())
    assert converter(schemas_enable="false").from_connect("t", schema, value) == payload.encode()


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (
            Schema("boolean", name="bool", version=3, parameters=(("foo", "bar"),)),
            True,
            '{"schema":{"type":"boolean","optional":false,"name":"bool","version":3,"parameters":{"foo":"bar"}},"payload":true}',
        ),
        (
            Schema("map", keys=Schema("int32"), values=Schema("int32")),
            {1: 12, 2: 15},
            f'{{"schema":{{"type":"map","keys":{INT32_TEXT},"values":{INT32_TEXT},"optional":false}},"payload":[[1,12],[2,15]]}}',
        ),
        (
            DECIMAL,
            Decimal("1.56"),
            (
                f'{{"schema":{{"type":"bytes","optional":false,"name":"{DECIMAL_NAME}","version":1,'
                '"parameters":{"scale":"2"}},"payload":"AJw="}'
            ),
        ),
    ],
    ids=lambda each: "",
)
def test_bytes_of_values_with_their_schemas(schema: Schema, value: Any, text: str) -> None:
    assert converter().from_connect("t", schema, value) == text.encode()


def test_values_without_a_schema() -> None:
    for value, text in (
        (True, "true"),
        ([1, "string", True], '[1,"string",true]'),
        ({"b": 12, "a": 1.5}, '{"b":12,"a":1.5}'),
        ({"string": 12, 52: "string"}, '[["string",12],[52,"string"]]'),
        (math.inf, '"Infinity"'),
        (b"\0", '"AA=="'),
    ):
        assert converter(schemas_enable="false").from_connect("t", None, value) == text.encode()
        assert converter().from_connect("t", None, value) == f'{{"schema":null,"payload":{text}}}'.encode()


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_tombstone_stays_one(enabled: str) -> None:
    assert converter(schemas_enable=enabled).from_connect("t", None, None) is None


def test_decimals_as_numbers() -> None:
    made = converter(schemas_enable="false", decimal_format="numeric")
    assert made.from_connect("t", DECIMAL, Decimal("1.56")) == b"1.56"
    with pytest.raises(ConfigError, match=r"String must be one of \(case insensitive\): BASE64, NUMERIC"):
        converter(decimal_format="text")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2))
def test_decimals_keep_their_digits(value: Decimal) -> None:
    data = converter(schemas_enable="false").from_connect("t", DECIMAL, value)
    assert data is not None
    unscaled = int.from_bytes(base64.b64decode(data.strip(b'"')), "big", signed=True)
    assert Decimal(f"{unscaled}E-2") == value  # scaleb would round


@pytest.mark.parametrize(
    ("scale", "value", "same"),
    [
        ("2", "1.5", "1.50"),
        ("2", "1E+3", "1000.00"),
        ("2", "-7.10000", "-7.10"),
        ("0", "0E-999999999", "0"),
        ("2", "0E+999999999", "0.00"),
        ("-3", "5000", "5E+3"),
    ],
)
def test_a_decimal_is_written_at_the_scale_of_its_schema(scale: str, value: str, same: str) -> None:
    schema = replace(DECIMAL, parameters=(("scale", scale),))
    made = converter()
    assert made.from_connect("t", schema, Decimal(value)) == made.from_connect("t", schema, Decimal(same))


@pytest.mark.parametrize(
    ("scale", "value", "words"),
    [
        ("2", "1.555", r"mismatching scale .* Schema has scale 2, value has scale 3\."),
        ("2", "1E-999999999", "value has scale 999999999"),
        ("-3", "1500", "Schema has scale -3, value has scale 0"),
        ("2", "1E+999999999", "1000000002 digits at scale 2"),
        ("2", "1" * 5000, "5002 digits at scale 2"),
        ("2", "NaN", "NaN is not a decimal number"),
        ("x", "1", "the parameter scale is missing or not an integer"),
    ],
)
def test_a_decimal_that_would_lose_digits_is_refused(scale: str, value: str, words: str) -> None:
    schema = replace(DECIMAL, parameters=(("scale", scale),))
    with pytest.raises(DataError, match=words):
        converter().from_connect("t", schema, Decimal(value))
    with pytest.raises(DataError, match="NaN is not a decimal number"):
        converter(decimal_format="NUMERIC").from_connect("t", schema, Decimal("NaN"))


def test_a_refusal_names_the_field() -> None:
    schema = Schema("struct", fields=(("order", Schema("struct", fields=(("price", DECIMAL), ("count", INT8)))),))
    for order, words in (
        ({"price": Decimal("0.001"), "count": 1}, "Field order: Field price: Decimal value has mismatching scale"),
        ({"price": Decimal(1), "count": 300}, "Field order: Field count: Invalid value for INT8: 300 is out of its"),
    ):
        with pytest.raises(DataError, match=words):
            converter().from_connect("t", schema, {"order": order})


@pytest.mark.parametrize(("type_", "bits"), [("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64), (None, 64)])
def test_whole_numbers_have_the_width_of_their_schema(type_: str | None, bits: int) -> None:
    made, schema = converter(schemas_enable="false"), None if type_ is None else Schema(type_)
    border = 1 << bits - 1
    for value in (-border, border - 1):
        assert made.from_connect("t", schema, value) == str(value).encode()
    for value in (-border - 1, border):
        with pytest.raises(DataError, match=f"Invalid value for INT{bits}: {value} is out of its range"):
            made.from_connect("t", schema, value)


def test_single_precision_does_not_become_infinite() -> None:
    made = converter(schemas_enable="false")
    assert made.from_connect("t", Schema("float32"), math.inf) == b'"Infinity"'
    with pytest.raises(DataError, match=r"Invalid value for FLOAT32: 1e\+39 is out of its range"):
        made.from_connect("t", Schema("float32"), 1e39)


def test_what_does_not_fit_is_refused_in_javas_words() -> None:
    for schema, value, words in (
        (STRING, None, "Conversion error: null value for field that is required and has no default value"),
        (Schema("float64"), True, "Invalid type for FLOAT64: class java.lang.Boolean"),
        (STRING, 1, "Invalid type for STRING: class java.lang.Long"),
        (None, Decimal(1), "Java class class java.math.BigDecimal does not have corresponding schema type."),
        (
            DATE,
            EPOCH + timedelta(hours=1),
            "Kafka Connect Date type should not have any time fields set to non-zero values.",
        ),
        (
            TIME,
            EPOCH + timedelta(hours=25),
            "Kafka Connect Time type should not have any date fields set to non-zero values.",
        ),
        (DATE, 5, "Invalid type for Date, expected Date but was class java.lang.Long"),
    ):
        with pytest.raises(DataError) as refused:
            converter().from_connect("t", schema, value)
        assert str(refused.value) == words
    with pytest.raises(DataError, match="half of a surrogate pair at character"):
        converter().from_connect("t", STRING, "\ud800")


plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(st.text(), inner | st.none(), max_size=3),
    max_leaves=8,
)


@given(plain)
def test_plain_values_are_json(value: Any) -> None:
    data = converter(schemas_enable="false").from_connect("t", None, value)
    assert data is not None
    assert json.loads(data) == value
