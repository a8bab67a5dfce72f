"""Whole groups of real herders in a world of our own, whose time, network, brokers and faults come from a seed."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(first: int, most: int, step: int) -> list[Any]:
    """Return every ``step``-th seed below ``most``, as parameters; those from ``first`` on are for `make long`."""
    return [pytest.param(seed, marks=[pytest.mark.long] if seed >= first else []) for seed in range(0, most, step)]
