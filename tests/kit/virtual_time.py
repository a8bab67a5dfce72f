"""An event loop whose clock jumps to the next timer once it is idle; for code without sockets, processes, threads."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: what it would have waited has passed."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits for something that nothing will bring about")
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def pass_time(self, seconds: float) -> None:
        """Let work take so long."""
        self._jumping.now_s += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine that :func:`run` runs."""

    @functools.wraps(test)
    def running(*arguments: P.args, **named: P.kwargs) -> None:
        run(test(*arguments, **named))

    return running
