"""Bodies as Jackson reads them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from connect.core.herder_api import SourceOffset
from rest import bodies
from rest.errors import RestError

SCALARS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans() | st.none()
JSON: Any = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), SCALARS), st.booleans())
def test_scalars_become_the_text_they_were_written_with(config: dict[str, Any], ascii_only: bool) -> None:
    expected = {
        key: value if value is None or isinstance(value, str) else json.dumps(value) for key, value in config.items()
    }
    assert bodies.read(json.dumps(config, ensure_ascii=ascii_only).encode(), bodies.CONFIG) == expected


@pytest.mark.parametrize("number", ["1.50", "1e5", "-0", "123456789012345678901234567890", "0.1E-7"])
def test_numbers_keep_their_form_in_a_config_and_their_value_in_an_offset(number: str) -> None:
    assert bodies.read(f'{{"k":{number}}}'.encode(), bodies.CONFIG) == {"k": number}
    body = f'{{"offsets":[{{"partition":{{"deep":[{{"n":{number}}}]}},"offset":null}}]}}'.encode()
    assert bodies.read(body, bodies.OFFSETS).source_offsets() == [
        SourceOffset({"deep": [{"n": json.loads(number)}]}, None)
    ]


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    shapes: list[TypeAdapter[Any]] = [bodies.CONFIG, bodies.CREATE, bodies.OFFSETS, bodies.TASK_CONFIGS]
    for shape in shapes:
        with suppress(RestError):
            bodies.read(body, shape)


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(RestError, match=r"Cannot deserialize the value of config\.k: "):
        bodies.read(b'{"name":"a","config":{"k":[]}}', bodies.CREATE)
    with pytest.raises(RestError, match=r"Unrecognized field offsets\.0\.part"):
        bodies.read(b'{"offsets":[{"part":1}]}', bodies.OFFSETS)
    with pytest.raises(RestError, match=r"The body is not JSON: .* \(line 2, column 1\)"):
        bodies.read(b'{"name":\n', bodies.CREATE)
