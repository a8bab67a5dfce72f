"""What a dedicated mirror's worker says of a failure, from the trace in its status."""

from __future__ import annotations

import traceback

import pytest

from connect.cli.flow_worker import reason
from connect.core.errors import ConfigError


def trace_of(error: Exception) -> str:
    try:
        raise error
    except type(error) as raised:
        return "".join(traceback.format_exception(raised))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("topics is wrong; mend it"), "topics is wrong; mend it"),
        (ValueError("a: b"), "ValueError: a: b"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_failure_is_its_last_line_ours_without_the_class(error: Exception, text: str) -> None:
    assert reason(trace_of(error)) == text


def test_a_cause_does_not_stand_for_what_came_of_it() -> None:
    try:
        try:
            raise ValueError("cause")
        except ValueError as cause:
            raise ConfigError("what came of it") from cause
    except ConfigError as error:
        text = "".join(traceback.format_exception(error))
    assert reason(text) == "what came of it"


def test_no_trace_is_no_crash() -> None:
    assert reason("") == "no reason is known"
