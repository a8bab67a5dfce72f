"""Offset maps that were lost, or never written, rebuilt by the task that has them, beside its copy.

One partition after the other, from where its map begins downwards; :mod:`connectors.map_alignment` says what counts as
proven. Memory is bounded by that, work by a number of records of either log, and the worker's loop has most of its time
for others. The task is the map's writer, so what was found goes with its next commits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connectors.dataplane.plan import TopicPartition
from connectors.map_alignment import Found, Side
from connectors.map_rebuild import LogFeed, lay_side_by_side
from connectors.offset_map import Pair
from connectors.source.ledger import Entry, Ledger
from connectors.source.lost_maps import lost_maps, map_begin, tell
from connectors.source.store import PositionStore

log = logging.getLogger(__name__)

#: So long it rests behind each step, by the time that this took.
_REST_SHARE: Final = 3.0
#: Chunks go with commits, a number with each.
_NEXT_COMMIT_S: Final = 1.0
_MOST_NAMED: Final = 5


class MapRecovery:
    """Of one task. ``most_records``: so many of either log are read for one partition at most; 0: lost maps are named,
    and left as they are. ``read_committed``: how the flow reads its source."""

    def __init__(
        self,
        name: str,
        source: Cluster,
        target: Cluster,
        store: PositionStore,
        ledger: Callable[[], Ledger],
        *,
        most_records: int,
        read_committed: bool,
    ) -> None:
        self._name = name
        self._clusters = {Side.SOURCE: source, Side.TARGET: target}
        self._store = store
        self._ledger = ledger
        self._most_records = most_records
        self._read_committed = read_committed
        self._lost: asyncio.Queue[Sequence[TopicPartition]] = asyncio.Queue()

    async def look(self, entries: Sequence[Entry]) -> None:
        """Name those whose map lacks what both logs still have. Errors as ``list_offsets``."""
        lost = await lost_maps(self._clusters, self._store, entries, read_committed=self._read_committed)
        if lost:
            tell(self._name, lost, reach_records=self._most_records)
            self._lost.put_nowait(sorted(lost))

    async def run(self) -> NoReturn:
        """Rebuild what :meth:`look` has found."""
        while True:
            partitions = await self._lost.get()
            if self._most_records:
                found = {partition: await self._recover(partition) for partition in partitions}
                self._tell(found)

    def _tell(self, found: Mapping[TopicPartition, int]) -> None:
        known = [str(partition) for partition, records in found.items() if records]
        named = ", ".join(known[:_MOST_NAMED]) + (
            f" and {len(known) - _MOST_NAMED} more" if known[_MOST_NAMED:] else ""
        )
        log.info(
            "%s: the offset map is rebuilt, as far as it is proven, for %d of %d partitions, %d records%s",
            self._name,
            len(known),
            len(found),
            sum(found.values()),
            f": {named}" if known else "",
        )

    async def _recover(self, partition: TopicPartition) -> int:
        """How many records were proven and are in the map now."""
        entry = self._ledger().entries.get(partition)
        if entry is None or entry.position is None:
            return 0
        pair, top = Pair.of(entry.position), map_begin(self._store, entry, entry.position)
        found = Found()
        try:
            await lay_side_by_side(self._feeds(pair, top), found, most=self._most_records, pause=_rest)
        except HeliographError as error:
            log.info("%s: the offset map of %s is not rebuilt: %s", self._name, partition, error)
            return 0
        except Exception as error:  # a mistake of ours: the map is not worth more than the copy
            log.error("%s: the offset map of %s is not rebuilt", self._name, partition, exc_info=error)
            return 0
        if not found.records or not self._is_as_it_was(partition, pair, top):
            return 0
        self._store.lay_below(entry.position, found.chunks(pair))
        while self._ledger().entries.get(partition) is entry and self._store.lies_below(entry.position):
            entry.is_dirty = True
            await asyncio.sleep(_NEXT_COMMIT_S)
        return found.records

    def _is_as_it_was(self, partition: TopicPartition, pair: Pair, top: tuple[int, int]) -> bool:
        """Whether nobody has made a topic anew, cut the map below ``top``, or taken the partition away meanwhile."""
        entry = self._ledger().entries.get(partition)
        if entry is None or entry.is_leaving or entry.position is None:
            return False
        begin = map_begin(self._store, entry, entry.position)
        return Pair.of(entry.position) == pair and begin[0] >= top[0] and begin[1] >= top[1]

    def _feeds(self, pair: Pair, top: tuple[int, int]) -> dict[Side, LogFeed]:
        places = {
            Side.SOURCE: (pair.source_topic, pair.source_partition, pair.source_topic_id, self._read_committed),
            Side.TARGET: (pair.target_topic, pair.target_partition, pair.target_topic_id, True),
        }
        return {
            side: LogFeed(self._clusters[side], TopicPartition(topic, index), topic_id, end, read_committed=committed)
            for (side, (topic, index, topic_id, committed)), end in zip(places.items(), top, strict=True)
        }


async def _rest(began_s: float) -> None:
    await asyncio.sleep((time.monotonic() - began_s) * _REST_SHARE)
