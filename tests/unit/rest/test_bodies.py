"""Bodies as Jackson reads them, and states as REST shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.herder_api import SourceOffset
from connect.core.model import Restarts, State, Status
from rest import bodies
from rest.errors import RestError

SCALARS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans() | st.none()


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


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(RestError, match=r"Cannot deserialize the value of config\.k: "):
        bodies.read(b'{"name":"a","config":{"k":[]}}', bodies.CREATE)
    with pytest.raises(RestError, match=r"Unrecognized field offsets\.0\.part"):
        bodies.read(b'{"offsets":[{"part":1}]}', bodies.OFFSETS)
    with pytest.raises(RestError, match=r"The body is not JSON: .* \(line 2, column 1\)"):
        bodies.read(b'{"name":\n', bodies.CREATE)


@pytest.mark.parametrize(
    ("restarts", "shown"),
    [
        (None, {}),
        (Restarts(2, 7), {"auto_restart": {"count": 2, "at_ms": 7}}),
        (Restarts(0, 0, "why"), {"auto_restart": {"count": 0, "at_ms": 0, "given_up": "why"}}),
    ],
)
def test_automatic_restarts_are_shown_if_there_are_any(restarts: Restarts | None, shown: dict[str, Any]) -> None:
    status = Status(State.FAILED, "w:1", 1, "it broke", "4", restarts)
    java = {"state": "FAILED", "worker_id": "w:1", "version": "4", "trace": "it broke"}
    assert bodies.state(status) == java | shown
