"""Which of the next records of a move no flow has changed on their way: others cannot be compared.

Groups are placed by the maps of both flows, and where topics keep their names copies that either has made lie side by
side in one partition. So the map of the flow that changes nothing tells, record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connect.kafka.cluster import Cluster
from connectors.dataplane.plan import TopicPartition
from connectors.failover.model import GroupMove, How
from connectors.failover.site import Site
from connectors.map_reader import MapReader
from connectors.offset_map import Pair
from connectors.offset_map import Place as Lies
from connectors.settings import MirrorSourceSettings


class Unchanged:
    """Of the flows of a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._changing: list[_Copies] = []
        #: Of the flow that changes nothing, where the other does.
        self._same: _Copies | None = None

    async def begin(self) -> None:
        """Read both maps, where only one flow changes records. Raises as :meth:`MapReader.follow`."""
        site = self._site
        flows = (_Copies(site.flow, site.target, is_back=False), _Copies(site.back, site.source, is_back=True))
        self._changing = [one for one in flows if one.flow.changing_key]
        if len(self._changing) == 1:
            for one in flows:
                await one.maps.follow()
            (self._same,) = (one for one in flows if not one.flow.changing_key)

    def changed_by(self, move: GroupMove) -> str:
        """Who changes, in words, some of the records of its two partitions; empty where nobody does."""
        changing = self._changing if self._same is None else [one for one in self._changing if one.may_be_of(move)]
        return ", ".join(
            f"{one.flow.flow} changes records on their way, by {one.flow.changing_key}" for one in changing
        )

    async def of_source(self, move: GroupMove, records: Sequence[Any]) -> list[Any]:
        """Those from the first on that the other flow has copied, or brought. Raises as the map reader's look-ups."""
        return [] if self._same is None else await self._same.leading(move, records, is_of_target=False)

    async def of_target(self, move: GroupMove, records: Sequence[Any]) -> list[Any]:
        """The same of the target's."""
        return [] if self._same is None else await self._same.leading(move, records, is_of_target=True)


class _Copies:
    """What one of the flows has copied; ``is_back``: against the direction in which groups move."""

    def __init__(self, flow: MirrorSourceSettings, copied_to: Cluster, *, is_back: bool) -> None:
        self.flow = flow
        must_be_seen = flow.enabled or not is_back
        self.maps = MapReader(copied_to, flow.map_topic, connector=flow.name, must_be_seen=must_be_seen)
        self._is_back = is_back

    def may_be_of(self, move: GroupMove) -> bool:
        """By offset syncs groups are placed where the flow there has copied to, whoever ran it."""
        return self._pair(move) is not None or (move.how is How.SYNCS and not self._is_back)

    async def leading(self, move: GroupMove, records: Sequence[Any], *, is_of_target: bool) -> list[Any]:
        """Those from the first on that are among the copies, or their originals."""
        pair = self._pair(move)
        found: list[Any] = []
        if pair is None:
            return found
        for record in records:
            if not await self._has(pair, record.offset, is_copy=is_of_target != self._is_back):
                break
            found.append(record)
        return found

    async def _has(self, pair: Pair, offset: int, *, is_copy: bool) -> bool:
        look_up = self.maps.reverse if is_copy else self.maps.forward
        at, behind = await look_up(pair, offset), await look_up(pair, offset + 1)
        # Right behind its last record, too, a map has an exact place.
        return at is not None and behind is not None and at.place is Lies.INSIDE and at.offset < behind.offset

    def _pair(self, move: GroupMove) -> Pair | None:
        """The two partitions of a move, where the flow copies one to the other."""
        begin, end = (move.target, move.source) if self._is_back else (move.source, move.target)
        pair = self.maps.current(TopicPartition(*begin))
        return pair if pair is not None and (pair.target_topic, pair.target_partition) == end else None
