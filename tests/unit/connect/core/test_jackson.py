"""Texts of Java (``Double.toString``, Jackson), and JSON of strangers, which is counted before it is read."""

from __future__ import annotations

import json
import math
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core import jackson


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12_345_678.9, "1.23456789E7"),
        (123456.789, "123456.789"),
        (2e23, "2.0E23"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-1.5e-10, "-1.5E-10"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
    ],
)
def test_doubles(value: float, text: str) -> None:
    assert jackson.float64_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (12.34, "12.34"),
        (16_777_216.0, "1.6777216E7"),
        (3.4028235e38, "3.4028235E38"),
        (1.4e-45, "1.4E-45"),
        (33333.332, "33333.332"),
        (1e39, "Infinity"),
    ],
)
def test_floats(value: float, text: str) -> None:
    assert jackson.float32_text(jackson.to_float32(value)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_doubles_text_names_it(value: float) -> None:
    assert float(jackson.float64_text(value)) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_floats_text_names_it(value: float) -> None:
    assert struct.pack(">f", float(jackson.float32_text(value))) == struct.pack(">f", value)


def test_strings_are_escaped_as_jackson_does() -> None:
    assert jackson.string_text('a"b\\c\n\x01\x1fé/€𝄞') == '"a\\"b\\\\c\\n\\u0001\\u001Fé/€\\uD834\\uDD1E"'


def test_json_is_compact_and_keeps_its_order() -> None:
    value = {"b": [1, None, True, 1.5e10], "a": {"x": "y"}, "nan": math.nan}
    assert jackson.json_text(value) == '{"b":[1,null,true,1.5E10],"a":{"x":"y"},"nan":"NaN"}'


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(json_values)
def test_what_is_written_is_json(value: object) -> None:
    assert json.loads(jackson.json_text(value)) == value


@pytest.mark.parametrize("value", [b"bytes", {1: 2}, object()])
def test_what_json_cannot_say_is_a_mistake_of_the_caller(value: object) -> None:
    with pytest.raises(TypeError):
        jackson.json_text(value)


@given(json_values, st.sampled_from(["utf-8", "utf-16-le", "utf-32-be"]))
def test_texts_are_read_as_json_reads_them(value: Any, encoding: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert jackson.decode_json(text) == value
    assert jackson.decode_json(text.encode(encoding)) == value


@given(st.text(alphabet='[]{}",\\:a1 ', max_size=60))
def test_any_text_is_a_value_or_an_error_of_one_kind(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            jackson.decode_json(text)
    else:
        assert jackson.decode_json(text) == expected


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_levels_are_counted() -> None:
    assert jackson.decode_json(nested(jackson.MAX_DEPTH)) is not None
    with pytest.raises(ValueError, match="more than 100 levels"):
        jackson.decode_json(nested(jackson.MAX_DEPTH + 1))
    # Beside one another they are no levels, and in a string they are text.
    assert len(jackson.decode_json(f"[{','.join(['[]'] * 500)}]")) == 500
    assert jackson.decode_json(json.dumps(nested(1000) + '"\\')) == nested(1000) + '"\\'


def test_elements_are_counted() -> None:
    assert len(jackson.decode_json(f"[{','.join(['1'] * jackson.MAX_ELEMENTS)}]")) == jackson.MAX_ELEMENTS
    with pytest.raises(jackson.TooManyElements, match=f"more than {jackson.MAX_ELEMENTS} elements"):
        jackson.decode_json(f"[{','.join(['1'] * (jackson.MAX_ELEMENTS + 1))}]")
    assert jackson.decode_json(json.dumps("," * (jackson.MAX_ELEMENTS + 1))) == "," * (jackson.MAX_ELEMENTS + 1)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[" + "{}," * 3_000_000, '"\\' * 500_000, '"' + "," * 1_000_000, '["' + '\\"' * 500_000],
    ids=["levels", "elements", "backslashes", "no end", "quotes"],
)
def test_a_text_that_is_refused_costs_little(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(ValueError, match=r"."):
        jackson.decode_json(text)
    assert time.process_time() - began_s < 2
