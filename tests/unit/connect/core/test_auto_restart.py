"""Strimzi's rule of automatic restarts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from connect.core.config.connector_settings import NO_MORE, PERMANENT_ERROR, AutoRestartRule
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError, may_recover
from connect.core.model import Restarts

MINUTE_MS = 60_000
ON = {"auto.restart.enabled": "true"}
BACKOFF = "auto.restart.max.backoff.minutes"


def restarted_at(rule: AutoRestartRule, most: int) -> list[int]:
    """Return the minutes in which one that fails at once after each restart is restarted."""
    now_ms, restarts, found = MINUTE_MS, Restarts(), []
    for _ in range(most):
        restarts = rule.after_failure(restarts, now_ms, may_recover=True)
        if restarts.given_up is not None:
            break
        now_ms = restarts.at_ms
        found.append(now_ms // MINUTE_MS)
    return found


def test_pauses_grow_as_the_operators_do() -> None:
    found = restarted_at(AutoRestartRule(), 11)
    assert [later - earlier for earlier, later in pairwise(found)] == [2, 6, 12, 20, 30, 42, 56, 60, 60, 60]
    assert found[0] == 1, "the first restart is immediate"


def test_pauses_and_restarts_are_bounded() -> None:
    assert restarted_at(AutoRestartRule(max_backoff_minutes=5), 5) == [1, 3, 8, 13, 18]
    assert restarted_at(AutoRestartRule(max_restarts=2), 100) == [1, 3]
    assert restarted_at(AutoRestartRule(max_restarts=0), 100) == []


@pytest.mark.parametrize(("after_ms", "count"), [(6 * MINUTE_MS, 3), (6 * MINUTE_MS + 1, 1)])
def test_the_count_starts_again_after_a_run_longer_than_the_pause(after_ms: int, count: int) -> None:
    second = Restarts(2, 10 * MINUTE_MS)
    failed_ms = second.at_ms + after_ms
    assert AutoRestartRule().after_failure(second, failed_ms, may_recover=True) == Restarts(count, failed_ms)


def test_a_clock_that_was_set_back_makes_no_pause_longer() -> None:
    second = Restarts(2, 3000 * MINUTE_MS)
    assert AutoRestartRule().after_failure(second, MINUTE_MS, may_recover=True) == Restarts(3, 7 * MINUTE_MS)


def test_it_says_why_there_is_no_restart() -> None:
    second = Restarts(2, 10 * MINUTE_MS)
    assert AutoRestartRule().after_failure(second, second.at_ms, may_recover=False).given_up == PERMANENT_ERROR
    assert AutoRestartRule(2).after_failure(second, second.at_ms, may_recover=True) == Restarts(
        2, second.at_ms, NO_MORE
    )
    # Healthy for longer than the pause, it may be restarted as often as before.
    assert AutoRestartRule(2).after_failure(second, 100 * MINUTE_MS, may_recover=True) == Restarts(1, 100 * MINUTE_MS)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({}, None),
        ({"auto.restart.enabled": "false", "auto.restart.max.restarts": "2"}, None),
        (ON, AutoRestartRule()),
        ({**ON, "auto.restart.max.restarts": "7", BACKOFF: "10", "topics": "x"}, AutoRestartRule(7, 10)),
    ],
)
def test_what_a_config_sets(config: dict[str, str], rule: AutoRestartRule | None) -> None:
    assert AutoRestartRule.of(config) == rule


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"auto\.restart\.max\.restarts"):
        AutoRestartRule.of({**ON, "auto.restart.max.restarts": "-1"})


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (RetriableError("no answer"), True),
        (PermanentError("no right"), False),
        (_caused(PermanentError("given up"), RetriableError("no answer")), False),
        (ValueError("of a plugin"), True),
        (HeliographError("nothing is known"), True),
        (_caused(HeliographError("not sent"), PermanentError("too large")), False),
        (_caused(HeliographError("not sent"), RetriableError("no answer")), True),
    ],
    ids=repr,
)
def test_whether_a_later_attempt_may_succeed(error: Exception, may: bool) -> None:
    assert may_recover(error) is may
