"""Copies partitions whose records go to several of the target's: the worker's end, beside MirrorSource's task.

One slice after the other for as long as the group leaves us the partitions. A successor begins at the position that the
group has stored; what had arrived beyond it is copied again, after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from connect.core.errors import RetriableError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.group_offsets import Committed
from connect.kafka.offsets import EARLIEST, LATEST, list_offsets
from connectors.dataplane.plan import (
    RUNNING,
    PartitionPlan,
    PartitionProgress,
    ProducerIdentity,
    TopicPartition,
)
from connectors.dataplane.verdicts import facts
from connectors.gaps import GapKind
from connectors.mirror_maker_1.fences import new_writer, shut_out, writers_of
from connectors.mirror_maker_1.group_store import GroupOffsets
from connectors.mirror_maker_1.lent import Lent
from connectors.mirror_maker_1.remedies import spread_told
from connectors.mirror_maker_1.source_topics import shown
from connectors.mirror_maker_1.spread_standing import Begin, Standing, begin_of, begun
from connectors.source.defects import Defects
from connectors.source.left_behind import warn_of_left_behind
from connectors.source.progress import PartitionView, is_stopped
from connectors.source.skip_log import SkipLog
from connectors.source.slice import SliceHandle, SliceLost, close_quietly

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 5.0
#: A slice is ended in order and begun anew so often, so that what it holds of topics and leaders grows no older.
_SLICE_S: Final = 600.0
#: The same while a topic is left out that the source does not have.
_SHORT_SLICE_S: Final = 60.0
#: Where a copy goes on by itself, as a consumer would.
_GOES_ON: Final = (GapKind.SOURCE_GAP, GapKind.SOURCE_TRUNCATED, GapKind.SOURCE_RECREATED)

T = TypeVar("T")


class SpreadTask:
    """Copies until stopped. Retriable troubles are taken care of; others are raised by run."""

    def __init__(self, lent: Lent, offsets: GroupOffsets, partitions: Sequence[TopicPartition]) -> None:
        self._lent = lent
        self._offsets = offsets
        self._partitions = partitions
        self._stopping = asyncio.Event()
        self._standing: dict[TopicPartition, Standing] = {}
        self._moved: dict[TopicPartition, int] = {}
        self._is_broken = asyncio.Event()
        #: Whether the source lacks a topic of the present slice's partitions.
        self._has_left_out = False
        self._storing = asyncio.Lock()
        self._skip_log = SkipLog(lent.source.flow, each=True)
        self._epoch = 0
        self._name = f"{lent.name}, by key"
        self._defects = Defects(self._name)

    def view(self, now_ms: int) -> list[PartitionView]:
        """A picture of every partition."""
        return [standing.view(source, now_ms) for source, standing in self._standing.items()]

    def stop(self) -> None:
        """Ask for a clean end; ``run`` returns when all that was sent is acknowledged and stored."""
        self._stopping.set()

    async def run(self) -> None:
        """Raises what trying again does not heal."""
        committing = asyncio.create_task(self._commit_forever(), name=f"commit {self._name}")
        copying = asyncio.create_task(self._copy_until_stopped(), name=f"copy {self._name}")
        try:
            done, _ = await asyncio.wait({committing, copying}, return_when="FIRST_COMPLETED")
            for task in done:
                task.result()
            await self._commit()
        finally:
            for task in (committing, copying):
                task.cancel()
            await asyncio.gather(committing, copying, return_exceptions=True)
            self._skip_log.tell(time.monotonic(), is_last=True)

    async def _copy_until_stopped(self) -> None:
        delay_s = _RETRY_S
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                await self._copy()
                self._defects.forget()
            except RetriableError as error:
                if self._stopping.is_set():
                    return
                self._defects.count(error, time.monotonic() - began_s)
                if time.monotonic() - began_s > _MAX_RETRY_S:
                    delay_s = _RETRY_S
                log.warning("%s: %s; beginning again in %.1f s", self._name, error, delay_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
                delay_s = min(delay_s * 2, _MAX_RETRY_S)

    async def _copy(self) -> None:
        """One slice, from a new writer to a clean end, or to its loss, which is raised."""
        lent, handler = self._lent, self._lent.settings.options.handler
        if self._has_left_out and all(is_stopped(one.state) for one in self._standing.values()):
            # A slice costs a Spark job, and would copy nothing.
            await self._or_stopped(self._look_for_left_out())
        settings = replace(lent.slice_settings(), handler=asdict(handler) if handler else None)
        self._epoch += 1
        self._is_broken.clear()
        handle = SliceHandle(lent.engine, lent.links, settings, self._epoch, self._progressed)
        try:
            await self._or_stopped(handle.open())
            plans = await self._or_stopped(self._plans())
            handle.go(plans[0].producer or ProducerIdentity(-1, -1), plans)
            await self._until_over(handle)
            unclean = await handle.stop()
            self._hand_over(unclean)
        finally:
            await close_quietly(handle)
        if self._is_broken.is_set() and not self._stopping.is_set():
            raise SliceLost("a partition goes on elsewhere")

    async def _look_for_left_out(self) -> None:
        """Raises :class:`RetriableError` where the source still has no topic that was left out."""
        names = {partition.topic for partition in self._partitions if partition not in self._standing}
        if names and not await shown(self._lent.clusters.source, names):
            raise RetriableError(f"the source does not have {', '.join(sorted(names))} now")

    async def _or_stopped(self, preparing: Coroutine[Any, Any, T]) -> T:
        """Do what comes before the first write; a stop need not wait for it. Then :class:`SliceLost`."""
        work = asyncio.create_task(preparing, name=f"prepare {self._name}")
        stopping = asyncio.create_task(self._stopping.wait(), name=f"stop while preparing {self._name}")
        try:
            await asyncio.wait({work, stopping}, return_when="FIRST_COMPLETED")
            if not work.done():
                raise SliceLost("stopped before anything was copied")
            return work.result()
        finally:
            for task in (work, stopping):
                task.cancel()
            await asyncio.gather(work, stopping, return_exceptions=True)

    async def _plans(self) -> list[PartitionPlan]:
        """Shut out who wrote before, and store under whom each partition is written from now on."""
        lent = self._lent
        # What the slice before has told is not to be copied again, and not to be stored over what is stored below.
        await self._commit()
        stored = await self._offsets.read()
        topics = await shown(lent.clusters.source, {partition.topic for partition in self._partitions})
        there = self._those_of(topics)
        mine = {partition: stored[partition] for partition in there if partition in stored}
        for spreads in (True, False):
            await shut_out(lent.clusters, await writers_of(lent.clusters.target, mine, spreads=spreads))
        plans, standing = [], {}
        for partition, begin in (await self._begins(there, mine, topics)).items():
            before = self._standing.get(partition)
            if before is not None and is_stopped(before.state):
                standing[partition] = before
            elif begin.state:
                standing[partition] = self._stopped(partition, begin)
            else:
                transactional_id, producer = await new_writer(lent.clusters, lent.transactional_id(partition))
                writer = transactional_id, producer.producer_id
                topic_id = topics[partition.topic].topic_id
                one = standing[partition] = begun(before, begin, topic_id, [partition.topic], writer)
                plans.append(one.plan(partition, producer))
        self._standing = standing
        if not plans and self._has_left_out:
            raise RetriableError("no partition can be copied now")
        if not plans:
            await self._stopping.wait()
            raise SliceLost("every partition has stopped")
        await self._commit()
        self._moved.clear()
        return plans

    def _those_of(self, topics: Collection[str]) -> list[TopicPartition]:
        """The partitions of ``topics``. A topic that was deleted holds up no other; one that is hidden for a moment is
        copied from the next slice on."""
        there = [partition for partition in self._partitions if partition.topic in topics]
        gone = sorted({partition.topic for partition in self._partitions} - set(topics))
        self._has_left_out = bool(gone)
        if gone:
            log.warning("%s: the source does not have %s now; the others go on", self._name, ", ".join(gone))
        return there

    def _stopped(self, source: TopicPartition, begin: Begin) -> Standing:
        """A partition that stopped under another process, or in another generation: its note stays as it is."""
        reason = spread_told(begin.state, source, "", self._lent.source.group.group_id)
        log.error("%s: %s: %s", self._name, source, reason)
        return Standing(begin.offset, state=begin.state, reason=reason, is_dirty=False)

    async def _begins(
        self,
        partitions: Sequence[TopicPartition],
        stored: Mapping[TopicPartition, Committed],
        topics: Mapping[str, TopicMetadata],
    ) -> dict[TopicPartition, Begin]:
        """From where each partition is copied."""
        source, reset_to = self._lent.clusters.source, self._lent.source.reset_to
        found = {one: begin_of(one, committed, topics[one.topic].topic_id) for one, committed in stored.items()}
        for one, offset in ((one, self._moved[one]) for one in partitions if one in self._moved):
            found[one] = replace(found.get(one, Begin(offset)), offset=offset, epoch=-1)
        for one, begin in found.items():
            if begin.offset < 0 and one not in self._moved:
                log.warning("%s: source %s was made anew: it is copied from its beginning", self._name, one)
        unknown = [one for one in partitions if one not in found]
        resets = await list_offsets(source, unknown, reset_to) if unknown else {}
        begins = {TopicPartition(*one): offset for one, offset in resets.items()}
        if reset_to == LATEST:
            await warn_of_left_behind(source, begins)
        found.update((one, Begin(offset)) for one, offset in begins.items())
        anew = [one for one, begin in found.items() if begin.offset < 0]
        starts = await list_offsets(source, anew, EARLIEST) if anew else {}
        return {one: replace(found[one], offset=starts.get(one, found[one].offset)) for one in partitions}

    async def _until_over(self, handle: SliceHandle) -> None:
        """Until it is to stop or has run long enough; raises why the slice ended by itself."""
        stopping = asyncio.create_task(self._stopping.wait(), name=f"stop of {self._name}")
        broken = asyncio.create_task(self._is_broken.wait(), name=f"partitions of {self._name}")
        try:
            ending: list[asyncio.Future[Any]] = [stopping, broken, handle.ended]
            length_s = _SHORT_SLICE_S if self._has_left_out else _SLICE_S
            await asyncio.wait(ending, timeout=length_s, return_when="FIRST_COMPLETED")
        finally:
            for task in (stopping, broken):
                task.cancel()
            await asyncio.gather(stopping, broken, return_exceptions=True)
        if handle.ended.done():
            raise handle.ended.result() or SliceLost("the slice ended by itself")

    def _progressed(self, progress: PartitionProgress) -> None:
        one = self._standing[progress.source]
        self._skip_log.add(progress.source, progress.skips)
        one.add(progress)
        if progress.state == RUNNING or is_stopped(one.state):
            return
        gap = progress.gap
        if gap is not None and gap.kind in _GOES_ON:
            log.warning("%s: %s: %s; it goes on behind that", self._name, progress.source, facts(progress.reason))
            self._moved[progress.source] = -1 if gap.kind is GapKind.SOURCE_RECREATED else gap.go_on_at
            self._is_broken.set()
            return
        one.state = gap.state if gap else progress.state
        one.reason = spread_told(one.state, progress.source, progress.reason, self._lent.source.group.group_id)
        log.error("%s: %s stopped: %s", self._name, progress.source, one.reason)

    # -- storing ----------------------------------------------------------------------------------

    def _hand_over(self, unclean: Collection[TopicPartition]) -> None:
        for source, one in self._standing.items():
            if source not in unclean and not is_stopped(one.state):
                one.is_handed_over = one.is_dirty = True

    async def _commit_forever(self) -> None:
        interval_s = self._lent.settings.options.commit_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            self._skip_log.tell(time.monotonic())
            try:
                await self._commit()
            except RetriableError as error:
                log.warning("%s: positions could not be stored: %s; trying again", self._name, error)

    async def _commit(self) -> None:
        """One at a time: what is stored never goes back behind what a later one has stored."""
        async with self._storing:
            dirty = {source: one for source, one in self._standing.items() if one.is_dirty}
            if not dirty:
                return
            for one in dirty.values():
                one.is_dirty = False
            try:
                await self._offsets.write({source: one.stored() for source, one in dirty.items()})
            except BaseException:
                for one in dirty.values():
                    one.is_dirty = True
                raise
