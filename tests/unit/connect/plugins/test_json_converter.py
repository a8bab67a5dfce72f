"""JsonConverter to the byte, after the vectors of Java's ``JsonConverterTest``."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.convert import DataError
from connect.api.source import BYTES, OPTIONAL_STRING, STRING, Schema
from connect.core.errors import ConfigError
from connect.plugins.java_values import DATE, DECIMAL_NAME, TIME, TIMESTAMP
from connect.plugins.json_converter import JsonConverter

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STRUCT = Schema("struct", fields=(("line", STRING), ("source", OPTIONAL_STRING)))
INT8 = Schema("int8")
DECIMAL = Schema("bytes", name=DECIMAL_NAME, version=1, parameters=(("scale", "2"),))


def converter(**settings: str) -> JsonConverter:
    made = JsonConverter()
    made.configure({"converter.type": "value", **{key.replace("_", "."): value for key, value in settings.items()}})
    return made


#: Java's bytes of other schemas are in ``tests/interop/plugins``, which never reads them.
VALUES: list[tuple[Schema, Any]] = [
    *((Schema(type_), 12) for type_ in ("int8", "int64")),
    (Schema("boolean"), True),
    (Schema("float32"), 12.5),
    (Schema("float64"), 1e10),
    (BYTES, b"test-string"),
    (STRING, 'a"é\n'),
    (OPTIONAL_STRING, None),
    (Schema("array", values=Schema("int32")), [1, 2, 3]),
    (Schema("map", keys=STRING, values=Schema("int32")), {"key1": 12}),
    (STRUCT, {"line": "foo", "source": None}),
    (DATE, EPOCH + timedelta(days=10000)),
    (TIME, EPOCH + timedelta(milliseconds=14400000)),
    (TIMESTAMP, EPOCH + timedelta(milliseconds=4000000000)),
]
INT32_TEXT = '{"type":"int32","optional":false}'


@pytest.mark.parametrize(("schema", "value"), VALUES)
def test_values_with_their_schemas_come_back(schema: Schema, value: Any) -> None:
    assert converter().to_connect("t", converter().from_connect("t", schema, value)) == (schema, value)


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
    data = converter().from_connect("t", schema, value)
    assert data == text.encode()
    assert converter().to_connect("t", data) == (schema, value)


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
    assert converter(schemas_enable=enabled).to_connect("t", None) == (None, None)


def test_decimals_as_numbers() -> None:
    made = converter(schemas_enable="false", decimal_format="numeric")
    assert made.from_connect("t", DECIMAL, Decimal("1.56")) == b"1.56"
    with pytest.raises(ConfigError, match=r"String must be one of \(case insensitive\): BASE64, NUMERIC"):
        converter(decimal_format="text")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2))
def test_decimals_come_back(value: Decimal) -> None:
    made = converter()
    assert made.to_connect("t", made.from_connect("t", DECIMAL, value)) == (DECIMAL, value)


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
    data = converter().from_connect("t", schema, Decimal(value))
    assert data == converter().from_connect("t", schema, Decimal(same))
    read = converter().to_connect("t", data)[1]
    assert (read, read.as_tuple().exponent) == (Decimal(value), -int(scale))


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


def test_reading_what_is_no_envelope() -> None:
    for data, words in (
        (b"{", "Converting byte\\[\\] to Kafka Connect data failed due to serialization error"),
        (b"true", 'requires "schema" and "payload" fields'),
        (b'{"schema":null,"payload":1,"more":2}', 'requires "schema" and "payload" fields'),
        (b'{"schema":{},"payload":1}', "Schema must contain 'type' field"),
        (b'{"schema":{"type":"odd"},"payload":1}', "Unknown schema type: odd"),
        (b'{"schema":{"type":"array"},"payload":[]}', "Array schema did not specify the element type"),
        (b'{"schema":{"type":"string"},"payload":null}', "Invalid null value for required STRING field"),
        (
            b'{"schema":{"type":"map","keys":{"type":"int8"},"values":{"type":"int8"}},"payload":[[1]]}',
            "Found invalid map entry",
        ),
        (b'{"schema":{"type":"int8"},"payload":300}', "Invalid type for INT8"),
        (b"[" * 100_000, "serialization error"),
    ):
        with pytest.raises(DataError, match=words):
            converter().to_connect("t", data)


def test_a_schema_from_the_settings() -> None:
    made = converter(schema_content='{"type":"int32"}')
    assert made.to_connect("t", b"5") == (Schema("int32"), 5)
    assert made.from_connect("t", STRING, "x") == converter().from_connect("t", STRING, "x")
    assert converter(schema_content="").to_connect("t", b'{"schema":null,"payload":1}') == (None, 1)
    assert converter(schema_content='{"type":"int32"}', schemas_enable="false").to_connect("t", b"5") == (None, 5)
    for content, words in (("{", "Failed to parse schema in converter config"), ("{}", "Schema must contain 'type'")):
        with pytest.raises(DataError, match=words):
            converter(schema_content=content)


plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(st.text(), inner | st.none(), max_size=3),
    max_leaves=8,
)


@given(plain)
def test_plain_values_come_back(value: Any) -> None:
    made = converter(schemas_enable="false")
    assert made.to_connect("t", made.from_connect("t", None, value)) == (None, value)
