"""Where the control link listens and what slices are told, from the values of the two keys."""

from __future__ import annotations

import pytest

from connect.core.errors import ConfigError
from connectors.control_link.server import LinkSettings


@pytest.mark.parametrize(
    ("listener", "advertised", "reported"),
    [
        ("127.0.0.1:0", "", ("127.0.0.1", 4711)),
        ("0.0.0.0:7070", "worker.example", ("worker.example", 4711)),
        ("0.0.0.0:7070", "worker.example:443", ("worker.example", 443)),
        ("[::1]:0", "", ("::1", 4711)),
        ("10.0.0.7:7070", "[2001:db8::1]:80", ("2001:db8::1", 80)),
        ("10.0.0.7:7070", "2001:db8::1", ("2001:db8::1", 4711)),
    ],
)
def test_slices_are_told_the_advertised_address_or_the_listeners(
    listener: str, advertised: str, reported: tuple[str, int]
) -> None:
    assert LinkSettings.parse(listener, advertised).reached_at(4711) == reported


def test_a_listener_on_every_address_is_told_by_the_machines_name() -> None:
    host, port = LinkSettings.parse("0.0.0.0:0", "").reached_at(4711)
    assert host not in ("", "0.0.0.0")
    assert port == 4711


@pytest.mark.parametrize(
    ("listener", "advertised", "leaves"),
    [
        ("127.0.0.1:0", "", False),
        ("localhost:0", "", False),
        ("[::1]:0", "127.0.0.1", False),
        ("127.0.0.1:0", "worker.example", True),  # through a tunnel or a proxy: somebody forwards it
        ("0.0.0.0:0", "", True),
        ("0.0.0.0:0", "127.0.0.1", True),
        ("10.0.0.7:0", "", True),
    ],
)
def test_only_what_is_loopback_at_both_ends_stays_on_the_machine(listener: str, advertised: str, leaves: bool) -> None:
    assert LinkSettings.parse(listener, advertised).leaves_the_machine is leaves


@pytest.mark.parametrize(
    ("listener", "advertised", "key"),
    [
        ("127.0.0.1", "", "link.listener"),
        ("127.0.0.1:many", "", "link.listener"),
        ("127.0.0.1:65536", "", "link.listener"),
        (":7070", "", "link.listener"),
        ("127.0.0.1:0", "worker.example:x", "link.advertised.address"),
    ],
)
def test_what_is_no_address_is_refused_with_its_key(listener: str, advertised: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LinkSettings.parse(listener, advertised)
    assert caught.value.key == key
    assert "host:port" in str(caught.value)
