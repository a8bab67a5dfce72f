"""JSON texts of strangers: what is read, and what is counted and refused before it costs anything."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.jackson import MAX_DEPTH, MAX_ELEMENTS, TooManyElements, decode_json

_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=20,
)


@given(_VALUES, st.sampled_from(["utf-8", "utf-16-le", "utf-32-be"]))
def test_texts_are_read_as_json_reads_them(value: Any, encoding: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert decode_json(text) == value
    assert decode_json(text.encode(encoding)) == value


@given(st.text(alphabet='[]{}",\\:a1 ', max_size=60))
def test_any_text_is_a_value_or_an_error_of_one_kind(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            decode_json(text)
    else:
        assert decode_json(text) == expected


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_levels_are_counted() -> None:
    assert decode_json(nested(MAX_DEPTH)) is not None
    with pytest.raises(ValueError, match="more than 100 levels"):
        decode_json(nested(MAX_DEPTH + 1))
    # Beside one another they are no levels, and in a string they are text.
    assert len(decode_json(f"[{','.join(['[]'] * 500)}]")) == 500
    assert decode_json(json.dumps(nested(1000) + '"\\')) == nested(1000) + '"\\'


def test_elements_are_counted() -> None:
    assert len(decode_json(f"[{','.join(['1'] * MAX_ELEMENTS)}]")) == MAX_ELEMENTS
    with pytest.raises(TooManyElements, match=f"more than {MAX_ELEMENTS} elements"):
        decode_json(f"[{','.join(['1'] * (MAX_ELEMENTS + 1))}]")
    assert decode_json(json.dumps("," * (MAX_ELEMENTS + 1))) == "," * (MAX_ELEMENTS + 1)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[" + "{}," * 3_000_000, '"\\' * 500_000, '"' + "," * 1_000_000, '["' + '\\"' * 500_000],
    ids=["levels", "elements", "backslashes", "no end", "quotes"],
)
def test_a_text_that_is_refused_costs_little(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(ValueError, match=r"."):
        decode_json(text)
    assert time.process_time() - began_s < 2
