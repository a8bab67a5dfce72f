"""Time, chance, and machines that crash, freeze, and lose each other."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

START_MS = 1_700_000_000_000
#: More than the longest play needs.
_MOST_CALLS = 100_000

Call = Callable[[], None]


class World:
    """One timeline; whatever happens was put on it, and equal times go in the order of putting."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        self.story: list[str] = []
        self._queue: list[tuple[int, int, Call]] = []
        self._count = 0
        self._calls_left = _MOST_CALLS

    def after(self, delay_ms: float, call: Call) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + max(0, int(delay_ms)), self._count, call))

    def run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._queue)
            self._calls_left -= 1
            assert self._calls_left, "it goes round in circles"
            call()
        self.now_ms = end_ms

    def report(self, line: str) -> None:
        self.story.append(f"{self.now_ms - START_MS:>7} {line}")

    def latency_ms(self) -> int:
        # One in some is slow, so that messages overtake each other.
        return self.random.randint(1, 8) if self.random.random() < 0.9 else self.random.randint(10, 250)


class Machine:
    """What a process runs on. Frozen, it keeps what comes for it until it thaws; crashed, it is gone."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen = False
        #: Cut off from all brokers and other workers.
        self.cut = False
        self._held: list[Call] = []

    def after(self, delay_ms: float, call: Call) -> None:
        self.world.after(delay_ms, lambda: self._arrive(call))

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for call in held:
            self.after(0, call)

    def _arrive(self, call: Call) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._held.append(call)
        else:
            call()

    def call(
        self,
        other: Machine | None,
        ask: Callable[[Callable[[Any], None]], None],
        then: Callable[[Any], None],
        failed: Call,
        timeout_ms: int = 1_000,
    ) -> None:
        """Ask another machine, or the brokers (None); ``then`` or ``failed`` follows, unless nobody answers."""
        asked_ms = self.world.now_ms

        def lost() -> None:
            self.after(timeout_ms - (self.world.now_ms - asked_ms), failed)

        def unreachable() -> bool:
            return self.cut or (other is not None and (other.cut or not other.alive))

        def answer(value: Any) -> None:
            # The way back is cut by what happens until it has been gone.
            self.world.after(
                self.world.latency_ms(), lambda: lost() if unreachable() else self._arrive(lambda: then(value))
            )

        def arrive() -> None:
            if unreachable():
                lost()
            elif other is None:
                ask(answer)
            else:
                other._arrive(lambda: ask(answer))

        self.world.after(self.world.latency_ms(), arrive)
