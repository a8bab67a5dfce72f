"""``autoRestart`` of a resource as keys of a connector's config."""

from __future__ import annotations

import pytest

from connect.core.config.connector_settings import AutoRestartRule
from connect.core.errors import ConfigError
from tests.unit.connectors.strimzi.resources import NEW, source_of, translation


def said(text: str) -> AutoRestartRule | None:
    text = NEW.replace("sourceConnector: {}", f"sourceConnector: {{autoRestart: {text}}}")
    return AutoRestartRule.of(source_of(translation(text)).config)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{enabled: true}", AutoRestartRule()),
        ("{}", AutoRestartRule()),
        ("{enabled: true, maxRestarts: 3, maxBackoffMinutes: 10}", AutoRestartRule(3, 10)),
        ("{maxRestarts: 0}", AutoRestartRule(0)),
        ("{enabled: false, maxRestarts: 3}", None),
    ],
)
def test_what_the_field_says(text: str, rule: AutoRestartRule | None) -> None:
    assert said(text) == rule


def test_without_the_field_nothing_is_restarted() -> None:
    assert AutoRestartRule.of(source_of(translation(NEW)).config) is None


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("{maxRestarts: many}", 0),
        ("{maxRestarts: -1}", 0),
        ("{maxBackoffMinutes: true}", 1),
        ("{maxBackoffMinutes: 0}", 1),
    ],
)
def test_a_wrong_number_is_named_with_its_line(text: str, least: int) -> None:
    with pytest.raises(ConfigError, match=f"should be a number, {least} or more") as wrong:
        said(text)
    assert wrong.value.line == 18
