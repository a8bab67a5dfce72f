"""Coroutine functions in the place of others: each answers with the value that a test gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest


def answers(value: Any = None) -> Callable[..., Awaitable[Any]]:
    """Whatever it is asked."""

    async def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def put(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **values: Any) -> None:
    """Let the module's functions of these names answer with these values."""
    for name, value in values.items():
        monkeypatch.setattr(module, name, answers(value))
