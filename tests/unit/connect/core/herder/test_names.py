"""A connector's name that no assignment could carry is refused before it is stored."""

from __future__ import annotations

import pytest

from connect.core.herder.events import (
    Assign,
    Join,
    Joined,
    LeaderElected,
    PutConnector,
    Ready,
    Reply,
    Request,
    WriteConfig,
)
from connect.core.herder.herder import Herder
from connect.core.herder.membership import MAX_STRING_BYTES
from connect.core.herder.state import HerderSettings
from connect.core.herder_api import BadRequest
from connect.core.status_and_offset_topics import StatusLog


def leader() -> Herder:
    """The only member of a group without signed requests."""
    herder = Herder(HerderSettings(protocol="eager"), "http://h:1/", StatusLog())
    (join,) = (effect for effect in herder.step(Ready(), 0) if isinstance(effect, Join))
    ((protocol, metadata),) = join.protocols
    effects = herder.step(LeaderElected(protocol, "m", {"m": metadata}), 0)
    (assign,) = (effect for effect in effects if isinstance(effect, Assign))
    herder.step(Joined(join.token, 1, "m", "m", protocol, assign.assignments["m"]), 0)
    assert herder.is_leader
    return herder


@pytest.mark.parametrize(("letters", "refused"), [(MAX_STRING_BYTES // 2, False), (MAX_STRING_BYTES // 2 + 1, True)])
def test_names_that_are_too_long_for_the_group_protocol_are_refused(letters: int, refused: bool) -> None:
    name = "é" * letters
    put = PutConnector(name, {"name": name}, None, False, "source")
    effects = leader().step(Request(1, put), 0)
    replies = [effect.error for effect in effects if isinstance(effect, Reply)]
    assert [type(error) for error in replies] == ([BadRequest] if refused else [])
    assert any(isinstance(effect, WriteConfig) for effect in effects) is not refused
