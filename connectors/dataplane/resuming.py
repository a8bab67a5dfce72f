"""The I/O of exact resume: reads both logs for :mod:`connectors.dataplane.resume` and reports what it found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.configs import compaction
from connect.kafka.offsets import EARLIEST, LATEST, epoch_ends, list_offset
from connect.wire import hot, records
from connectors.dataplane import codes, lost, reading, verdicts
from connectors.dataplane.alignment import Alignment, SurplusRecords
from connectors.dataplane.cut import CORRUPT_TRIES, CorruptBatch
from connectors.dataplane.placing import Thinned
from connectors.dataplane.plan import PartitionPlan, SliceSettings, TopicPartition
from connectors.dataplane.refusals import unread
from connectors.dataplane.rest import Rest
from connectors.dataplane.resume import (
    SourceSearch,
    SourceWalk,
    Surplus,
    TargetScan,
    last_record,
    pair_runs,
    same_record,
)
from connectors.dataplane.resumed import Resumed, counted_off, fallback, survived
from connectors.dataplane.survivors import MOST_COMPARED, Bounds, Survivors, Walk

log = logging.getLogger(__name__)

_FETCH_BYTES: Final = 8 * 1024 * 1024
_RETRY_S: Final = 0.25
_WAIT_MS: Final = 100
#: How long a log may be unreadable in turn before its partition is left to a later take-over.
_PATIENCE_S: Final = 30.0
#: So often a source is read that is compacted or cut meanwhile; then what it gave last counts.
_SURVIVOR_TRIES: Final = 3


class Unreadable(Exception):
    """A batch whose checksum is right, and which cannot be opened all the same."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(f"{where} cannot be opened: {type(error).__name__}: {error}")


class Resumer:
    """Finds the exact place of partitions whose predecessor ended uncleanly and was fenced since."""

    def __init__(self, source: Cluster, target: Cluster, settings: SliceSettings) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        #: Whether the source may give other records now than those that were copied.
        self._may_differ = settings.skip_refused
        self._asking = asyncio.Lock()
        self._compacted: dict[str, bool | None] = {}

    async def resume(self, plan: PartitionPlan) -> Resumed:
        """The plan without its proof, at the exact position; retried for a while where a log cannot be read.

        A log that is damaged where it has to be read is refused as the copy would refuse it.
        """
        damaged, clock = 0, asyncio.get_running_loop().time
        until_s: float | None = None
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
            except Unreadable as error:
                log.error("%s: %s", self._settings.flow, error, exc_info=error)
                return Resumed(plan, (), 0, False, refusal=str(error))
            except RetriableError as error:
                if until_s is None:
                    until_s = clock() + _PATIENCE_S
                elif clock() > until_s:  # the others of the slice wait for it
                    return Resumed(plan, (), 0, False, later=str(error))
                log.warning("%s: %s cannot be resumed now: %s; trying again", self._settings.flow, plan.source, error)
                await asyncio.sleep(_RETRY_S)

    async def arrived(self, plan: PartitionPlan) -> int:
        """How many records arrived behind the plan's position, by the target alone; 0 where its log does not show it.

        Raises RetriableError where it cannot be read now.
        """
        try:
            scan, _ = await self._scan_target(plan)
        except (CorruptBatch, Unreadable) as error:
            log.warning("%s: %s: %s", self._settings.flow, plan.target, error)
            return 0
        surplus = scan.surplus()
        return 0 if scan.is_another_log or not surplus.is_in_the_log else surplus.records

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
        if surplus.doubt and surplus.is_in_the_log:
            return await self._thinned_too(plan, surplus, end, surplus.doubt)
        if surplus.doubt:
            return fallback(plan, end, surplus, surplus.doubt)
        if not surplus.records:
            return Resumed(replace(plan, target_end=end, proof=None), (), 0, True)
        return await self._placed(plan, surplus, end)

    async def _placed(self, plan: PartitionPlan, surplus: Surplus, end: int) -> Resumed:
        """Where the source goes on behind a surplus that is known in full."""
        last = _last_record(plan, surplus)
        if last is None:
            return await self._thinned_too(plan, surplus, end, "the target compacted the last record away")
        record, own_time = last
        if (is_compacted := await self._is_compacted(plan.source.topic)) is not False:
            # What was copied may have vanished since, and likes of it may lie further on: neither a count nor a
            # likeness tells a place.
            return await self._survived(plan, surplus, end, is_compacted=is_compacted)
        walk = await self._walk_source(plan, surplus.records)
        is_last = not walk.remaining and walk.last_record and same_record(walk.last_record, record, own_time)
        if is_last and not await self._is_rewritten(plan, walk, surplus, end):
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
        if await self._is_cut(plan):
            return await self._survived(plan, surplus, end, is_compacted=False)
        return await self._search(plan, surplus, end, walk.position, (record, own_time))

    async def _is_rewritten(self, plan: PartitionPlan, walk: SourceWalk, surplus: Surplus, end: int) -> bool:
        """Whether a later leader wrote other records in the place of those copied, the last of which is there again. A
        leader that only follows on the one before has each of them."""
        if plan.last_source_epoch == walk.source_epoch != -1:
            return False
        aligned = await self._align(plan, surplus, end)
        return aligned is None or aligned.plan.next_source_offset != walk.position

    async def _kept_before(self, plan: PartitionPlan, surplus: Surplus) -> int:
        """Up to here the source has no records but those that were copied; never behind as many offsets as arrived.

        A source that was truncated and has grown again holds others from there on, of a later leader epoch (KIP-101).
        """
        reached = plan.next_source_offset + surplus.records
        return min(reached, max(plan.next_source_offset, await self._epoch_end(plan)))

    async def _epoch_end(self, plan: PartitionPlan) -> int:
        """Where the source's records of the stored leader epoch end, -1 where it has none of it; the stored position
        where no epoch is known."""
        if plan.last_source_epoch == -1:
            return plan.next_source_offset
        found = (await epoch_ends(self._source, {plan.source: plan.last_source_epoch}))[plan.source]
        return found.offset if found.epoch >= plan.last_source_epoch else -1

    async def _is_cut(self, plan: PartitionPlan) -> bool:
        """Whether the source has lost what it had at the stored position."""
        return await list_offset(self._source, plan.source, EARLIEST) > plan.next_source_offset

    async def _thinned_too(self, plan: PartitionPlan, surplus: Surplus, end: int, reason: str) -> Resumed:
        """Of a surplus that the target has lost some of."""
        if (is_compacted := await self._is_compacted(plan.source.topic)) is not False:
            return await self._survived(plan, surplus, end, is_compacted=is_compacted)
        return await self._counted(plan, surplus, end, None, reason)

    async def _survived(self, plan: PartitionPlan, surplus: Surplus, end: int, *, is_compacted: bool | None) -> Resumed:
        """What the source has left is laid along the surplus; again where it loses more meanwhile."""
        written = await self._written(plan, end)
        if len(written.offsets) > MOST_COMPARED:
            return await self._counted(plan, surplus, end, None, "more records had arrived than are compared")
        if await self._epoch_end(plan) < plan.next_source_offset:
            return fallback(plan, end, surplus, _TRUNCATED)
        for _ in range(_SURVIVOR_TRIES):
            source_start = await list_offset(self._source, plan.source, EARLIEST)
            certain = self._certain_before(plan, surplus)
            # What is gone was not written anew.
            kept = min(certain, max(source_start, await self._kept_before(plan, surplus)))
            if await list_offset(self._source, plan.source, LATEST) < certain:
                return fallback(plan, end, surplus, _TRUNCATED, at=kept)
            if len(written.offsets) < surplus.records:
                certain = kept  # what another leader wrote in its place cannot be told from what the target has lost
            bounds = Bounds(plan.next_source_offset, source_start, certain, surplus.records, kept)
            thinned = Thinned(bounds, is_compacted=is_compacted, may_differ=self._may_differ)
            walk = Survivors(bounds, written, read_committed=self._settings.read_committed)
            try:
                await self._walk_survivors(plan, walk)
            except (CorruptBatch, Unreadable):  # further on than it may have to be read; the copy meets it if so
                return await self._counted(plan, surplus, end, None, "the source cannot be read further on")
            has_moved = not walk.is_over and await list_offset(self._source, plan.source, EARLIEST) > walk.position
            place = thinned.place(walk, differs=await self._has_rest(plan, walk))
            if not has_moved and not place.may_double:
                break
        if has_moved:
            return await self._counted(plan, surplus, end, None, "the source lost more while it was read")
        return survived(plan, place, walk, surplus, end, kept_before=kept, may_differ=self._may_differ)

    async def _has_rest(self, plan: PartitionPlan, walk: Survivors) -> bool:
        """Whether the source has further on what was not found up to where the walk ended; also where it cannot be
        told. Not asked where what was not found counts as what may come again in any case."""
        if self._may_differ or not (walk.is_over and walk.is_whole and walk.remaining):
            return False
        rest = Rest(walk, read_committed=self._settings.read_committed)
        try:
            await self._walk_survivors(plan, rest)
        except (CorruptBatch, Unreadable):
            return True
        return rest.is_seen

    async def _walk_survivors(self, plan: PartitionPlan, walk: Walk) -> None:
        def take(row: hot.FetchedPartition, _: int) -> int:
            walk.take(row.records, row.aborted)
            return ENOUGH if walk.is_over else walk.position

        await self._read(self._source, plan.source, plan, walk.position, None, take)

    def _certain_before(self, plan: PartitionPlan, surplus: Surplus) -> int:
        """So many records have so many offsets at least, so all before that was copied or is gone."""
        return plan.next_source_offset + surplus.records

    async def _written(self, plan: PartitionPlan, end: int) -> SurplusRecords:
        """What the predecessor left at the target behind the stored position."""
        assert plan.proof is not None, "only a plan with a proof is resumed"
        written = SurplusRecords(plan.proof)
        start = max(plan.target_end, await list_offset(self._target, plan.target, EARLIEST))
        await self._read(
            self._target, plan.target, plan, start, end, lambda row, position: written.take(row.records, position)
        )
        return written

    async def _is_compacted(self, topic: str) -> bool | None:
        """Asked once for all partitions of a topic; None where that is refused."""
        async with self._asking:
            if topic not in self._compacted:
                self._compacted[topic] = (await compaction(self._source, {topic})).get(topic)
        return self._compacted[topic]

    async def _align(self, plan: PartitionPlan, surplus: Surplus, end: int) -> Resumed | None:
        """The predecessor may have left records out, which no count knows of; None where that does not explain it."""
        written = await self._written(plan, end)
        walk = Alignment(plan.next_source_offset, written, read_committed=self._settings.read_committed)

        def take(row: hot.FetchedPartition, position: int) -> int:
            walk.take(row.records, row.aborted)
            return ENOUGH if walk.is_over else walk.position

        try:
            await self._read(self._source, plan.source, plan, plan.next_source_offset, None, take)
        except (CorruptBatch, Unreadable):  # further on than the surplus may reach; the copy will meet it if it has to
            return None
        if not walk.is_complete or not written.has_last_of(surplus.records):
            return None
        knows_epoch = plan.last_source_epoch != -1
        if knows_epoch and walk.left_out and walk.last_left_out >= await self._epoch_end(plan):
            return None  # a later leader may have written it instead
        found = replace(
            plan, next_source_offset=walk.position, last_source_epoch=walk.source_epoch, target_end=end, proof=None
        )
        return Resumed(found, tuple(walk.runs), surplus.records, True, left_out=walk.left_out)

    async def _search(
        self, plan: PartitionPlan, surplus: Surplus, end: int, until: int, last: tuple[Any, bool]
    ) -> Resumed:
        """The source was thinned since: look for the target's last record among what is left."""
        kept = await self._kept_before(plan, surplus)
        if kept < plan.next_source_offset + surplus.records:
            return fallback(plan, end, surplus, _TRUNCATED, at=kept)
        record, own_time = last
        search = SourceSearch(record, until, own_time)

        def take(row: hot.FetchedPartition, position: int) -> int:
            aborted = row.aborted if self._settings.read_committed else None
            return search.take(row.records, position, aborted)

        await self._read(self._source, plan.source, plan, plan.next_source_offset, until, take)
        if search.found is None:
            return await self._counted(plan, surplus, end, last, "the target's last record is no longer in the source")
        found = replace(plan, next_source_offset=search.found + 1, last_source_epoch=-1, target_end=end, proof=None)
        downstream = sum(surplus.segments[-1]) - 1
        return Resumed(found, ((search.found, downstream, 1),), surplus.records, True)

    async def _counted(
        self, plan: PartitionPlan, surplus: Surplus, end: int, last: tuple[Any, bool] | None, reason: str
    ) -> Resumed:
        """Source or target has lost some of what was copied. So many records have so many offsets at least, so all
        before that is copied or gone; where the last of them stands just there, they have no more.

        Else what arrived from further on, as some offsets held no records, may come again.
        """
        reached = plan.next_source_offset + surplus.records
        if (kept := await self._kept_before(plan, surplus)) < reached:
            return fallback(plan, end, surplus, f"{reason}, and {_TRUNCATED}", at=kept)
        is_last = last is not None and await self._has_at(plan, reached - 1, last)
        return counted_off(plan, surplus, end, "" if is_last else reason)

    async def _has_at(self, plan: PartitionPlan, offset: int, last: tuple[Any, bool]) -> bool:
        """Whether the source's record at an offset is the one that the target has last."""
        search = SourceSearch(last[0], offset + 1, last[1])

        def take(row: hot.FetchedPartition, position: int) -> int:
            return search.take(row.records, position, row.aborted if self._settings.read_committed else None)

        await self._read(self._source, plan.source, plan, offset, offset + 1, take)
        return search.found is not None

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
            return walk.position if walk.remaining else ENOUGH

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
        """Fetch from ``position`` to ``until`` or the end of the log; returns where it stopped.

        A leader that was elected a moment ago may show less than the one before had shown, and does not tell an end
        until it shows all of that (KIP-207): so who reads to the end asks for it, and reads on where it is further on.
        """
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
            if row.error_code == codes.OFFSET_OUT_OF_RANGE and (
                of_source or (until is None and position > await list_offset(cluster, partition, LATEST))
            ):
                return position
            if row.error_code:
                raise RetriableError(f"{partition} {unread(partition.topic, row.error_code)}")
            end = row.last_stable_offset if isolation == reading.READ_COMMITTED else row.high_watermark
            before = position
            try:
                position = take(row, position)
            except (CorruptBatch, HeliographError, MemoryError):
                raise
            except Exception as error:
                side = "source" if of_source else "target"
                raise Unreadable(f"{side} {partition}: a batch behind offset {position - 1}", error) from error
            if position >= ENOUGH:
                return position
            if position >= end or (position == before and not row.records):
                if until is not None or row.high_watermark >= await list_offset(cluster, partition, LATEST):
                    return position
                if position == before:
                    raise RetriableError(f"{partition} does not show all that it has yet")
        return position


_TRUNCATED: Final = "the source may have been truncated since and have other records there now"

#: A position no log reaches: «read no further».
ENOUGH: Final = 2**62


def _last_record(plan: PartitionPlan, surplus: Surplus) -> tuple[records.Record, bool] | None:
    try:
        return last_record(surplus.last_batch or b"")
    except MemoryError:
        raise  # which says nothing of the batch
    except Exception as error:
        end = sum(surplus.segments[-1])
        raise Unreadable(f"target {plan.target}: the batch before offset {end}", error) from error
