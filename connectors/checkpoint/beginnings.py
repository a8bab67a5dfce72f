"""Where remote partitions begin: what a group that stands before all that the offset map knows goes on with."""

from __future__ import annotations

import logging
from collections.abc import Collection

from connect.kafka.cluster import Cluster
from connect.kafka.log_ranges import has_records
from connect.kafka.offsets import EARLIEST, told_offsets
from connectors.offset_map import Pair

log = logging.getLogger(__name__)


class Beginnings:
    """Of the partitions that a flow writes to."""

    def __init__(self, target: Cluster) -> None:
        self._target = target
        self._starts: dict[Pair, int] = {}
        self._bare: dict[Pair, tuple[int, bool]] = {}

    async def follow(self, pairs: Collection[Pair]) -> None:
        """Look where they begin now. Raises RetriableError where the cluster does not answer; of a partition without a
        leader what was known before counts."""
        places = {pair: (pair.target_topic, pair.target_partition) for pair in pairs}
        found, missing = await told_offsets(self._target, set(places.values()), EARLIEST)
        starts = {pair: found.get(place, self._starts.get(pair)) for pair, place in places.items()}
        self._starts = {pair: start for pair, start in starts.items() if start is not None}
        for why in missing.values():
            log.debug("cluster %s: %s", self._target.name, why)
        self._bare = {pair: known for pair, known in self._bare.items() if pair in pairs}

    def readable(self, pair: Pair, offset: int) -> int | None:
        """``offset``, or where the log begins behind it: a group that stands before its log is reset by its consumers'
        ``auto.offset.reset``, which may skip all of it. None where nobody has told yet where it begins."""
        start = self._starts.get(pair)
        return None if start is None else max(offset, start)

    async def is_bare_before(self, pair: Pair, offset: int) -> bool:
        """Whether a reader of committed records gets none before ``offset``; False where that cannot be told.

        Raises RetriableError, SecurityError: the log cannot be read.
        """
        start = self._starts.get(pair)
        if start is None or start >= offset:
            return start is not None
        known = self._bare.get(pair)
        if known is None or known[0] != offset:
            # Whatever is written later goes to the end, so this holds for good.
            place = (pair.target_topic, pair.target_partition)
            is_bare = not await has_records(self._target, place, start, offset, is_decided=True)
            known = self._bare[pair] = (offset, is_bare)
        return known[1]
