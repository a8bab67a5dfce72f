"""The lease thread's work in the loop of the test itself, for virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OneLoop:
    """``may_renew`` is the test's to change."""

    def __init__(self) -> None:
        self.may_renew = True

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def call(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    def post(self, function: Callable[..., object], *args: object) -> None:
        function(*args)
