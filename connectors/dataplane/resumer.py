"""Read both logs for :mod:`connectors.dataplane.resume`, and report where each partition continues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.offsets import EARLIEST, LATEST, list_offset
from connect.wire import hot
from connect.wire.records import Record
from connectors.dataplane import codes, lost, reading, verdicts
from connectors.dataplane.chain_stage import Stage, outcome_of
from connectors.dataplane.cut import CORRUPT_TRIES, CorruptBatch
from connectors.dataplane.plan import PartitionPlan, SliceSettings, TopicPartition
from connectors.dataplane.records_copier import opened
from connectors.dataplane.refusals import unread
from connectors.dataplane.resume import Resumed, SourceWalk, TargetScan, exact, fallback

log = logging.getLogger(__name__)

#: Small enough to be opened in one turn of the loop.
_FETCH_BYTES: Final = 1024 * 1024
_RETRY_S: Final = 0.25
_WAIT_MS: Final = 100
#: How long a log may be unreadable before its partition waits for a later take-over.
_PATIENCE_S: Final = 30.0


class Unreadable(Exception):
    """A log that another try would not read either."""


class _Done:
    """How far both logs are read, kept from one try to the next.

    A new leader of the target may have lost what the one before showed, so that the scan begins again with it.
    """

    def __init__(self, plan: PartitionPlan) -> None:
        self.scan: TargetScan | None = None
        self.is_scanned = False
        self.walk: SourceWalk | None = None
        self.leader: tuple[int | None, int] | None = None
        self._begins_at = plan.next_source_offset
        self._before = 0

    def begin(self, scan: TargetScan, leader: tuple[int | None, int]) -> None:
        self._before = self.read
        self.scan, self.leader, self.is_scanned, self.walk = scan, leader, False, None

    @property
    def read(self) -> int:
        """How many offsets of both logs were read, some more than once."""
        scanned = self.scan.position - self.scan.start if self.scan else 0
        return self._before + scanned + (self.walk.position - self._begins_at if self.walk else 0)


class Resumer:
    """Finds where partitions continue whose predecessor ended uncleanly; ``stage`` transforms the source's records."""

    def __init__(self, source: Cluster, target: Cluster, settings: SliceSettings, stage: Stage | None = None) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._stage = stage

    async def resume(self, plan: PartitionPlan) -> Resumed:
        """Return the plan without its proof; retry if a log cannot be read, until a while passes without progress.

        A damaged log is refused as the copy would refuse it.
        """
        damaged, said, clock = 0, "", asyncio.get_running_loop().time
        until_s: float | None = None
        done = _Done(plan)
        while True:
            before = done.read
            try:
                return await self._resume(plan, done)
            except CorruptBatch as error:
                damaged = 1 if done.read > before else damaged + 1
                log.error("%s: %s: %s (try %d)", self._settings.flow, plan.source, error, damaged)
                if damaged >= CORRUPT_TRIES:
                    return Resumed(plan, refusal=f"source {plan.source}: {error}; repair or skip it by hand")
            except Unreadable as error:
                log.error("%s: %s", self._settings.flow, error, exc_info=error)
                return Resumed(plan, refusal=str(error))
            except RetriableError as error:
                if until_s is None or done.read > before:
                    until_s = clock() + _PATIENCE_S
                elif clock() > until_s:  # the other partitions of the slice wait for it
                    return Resumed(plan, later=str(error))
                if str(error) != said:
                    said = str(error)
                    log.warning("%s: %s cannot be resumed now: %s; retrying", self._settings.flow, plan.source, error)
            await asyncio.sleep(_RETRY_S)

    async def _resume(self, plan: PartitionPlan, done: _Done) -> Resumed:
        source, epoch = plan.source, plan.last_source_epoch
        self._source.leader_epochs.saw(source.topic, plan.source_topic_id, source.partition, epoch)
        for side, cluster in (("source", self._source), ("target", self._target)):
            if gone := await lost.explain_topic(cluster, side, plan, plan.next_source_offset):
                return Resumed(plan, refusal=gone.reason, gap=gone.gap)
        scan = await self._scan_target(plan, done)
        if scan.is_another_log:
            why = "the record before that end is another one"
            verdict = verdicts.target_truncated(
                plan.target, plan.target_end, scan.end, plan.source, plan.next_source_offset, why
            )
            return Resumed(plan, refusal=verdict.reason, gap=verdict.gap)
        if scan.doubt:
            return fallback(plan, scan, scan.doubt)
        if not scan.arrived:
            return exact(plan, scan, None)
        return await self._count_off(plan, scan, done)

    async def _count_off(self, plan: PartitionPlan, scan: TargetScan, done: _Done) -> Resumed:
        walk = done.walk = done.walk or SourceWalk(plan.next_source_offset, scan.arrived, plan.last_source_epoch)
        await self._walk_source(plan, walk)
        if walk.remaining:
            return fallback(plan, scan, f"the source has {walk.remaining} records fewer there than arrived")
        if not walk.fingerprint.equals(scan.fingerprint, ignore_timestamps=scan.has_own_timestamps):
            return fallback(plan, scan, "the source has other records now than arrived")
        return exact(plan, scan, walk)

    async def _scan_target(self, plan: PartitionPlan, done: _Done) -> TargetScan:
        assert plan.proof is not None, "only a plan with a proof is resumed"
        metadata = await self._target.metadata({plan.target.topic})
        leader = metadata.leader(*plan.target), metadata.leader_epoch(*plan.target)
        if done.scan is None or (leader[0] is not None and leader != done.leader):
            log_start = await list_offset(self._target, plan.target, EARLIEST)
            done.begin(TargetScan(plan.proof, plan.target_end, log_start), leader)
        assert done.scan is not None
        scan = done.scan
        if done.is_scanned:
            return scan

        async def take(row: hot.FetchedPartition) -> bool:
            scan.position = scan.take(row.records, scan.position)
            return scan.is_over

        await self._read(self._target, plan.target, plan, metadata, scan, take)
        if not plan.proof.is_fenced:
            scan.end_at(await list_offset(self._target, plan.target, LATEST))
        elif not scan.is_over:
            # Taken for the end, the log of a leader that has not got the marker yet would hide what arrived before it.
            raise RetriableError(f"{plan.target} does not show the marker of its fence yet")
        done.is_scanned = True
        return scan

    async def _walk_source(self, plan: PartitionPlan, walk: SourceWalk) -> None:
        async def take(row: hot.FetchedPartition) -> bool:
            for part in opened(row.records, walk.position, row.aborted if self._settings.read_committed else None):
                walk.take(await self._given(plan, part.records), part.following, part.leader_epoch)
                if walk.is_over:
                    return True
            return False

        metadata = await self._source.metadata({plan.source.topic})
        await self._read(self._source, plan.source, plan, metadata, walk, take)

    async def _given(self, plan: PartitionPlan, found: Sequence[Record]) -> Sequence[Record]:
        if self._stage is None:
            return found
        return [one for one in await outcome_of(self._stage, plan, found) if isinstance(one, Record)]

    async def _read(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        plan: PartitionPlan,
        metadata: ClusterMetadata,
        reader: TargetScan | SourceWalk,
        take: Callable[[hot.FetchedPartition], Awaitable[bool]],
    ) -> None:
        """Fetch from the reader's position until ``take`` says that it is over, or to the end of the log.

        A leader that was elected a moment ago may show less than the one before had shown, and does not tell its end
        until it shows all of that (KIP-207): the end is asked for, and reading continues if it is further on.
        """
        of_source = cluster is self._source
        side = "source" if of_source else "target"
        topic = reading.TopicOnWire(partition.topic, plan.source_topic_id if of_source else plan.target_topic_id)
        isolation = reading.READ_COMMITTED if of_source and self._settings.read_committed else reading.READ_UNCOMMITTED
        limits = reading.FetchLimits(_WAIT_MS, 1, _FETCH_BYTES, _FETCH_BYTES, isolation)
        leader = metadata.leader(*partition)
        if leader is None:
            raise RetriableError(f"{partition} has no leader now")
        connection = await cluster.connection(leader, "resume")
        while True:
            before = reader.position
            # No former leader may answer, nor a source that has lost what was copied (KIP-320).
            last_epoch = reader.source_epoch if isinstance(reader, SourceWalk) else -1
            asked = (before, metadata.leader_epoch(*partition), last_epoch)
            row = await reading.fetch_one(connection, topic, partition.partition, asked, limits)
            if row.error_code == codes.OFFSET_OUT_OF_RANGE and of_source:
                return  # it begins further on, with records that may be like those that it lost, or ends before
            if row.error_code:
                why = f"{side} {partition} {unread(partition.topic, row.error_code)}"
                if row.error_code == codes.TOPIC_AUTHORIZATION_FAILED:
                    raise Unreadable(f"{why}, then start the flow again")
                raise RetriableError(why)
            if row.diverging is not None:
                return  # the copy says where, once it fetches there
            end = row.last_stable_offset if isolation == reading.READ_COMMITTED else row.high_watermark
            try:
                if await take(row):
                    return
            except (CorruptBatch, HeliographError, MemoryError):
                raise
            except Exception as error:
                what = f"{side} {partition}: a batch behind offset {reader.position - 1}"
                raise Unreadable(f"{what} cannot be opened: {type(error).__name__}: {error}") from error
            position = reader.position
            if end <= position or (position == before and not row.records):
                if row.high_watermark >= await list_offset(cluster, partition, LATEST):
                    return
                if position == before:
                    raise RetriableError(f"{partition} does not show all that it has yet")
