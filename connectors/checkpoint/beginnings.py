"""Where remote partitions begin: what a group that stands before all that the offset map knows goes on with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from aiokafka import TopicPartition as Assigned

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, told_offsets
from connect.kafka.topiclog import reader, reading
from connectors.offset_map import Pair

log = logging.getLogger(__name__)

_POLL_MS: Final = 250
_TIMEOUT_S: Final = 30.0


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
            known = self._bare[pair] = (offset, await self._has_nothing(pair, start, offset))
        return known[1]

    async def _has_nothing(self, pair: Pair, begin: int, end: int) -> bool:
        place = Assigned(pair.target_topic, pair.target_partition)
        # Where retention has passed ``begin`` since it was asked for, what is left from the new start on decides.
        opened = reader(self._target, read_committed=True, auto_offset_reset="earliest")
        try:
            with reading(self._target, pair.target_topic):
                async with asyncio.timeout(_TIMEOUT_S), opened as consumer:
                    consumer.assign([place])
                    consumer.seek(place, begin)
                    while await consumer.position(place) < end:
                        for record in (await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=1)).get(
                            place, []
                        ):
                            return bool(record.offset >= end)
        except TimeoutError:
            where = f"cluster {self._target.name}: {pair.target_topic}-{pair.target_partition}"
            raise RetriableError(f"{where} cannot be read from its beginning within {_TIMEOUT_S:g} s") from None
        return True
