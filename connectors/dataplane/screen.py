"""Records that a target is known to refuse: left out before they are sent, for a while. Pure.

A refused batch costs a round trip and all behind it, and what was refused once seldom comes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from connect.wire import records
from connectors.dataplane import codes
from connectors.dataplane.plan import Skip
from connectors.dataplane.refusals import add_skip

#: After something was learnt, so many batches are opened and rid of such records before they are sent. Then one is let
#: through again: the topic's settings may be others.
CHECKED_BATCHES: Final = 1000
#: A broker judges timestamps by its own clock. What is so near to the border is sent, and the broker decides.
CLOCK_MARGIN_MS: Final = 5 * 60_000
_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class TimestampRange:
    """What a topic takes: ``before_ms`` behind and ``after_ms`` ahead of its broker's clock; ``clock_ms`` is ours."""

    before_ms: int
    after_ms: int
    clock_ms: Callable[[], int]

    def refuses(self, timestamp_ms: int) -> bool:
        """Whether a record of this time is refused for certain (Kafka ``LogValidator.validateTimestamp``)."""
        behind_ms = self.clock_ms() - timestamp_ms
        return timestamp_ms != _NO_TIMESTAMP and (
            behind_ms > self.before_ms + CLOCK_MARGIN_MS or -behind_ms > self.after_ms + CLOCK_MARGIN_MS
        )


@dataclass(frozen=True, slots=True)
class Known:
    """What a target was seen to refuse: records without a key, records with a time outside of ``times``."""

    null_keys: bool = False
    times: TimestampRange | None = None

    def refuses(self, record: records.Record) -> int:
        """By which code a record is refused; 0 where nothing is known against it."""
        if self.null_keys and record.key is None:
            return codes.INVALID_RECORD
        if self.times is not None and self.times.refuses(record.timestamp_ms):
            return codes.INVALID_TIMESTAMP
        return codes.NONE

    def kept(self, part: Sequence[records.Record], skips: list[Skip]) -> list[records.Record]:
        """``part`` without what is refused; that is added to ``skips``."""
        kept = []
        for record in part:
            if code := self.refuses(record):
                add_skip(skips, record.offset, code)
            else:
                kept.append(record)
        return kept

    def and_seen(self, refused: Collection[records.Record], code: int, times: TimestampRange | None) -> Known:
        """With what a refusal of these records by this code teaches; ``times`` is what the topic takes, if known."""
        if code == codes.INVALID_RECORD and any(record.key is None for record in refused):
            return Known(True, self.times)
        if code == codes.INVALID_TIMESTAMP and times and any(times.refuses(record.timestamp_ms) for record in refused):
            return Known(self.null_keys, times)
        return self


NOTHING: Final = Known()


class Screen:
    """Of one partition: what is known of its target, and for how many batches it is still believed."""

    def __init__(self) -> None:
        self.known = NOTHING
        self._left = 0

    def learn(self, known: Known) -> None:
        """Begin to count anew where this is more, or other, than was known."""
        if known != self.known:
            self.known, self._left = known, CHECKED_BATCHES

    def opened(self, batch: memoryview) -> list[records.Record]:
        """The records of a batch that has some to be left out; empty where all may be sent, and it as it is."""
        if not self._left:
            return []
        found = list(records.decode(batch, 2))
        if any(map(self.known.refuses, found)):
            return found
        self._count()
        return []

    def kept(self, part: list[records.Record], skips: list[Skip]) -> list[records.Record]:
        """The records of one batch that are sent; the others are added to ``skips``."""
        if not self._left:
            return part
        kept = self.known.kept(part, skips)
        self._count()
        return kept

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self.known = NOTHING
