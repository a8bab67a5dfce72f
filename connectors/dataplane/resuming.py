"""The I/O of exact resume: reads both logs for :mod:`connectors.dataplane.resume` and reports what it found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.configs import perhaps_compacted
from connect.kafka.offsets import EARLIEST, list_offset
from connect.wire import hot
from connectors.dataplane import codes, lost, reading, verdicts
from connectors.dataplane.alignment import Alignment, SurplusRecords
from connectors.dataplane.cut import CORRUPT_TRIES, CorruptBatch
from connectors.dataplane.plan import PartitionPlan, Run, SliceSettings, TopicPartition
from connectors.dataplane.resume import (
    SourceSearch,
    SourceWalk,
    Surplus,
    TargetScan,
    last_record,
    pair_runs,
    same_record,
)

log = logging.getLogger(__name__)

_FETCH_BYTES: Final = 8 * 1024 * 1024
_RETRY_S: Final = 0.25
_WAIT_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Resumed:
    """How one partition goes on: the plan to copy from, and the story for the log.

    ``fallback`` names why an exact place was not found: the copy goes on at the stored position and may
    double ``surplus_records`` records. ``left_out`` source records among them are not in the target. ``refusal``: why
    it may not go on at all, in a sentence; the plan then is as it was.
    """

    plan: PartitionPlan
    runs: tuple[Run, ...]
    surplus_records: int
    verified: bool
    fallback: str = ""
    refusal: str = ""
    left_out: int = 0

    def to_wire(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_wire(),
            "runs": [list(run) for run in self.runs],
            "surplus_records": self.surplus_records,
            "verified": self.verified,
            "fallback": self.fallback,
            "refusal": self.refusal,
            "left_out": self.left_out,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Resumed:
        return cls(
            PartitionPlan.from_wire(data["plan"]),
            tuple((up, down, count) for up, down, count in data["runs"]),
            data["surplus_records"],
            data["verified"],
            data["fallback"],
            data["refusal"],
            data["left_out"],
        )


class Resumer:
    """Finds the exact place of partitions whose predecessor ended uncleanly and was fenced since."""

    def __init__(self, source: Cluster, target: Cluster, settings: SliceSettings) -> None:
        self._source = source
        self._target = target
        self._settings = settings

    async def resume(self, plan: PartitionPlan) -> Resumed:
        """The plan without its proof, at the exact position; retried until both logs could be read.

        A source that is damaged where it has to be read is refused as the copy would refuse it.
        """
        damaged = 0
        while True:
            try:
                return await self._resume(plan)
            except CorruptBatch as error:
                damaged += 1
                log.error("%s: %s: %s (try %d)", self._settings.flow, plan.source, error, damaged)
                if damaged >= CORRUPT_TRIES:
                    refusal = f"source {plan.source}: {error}; repair or skip it by hand"
                    return Resumed(plan, (), 0, False, refusal=refusal)
                await asyncio.sleep(_RETRY_S)
            except RetriableError as error:
                log.warning("%s: %s cannot be resumed now: %s; trying again", self._settings.flow, plan.source, error)
                await asyncio.sleep(_RETRY_S)

    async def _resume(self, plan: PartitionPlan) -> Resumed:
        for side, cluster in (("source", self._source), ("target", self._target)):
            if gone := await lost.explain_topic(cluster, side, plan):
                return Resumed(plan, (), 0, False, refusal=gone.reason)
        scan, end = await self._scan_target(plan)
        if scan.is_another_log:
            why = "its last record before that is another one"
            again = verdicts.target_truncated(
                plan.target, plan.target_end, end, plan.source, plan.next_source_offset, why
            )
            return Resumed(plan, (), 0, False, refusal=again.reason)
        surplus, end = scan.surplus(), max(end, plan.target_end)
        if surplus.doubt:
            return _fallback(plan, end, surplus, surplus.doubt)
        if not surplus.records:
            return Resumed(replace(plan, target_end=end, proof=None), (), 0, True)
        last = last_record(surplus.last_batch or b"")
        if last is None:
            return _fallback(plan, end, surplus, "the target compacted the last record away")
        record, own_time = last
        if await perhaps_compacted(self._source, {plan.source.topic}):
            # What was copied may have vanished since, and likes of it may lie further on: neither a count nor a
            # likeness tells a place. Only a source that still has all of it, one behind the other, does.
            aligned = await self._align(plan, surplus, end)
            whole = aligned is not None and not aligned.left_out
            return aligned if aligned and whole else _fallback(plan, end, surplus, "the source may have been compacted")
        walk = await self._walk_source(plan, surplus.records)
        if not walk.remaining and walk.last_record and same_record(walk.last_record, record, own_time):
            runs = pair_runs(walk.segments, surplus.segments)
            found = replace(
                plan,
                next_source_offset=walk.position,
                last_source_epoch=walk.source_epoch,
                target_end=end,
                proof=None,
            )
            return Resumed(found, tuple(runs), surplus.records, True)
        if self._settings.skip_refused and (aligned := await self._align(plan, surplus, end)) is not None:
            return aligned
        return await self._search(plan, surplus, end, walk.position, (record, own_time))

    async def _align(self, plan: PartitionPlan, surplus: Surplus, end: int) -> Resumed | None:
        """The predecessor may have left records out, which no count knows of; None where that does not explain it."""
        assert plan.proof is not None, "only a plan with a proof is resumed"
        written = SurplusRecords(plan.proof)
        start = max(plan.target_end, await list_offset(self._target, plan.target, EARLIEST))
        await self._read(
            self._target, plan.target, plan, start, end, lambda row, position: written.take(row.records, position)
        )
        walk = Alignment(plan.next_source_offset, written, read_committed=self._settings.read_committed)

        def take(row: hot.FetchedPartition, position: int) -> int:
            walk.take(row.records, row.aborted)
            return _ENOUGH if walk.is_over else walk.position

        try:
            await self._read(self._source, plan.source, plan, plan.next_source_offset, None, take)
        except CorruptBatch:  # further on than the surplus may reach; the copy will meet it if it has to
            return None
        if not walk.is_complete:
            return None
        found = replace(
            plan, next_source_offset=walk.position, last_source_epoch=walk.source_epoch, target_end=end, proof=None
        )
        return Resumed(found, tuple(walk.runs), surplus.records, True, left_out=walk.left_out)

    async def _search(
        self, plan: PartitionPlan, surplus: Surplus, end: int, until: int, last: tuple[Any, bool]
    ) -> Resumed:
        """The source was thinned or cut since: look for the target's last record among what is left."""
        record, own_time = last
        search = SourceSearch(record, until, own_time)

        def take(row: hot.FetchedPartition, position: int) -> int:
            aborted = row.aborted if self._settings.read_committed else None
            return search.take(row.records, position, aborted)

        await self._read(self._source, plan.source, plan, plan.next_source_offset, until, take)
        if search.found is None:
            return _fallback(plan, end, surplus, "the target's last record is no longer in the source")
        found = replace(plan, next_source_offset=search.found + 1, last_source_epoch=-1, target_end=end, proof=None)
        downstream = sum(surplus.segments[-1]) - 1
        return Resumed(found, ((search.found, downstream, 1),), surplus.records, True)

    async def _scan_target(self, plan: PartitionPlan) -> tuple[TargetScan, int]:
        assert plan.proof is not None, "only a plan with a proof is resumed"
        log_start = await list_offset(self._target, plan.target, EARLIEST)
        scan = TargetScan(plan.proof, plan.target_end, log_start)
        end = await self._read(
            self._target, plan.target, plan, scan.start, None, lambda row, position: scan.take(row.records, position)
        )
        return scan, end

    async def _walk_source(self, plan: PartitionPlan, wanted: int) -> SourceWalk:
        walk = SourceWalk(
            plan.next_source_offset,
            wanted,
            read_committed=self._settings.read_committed,
            max_message_bytes=plan.max_message_bytes,
        )

        def take(row: hot.FetchedPartition, position: int) -> int:
            walk.take(row.records, row.aborted)
            return walk.position if walk.remaining else _ENOUGH

        await self._read(self._source, plan.source, plan, plan.next_source_offset, None, take)
        return walk

    async def _read(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        plan: PartitionPlan,
        position: int,
        until: int | None,
        take: Callable[[hot.FetchedPartition, int], int],
    ) -> int:
        """Fetch from ``position`` to ``until`` or the end of the log; returns where it stopped."""
        of_source = cluster is self._source
        topic = reading.TopicOnWire(partition.topic, plan.source_topic_id if of_source else plan.target_topic_id)
        isolation = reading.READ_COMMITTED if of_source and self._settings.read_committed else reading.READ_UNCOMMITTED
        limits = reading.FetchLimits(_WAIT_MS, 1, _FETCH_BYTES, _FETCH_BYTES, isolation)
        metadata = await cluster.metadata({partition.topic})
        leader = metadata.leader(*partition)
        if leader is None:
            raise RetriableError(f"{partition} has no leader now")
        connection = await cluster.connection(leader, "resume")
        while until is None or position < until:
            row = await reading.fetch_one(connection, topic, partition.partition, (position, -1, -1), limits)
            if row.error_code == codes.OFFSET_OUT_OF_RANGE:
                return position
            if row.error_code:
                raise RetriableError(f"{partition} cannot be read: {codes.name(row.error_code)}")
            end = row.last_stable_offset if isolation == reading.READ_COMMITTED else row.high_watermark
            before, position = position, take(row, position)
            if position >= min(end, _ENOUGH) or (position == before and not row.records):
                return position
        return position


#: A position no log reaches: «read no further».
_ENOUGH: Final = 2**62


def _fallback(plan: PartitionPlan, end: int, surplus: Surplus, reason: str) -> Resumed:
    return Resumed(replace(plan, target_end=end, proof=None), (), surplus.records, False, reason)
