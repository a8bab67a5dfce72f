"""Copy MirrorMaker 1's partitions by key: the worker's task that replaces MirrorSource's, and its stop messages.
Positions are the group's offsets, stored once the target has acknowledged the records; a successor copies again what
had arrived after them. Stop messages use this command's options instead of a connector's settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from uuid import UUID

from connect.core.errors import RetriableError
from connect.kafka.concurrency import Scope, is_set_within, unless
from connect.kafka.log.committed_offsets import Committed
from connect.kafka.log.offsets import EARLIEST, LATEST, known_offsets
from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.dataplane.batches import error_codes, fetched_batches
from connectors.dataplane.log_divergence import facts
from connectors.flow_progress import PartitionView, is_stopped
from connectors.formats.gap import GapKind
from connectors.formats.types import QUARANTINED, RUNNING, STOPPED, ProducerIdAndEpoch, TopicPartition, is_recreated
from connectors.mirror_maker_1.consumer_group import GroupOffsets, encode_by_key, topic_id_of
from connectors.mirror_maker_1.process_context import ProcessContext
from connectors.mirror_maker_1.topics import shown
from connectors.source.positions.partition_notes import SkipLog
from connectors.source.slice_handle import Defects, SliceHandle, SliceLost, close_quietly
from connectors.topic_sync.partition_assignment import warn_of_skipped_backlog

_WORDS: Final = {
    error_codes.SKIP: "or set --abort.on.send.failure false to leave out what is refused",
    error_codes.LEAVE_OUT: "leave it out with --include or --exclude",
    error_codes.AGAIN: "then start kafka-mirror-maker again",
}
_LEAVES_OUT: Final = "with --abort.on.send.failure false such records are skipped, logged and counted"
#: States of a partition copied to that of the same number, which continues only after an operator's decision.
_BY_RESET: Final = frozenset({GapKind.TARGET_TRUNCATED.label, GapKind.SOURCE_TRUNCATED.label})
_THE_SAME: Final = " (the same offset, if the target is as it should be)"


def stop_message(state: str, source: TopicPartition, reason: str, group_id: str) -> str:
    """Return the ``reason`` of a partition copied to that of the same number, with what to do; one that already says so
    is unchanged."""
    what = _worded(facts(reason))
    remedy = (
        f"nothing more of {source} is copied until group {group_id} has no members and its offset of {source} was set "
        "with kafka-consumer-groups --reset-offsets to where the copy is to continue"
    )
    return f"{what}; {remedy}{_THE_SAME}" if state in _BY_RESET and remedy not in what else what


def stop_message_at_end(state: str, source: TopicPartition, reason: str, group_id: str) -> str:
    """Return :func:`stop_message` for a process that ends because of it."""
    what = stop_message(state, source, reason, group_id)
    # What the target rejects has its own advice; the others are records that a message handler fails on.
    has_advice = any(words in what for words in _WORDS.values())
    return f"{what}; {_LEAVES_OUT}" if state == QUARANTINED and not has_advice else what


def _worded(reason: str) -> str:
    """Put this command's options into a message about what a target rejects."""
    for theirs, ours in _WORDS.items():
        reason = reason.replace(theirs, ours)
    return reason


log = logging.getLogger(__name__)

_LOST_S: Final = 5.0
#: A slice ends cleanly after this time, and the next one begins.
_SLICE_S: Final = 3_600.0
#: How often to check the source for recreated topics, and for missing topics that appeared.
_LOOK_S: Final = 30.0
#: A slice that copies by key chooses its own producer id.
_ITS_OWN: Final = ProducerIdAndEpoch(-1, -1)


@dataclass(slots=True)
class ByKeyProgress:
    """Progress of one partition. Counts are since the task began."""

    position: int
    topic_id: UUID | None
    state: str = RUNNING
    reason: str = ""
    high_watermark: int = -1
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    skipped: int = 0

    def add(self, progress: PartitionProgress) -> None:
        self.position = progress.next_source_offset
        self.high_watermark = progress.high_watermark
        self.timestamp_ms = max(self.timestamp_ms, progress.timestamp_ms)
        self.records += progress.records
        self.bytes += progress.bytes
        self.skipped += sum(last - first + 1 for first, last, _ in progress.skips)

    def view(self, source: TopicPartition, now_ms: int) -> PartitionView:
        lag = max(self.high_watermark - self.position, 0)
        return PartitionView(
            source_topic=source.topic,
            source_partition=source.partition,
            target_topic=source.topic,
            target_partition=-1,
            state=self.state,
            records=self.records,
            bytes=self.bytes,
            batches=dict.fromkeys(map(str, fetched_batches.BatchKind), 0),
            next_source_offset=self.position,
            source_end_offset=self.high_watermark,
            lag_records=lag,
            lag_ms=max(now_ms - self.timestamp_ms, 0) if lag and self.timestamp_ms >= 0 else 0,
            reason=self.reason,
            skipped=self.skipped,
        )


def first_offset(
    stored: int, topic_id_then: UUID | None, topic_id: UUID | None, start: int, end: int
) -> tuple[int, str]:
    """Return the source offset at which copying continues after a stored one, and what is lost or copied again.
    ``start`` and ``end`` are those of the source's log, ``topic_id_then`` is the topic's when the offset was stored."""
    if is_recreated(topic_id, topic_id_then):
        ids = f"topic id {topic_id}, previously {topic_id_then}"
        return start, f"its topic was recreated ({ids}): copied from the beginning"
    if stored < start:
        return start, f"offsets {stored} to {start - 1} were deleted before they were copied: copied from {start}"
    if stored > end:
        # It may have been truncated to before ``end``, and have grown since.
        return start, f"its log was truncated to {end} or before, and {stored} was next: copied from the beginning"
    return stored, ""


class ByKeyTask:
    """Copies until stopped, and retries temporary errors. It is not fenced: its slices end when this process is no
    longer a member of the group, which ``holds`` says in the lease thread."""

    def __init__(
        self,
        context: ProcessContext,
        offsets: GroupOffsets,
        partitions: Sequence[TopicPartition],
        holds: Callable[[], bool],
    ) -> None:
        self._context, self._holds, self._offsets, self._partitions = context, holds, offsets, partitions
        self._stopping = asyncio.Event()
        self._copied: dict[TopicPartition, ByKeyProgress] = {}
        self._stored: dict[TopicPartition, Committed] = {}
        #: Why to check a partition again, after a clean end of its slice.
        self._look_again = ""
        self._skip_log = SkipLog(context.source.flow, each=True)
        self._epoch = 0
        self._name = f"{context.name}, by key"
        self._defects = Defects(self._name)

    def view(self, now_ms: int) -> list[PartitionView]:
        return [copied.view(source, now_ms) for source, copied in self._copied.items()]

    def stop(self) -> None:
        """Ask for a clean end; ``run`` returns when everything that was sent is acknowledged and stored."""
        self._stopping.set()

    async def run(self) -> None:
        """Copy until stopped. Raises PermanentError if a retry cannot help."""
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                await self._copy()
                self._defects.forget()
            except RetriableError as error:
                delay_s = 0.0
                if self._stopping.is_set():
                    log.warning("%s: at its end: %s", self._name, error)
                    with contextlib.suppress(RetriableError):
                        await self._store()
                else:
                    delay_s = self._defects.delay_s(error, time.monotonic() - began_s)
                    log.warning("%s: copy failed: %s; retrying", self._name, error)
                if isinstance(error, SliceLost):
                    # What it has sent should arrive before a successor sends anything, also in another process.
                    await asyncio.sleep(_LOST_S)
                else:
                    await is_set_within(self._stopping, delay_s)

    async def _copy(self) -> None:
        """Run one slice from the stored offsets to a clean end. Raises SliceLost, or another RetriableError."""
        context, handler = self._context, self._context.settings.options.handler
        plans = await unless(self._stopping, self._plans(), f"plans of {self._name}")
        if plans is None:
            return
        settings = replace(context.slice_settings(), by_key=True, handler=asdict(handler) if handler else None)
        self._epoch += 1
        handle = SliceHandle(context.engine, context.links, settings, self._epoch, self._progressed)
        handle.holds = self._holds
        try:
            await unless(self._stopping, handle.open(), f"slice of {self._name}")
            if self._stopping.is_set():
                return
            await handle.go(_ITS_OWN, plans)
            await self._until_over(handle)
            if unclean := await handle.stop():
                raise SliceLost(f"the target has not acknowledged all of {', '.join(map(str, unclean))}")
        finally:
            await close_quietly(handle)
        await self._store()
        if self._look_again and not self._stopping.is_set():
            raise RetriableError(self._look_again)

    async def _until_over(self, handle: SliceHandle) -> None:
        """Store positions until the slice is to end. Raises the error with which the slice ended by itself."""
        interval_s = self._context.settings.options.commit_interval_ms / 1000
        now_s = time.monotonic()
        end_s, look_s = now_s + _SLICE_S, now_s + _LOOK_S
        async with Scope(self._name) as scope:
            stopping = scope.spawn(self._stopping.wait(), f"stop of {self._name}")
            ending: list[asyncio.Future[Any]] = [stopping, handle.ended]
            while not (stopping.done() or self._look_again or time.monotonic() > end_s):
                await asyncio.wait(ending, timeout=interval_s, return_when="FIRST_COMPLETED")
                if handle.ended.done():
                    raise handle.ended.result() or SliceLost("the slice ended by itself")
                try:
                    await self._store()
                    if time.monotonic() > look_s:
                        look_s = time.monotonic() + _LOOK_S
                        await self._look()
                except RetriableError as error:
                    log.warning("%s: positions were not stored: %s; retrying", self._name, error)

    async def _look(self) -> None:
        """Make the slice end if the partitions that can be copied have changed since it began."""
        source = self._context.clusters.source
        topics = await shown(source, {partition.topic for partition in self._partitions})
        for partition, copied in self._copied.items():
            if partition.topic in topics and topics[partition.topic].topic_id != copied.topic_id:
                self._look_again = f"source topic {partition.topic} was recreated"
        left_out = [one for one in self._partitions if one.topic in topics and one not in self._copied]
        if left_out and (ends := (await known_offsets(source, left_out, LATEST))[0]):
            self._look_again = f"{len(ends)} source partitions that were left out can be copied now"

    async def _plans(self) -> list[PartitionPlan]:
        """Return from where each existing partition is copied. Raises RetriableError if there is none."""
        source, before = self._context.clusters.source, self._copied
        self._look_again = ""
        await self._store()  # what a lost slice has reported is not copied again
        self._stored = await self._offsets.read()
        topics = await shown(source, {partition.topic for partition in self._partitions})
        there = [partition for partition in self._partitions if partition.topic in topics]
        if missing := sorted({partition.topic for partition in self._partitions} - topics.keys()):
            log.warning("%s: the source does not have %s; other topics are copied", self._name, ", ".join(missing))
        if not there:
            raise RetriableError("the source has none of the topics that are to be copied")
        (starts, unknown), (ends, more) = [await known_offsets(source, there, which) for which in (EARLIEST, LATEST)]
        for reason in (unknown | more).values():
            log.warning("%s: %s; other partitions are copied", self._name, reason)
        there = [partition for partition in there if partition in starts and partition in ends]
        if not there:
            raise RetriableError("the source does not give the offsets of any partition that is to be copied")
        if self._context.source.reset_to == LATEST:
            await warn_of_skipped_backlog(source, {one: ends[one] for one in there if one not in self._stored})
        self._copied = {}
        for partition in there:
            topic_id, stored = topics[partition.topic].topic_id, self._stored.get(partition)
            if stored is None:
                offset = (ends if self._context.source.reset_to == LATEST else starts)[partition]
            else:
                topic_id_then = topic_id_of(partition, stored.metadata)
                offset, lost = first_offset(stored.offset, topic_id_then, topic_id, starts[partition], ends[partition])
                if lost:
                    log.warning("%s: source %s: %s", self._name, partition, lost)
            new = ByKeyProgress(offset, topic_id)
            self._copied[partition] = replace(
                before.get(partition, new), position=offset, topic_id=topic_id, state=RUNNING, reason=""
            )
        return [_plan(partition, copied) for partition, copied in self._copied.items()]

    def _progressed(self, progress: PartitionProgress) -> None:
        source, copied = progress.source, self._copied[progress.source]
        self._skip_log.add(source, progress.skips)  # a line for each record
        copied.add(progress)
        if progress.state == STOPPED:
            self._look_again = progress.reason
        elif is_stopped(progress.state) and not is_stopped(copied.state):
            copied.state = progress.state
            copied.reason = stop_message(progress.state, source, progress.reason, self._context.source.group.group_id)
            log.error("%s: %s stopped: %s", self._name, source, copied.reason)

    async def _store(self) -> None:
        """Store the positions that have moved. Raises RetriableError."""
        now = {one: Committed(copied.position, encode_by_key(copied.topic_id)) for one, copied in self._copied.items()}
        moved = {one: committed for one, committed in now.items() if self._stored.get(one) != committed}
        if moved:
            await self._offsets.write(moved)
            self._stored |= moved


def _plan(source: TopicPartition, copied: ByKeyProgress) -> PartitionPlan:
    return PartitionPlan(
        source=source,
        source_topic_id=copied.topic_id,
        target=source,
        target_topic_id=None,
        next_source_offset=copied.position,
        last_source_epoch=-1,
        target_end=-1,
        next_sequence=0,
        pipelined=False,
    )
