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
from connect.plugins.java_values import DATE, TIME, TIMESTAMP, parse_string

INT8, FLOAT32 = Schema("int8"), Schema("float32")

#: Beyond the literals of ``tests/interop/plugins/cases.py``, whose meaning Java tells.
MEANINGS: list[tuple[str, Schema | None, Any]] = [
    (" false ", Schema("boolean"), False),
    ("65536", Schema("int32"), 65536),
    ("1.0", INT8, 1),
    ("2019-08-23T14\\:34\\:54.346Z", TIMESTAMP, datetime(2019, 8, 23, 14, 34, 54, 346000, UTC)),
    ("{}", Schema("map"), {}),
    ("[[1],[2]]", Schema("array", values=Schema("array", values=INT8)), [[1], [2]]),
    *((text, STRING, text) for text in ("", "   ", "nullable", '{"a":', '{null:"a"}', "{[1]:2}", "{,}", "1.2.3")),
    *((text, STRING, text) for text in ("[" * 1000, "path\\:with\\,escapes")),
]


@pytest.mark.parametrize(("text", "schema", "value"), MEANINGS)
def test_what_a_text_means(text: str, schema: Schema | None, value: Any) -> None:
    assert parse_string(text) == (schema, value)


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


texts = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(alphabet="abcXYZ äöü", min_size=1).map(lambda s: "x" + s),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(texts)
def test_headers_mean_what_was_written(value: Any) -> None:
    data = SimpleHeaderConverter().from_connect_header("t", "h", None, value)
    assert data is not None
    # A string of a list is quoted; one that stands alone may only look like another value, as in Java.
    assert parse_string(data.decode())[1] == value
