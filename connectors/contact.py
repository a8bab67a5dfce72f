"""Whether the clusters of a flow answer, and when records last moved: what is known of it, and how it is said. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

SOURCE: Final = "source"
TARGET: Final = "target"
#: In the place of a time or an age.
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster. Times are in milliseconds since 1970, UNKNOWN before the first.

    Args:
        answers: None until it was asked.
        answered_ms: When it last answered this worker, asked every few seconds.
        moved_ms: When a slice here last got an answer: of the source to a fetch, of the target to a produce request.
        reason: Why it does not answer.
    """

    answers: bool | None = None
    answered_ms: int = UNKNOWN
    moved_ms: int = UNKNOWN
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Contact:
    """Both clusters of a flow, as one worker sees them."""

    source: Side = Side()
    target: Side = Side()

    def moved(self, fetched_ms: int, produced_ms: int) -> Contact:
        """The same with what slices tell."""
        return Contact(replace(self.source, moved_ms=fetched_ms), replace(self.target, moved_ms=produced_ms))

    @property
    def knows_lag(self) -> bool:
        """Whether the lag of the flow is known: not while the source cannot be asked for its ends."""
        return self.source.answers is not False

    @property
    def silent(self) -> tuple[bool, bool]:
        """Whether the source, and whether the target, was asked and does not answer."""
        return self.source.answers is False, self.target.answers is False

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """What REST and ``heliograph lag`` tell; null for what is not known."""
        return {
            "source_answers": self.source.answers,
            "target_answers": self.target.answers,
            "last_fetch_age_ms": _or_none(age_ms(self.source.moved_ms, now_ms)),
            "last_produce_age_ms": _or_none(age_ms(self.target.moved_ms, now_ms)),
        }


NOTHING_KNOWN: Final = Contact()


def age_ms(at_ms: int, now_ms: int) -> int:
    """UNKNOWN of what never was."""
    return max(now_ms - at_ms, 0) if at_ms >= 0 else UNKNOWN


def since_text(at_ms: int) -> str:
    """Like ``since 2026-01-01T14:03:02Z``, or that it was never known."""
    if at_ms < 0:
        return "since the start"
    return "since " + datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _or_none(value: int) -> int | None:
    return None if value == UNKNOWN else value
