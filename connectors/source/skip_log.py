"""What the log says of records that were left out (``errors.tolerance = all``): the target refuses them, or no
transformation can take them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from connectors.dataplane import codes
from connectors.dataplane.plan import Skip, TopicPartition

log = logging.getLogger(__name__)

#: Where not each record has a line of its own, one line tells of all since the line before.
EVERY_S: Final = 10.0
#: So many partitions are named in a line.
_MOST: Final = 5


class SkipLog:
    """A line for each record (``errors.log.enable``), else a sum of them every few seconds. Time is an argument."""

    def __init__(self, flow: str, *, each: bool) -> None:
        self._flow = flow
        self._each = each
        self._told_s = float("-inf")
        self._untold: dict[tuple[TopicPartition, int], tuple[int, int]] = {}  # count, last offset

    def add(self, source: TopicPartition, skips: Sequence[Skip]) -> None:
        for first, last, code in skips:
            if self._each:
                for offset in range(first, last + 1):
                    log.warning(
                        "%s: skipped the record of topic %s partition %d at offset %d: %s",
                        self._flow,
                        *source,
                        offset,
                        _why(code),
                    )
            else:
                count, _ = self._untold.get((source, code), (0, 0))
                self._untold[source, code] = (count + last - first + 1, last)

    def tell(self, now_s: float, *, is_last: bool = False) -> None:
        """One line of what was not told yet, if it is time."""
        if not self._untold or (now_s - self._told_s < EVERY_S and not is_last):
            return
        self._told_s = now_s
        total = sum(count for count, _ in self._untold.values())
        parts = [
            f"{count} of {source}, the last at offset {last}: {_why(code)}"
            for (source, code), (count, last) in list(self._untold.items())[:_MOST]
        ]
        more = f"; and {len(self._untold) - _MOST} more partitions" if len(self._untold) > _MOST else ""
        log.warning(
            "%s: skipped %d records (errors.log.enable = true names each): %s%s",
            self._flow,
            total,
            "; ".join(parts),
            more,
        )
        self._untold.clear()


def _why(code: int) -> str:
    if code == codes.NOT_TRANSFORMED:
        return "it could not be transformed"
    return f"the target refuses it: {codes.name(code)}"
