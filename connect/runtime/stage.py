"""What a worker is doing, in Java's sentences, for whoever waits too long (Kafka's ``TemporaryStage``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


class Stages:
    """The stage of one worker's loop. ``now_ms`` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._what: str | None = None
        self._began_ms = 0
        self._ended_ms: int | None = None

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """``what`` completes «the worker is currently ...». Stages within a stage hide it until they end."""
        outer = (self._what, self._began_ms, self._ended_ms)
        self._what, self._began_ms, self._ended_ms = what, self._now_ms(), None
        try:
            yield
        finally:
            if outer[0] is not None and outer[2] is None:
                self._what, self._began_ms, self._ended_ms = outer
            else:
                self._ended_ms = self._now_ms()

    def sentence(self) -> str | None:
        """What is done now, or was done last; None where nothing was yet."""
        if self._what is None:
            return None
        if self._ended_ms is None:
            return f"The worker is currently {self._what}, which began at {_instant(self._began_ms)}."
        return (
            f"The last operation the worker completed was {self._what}, which began at {_instant(self._began_ms)} "
            f"and completed at {_instant(self._ended_ms)}."
        )


def _instant(ms: int) -> str:
    """As Java's ``Instant`` prints itself."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
