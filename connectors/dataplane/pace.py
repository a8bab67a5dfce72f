"""How much to ask of a connection at once: what it moves in a few seconds, as measured while it is busy."""

from __future__ import annotations

from typing import Final

#: Long enough that waiting for answers costs a fast link nothing, short enough for the drain at the end of an epoch.
_AHEAD_S: Final = 5.0
#: Answers that come together say nothing of a rate.
_SAMPLE_S: Final = 0.25


class Pace:
    """Times are those of a steady clock, in seconds. ``limit_bytes`` stays between ``least`` and ``most``."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._bytes_per_s = 0.0
        self._since_s = 0.0
        self._moved_bytes = 0

    @property
    def limit_bytes(self) -> int:
        return min(max(self._least, int(self._bytes_per_s * _AHEAD_S)), self._most)

    def seconds_for(self, size: int) -> float:
        """Return how long so many bytes should take; without a rate yet, as long as the first ones may."""
        return size / self._bytes_per_s if self._bytes_per_s else _AHEAD_S

    def begin(self, now_s: float) -> None:
        """Something is under way on a connection that was idle."""
        self._since_s = now_s
        self._moved_bytes = 0

    def moved(self, size: int, now_s: float, *, is_idle: bool) -> None:
        """``size`` bytes were answered; ``is_idle`` if nothing is under way any more."""
        self._moved_bytes += size
        took_s = now_s - self._since_s
        if took_s <= 0 or not (is_idle or took_s >= _SAMPLE_S):
            return
        sample = self._moved_bytes / took_s
        # A slow sample may come of little to do, so the rate falls slowly.
        self._bytes_per_s = max(sample, (self._bytes_per_s + sample) / 2)
        self.begin(now_s)
