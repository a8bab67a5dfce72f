"""Errors as one clear line, and as values that travel."""

from __future__ import annotations

import pickle

import pytest

from connect.core.errors import ConfigError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("is wrong", "tasks.max"), "tasks.max: is wrong"),
        (ConfigError("tasks.max is wrong", "tasks.max"), "tasks.max is wrong"),
        (ConfigError("is wrong", "tasks.max", "mm2.properties", 7), "mm2.properties:7: tasks.max: is wrong"),
        (ConfigError("cannot be read", file="mm2.properties"), "mm2.properties: cannot be read"),
        (ConfigError("no flow is enabled"), "no flow is enabled"),
    ],
)
def test_a_config_error_names_its_place(error: ConfigError, text: str) -> None:
    assert str(error) == text


def test_a_config_error_survives_pickling() -> None:
    error = ConfigError("is wrong", "tasks.max", "mm2.properties", 7)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.key, copy.file, copy.line) == (str(error), error.key, error.file, error.line)
