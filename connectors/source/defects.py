"""When a task fails of what looks like a mistake in code: trying again seldom helps, and not for ever."""

from __future__ import annotations

from typing import Final

from connect.core.errors import PermanentError, RetriableError
from connectors.source.slice import SliceDefect

#: So many slices in a row may end of a mistake in code before the task fails; what comes of it is not worth a marker
#: in every partition every few seconds.
_MOST: Final = 3
#: A slice that has copied for so long starts the count anew.
_HEALTHY_S: Final = 60.0


class TaskDefective(PermanentError):
    """Slice after slice ended of a mistake in this project's code."""


class Defects:
    """Those of one task in a row."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def count(self, error: RetriableError, lasted_s: float) -> None:
        """Raise :class:`TaskDefective` where trying again has not helped; ``lasted_s``: how long it went well."""
        if not isinstance(error, SliceDefect):
            return
        self._count = 1 if lasted_s > _HEALTHY_S else self._count + 1
        if self._count >= _MOST:
            raise TaskDefective(
                f"{self._name}: {self._count} slices in a row ended of what looks like a defect of Heliograph, the "
                f"last with {error}; positions stand where they were; please report it with this log"
            ) from error

    def forget(self) -> None:
        """An epoch went well."""
        self._count = 0
