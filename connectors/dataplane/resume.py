"""Resume by counting: read both logs after an unclean end, and find the source offset where each partition continues.

The predecessor is fenced first, so the target's log is final up to the fence's marker. Its batches there are counted by
their sequences, and the same number of source records, from the stored position on, go through the copy's decision
table. Each stream gives one fingerprint. If they are equal, the target holds exactly these records and the copy
continues behind them, whatever happened to the source since. If not, or if the target's log has a hole, the copy
continues at the stored position: records may appear twice, which is logged, and none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offset
from connect.wire import batch as wire
from connect.wire import fetch_produce, records
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.dataplane import fetch_api, log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.error_codes import unread
from connectors.dataplane.batches.fetched_batches import CORRUPT_TRIES, CorruptBatch, opened
from connectors.dataplane.batches.outgoing_batches import append_run
from connectors.dataplane.batches.outgoing_batches import segments as dense_segments
from connectors.dataplane.smt_stage import TransformStage, outcome_of
from connectors.formats.gap import Gap
from connectors.formats.types import ResumeProof, Run, TopicPartition, Wired

#: (first offset, count)
Segment = tuple[int, int]
_LOST: Final = "the target has lost records behind the stored position"


@dataclass(frozen=True, slots=True)
class Resumed(Wired):
    """How one partition continues. ``plan``: where, without its proof; unchanged with a ``refusal`` or ``later``.

    ``runs``: source and target offsets of the records that arrived, if that is certain. ``arrived``: the number of
    records that the target holds behind the stored position; with a ``fallback`` the most. ``fallback``: why the copy
    continues at the stored position, so that up to ``may_double`` records appear twice. ``refusal``: why the partition
    stops, as a sentence; with ``gap`` if the target was truncated. ``later``: why this cannot be decided now, so that a
    later take-over must.
    """

    plan: PartitionPlan
    runs: tuple[Run, ...] = ()
    arrived: int = 0
    fallback: str = ""
    may_double: int = 0
    refusal: str = ""
    gap: Gap | None = None
    later: str = ""


class Fingerprint:
    """A running hash of records in order, with and without their timestamps. Comparable within one process only."""

    _with_times = _without = 0

    def add(self, record: records.Record) -> None:
        content = hash((record.key, record.value, tuple(record.headers)))
        self._without = hash((self._without, content))
        self._with_times = hash((self._with_times, content, record.timestamp_ms))

    def equals(self, other: Fingerprint, *, ignore_timestamps: bool) -> bool:
        return self._without == other._without if ignore_timestamps else self._with_times == other._with_times


class TargetScan:
    """Reads the target from the record before the stored end to the fence's marker.

    ``is_over`` once the marker is seen: a control batch of the predecessor's producer id with a higher epoch. Behind it
    the leader refuses the predecessor. Without a fence the log is read to its end. ``is_another_log`` if the record
    before the stored end is not the one that the position describes: the log was truncated and has grown again.
    """

    def __init__(self, proof: ResumeProof, target_end: int, log_start: int) -> None:
        self.start = self.position = max(target_end - 1, log_start, 0)
        self.end = max(target_end, log_start)
        self.is_over = False
        self.is_another_log = False
        self.fingerprint = Fingerprint()
        self.segments: list[Segment] = []
        #: Whether the target stamped any of the records (LogAppendTime).
        self.has_own_timestamps = False
        #: Number of records of lower epochs behind the stored end; in the log they precede those of this epoch.
        self.late = 0
        #: The highest epoch seen of the producer id: the leader refuses batches of lower ones.
        self.highest = proof.producer
        self._proof = proof
        self._target_end = target_end
        self._foreign_offsets = 0
        self._arrived = 0
        #: Why the records that arrived cannot all be compared; empty if they can.
        self.doubt = _LOST if log_start > target_end else ""

    @property
    def arrived(self) -> int:
        """The number of records that arrived behind the stored position: exact, or with a :attr:`doubt` the most."""
        if not self.doubt:
            return self._arrived
        return max(self.end - self.is_over - self._target_end - self._foreign_offsets, self._arrived)

    def take(self, fetched: memoryview, position: int) -> int:
        """Take a fetch at ``position``; return the next position to fetch."""
        for start, size, magic in wire.extents(fetched):
            if self.is_over:
                break
            batch = fetched[start : start + size]
            if magic < 2:
                position = max([position, *(record.offset + 1 for record in records.decode(batch, magic))])
                if position > self._target_end:
                    self.doubt = "the target keeps a message format without sequences"
                    self.end = position
                continue
            header = wire.read_header(batch)
            if header.last_offset >= position:
                self._take(header, batch)
                position = header.last_offset + 1
        return position

    def end_at(self, end: int) -> None:
        """Note that the log ends at ``end``, without a marker."""
        if end > self.end:
            self.end, self.doubt = end, _LOST

    def _take(self, header: wire.BatchHeader, batch: memoryview) -> None:
        wrote = self._proof.producer
        is_ours = header.producer_id == wrote.producer_id
        if header.base_offset < self._target_end:
            # In the log that the position describes, the stored end is between two batches.
            reaches_over = header.last_offset >= self._target_end
            self.is_another_log |= reaches_over or not self._is_last_stored(header)
            if not reaches_over:
                return
        if header.base_offset > self.end:
            self.doubt = _LOST
        self.end = header.last_offset + 1
        count, has_data = header.last_offset_delta + 1, is_ours and not header.is_control
        if is_ours:
            self.highest = replace(wrote, epoch=max(header.producer_epoch, self.highest.epoch))
        if has_data and header.producer_epoch < wrote.epoch:
            self.late += count
        if has_data and header.producer_epoch == wrote.epoch:
            self._count(header, batch)
        elif is_ours and header.is_control and header.producer_epoch > wrote.epoch and self._proof.is_fenced:
            self.is_over = True
        else:
            self._foreign_offsets += count

    def _is_last_stored(self, header: wire.BatchHeader) -> bool:
        """Return whether a batch can be the last one before the stored end."""
        wrote, next_sequence = self._proof.producer, self._proof.next_sequence
        if header.producer_id != wrote.producer_id:  # it may precede the writer's first record
            return next_sequence == 0 or not self._proof.is_last_ours
        if header.producer_epoch == wrote.epoch and not header.is_control:
            return wire.add_sequence(header.last_sequence, 1) == next_sequence
        return next_sequence == 0 and header.producer_epoch <= wrote.epoch

    def _count(self, header: wire.BatchHeader, batch: memoryview) -> None:
        expected = wire.add_sequence(self._proof.next_sequence, self._arrived)
        if header.base_sequence != expected:
            self.doubt = "the sequences behind the stored position have a hole"
            return
        count = header.last_offset_delta + 1
        self._arrived += count
        self.segments.append((header.base_offset, count))
        self.has_own_timestamps |= header.is_log_append_time
        if header.record_count != count:
            self.doubt = "the target was compacted behind the stored position"
            return
        for record in records.decode(batch, header.magic):
            self.fingerprint.add(record)


def is_another_log(proof: ResumeProof, target_end: int, fetched: memoryview) -> bool:
    """Return whether a fetch of the record before the stored end, whose first batch holds it, shows that the log was
    truncated and has grown again; False if that record was compacted away."""
    scan = TargetScan(proof, target_end, 0)
    size = wire.whole_batch(fetched, 0)
    if size and fetched[16] == 2:
        scan.take(fetched[:size], scan.start)
    return scan.is_another_log


class SourceScan:
    """Passes ``wanted`` source records, from the stored offset on."""

    def __init__(self, start: int, wanted: int, source_epoch: int = -1) -> None:
        self.position = start
        self.remaining = wanted
        #: Leader epoch of the batch before the position; -1 if unknown.
        self.source_epoch = source_epoch
        self.segments: list[Segment] = []
        self.fingerprint = Fingerprint()

    @property
    def is_over(self) -> bool:
        return not self.remaining

    def take(self, given: Sequence[records.Record], following: int, leader_epoch: int) -> None:
        """Pass the records of a source batch that ends before offset ``following``."""
        part = given[: self.remaining]
        for record in part:
            self.fingerprint.add(record)
        self.segments += dense_segments(part)
        self.remaining -= len(part)
        self.source_epoch = leader_epoch
        self.position = following if self.remaining else part[-1].offset + 1


def exact(plan: PartitionPlan, scan: TargetScan, source_scan: SourceScan | None) -> Resumed:
    """Continue behind the records that arrived; ``source_scan`` is None if none did."""
    found = _behind(plan, scan)
    if source_scan is None:
        return Resumed(found, may_double=scan.late)
    found = replace(found, next_source_offset=source_scan.position, last_source_epoch=source_scan.source_epoch)
    return Resumed(found, tuple(pair_runs(source_scan.segments, scan.segments)), scan.arrived, may_double=scan.late)


def fallback(plan: PartitionPlan, scan: TargetScan, reason: str) -> Resumed:
    """Continue at the stored position. Its leader epoch is kept, so that the copy notices what the source lost."""
    found = _behind(plan, scan)
    return Resumed(found, arrived=scan.arrived, fallback=reason, may_double=scan.arrived + scan.late)


def _behind(plan: PartitionPlan, scan: TargetScan) -> PartitionPlan:
    """Return the plan behind what is in the log, with a higher epoch if the producer's was raised without a fence."""
    producer = plan.producer and scan.highest.raised()
    return replace(plan, target_end=scan.end, proof=None, producer=producer)


def pair_runs(source: Sequence[Segment], target: Sequence[Segment]) -> list[Run]:
    """Combine two segment lists of the same records, in order, into map runs."""
    runs: list[Run] = []
    waiting = list(reversed(target))
    for first, count in source:
        upstream, left = first, count
        while left:
            downstream, available = waiting.pop()
            step = min(left, available)
            if step < available:
                waiting.append((downstream + step, available - step))
            append_run(runs, (upstream, downstream, step))
            upstream, left = upstream + step, left - step
    return runs


log = logging.getLogger(__name__)

#: Small enough to decode in one turn of the loop.
_FETCH_BYTES: Final = 1024 * 1024
_RETRY_S: Final = 0.25
_UNCOMMITTED: Final = fetch_api.FetchLimits(100, 1, _FETCH_BYTES, _FETCH_BYTES, fetch_api.READ_UNCOMMITTED)
_COMMITTED: Final = replace(_UNCOMMITTED, isolation=fetch_api.READ_COMMITTED)
#: How long a log may be unreadable before its partition is left to a later take-over.
_PATIENCE_S: Final = 30.0


class UnreadableLog(Exception):
    """A log that a retry could not read either."""


@dataclass(slots=True)
class _Done:
    """How far both logs are read, kept between tries. The scan begins again with each new leader of the target, because
    it may have lost what the last one showed. ``read`` is the number of offsets read in both logs, some more than
    once."""

    scan: TargetScan | None = None
    leader: tuple[int | None, int] | None = None
    is_scanned: bool = False
    source_scan: SourceScan | None = None
    read: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Resumer:
    """Finds where partitions continue after an unclean end; ``stage`` transforms the source's records."""

    source: Cluster
    target: Cluster
    settings: SliceSettings
    stage: TransformStage | None = None

    async def resume(self, plan: PartitionPlan) -> Resumed:
        """Return how a partition continues; retry while a log cannot be read, until 30 s pass without progress. A
        damaged log is refused as in the copy."""
        damaged, said, clock, done = 0, "", asyncio.get_running_loop().time, _Done()
        until_s: float | None = None
        while True:
            before = done.read
            try:
                return await self._resume(plan, done)
            except CorruptBatch as error:
                damaged = 1 if done.read > before else damaged + 1
                log.error("%s: source %s: %s (try %d)", self.settings.flow, plan.source, error, damaged)
                if damaged >= CORRUPT_TRIES:
                    return Resumed(plan, refusal=f"source {plan.source}: {error}; repair or skip it by hand")
            except UnreadableLog as error:
                log.error("%s: a log cannot be read: %s", self.settings.flow, error, exc_info=error)
                return Resumed(plan, refusal=str(error))
            except RetriableError as error:
                if until_s is None or done.read > before:
                    until_s = clock() + _PATIENCE_S
                elif clock() > until_s:  # because the other partitions of the slice wait for this one
                    return Resumed(plan, later=str(error))
                if str(error) != said:
                    said = str(error)
                    log.warning("%s: %s cannot be resumed now: %s; retrying", self.settings.flow, plan.source, error)
            await asyncio.sleep(_RETRY_S)

    async def _resume(self, plan: PartitionPlan, done: _Done) -> Resumed:
        source, epoch = plan.source, plan.last_source_epoch
        self.source.leader_epochs.saw(source.topic, plan.source_topic_id, source.partition, epoch)
        for side, cluster in (("source", self.source), ("target", self.target)):
            if gone := await log_divergence.explain_topic(cluster, side, plan, plan.next_source_offset):
                return Resumed(plan, refusal=gone.reason, gap=gone.gap)
        scan = await self._scan_target(plan, done)
        if scan.is_another_log:
            why = "the record before that end is another one"
            verdict = log_divergence.target_truncated(
                plan.target, plan.target_end, scan.end, plan.source, plan.next_source_offset, why
            )
            return Resumed(plan, refusal=verdict.reason, gap=verdict.gap)
        if scan.doubt:
            return fallback(plan, scan, scan.doubt)
        if not scan.arrived:
            return exact(plan, scan, None)
        source_scan = done.source_scan = done.source_scan or SourceScan(
            plan.next_source_offset, scan.arrived, plan.last_source_epoch
        )
        await self._scan_source(plan, source_scan, done)
        if source_scan.remaining:
            return fallback(plan, scan, f"the source has {source_scan.remaining} records fewer there than arrived")
        if not source_scan.fingerprint.equals(scan.fingerprint, ignore_timestamps=scan.has_own_timestamps):
            return fallback(plan, scan, "the source now has other records than arrived")
        return exact(plan, scan, source_scan)

    async def _scan_target(self, plan: PartitionPlan, done: _Done) -> TargetScan:
        assert plan.proof is not None, "only a plan with a proof is resumed"
        metadata = await self.target.metadata({plan.target.topic})
        leader = metadata.leader(*plan.target), metadata.leader_epoch(*plan.target)
        if done.scan is None or (leader[0] is not None and leader != done.leader):
            log_start = await list_offset(self.target, plan.target, EARLIEST)
            scan = TargetScan(plan.proof, plan.target_end, log_start)
            done.scan, done.leader, done.is_scanned, done.source_scan = scan, leader, False, None
        scan = done.scan
        if done.is_scanned:
            return scan

        async def take(row: fetch_produce.FetchedPartition) -> bool:
            scan.position = scan.take(row.records, scan.position)
            return scan.is_over

        await self._read(self.target, plan.target, plan, metadata, scan, take, done)
        if not plan.proof.is_fenced:
            scan.end_at(await list_offset(self.target, plan.target, LATEST))
        elif not scan.is_over:
            # Because a leader that does not have the marker yet may also lack records that arrived before it.
            raise RetriableError(f"{plan.target} does not show the marker of its fence yet")
        done.is_scanned = True
        return scan

    async def _scan_source(self, plan: PartitionPlan, source_scan: SourceScan, done: _Done) -> None:
        async def take(row: fetch_produce.FetchedPartition) -> bool:
            for part in opened(
                row.records, source_scan.position, row.aborted if self.settings.read_committed else None
            ):
                source_scan.take(await self._given(plan, part.records), part.following, part.leader_epoch)
                if source_scan.is_over:
                    return True
            return False

        metadata = await self.source.metadata({plan.source.topic})
        await self._read(self.source, plan.source, plan, metadata, source_scan, take, done)

    async def _given(self, plan: PartitionPlan, found: Sequence[Record]) -> Sequence[Record]:
        if self.stage is None:
            return found
        return [one for one in await outcome_of(self.stage, plan, found) if isinstance(one, Record)]

    async def _read(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        plan: PartitionPlan,
        metadata: ClusterMetadata,
        reader: TargetScan | SourceScan,
        take: Callable[[fetch_produce.FetchedPartition], Awaitable[bool]],
        done: _Done,
    ) -> None:
        """Fetch from the reader's position until ``take`` returns True, or to the end of the log. A leader that was
        just elected may show less than the last one did, and does not return its end until it shows all of that
        (KIP-207). So the end is requested, and reading continues if it is higher."""
        of_source = cluster is self.source
        side = "source" if of_source else "target"
        topic = fetch_api.TopicOnWire(partition.topic, plan.source_topic_id if of_source else plan.target_topic_id)
        limits = _COMMITTED if of_source and self.settings.read_committed else _UNCOMMITTED
        leader = metadata.leader(*partition)
        if leader is None:
            raise RetriableError(f"{partition} has no leader now")
        connection = await cluster.connection(leader, "resume")
        while True:
            before = reader.position
            # So that neither a former leader answers nor a source that has lost what was copied (KIP-320).
            last_epoch = reader.source_epoch if isinstance(reader, SourceScan) else -1
            asked = (before, metadata.leader_epoch(*partition), last_epoch)
            row = await fetch_api.fetch_one(connection, topic, partition.partition, asked, limits)
            if row.error_code == error_codes.OFFSET_OUT_OF_RANGE and of_source:
                return  # it ends before, or begins further on, where records may equal those that it lost
            if row.error_code:
                why = f"{side} {partition} {unread(partition.topic, row.error_code)}"
                if row.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED:
                    raise UnreadableLog(f"{why}, then start the flow again")
                raise RetriableError(why)
            if row.diverging is not None:
                return  # because the copy explains this when it fetches there
            end = row.last_stable_offset if limits is _COMMITTED else row.high_watermark
            try:
                if await take(row):
                    return
            except (CorruptBatch, HeliographError, MemoryError):
                raise
            except Exception as error:
                what = f"{side} {partition}: a batch after offset {reader.position - 1}"
                raise UnreadableLog(f"{what} cannot be decoded: {type(error).__name__}: {error}") from error
            finally:
                done.read += reader.position - before
            position = reader.position
            if end <= position or position == before:
                if row.high_watermark >= await list_offset(cluster, partition, LATEST):
                    return
                if position == before:
                    raise RetriableError(f"{partition} does not show all that it has yet")
