"""Where the control link listens and what slices are told, from the values of the two keys."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import ConfigError
from connectors.control_link.protocol import LINK_VERSION
from connectors.control_link.server import LinkServer, LinkSettings


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
def test_the_address_that_slices_are_told(listener: str, advertised: str, reported: tuple[str, int]) -> None:
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


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
HELLOS = st.dictionaries(
    st.sampled_from(["type", "version", "token", "slice", "epoch", "attempt", "code", "from", "host"]),
    VALUES | st.sampled_from([LINK_VERSION, "right", "code", "a-0"]),
)


class Refused:
    """A link that only hears why it is refused."""

    peer = "10.0.0.9:1"

    def __init__(self) -> None:
        self.reported: list[dict[str, Any]] = []
        self.is_closed = False

    def send(self, message: dict[str, Any]) -> None:
        self.reported.append(message)

    def hang_up(self) -> None:
        self.is_closed = True


@given(hello=HELLOS)
def test_any_hello_without_a_token_is_refused(hello: dict[str, Any]) -> None:
    async def said() -> None:
        server = LinkServer(LinkSettings(), cast(Any, None), "code")
        ticket = server.expect("a-0", 1)
        refused = Refused()
        server._said_hello(cast(Any, refused), hello)
        assert refused.is_closed and [each["type"] for each in refused.reported] == ["refused"]
        assert not ticket.linked.done() and ticket.token not in str(refused.reported)
        server.forget(ticket)

    asyncio.run(said())
