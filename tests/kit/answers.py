"""Coroutine functions in the place of others: each answers with the value, or fails by the error, that a test gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest


def answers(value: Any = None) -> Callable[..., Awaitable[Any]]:
    async def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def put(monkeypatch: pytest.MonkeyPatch, owner: object, **values: Any) -> None:
    """Let the functions of these names, of a module or class, answer with these values."""
    for name, value in values.items():
        monkeypatch.setattr(owner, name, answers(value))


def fails(error: BaseException) -> Callable[..., Awaitable[Any]]:
    """Whatever it is asked."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
