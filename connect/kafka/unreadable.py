"""Records of internal topics that cannot be read: each is named in the log once, and passed over.

Every client that may write to such a topic can put one there. Its readers must go on: a worker that fails of a record
fails again at each start, and so do all others of its group.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

#: Lines for one topic in the life of this process.
_MOST_NAMED: Final = 100
_LONGEST_REASON: Final = 300

_named: dict[str, set[tuple[int, int]]] = {}


def pass_over(where: str, partition: int, offset: int, reason: str) -> None:
    """Name a record that is left out, once, though it may be read often. ``where`` names its topic."""
    named, place = _named.setdefault(where, set()), (partition, offset)
    if place in named or len(named) > _MOST_NAMED:
        return
    named.add(place)
    if len(named) > _MOST_NAMED:
        log.warning("%s: more than %d records cannot be read; the others are not named", where, _MOST_NAMED)
        return
    shown = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
    log.warning("%s, partition %d, offset %d is passed over: %s", where, *place, shown)
