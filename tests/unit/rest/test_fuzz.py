"""Bodies by chance for each endpoint that takes one: documented answers only, of bounded length."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rest.rest_config import RestSettings
from rest.server import RestServer
from tests.kit.large_bodies import ENDPOINTS
from tests.kit.raw_http import Raw, ask
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import ANYWHERE

#: A malformed body is a 500 as in Java, with one of these messages.
MALFORMED = re.compile(r"The body is not JSON: |Unrecognized field |Cannot deserialize the value|The body has no '")
#: Java's statuses: done, refused, unknown connector, exists, too large, no JSON.
STATUSES = (200, 201, 202, 204, 400, 404, 409, 413, 415)

WORDS = st.sampled_from(
    ["name", "config", "initial_state", "offsets", "partition", "offset", "level", "connector.class", "a", "\x00", ""]
)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5) | st.just("9" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=10,
)
RIGHT = (
    {"name": "a", "config": {"k": "v"}, "initial_state": "PAUSED"},
    {"offsets": [{"partition": {"p": 1}, "offset": {"o": 2}}]},
    [{"k": "v"}],
    {"level": "INFO"},
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(json.dumps(draw(st.sampled_from(RIGHT))).encode())
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


class Served:
    """A server, asked from tests that are no coroutines."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._server = RestServer(RestSettings((ANYWHERE,), max_request_bytes=20_000))
        self._runner.run(self._server.start())

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Raw:
        herder = DictHerder()
        herder.add("a")
        self._server.serve(herder)
        headers = {} if body is None else {"Content-Type": kind}
        return self._runner.run(ask(self._server.ports[0], method, path, body, headers))

    def close(self) -> None:
        self._runner.run(self._server.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.close()


@given(
    endpoint=st.sampled_from(ENDPOINTS),
    body=st.binary(max_size=40) | damaged() | JSON.map(lambda value: json.dumps(value).encode()),
    kind=st.sampled_from(["application/json"] * 4 + ["application/json; charset=utf-16", "text/plain", ""]),
)
@example(endpoint=("PUT", "/connectors/a/config"), body=b"[" * 19_000, kind="application/json")
@example(endpoint=("PUT", "/connectors/a/config"), body=b'{"' + b"k" * 19_000 + b'":[]}', kind="application/json")
@example(endpoint=("POST", "/connectors/a/tasks"), body=b'[{"a":' * 3000, kind="application/json")
@example(endpoint=("PATCH", "/connectors/a/offsets"), body=b" " * 20_001, kind="application/json")
def test_any_body_gets_a_documented_answer(served: Served, endpoint: tuple[str, str], body: bytes, kind: str) -> None:
    answer = served.ask(*endpoint, body, kind)
    if answer.status >= 400:
        assert list(answer.json) == ["error_code", "message"]
        assert len(answer.body) < 1000
    assert answer.status in STATUSES or MALFORMED.match(answer.json["message"]), answer
    assert served.ask("GET", "/health").status == 200
