"""The time of ``heliograph failover --at``."""

from __future__ import annotations

import pytest

from connect.cli.commands.failover import _at_ms
from connect.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-11-20T11:00Z", 1_795_172_400_000),
        ("2026-11-20T12:00:00.5+01:00", 1_795_172_400_500),
        ("1970-01-01T00:00Z", 0),
    ],
)
def test_a_time_is_in_milliseconds(text: str, at_ms: int) -> None:
    assert _at_ms(text) == at_ms


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", "not a time such as"),
        ("2026-11-20T11:00", "no time zone"),
        ("1969-12-31T23:59:59.999Z", "before 1970"),
        ("1969-12-31T23:59:59.9999Z", "before 1970"),
        ("1970-01-01T00:00+01:00", "before 1970"),
    ],
)
def test_what_is_none_is_refused(text: str, why: str) -> None:
    """To Kafka -1 is the end of a log: every group would go there."""
    with pytest.raises(ConfigError, match=why):
        _at_ms(text)
