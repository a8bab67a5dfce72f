"""MirrorSource's task: keeps one slice copying, epoch after epoch, and stores where it stands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.admin import Admin
from connect.kafka.offsets import EARLIEST
from connectors.dataplane.plan import (
    PartitionPlan,
    PartitionProgress,
    ProducerIdentity,
    SliceSettings,
    TopicPartition,
)
from connectors.dataplane.resuming import Resumed
from connectors.positions import Position
from connectors.source.engine import SparkEngine
from connectors.source.ledger import Ledger, Pair, position_of
from connectors.source.links import LinkServer
from connectors.source.progress import PartitionView
from connectors.source.skip_log import SkipLog
from connectors.source.slice import SliceDefect, SliceHandle, SliceLost, close_quietly
from connectors.source.store import PositionStore, Start
from connectors.source.takeover import Clusters, Takeover, resume_all, take_over
from connectors.source.topology import pair_up

log = logging.getLogger(__name__)
#: One line for each partition that was taken over: operators and tests read it.
resume_log = logging.getLogger("connectors.source.resume")

_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 5.0
#: How long before its end an epoch's successor is started, so that it waits warm for «go».
_AHEAD_S: Final = 4.0
#: Brokers forget a transactional id that nobody asks for in a week (``transactional.id.expiration.ms``), and batches
#: that are not transactional do not count. Asked again it gets another producer id, whose markers fence nobody.
_CLAIM_AGAIN_S: Final = 6 * 3600.0

#: So many slices in a row may end of a mistake in code before the task fails; what comes of it is not worth a marker
#: in every partition every few seconds.
_MAX_DEFECTS: Final = 3
#: A slice that has copied for so long starts the count anew.
_HEALTHY_S: Final = 60.0

T = TypeVar("T")


class TaskDefective(PermanentError):
    """Slice after slice ended of a mistake in this project's code."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Of one task: ``epoch_ms`` is the length of a Spark job, ``commit_interval_ms`` the rhythm of positions."""

    flow: str
    transactional_id: str
    partitions: tuple[TopicPartition, ...]
    remote_topic: Callable[[str], str]
    slice: SliceSettings
    epoch_ms: int = 60_000
    commit_interval_ms: int = 1_000
    reset_to: int = EARLIEST
    logs_skipped: bool = False


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What the worker lends its tasks."""

    engine: SparkEngine
    links: LinkServer
    clusters: Clusters
    admin: Admin


class MirrorSourceTask:
    """Copies its partition pairs until stopped. Retriable troubles are taken care of; others are raised by run."""

    def __init__(self, settings: TaskSettings, services: TaskServices, store: PositionStore) -> None:
        self.state = "starting"
        self.epoch = 0
        self._settings = settings
        self._services = services
        self._store = store
        self._ledger = Ledger(())
        self._skip_log = SkipLog(settings.flow, each=settings.logs_skipped)
        self._stopping = asyncio.Event()
        self._committing = asyncio.Lock()
        self._loaded = False
        self._took_over = False
        self._defects = 0

    def view(self, now_ms: int) -> list[PartitionView]:
        """A picture of every partition."""
        return [entry.view(now_ms) for entry in self._ledger.entries.values()]

    def stop(self) -> None:
        """Ask for a clean end; ``run`` returns when all that was sent is acknowledged and stored."""
        self._stopping.set()

    async def run(self) -> None:
        """Copy until :meth:`stop`. Raises what trying again does not heal: a superseding worker, refused rights."""
        committing = asyncio.create_task(self._commit_forever(), name=f"commit {self._name}")
        copying = asyncio.create_task(self._copy_until_stopped(), name=f"copy {self._name}")
        try:
            done, _ = await asyncio.wait({committing, copying}, return_when="FIRST_COMPLETED")
            for task in done:
                task.result()
            await self._commit()
            self.state = "stopped"
        except BaseException:
            self.state = "failed"
            raise
        finally:
            for task in (copying, committing):
                task.cancel()
            await asyncio.gather(copying, committing, return_exceptions=True)
            self._skip_log.tell(time.monotonic(), is_last=True)
            await self._store.close()

    @property
    def _name(self) -> str:
        return f"{self._settings.flow} task {self._settings.slice.task}"

    # -- copying ----------------------------------------------------------------------------------

    async def _copy_until_stopped(self) -> None:
        delay_s = _RETRY_S
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                await self._copy()
            except RetriableError as error:
                if self._stopping.is_set():
                    return
                self.state = "recovering"
                lasted_s = time.monotonic() - began_s
                self._count_defect(error, lasted_s)
                if lasted_s > _MAX_RETRY_S:
                    delay_s = _RETRY_S
                log.warning("%s: %s; taking over again in %.1f s", self._name, error, delay_s)
                await self._pause(delay_s)
                delay_s = min(delay_s * 2, _MAX_RETRY_S)

    def _count_defect(self, error: RetriableError, lasted_s: float) -> None:
        """Raise :class:`TaskDefective` where trying again has not helped; ``lasted_s``: how long it went well."""
        if not isinstance(error, SliceDefect):
            return
        self._defects = 1 if lasted_s > _HEALTHY_S else self._defects + 1
        if self._defects >= _MAX_DEFECTS:
            raise TaskDefective(
                f"{self._name}: {self._defects} slices in a row ended of what looks like a defect of Heliograph, the "
                f"last with {error}; positions stand where they were; please report it with this log"
            ) from error

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _copy(self) -> None:
        """From a takeover to a clean end, or to the loss of a slice, which is raised."""
        if not self._ledger.entries:
            self._ledger = Ledger(await self._before_stop(self._pairs()))
        handle = self._new_slice()
        following: SliceHandle | None = None
        opening = asyncio.create_task(handle.open(), name=f"open slice {self._name}")
        try:
            producer, plans = await self._before_stop(self._prepare(handle, opening))
            claimed_s = time.monotonic()
            while True:
                handle.go(producer, plans)
                self.epoch, self.state = handle.epoch, "running"
                following = await self._epoch(handle)
                await self._end_epoch(handle)
                self._defects = 0
                if following is None:
                    self._ledger.hand_over(())
                    return
                handle, following = following, None
                if time.monotonic() - claimed_s < _CLAIM_AGAIN_S:
                    plans = self._ledger.plans()
                else:
                    self._ledger.hand_over(())
                    producer, plans = await self._before_stop(self._prepare(handle, opening))
                    claimed_s = time.monotonic()
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await close_quietly(handle)
            await close_quietly(following)

    async def _before_stop(self, preparing: Coroutine[Any, Any, T]) -> T:
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

    async def _prepare(
        self, handle: SliceHandle, opening: asyncio.Task[None]
    ) -> tuple[ProducerIdentity, list[PartitionPlan]]:
        """Take over, and store where everything begins; the slice that is opening meanwhile may then write.

        At the first start both go on at once. Later the fence waits for the slice: where Spark is gone and does not
        come back soon, each attempt would leave a marker in every partition and nobody would copy.
        """
        if self._took_over:
            await opening
        takeover = await self._take_over()
        self._took_over = True
        await opening
        await self._begin(handle, takeover)
        return takeover.producer, self._ledger.plans({plan.source for plan in takeover.plans if plan.pipelined})

    async def _pairs(self) -> list[Pair]:
        """The assigned partitions with what both clusters say of them now."""
        settings, clusters = self._settings, self._services.clusters
        remote = {settings.remote_topic(partition.topic) for partition in settings.partitions}
        source = (await clusters.source.metadata({partition.topic for partition in settings.partitions})).topics
        target = (await clusters.target.metadata(remote)).topics
        configs = await self._services.admin.describe_topic_configs(remote)
        sizes = {name: int(size) for name, entries in configs.items() if (size := entries.get("max.message.bytes"))}
        found = pair_up(settings.remote_topic, settings.partitions, source, target, sizes)
        if len(found) < len(settings.partitions):
            have = {pair.source for pair in found}
            gone = ", ".join(str(one) for one in settings.partitions if one not in have)
            raise RetriableError(f"a cluster does not know {gone} now")
        return found

    def _new_slice(self) -> SliceHandle:
        services = self._services
        return SliceHandle(services.engine, services.links, self._settings.slice, self.epoch + 1, self._progressed)

    async def _take_over(self) -> Takeover:
        entries = self._ledger.going()
        sources = [entry.pair.source for entry in entries]
        if not self._loaded:
            starts = await self._store.load(sources)
        else:
            starts = {entry.pair.source: Start(entry.position, _committed(entry.position), False) for entry in entries}
        takeover = await take_over(
            self._services.clusters,
            self._settings.transactional_id,
            entries,
            starts,
            reset_to=self._settings.reset_to,
            read_committed=self._settings.slice.read_committed,
        )
        for entry in entries:
            if entry.is_stopped:
                log.error("%s: %s", self._name, entry.reason)
        return takeover

    async def _begin(self, handle: SliceHandle, takeover: Takeover) -> None:
        """Resume what needs a proof, then store where every partition begins, before anything is written."""
        resumed = await resume_all(self._services.clusters, takeover, handle)
        for one in resumed:
            if one.refusal:
                self._ledger.entries[one.plan.source].stop(one.refusal)
                log.error("%s: %s stopped: %s", self._name, one.plan.source, one.refusal)
            else:
                self._tell_resumed(one)
        for plan in takeover.plans:
            if plan.proof is None:
                self._ledger.begin(plan.source, position_of(plan, *takeover.writer_of(plan)))
        for one in resumed:
            if one.refusal:
                continue
            self._ledger.begin(one.plan.source, position_of(one.plan, *takeover.writer_of(one.plan)), one.runs)
        await self._commit()
        self._loaded = True

    async def _epoch(self, handle: SliceHandle) -> SliceHandle | None:
        """Until the epoch is over; returns the next slice, warm, or None when the task is to stop."""
        opening: asyncio.Task[SliceHandle] | None = None
        stopping = asyncio.create_task(self._stopping.wait(), name=f"stop of {self._name}")
        ending: list[asyncio.Future[Any]] = [stopping, handle.ended]
        length_s = self._settings.epoch_ms / 1000
        ahead_s = max(length_s - _AHEAD_S, length_s / 2)
        began_s = time.monotonic()
        try:
            await asyncio.wait(ending, timeout=ahead_s, return_when="FIRST_COMPLETED")
            if not stopping.done() and not handle.ended.done():
                opening = asyncio.create_task(self._open_next(), name=f"open next slice {self._name}")
                left_s = max(began_s + length_s - time.monotonic(), 0)
                await asyncio.wait(ending, timeout=left_s, return_when="FIRST_COMPLETED")
                # The old slice copies on while the next one is not ready.
                await asyncio.wait([*ending, opening], return_when="FIRST_COMPLETED")
            if handle.ended.done():
                raise handle.ended.result() or SliceLost("the slice ended by itself")
            if stopping.done() or opening is None:
                return None
            ready, opening = opening.result(), None
            return ready
        finally:
            stopping.cancel()
            if opening is not None:
                opening.cancel()
                (opened,) = await asyncio.gather(opening, return_exceptions=True)
                await close_quietly(opened if isinstance(opened, SliceHandle) else None)

    async def _open_next(self) -> SliceHandle:
        """The next epoch's slice, warm; tried until it comes up, as the present one goes on."""
        while True:
            following = self._new_slice()
            try:
                await following.open()
            except RetriableError as error:
                self._count_defect(error, 0.0)
                log.warning("%s: the next slice did not come up: %s; trying again", self._name, error)
                await close_quietly(following)
                await asyncio.sleep(_MAX_RETRY_S)
            except BaseException:
                await close_quietly(following)
                raise
            else:
                return following

    async def _end_epoch(self, handle: SliceHandle) -> None:
        unclean = await handle.stop()
        await handle.close()
        if unclean:
            names = ", ".join(str(one) for one in unclean)
            raise SliceLost(f"the target did not answer for the last batches of {names}")

    def _progressed(self, progress: PartitionProgress) -> None:
        self._skip_log.add(progress.source, progress.skips)
        reason = self._ledger.apply(progress)
        if reason:
            log.error("%s: %s %s: %s", self._name, progress.source, progress.state, reason)

    def _tell_resumed(self, one: Resumed) -> None:
        plan = one.plan
        self._ledger.entries[plan.source].skipped += one.left_out
        if one.fallback:
            resume_log.warning(
                "resumed %s %s: surplus=%d verified=false fallback=at-least-once source_offset=%d reason=%s",
                self._settings.flow,
                plan.source,
                one.surplus_records,
                plan.next_source_offset,
                one.fallback.replace(" ", "_"),
            )
        else:
            resume_log.info(
                "resumed %s %s: surplus=%d verified=true fallback=none source_offset=%d target_offset=%d",
                self._settings.flow,
                plan.source,
                one.surplus_records,
                plan.next_source_offset,
                plan.target_end,
            )

    # -- storing ----------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        interval_s = self._settings.commit_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            self._skip_log.tell(time.monotonic())
            if self._loaded:
                try:
                    await self._commit()
                except RetriableError as error:
                    log.warning("%s: positions could not be stored: %s; trying again", self._name, error)

    async def _commit(self) -> None:
        async with self._committing:
            commits = self._ledger.take_commits()
            if not commits:
                return
            try:
                await self._store.commit(commits)
            except BaseException:
                self._ledger.give_back(commits)
                raise


def _committed(position: Position | None) -> int | None:
    return None if position is None else position.next_source_offset - 1
