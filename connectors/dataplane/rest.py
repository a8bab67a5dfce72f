"""Whether the source has further on what arrived and was not found: then it gives other records than before. Pure.

What a compacted source was copied of and has not any more has vanished, unless a setting was changed over a crash:
aborted records are given now and stand between, or such as had been left out. The walk ends at the first of them, and
what was copied from behind it comes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from connect.wire import records
from connectors.dataplane.alignment import content_of
from connectors.dataplane.survivors import Survivors, Walk

#: So many records are looked at further on. What was in flight lies near, and a source may be long.
MOST_READ_ON: Final = 20_000


class Rest(Walk):
    """Goes on where ``walk`` ended; ``is_seen`` once a record was like one that was not found.

    A later record may be like it by chance. Which of the two it is cannot be told.
    """

    def __init__(self, walk: Survivors, *, read_committed: bool) -> None:
        super().__init__(walk.position, read_committed=read_committed)
        self.is_seen = False
        self._rest = frozenset(walk.rest)
        self._ignores_time = walk.ignores_time
        self._left = MOST_READ_ON

    def _take(self, found: Iterable[records.Record]) -> None:
        for record in found:
            if record.offset < self.position or self.is_over:
                continue
            self.position = record.offset + 1
            self._left -= 1
            self.is_seen = content_of(record, ignores_time=self._ignores_time) in self._rest
            self.is_over = self.is_seen or not self._left
