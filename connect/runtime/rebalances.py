"""What a worker counts of its group's rounds (Kafka's ``WorkerRebalanceMetrics``). Times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from connect.core.measures import Windowed


@dataclass(slots=True)
class Rebalances:
    """Rounds since the worker began. ``began_ms``: of the round that is under way; None where none is."""

    completed: int = 0
    began_ms: int | None = None
    ended_ms: int | None = None
    took_ms: Windowed = field(default_factory=Windowed)

    def begin(self, now_ms: int) -> None:
        if self.began_ms is None:
            self.began_ms = now_ms

    def end(self, now_ms: int) -> None:
        if self.began_ms is not None:
            self.took_ms.record(now_ms - self.began_ms, now_ms)
        self.completed += 1
        self.began_ms, self.ended_ms = None, now_ms
