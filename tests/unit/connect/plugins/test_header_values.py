"""Texts and what they mean: SimpleHeaderConverter, after the vectors of Java's ``ValuesTest``."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.source import STRING, Schema
from connect.plugins.converters import SimpleHeaderConverter
from connect.plugins.java_values import DATE, DECIMAL_NAME, TIME, TIMESTAMP, parse_string

INT8, INT16, INT32, INT64 = (Schema(f"int{bits}") for bits in (8, 16, 32, 64))
FLOAT32 = Schema("float32")


def list_of(schema: Schema | None) -> Schema:
    return Schema("array", values=schema)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("null", None, None),
        ("true", Schema("boolean"), True),
        (" false ", Schema("boolean"), False),
        ("127", INT8, 127),
        ("-128", INT8, -128),
        ("128", INT16, 128),
        ("65536", INT32, 65536),
        ("9223372036854775807", INT64, 2**63 - 1),
        (
            "9223372036854775808",
            Schema("bytes", name=DECIMAL_NAME, version=1, parameters=(("scale", "0"),)),
            Decimal(2**63),
        ),
        ("1e3", INT16, 1000),
        ("1.0", INT8, 1),
        ("-1.5", FLOAT32, -1.5),
        ("1.5e300", Schema("int64"), None),
        ("2019-08-23", DATE, datetime(2019, 8, 23, tzinfo=UTC)),
        ("14:34:54.346Z", TIME, datetime(1970, 1, 1, 14, 34, 54, 346000, UTC)),
        ("2019-08-23T14:34:54.346Z", TIMESTAMP, datetime(2019, 8, 23, 14, 34, 54, 346000, UTC)),
        ("2019-08-23T14\\:34\\:54.346Z", TIMESTAMP, datetime(2019, 8, 23, 14, 34, 54, 346000, UTC)),
        ("[]", list_of(None), []),
        ("[1, 300]", list_of(INT16), [1, 300]),
        ("[1, 2.5]", list_of(FLOAT32), [1.0, 2.5]),
        ('["a", "b,c"]', list_of(STRING), ["a", "b,c"]),
        ("[true, 3]", list_of(None), [True, 3]),
        ("[[1],[2]]", list_of(list_of(INT8)), [[1], [2]]),
        ('["2019-08-23"]', list_of(DATE), [datetime(2019, 8, 23, tzinfo=UTC)]),
        ("{}", Schema("map"), {}),
        ('{"a":1,"b":300}', Schema("map", keys=STRING, values=INT16), {"a": 1, "b": 300}),
    ],
)
def test_what_a_text_means(text: str, schema: Schema | None, value: Any) -> None:
    parsed = parse_string(text)
    if text == "1.5e300":
        # Beyond single precision, and a whole number that no long holds.
        assert parsed == (Schema("float64"), 1.5e300)
    else:
        assert parsed == (schema, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "hello",
        "true}",
        "nullable",
        '"quoted"',
        "[1, 2",
        "[1,,2]",
        "[1, null]",
        "[1 2]",
        "{1}",
        '{"a":',
        '{null:"a"}',
        "{a:1}",
        "-",
        "1.2.3",
        "1_000",
        "Infinity",
        "[" * 1000,
        "{[1]:2}",
        "path\\:with\\,escapes",
    ],
)
def test_what_is_nothing_else_is_a_string(text: str) -> None:
    assert parse_string(text) == (STRING, text)


@given(st.text(alphabet='{}[],:"\\ 0189.eE+-TZaflnrstu\u00e9', max_size=30) | st.text())
def test_every_text_means_something(text: str) -> None:
    schema, value = parse_string(text)
    assert (schema is None) == (value is None)


@pytest.mark.parametrize(
    ("value", "schema", "text"),
    [
        ("text", None, "text"),
        (True, None, "true"),
        (12, None, "12"),
        (0.10000000149011612, FLOAT32, "0.1"),
        (b"bytes", None, "Ynl0ZXM="),
        ([1, 'a"b\\c', None], None, '[1,"a\\"b\\\\c",null]'),
        ({"k": [True], "x": 1.5}, None, '{"k":[true],"x":1.5}'),
        (datetime(2019, 8, 23, tzinfo=UTC), DATE, "2019-08-23"),
        (datetime(1970, 1, 1, 14, 34, 54, 346000, UTC), TIME, "14:34:54.346Z"),
        (datetime(2019, 8, 23, 14, 34, 54, 346000, UTC), TIMESTAMP, "2019-08-23T14:34:54.346Z"),
        (Decimal("1E+400"), None, "1E+400"),
    ],
)
def test_headers_are_written_as_text(value: Any, schema: Schema | None, text: str) -> None:
    assert SimpleHeaderConverter().from_connect_header("t", "h", schema, value) == text.encode()


def test_headers_without_a_value() -> None:
    assert SimpleHeaderConverter().from_connect_header("t", "h", None, None) is None
    assert SimpleHeaderConverter().to_connect_header("t", "h", None) == (None, None)


headers = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(alphabet="abcXYZ äöü", min_size=1).map(lambda s: "x" + s),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(headers)
def test_headers_come_back(value: Any) -> None:
    made = SimpleHeaderConverter()
    data = made.from_connect_header("t", "h", None, value)
    back = made.to_connect_header("t", "h", data)[1]
    # A string of a list is quoted; one that stands alone may only look like another value, as in Java.
    assert back == value
