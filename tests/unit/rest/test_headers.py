"""Cross-origin requests, and the header rules of a worker's file."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from starlette.datastructures import Headers, MutableHeaders

from connect.core.config.rest_settings import REST
from connect.core.errors import ConfigError
from rest.asgi_entry import AnswerHeaders
from rest.rest_config import RestSettings

NOW_S = 1_700_000_000.0


def answer_headers(properties: dict[str, str]) -> AnswerHeaders:
    return AnswerHeaders(RestSettings.of(REST.parse(properties)))


def added(properties: dict[str, str], method: str = "GET", **request: str) -> dict[str, str]:
    """What an answer with one header of its own has in the end."""
    answer = MutableHeaders({"content-type": "application/json"})
    asked = Headers({name.replace("_", "-"): value for name, value in request.items()})
    answer_headers(properties).add_to(answer, method, asked, NOW_S)
    return {name: ", ".join(answer.getlist(name)) for name in answer}


ORIGIN = {"access.control.allow.origin": "https://a.example, https://b[.]example"}
PLAIN = {"content-type": "application/json"}


def test_without_settings_nothing_is_added() -> None:
    assert added({}, origin="https://a.example") == PLAIN


@pytest.mark.parametrize("origin", ["https://a.example", "HTTPS://A.example", "https://c.example https://b.example"])
def test_an_allowed_origin_is_echoed(origin: str) -> None:
    expected = {**PLAIN, "vary": "Origin", "access-control-allow-origin": origin}
    assert added(ORIGIN, origin=origin) == expected


def test_another_origin_is_answered_without_leave() -> None:
    assert added(ORIGIN, origin="https://c.example") == {**PLAIN, "vary": "Origin"}
    assert added(ORIGIN, origin="https://b.example.evil") == {**PLAIN, "vary": "Origin"}
    assert added(ORIGIN) == {**PLAIN, "vary": "Origin"}


def test_a_preflight_is_told_what_it_may() -> None:
    settings = {"access.control.allow.origin": "*", "access.control.allow.methods": "GET,PUT"}
    expected = {
        **PLAIN,
        "vary": "Origin",
        "access-control-allow-origin": "https://any.example",
        "access-control-allow-methods": "GET,PUT",
        "access-control-allow-headers": "Content-Type",
        "access-control-max-age": "60",
    }
    asked = {"origin": "https://any.example", "access_control_request_method": "PUT"}
    assert added(settings, "OPTIONS", **asked) == expected
    assert "access-control-allow-methods" not in added(settings, "GET", **asked)


def test_rules_set_and_add() -> None:
    rules = 'set Content-Type: text/x, add X-A: 1, "add X-A: 2,3", setDate Expires: 60000, addDate X-When: -1000'
    assert added({"response.http.headers.config": rules}) == {
        "content-type": "text/x",
        "x-a": "1, 2,3",
        "expires": formatdate(NOW_S + 60, usegmt=True),
        "x-when": formatdate(NOW_S - 1, usegmt=True),
    }


@pytest.mark.parametrize(
    "properties",
    [
        {"response.http.headers.config": "setDate Expires: soon"},
        {"response.http.headers.config": "set X-A: \x07"},
        {"response.http.headers.config": "set X-Ä: 1"},
        {"access.control.allow.origin": "https://["},
    ],
)
def test_settings_that_cannot_be_a_header(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        answer_headers(properties)
