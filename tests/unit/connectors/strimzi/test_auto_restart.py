"""When failed connectors of a resource are started again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from connect.core.errors import ConfigError
from connectors.strimzi.auto_restart import AutoRestart, Restarts
from tests.unit.connectors.strimzi.resources import NEW, source_of, translation

MINUTE_S = 60.0


def said(text: str) -> AutoRestart | None:
    text = NEW.replace("sourceConnector: {}", f"sourceConnector: {{autoRestart: {text}}}")
    return source_of(translation(text)).auto_restart


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{enabled: true}", AutoRestart()),
        ("{}", AutoRestart()),
        ("{enabled: true, maxRestarts: 3, maxBackoffMinutes: 10}", AutoRestart(3, 10)),
        ("{maxRestarts: 0}", AutoRestart(0)),
        ("{enabled: false, maxRestarts: 3}", None),
    ],
)
def test_what_the_field_says(text: str, rule: AutoRestart | None) -> None:
    assert said(text) == rule


def test_without_the_field_nothing_is_restarted() -> None:
    assert source_of(translation(NEW)).auto_restart is None


@pytest.mark.parametrize("text", ["{maxRestarts: many}", "{maxRestarts: -1}", "{maxBackoffMinutes: true}"])
def test_a_wrong_number_is_told_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match="should be a number, 0 or more") as wrong:
        said(text)
    assert wrong.value.line == 18


def restarted_at(rule: AutoRestart, minutes: int) -> list[int]:
    """Those minutes in which one that always fails is restarted."""
    restarts, found = Restarts(rule), []
    for minute in range(minutes):
        if restarts.look(failed=True, now_s=minute * MINUTE_S):
            restarts.restarted(minute * MINUTE_S)
            found.append(minute)
    return found


def test_pauses_grow_as_the_operators_do() -> None:
    found = restarted_at(AutoRestart(), 400)
    assert [later - earlier for earlier, later in pairwise(found)] == [2, 6, 12, 20, 30, 42, 56, 60, 60, 60]
    assert found[0] == 0


def test_pauses_and_restarts_are_bounded_as_the_resource_says() -> None:
    assert restarted_at(AutoRestart(max_backoff_minutes=5), 20) == [0, 2, 7, 12, 17]
    assert restarted_at(AutoRestart(max_restarts=2), 500) == [0, 2]
    assert restarted_at(AutoRestart(max_restarts=0), 500) == []


def test_one_that_is_well_for_as_long_as_the_pause_begins_anew() -> None:
    restarts = Restarts(AutoRestart())
    for minute in (0, 2):
        assert restarts.look(failed=True, now_s=minute * MINUTE_S)
        restarts.restarted(minute * MINUTE_S)
    assert not restarts.look(failed=False, now_s=8 * MINUTE_S)
    assert restarts.count == 2
    assert not restarts.look(failed=False, now_s=8 * MINUTE_S + 1)
    assert restarts.count == 0
    assert restarts.look(failed=True, now_s=8 * MINUTE_S + 2)
