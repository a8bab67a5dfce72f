"""Exact resume where records are transformed: the source walks through the same transformation again.

What it gives is the same each time, so the surplus is laid along it record by record (:mod:`alignment`). What a query
drops has no place in the target and none in the count. A query that was changed meanwhile gives something else: then
nothing is proven, and the records of the surplus are copied again. What it gives now and the target does not have may
have been left to others by the query of before, and they may not have it either: it is never passed over. Of a source
that may be compacted what it still gives is laid along the surplus (:mod:`survivors`); that what it does not give has
vanished, and was not changed, cannot be told, so all of that counts as what may come twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from connect.kafka.cluster import Cluster
from connect.wire import hot
from connect.wire.records import Record
from connectors.dataplane.alignment import Alignment
from connectors.dataplane.chain_stage import Stage, outcome_of
from connectors.dataplane.cut import CorruptBatch
from connectors.dataplane.plan import PartitionPlan, SliceSettings
from connectors.dataplane.records_copier import Opened, opened
from connectors.dataplane.resume import Surplus
from connectors.dataplane.resumed import Resumed, fallback
from connectors.dataplane.resuming import ENOUGH, Resumer, Unreadable
from connectors.dataplane.survivors import Walk


class RecordsResumer(Resumer):
    """As :class:`Resumer`; ``stage`` transforms."""

    def __init__(self, source: Cluster, target: Cluster, settings: SliceSettings, stage: Stage) -> None:
        super().__init__(source, target, settings)
        self._stage = stage
        self._may_differ = True

    async def _placed(self, plan: PartitionPlan, surplus: Surplus, end: int) -> Resumed:
        if (is_compacted := await self._is_compacted(plan.source.topic)) is not False:
            return await self._survived(plan, surplus, end, is_compacted=is_compacted)
        aligned = await self._align_transformed(plan, surplus, end)
        if aligned is None and await self._is_cut(plan):
            return await self._survived(plan, surplus, end, is_compacted=False)
        if aligned is None:
            return fallback(plan, end, surplus, "what the source gives now is not what the target has")
        if aligned.left_out:
            return fallback(plan, end, surplus, "what the source gives now is more than what the target has")
        return aligned

    async def _thinned_too(self, plan: PartitionPlan, surplus: Surplus, end: int, reason: str) -> Resumed:
        return fallback(plan, end, surplus, reason)

    def _certain_before(self, plan: PartitionPlan, surplus: Surplus) -> int:
        """Offsets may have held what the query dropped, or what another one left to others."""
        del surplus
        return plan.next_source_offset

    async def _walk_survivors(self, plan: PartitionPlan, walk: Walk) -> None:
        while not walk.is_over and (parts := await self._fetched(plan, walk.position)):
            for part in parts:
                walk.take_records(await self._given(plan, part), part.following)

    async def _given(self, plan: PartitionPlan, part: Opened) -> list[Record]:
        outcome = await outcome_of(self._stage, plan, part.records)
        return [one for one in outcome if isinstance(one, Record)]

    async def _counted(
        self, plan: PartitionPlan, surplus: Surplus, end: int, last: tuple[Any, bool] | None, reason: str
    ) -> Resumed:
        del last
        return fallback(plan, end, surplus, reason)

    async def _align_transformed(self, plan: PartitionPlan, surplus: Surplus, end: int) -> Resumed | None:
        written = await self._written(plan, end)
        walk = Alignment(plan.next_source_offset, written, read_committed=self._settings.read_committed)
        position = plan.next_source_offset
        while not walk.is_over:
            parts = await self._fetched(plan, position)
            if not parts:
                break
            for part in parts:
                walk.take_records(await self._given(plan, part), part.following, part.leader_epoch)
                position = part.following
        if not walk.is_complete or not written.has_last_of(surplus.records):
            return None
        found = replace(
            plan, next_source_offset=walk.position, last_source_epoch=walk.source_epoch, target_end=end, proof=None
        )
        return Resumed(found, tuple(walk.runs), surplus.records, True, left_out=walk.left_out)

    async def _fetched(self, plan: PartitionPlan, position: int) -> list[Opened]:
        """One fetch of the source; nothing at its end, and where it cannot be read on."""
        parts: list[Opened] = []

        def take(row: hot.FetchedPartition, at: int) -> int:
            aborted = row.aborted if self._settings.read_committed else None
            parts.extend(opened(row.records, at, aborted))
            return ENOUGH if parts else at

        try:
            await self._read(self._source, plan.source, plan, position, None, take)
        except (CorruptBatch, Unreadable):  # the copy will meet it if it has to
            return parts
        return parts
