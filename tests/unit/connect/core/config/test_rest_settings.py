"""Listeners and header rules."""

from __future__ import annotations

import pytest

from connect.core.config.config_def import InvalidValue
from connect.core.config.rest_settings import HeaderRule, RestListener, parse_header_rules, parse_listener


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("http://:8083", RestListener("http", "", 8083)),
        ("HTTPS://MyHost:0", RestListener("https", "myhost", 0)),
        ("http://[::1]:8083", RestListener("http", "::1", 8083)),
    ],
)
def test_listeners(text: str, listener: RestListener) -> None:
    assert parse_listener(text) == listener
    assert parse_listener(str(listener)) == listener


@pytest.mark.parametrize("text", ["http://a:8083/path", "http://a:8083x", "http://a:8083 http://b:8084"])
def test_a_listener_ends_with_its_port(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"doesn't have the right format|must be either"):
        parse_listener(text)


def test_header_rules() -> None:
    text = 'add X-XSS-Protection: 1; mode=block, "add Cache-Control: no-cache, no-store", setdate Expires: 7200000'
    assert parse_header_rules(text) == (
        HeaderRule("add", "X-XSS-Protection", "1; mode=block"),
        HeaderRule("add", "Cache-Control", "no-cache, no-store"),
        HeaderRule("setDate", "Expires", "7200000"),
    )
