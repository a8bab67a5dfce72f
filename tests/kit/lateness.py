"""How late the workers of a run were, by what each tells of itself: the longest time between two turns of its lease
thread, and the longest stall of its main loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from tests.kit.seen import process_metric

GOAL_BEAT_S: Final = 1.0
GOAL_STALL_S: Final = 0.25


@dataclass(slots=True)
class Lateness:
    """What every look found, in seconds. A worker counts from its start, so a look before its end is one of its life.

    ``unanswered`` counts the workers that did not answer. Earlier versions tell neither.
    """

    beats_s: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    unanswered: int = 0

    def look(self, url: str) -> None:
        """Ask the worker whose REST is at ``url``."""
        try:
            beat_s = process_metric(url, "heliograph_lease_longest_beat_seconds")
            stall_s = process_metric(url, "heliograph_loop_longest_stall_seconds")
        except OSError:
            self.unanswered += 1
            return
        if not math.isnan(beat_s + stall_s):
            self.beats_s.append(beat_s)
            self.stalls_s.append(stall_s)

    def add(self, other: Lateness) -> None:
        """Take in what another has found."""
        self.beats_s += other.beats_s
        self.stalls_s += other.stalls_s
        self.unanswered += other.unanswered

    @property
    def is_missed(self) -> bool:
        """Whether a goal was missed."""
        return max(self.beats_s, default=0.0) > GOAL_BEAT_S or max(self.stalls_s, default=0.0) > GOAL_STALL_S

    def __str__(self) -> str:
        if not self.beats_s:
            return f"no worker told how late it was ({self.unanswered} did not answer)"
        text = (
            f"longest beat {max(self.beats_s):.2f} s (goal {GOAL_BEAT_S:g} s), "
            f"longest stall {max(self.stalls_s) * 1000:.0f} ms (goal {GOAL_STALL_S * 1000:.0f} ms), "
            f"{len(self.beats_s)} looks"
        )
        text += f", {self.unanswered} unanswered" if self.unanswered else ""
        return f"{text}: late" if self.is_missed else text
