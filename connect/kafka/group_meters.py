"""What a member measures of its group: requests and rounds (Kafka's ``GroupCoordinatorMetrics``). Times are wall clock
milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from connect.core.measures import Windowed
from connect.kafka.clock import wall_ms


@dataclass(slots=True)
class GroupMeters:
    """``rounds_ms``: from a join's beginning to the assignment. ``failed_rounds``: attempts that came to nothing."""

    heartbeat_ms: Windowed = field(default_factory=Windowed)
    join_ms: Windowed = field(default_factory=Windowed)
    sync_ms: Windowed = field(default_factory=Windowed)
    rounds_ms: Windowed = field(default_factory=Windowed)
    failed_rounds: Windowed = field(default_factory=Windowed)
    heartbeat_sent_ms: int | None = None
    round_ended_ms: int | None = None
    clock: Callable[[], int] = field(default=wall_ms, repr=False)

    def heartbeat_sent(self) -> None:
        self.heartbeat_sent_ms = self.clock()

    def heartbeat_answered(self, took_s: float) -> None:
        self.heartbeat_ms.record(took_s * 1000, self.clock())

    def joined(self, took_s: float) -> None:
        self.join_ms.record(took_s * 1000, self.clock())

    def synced(self, took_s: float) -> None:
        self.sync_ms.record(took_s * 1000, self.clock())

    def round_ended(self, took_s: float) -> None:
        self.round_ended_ms = self.clock()
        self.rounds_ms.record(took_s * 1000, self.round_ended_ms)

    def round_failed(self) -> None:
        self.failed_rounds.record(1, self.clock())
