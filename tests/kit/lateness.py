"""How late the workers of a run were, by what each tells of its lease thread and its main loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.seen import process_metric

GOAL_BEAT_S: Final = 1.0
GOAL_STALL_S: Final = 0.25
#: How a worker's log reports a new longest stall.
_REPORTED: Final = "the worker's loop was "


@dataclass(slots=True)
class Lateness:
    """What every look at workers found, in seconds since their start; ``unanswered`` counts those without an answer."""

    beats_s: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    #: What the logs say of the longest stalls that missed the goal, by the stall.
    reported: dict[float, str] = field(default_factory=dict)

    def look(self, url: str, log: Path) -> None:
        """Ask the worker whose REST is at ``url``; its life's ``log`` says what it did."""
        try:
            beat_s = process_metric(url, "heliograph_lease_longest_beat_seconds")
            stall_s = process_metric(url, "heliograph_loop_longest_stall_seconds")
        except OSError:
            self.unanswered += 1
            return
        if not math.isnan(beat_s + stall_s):
            self.beats_s.append(beat_s)
            self.stalls_s.append(stall_s)
            if stall_s > GOAL_STALL_S:
                said = f"{_REPORTED}{stall_s * 1000:.0f} ms late"  # the log may be of earlier lives, too
                lines = log.read_text(errors="replace").splitlines()
                self.reported[stall_s] = next((line for line in reversed(lines) if said in line), "")

    def add(self, other: Lateness) -> None:
        self.beats_s += other.beats_s
        self.stalls_s += other.stalls_s
        self.unanswered += other.unanswered
        self.reported |= other.reported

    @property
    def is_missed(self) -> bool:
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
        if not self.is_missed:
            return text
        said = self.reported.get(max(self.stalls_s), "")
        return f"{text}: late{f' ({said[said.find(_REPORTED) :]})' if said else ''}"
