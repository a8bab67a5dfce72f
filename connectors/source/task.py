"""MirrorSource's task: keeps one slice copying, epoch after epoch, and stores its positions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from connect.core.errors import RetriableError
from connect.core.wording import named
from connect.kafka.concurrency import Scope, in_turns, is_set_within, wall_ms
from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.flow_progress import Meters, PartitionView, timed_commit
from connectors.formats.gap import OnTopicRecreated
from connectors.formats.types import FlowName, ProducerIdAndEpoch, Run, TopicPartition
from connectors.source.epochs import Reconfiguring, close_opening, open_next
from connectors.source.positions import partition_notes
from connectors.source.positions.gap_policy import GapPasser, advice, is_gone, look_for_recreated
from connectors.source.positions.ledger import Cadence, Ledger, trim_forever
from connectors.source.positions.partition_notes import SkipLog, StateNotes, end_when_all_stopped
from connectors.source.positions.partition_pairs import STARTING, Entry, Pairing, PartitionPair, position_of, start_of
from connectors.source.positions.position_checks import UnavailablePartitions
from connectors.source.positions.stored_positions import Commit, PositionsTaken, PositionStore, Start
from connectors.source.positions.takeover import Takeover, take_over
from connectors.source.slice_handle import Defects, SliceHandle, SliceLost, TaskServices, TaskSettings, close_quietly

log = logging.getLogger(__name__)
#: How often to check whether positions are due.
_COMMIT_S: Final = 1.0
#: Brokers forget a transactional id after a week (``transactional.id.expiration.ms``) without a claim or a transaction;
#: the next claim then gets another producer id, whose markers do not fence our batches.
_CLAIM_AGAIN_S: Final = 6 * 3600.0

T = TypeVar("T")


class MirrorSourceTask:
    """Copies its partition pairs until stopped. Retriable errors are retried; :meth:`run` raises the others."""

    #: Whether partitions can be taken over while a slice copies others.
    _lets_join = True

    def __init__(self, settings: TaskSettings, services: TaskServices, store: PositionStore) -> None:
        self.state, self.epoch = "starting", 0
        self.problem = ""  # why it is recovering
        self._settings, self._services, self._store = settings, services, store
        self.ledger = Ledger((), Cadence(flush_s=settings.flush_interval_ms / 1000))
        #: The partitions that moved since the watch of the lag has looked at them; it removes them.
        self.news = self.ledger.reader()
        #: The slice that copies, and whether it is on hold.
        self._slice: SliceHandle | None = None
        self._is_held = False
        self._filled = asyncio.Event()  # set when the slice is put on hold, until the next commit
        self._producer: ProducerIdAndEpoch | None = None
        self._skip_log = SkipLog(str(settings.flow), each=settings.logs_skipped)
        self.meters = Meters()
        self._stopping: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._committing = asyncio.Lock()
        self._loaded = False
        self._took_over = False
        self._is_taking_over = False
        self._defects = Defects(self._name)
        #: Whether the last slice ended cleanly, and no other has started since.
        self._has_ended = False
        self._waiting = UnavailablePartitions(services.clusters.source, services.clusters.target)
        self._pairing = Pairing(
            settings.remote_topic,
            (services.clusters.source, services.clusters.target),
            services.admin,
            settings.ways,
            is_countable=not (settings.slice.transform_sql or settings.slice.chain or settings.slice.skip_refused),
        )
        self._changes = Reconfiguring(
            self._name, settings.transactional_id, settings.partitions, self.ledger, store, self._waiting, self
        )

    @property
    def flow(self) -> FlowName:
        return self._settings.flow

    def target_topic(self, source: TopicPartition) -> str:
        entry = self.ledger.entries.get(source)
        return entry.pair.target.topic if entry else self._settings.remote_topic(source.topic)

    def view(self, now_ms: int) -> Iterator[PartitionView]:
        """Yield a view of each partition, made one by one because there may be thousands."""
        return (entry.view(now_ms) for entry in list(self.ledger.entries.values()))

    def reconfigure(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Copy these partitions from the next slice on, which starts soon."""
        self._settings = replace(self._settings, partitions=partitions)
        self._changes.want(partitions)

    def stop(self) -> None:
        """Request a clean end; ``run`` returns once all that was sent is acknowledged and stored."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def run(self) -> None:
        """Copy until :meth:`stop`. Raises errors that a retry cannot fix, such as Superseded or missing rights."""
        scope = Scope(self._name)
        trim = trim_forever(self._services.clusters.target, self.ledger, self._name)
        work = {
            scope.spawn(self._commit_forever(), f"commit {self._name}"),
            scope.spawn(self._copy_until_stopped(), f"copy {self._name}"),
            scope.spawn(trim, f"trim the map of {self._name}"),
            *self._watched_states(scope),
        }
        try:
            done, _ = await asyncio.wait(work, return_when="FIRST_COMPLETED")
            for task in done:
                task.result()
            if self._has_ended:
                await self.ledger.hand_over()
            await self._commit_rest()
            self.state = "stopped"
        except BaseException:
            self.state = "failed"
            raise
        finally:
            await scope.close()
            self._tell(is_last=True)

    def _watched_states(self, scope: Scope) -> list[asyncio.Task[None]]:
        """Record which partitions are not copied; end the task if none is left that could be."""
        notes = StateNotes(self._name, self._services.states, self._settled)

        async def settle() -> None:
            await self._commit()
            await notes.note()

        returning = look_for_recreated(self._services.clusters, self._settled_apart, self._stopped)
        ending = end_when_all_stopped(self._name, self._settled, settle, self._may_return)
        return [
            scope.spawn(ending, f"stopped partitions of {self._name}"),
            scope.spawn(notes.keep(), f"states of {self._name}"),
            scope.spawn(returning, f"deleted topics of {self._name}"),
        ]

    def _may_return(self, entry: Entry) -> bool:
        """Return whether a stopped partition continues by itself once its topic is recreated."""
        return is_gone(entry) and self._settings.gap_policy.on_topic_recreated is not OnTopicRecreated.FAIL

    def _settled(self) -> Ledger | None:
        """Return the ledger, but none during a takeover, because the states of its entries are not decided then."""
        return self.ledger if self.state == "running" and not self._is_taking_over else None

    def _settled_apart(self) -> Collection[Entry]:
        return () if (ledger := self._settled()) is None else ledger.apart.values()

    @property
    def _name(self) -> str:
        return f"{self._settings.flow} task {self._settings.slice.task}"

    async def _copy_until_stopped(self) -> None:
        while not self._stopping.done():
            began_s = time.monotonic()
            try:
                await self._copy()
            except RetriableError as error:
                if self._stopping.done():
                    return
                self.state, self.problem = "recovering", str(error)
                self.meters.takeovers.slices_lost += 1
                delay_s = self._defects.delay_s(error, time.monotonic() - began_s)
                log.warning("%s: %s; taking over again in %.1f s", self._name, error, delay_s)
                await asyncio.wait({self._stopping}, timeout=delay_s)

    async def _copy(self) -> None:
        """Take over and copy until a clean end. Raises :class:`SliceLost` if a slice is lost."""
        if not self._loaded and (self.ledger.missing or self.ledger.unwanted):
            self.ledger.clear()
            async for pair in in_turns(await self._before_stop(self._pairs())):
                self.ledger.enter([pair])
        handle = self._new_slice()
        following: asyncio.Task[SliceHandle] | None = None
        scope = Scope(self._name)
        opening = scope.spawn(handle.open(self._known_pairs()), f"open slice {self._name}")
        try:
            producer, marked = await self._before_stop(self._prepare(handle, opening))
            claimed_s = time.monotonic()
            while True:
                await self.ledger.leave(self._changes.wanted)
                await self._go(handle, producer, self.ledger.plans(marked))
                self._changes.began(producer)
                self.epoch, self.state, self._has_ended = handle.epoch, "running", False
                following = await self._epoch(handle, scope)
                await self._end_epoch(handle)
                self._has_ended = True
                await self.ledger.leave(self._changes.wanted)  # else a takeover could treat them as ours
                self._defects.forget()
                if following is not None:
                    await asyncio.wait({following, self._stopping}, return_when="FIRST_COMPLETED")
                if following is None or not following.done():
                    return
                handle, following, marked = following.result(), None, set()
                if time.monotonic() - claimed_s >= _CLAIM_AGAIN_S or self._changes.takes_over:
                    producer, marked = await self._before_stop(self._prepare(handle, opening))
                    claimed_s = time.monotonic()
        finally:
            await scope.close()
            await close_quietly(handle)
            await close_opening(following)

    async def _go(self, handle: SliceHandle, producer: ProducerIdAndEpoch, plans: Iterable[PartitionPlan]) -> None:
        await handle.go(producer, plans)
        self._slice, self._is_held = handle, False
        self._hold_if_full()

    async def _before_stop(self, preparing: Coroutine[Any, Any, T]) -> T:
        """Await work that precedes the first write. Raises :class:`SliceLost` on a stop, which does not wait for it."""
        async with Scope(self._name) as scope:
            work = scope.spawn(preparing, f"prepare {self._name}")
            await asyncio.wait({work, self._stopping}, return_when="FIRST_COMPLETED")
            if not work.done():
                raise SliceLost("stopped before anything was copied")
            return work.result()

    async def _prepare(
        self, handle: SliceHandle, opening: asyncio.Task[None]
    ) -> tuple[ProducerIdAndEpoch, set[TopicPartition]]:
        """Take over and store all start positions, after which the slice that is opening may write. Return its producer
        and the source partitions whose targets have our marker. At the first start takeover and opening run
        concurrently. Later the fence waits for the slice, because while Spark is down each attempt would leave a marker
        in all partitions."""
        self._is_taking_over = True
        if self._took_over:
            await opening
        takeover, starts = await self._take_over()
        self._took_over = True
        await opening
        self._producer = takeover.producer
        self._changes.is_fencing = bool(takeover.transactional_id)
        await self._begin(handle, takeover, self.ledger)
        self._loaded = True
        self._waiting.keep(self.ledger.waiting(), starts)
        self._is_taking_over = False
        for entry in self.ledger.waiting():
            log.warning("%s: %s waits: %s; the others are copied", self._name, entry.pair.source, entry.reason)
        return takeover.producer, {plan.source for plan in takeover.plans if plan.pipelined}

    async def _pairs(self) -> list[PartitionPair]:
        """Return the pairs of the assigned partitions; those that a cluster does not know may join a later slice."""
        partitions = self._settings.partitions
        found = await self.find(partitions)
        if len(found) < len(partitions) and not (found and self._lets_join):
            unknown = set(partitions) - {pair.source for pair in found}
            raise RetriableError(f"a cluster does not know {named(sorted(unknown))} now")
        return found

    async def find(self, partitions: Sequence[TopicPartition]) -> list[PartitionPair]:
        """Return the pairs of the partitions that both clusters know now."""
        return await self._pairing.pairs(partitions)

    async def store_left(self) -> None:
        """Store the positions of partitions that are no longer copied here, for the task that waits for them."""
        if leaving := self.ledger.leaving():
            if self._services.syncs is not None:
                await self._services.syncs.leave(leaving)
            await self._commit()
            for source in leaving:
                self.ledger.drop(source)
            log.info("%s: no longer copies %s", self._name, named(leaving))

    async def join(self, handle: SliceHandle, joining: Ledger, starts: Mapping[TopicPartition, Start]) -> None:
        """Take over all of ``joining`` while the slice copies others, and store where each starts."""
        await self._begin(handle, await self._plan(joining, starts, self._producer), joining)
        for entry in joining.entries.values():
            if entry.is_copied:
                entry.become(STARTING)

    def _known_pairs(self) -> list[tuple[TopicPartition, TopicPartition]]:
        return [(entry.pair.source, entry.pair.target) for entry in self.ledger.going()]

    def _new_slice(self) -> SliceHandle:
        services = self._services
        handle = SliceHandle(services.engine, services.links, self._settings.slice, self.epoch + 1, self._progressed)
        handle.on_answered = self.meters.answered
        handle.holds = services.holds
        return handle

    async def _take_over(self) -> tuple[Takeover, Mapping[TopicPartition, Start]]:
        known = {entry.pair.source: entry for entry in self.ledger.going()}
        if not self._loaded:
            starts = await self.fence_predecessors(await self._changes.wait_for_others(await self._load(list(known))))
        else:
            await self._commit()  # because a gap may cut the map, which must reach as far as the positions
            starts = {
                source: self._waiting.starts.get(source) or start_of(entry, has_ended=self._has_ended)
                async for source, entry in in_turns(known.items())
            }
        return await self._plan(self.ledger, starts), starts

    async def _plan(
        self, ledger: Ledger, starts: Mapping[TopicPartition, Start], running: ProducerIdAndEpoch | None = None
    ) -> Takeover:
        known = ledger.going()
        await self._pairing.renew(known)
        passer = GapPasser(self._name, self._settings.gap_policy, self._store.runs_of, wall_ms())
        takeover = await take_over(
            self._services.clusters,
            self._settings.transactional_id,
            known,
            starts,
            reset_to=self._settings.reset_to,
            read_committed=self._settings.slice.read_committed,
            passer=passer,
            running=running,
            initial_group=self._settings.initial_group,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            # Others may join later, so a slice may start with no partition at all.
            may_all_wait=running is None and bool(self.ledger.missing),
        )
        for entry in known:
            if entry.is_stopped:
                self._report_stopped(entry)
        return takeover

    def _report_stopped(self, entry: Entry) -> None:
        source, more = entry.pair.source, ""
        if self._settings.reported is not None:
            entry.reason = self._settings.reported(entry)
        elif entry.gap:
            more = f"; {advice(self._settings.connector, self._settings.slice.source_alias, source)}"
        partition_notes.log_stopped(self._name, entry, more)

    async def _load(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Start]:
        return await self._store.load(sources)

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        async with self._services.clusters.fencing:
            return await self._store.fence_predecessors(starts)

    async def _begin(self, handle: SliceHandle, takeover: Takeover, ledger: Ledger) -> None:
        """Resume partitions that need a proof, then store all start positions, before anything is written."""
        unclean, unfenced = [plan for plan in takeover.plans if plan.proof is not None], takeover.unfenced
        resumed, counts = await handle.resume(unclean) if unclean else [], self.meters.takeovers
        async for one in in_turns(resumed):
            plan = one.plan
            entry = ledger.entries[plan.source]
            if one.refusal:
                entry.stop(one.refusal, gap=one.gap)
                self._report_stopped(entry)
            elif one.later:
                entry.wait(one.later)
            else:
                partition_notes.log_resumed(str(self.flow), one)
                counts.resumed(one.may_double, is_exact=not one.fallback)
                position = position_of(plan, *takeover.writer_of(plan))
                counts.passed(ledger.begin(plan.source, position, one.runs, is_fenced=plan.source not in unfenced))
                self._sync(plan.source, one.runs)
        async for plan in in_turns(takeover.plans):
            if plan.proof is None:
                counts.passed(ledger.begin(plan.source, position_of(plan, *takeover.writer_of(plan))))
        ledger.abandon(self._changes.wanted)
        await (self._commit() if ledger is self.ledger else self._commit_of(ledger))

    async def _epoch(self, handle: SliceHandle, scope: Scope) -> asyncio.Task[SliceHandle] | None:
        """Copy until the epoch is over; return the task that opens the next slice, or None to stop. It has opened it by
        then, unless Spark has no free slot before this slice ends."""
        opening: asyncio.Task[SliceHandle] | None = None
        no_slot = asyncio.Event()
        within = Scope(self._name)
        making_room = within.spawn(no_slot.wait(), f"make room for the next slice of {self._name}")
        due = (self._changes.until_due(handle, self._settings.epoch_ms / 1000), handle.renewed())
        over = [within.spawn(one, f"end of the epoch of {self._name}") for one in due]
        ending: list[asyncio.Future[Any]] = [self._stopping, handle.ended]
        try:
            await asyncio.wait([*ending, *over], return_when="FIRST_COMPLETED")
            if not any(one.done() for one in ending):
                next(one for one in over if one.done()).result()
                following_slice = open_next(self._new_slice, self._known_pairs, no_slot, self._defects, self._name)
                opening = scope.spawn(following_slice, f"open next slice {self._name}")
                # This slice copies until the next one is ready.
                await asyncio.wait([*ending, opening, making_room], return_when="FIRST_COMPLETED")
            if handle.ended.done():
                raise handle.ended.result() or SliceLost("the slice ended by itself")
            if self._stopping.done() or opening is None:
                return None
            if opening.done():
                opening.result()
            following, opening = opening, None
            return following
        finally:
            await within.close()
            await close_opening(opening)

    async def _end_epoch(self, handle: SliceHandle) -> None:
        unclean = await handle.stop()
        await handle.close()
        if unclean:
            names = ", ".join(str(one) for one in unclean)
            raise SliceLost(f"the target did not acknowledge the last batches of {names}")

    def _progressed(self, progress: PartitionProgress) -> None:
        self._skip_log.add(progress.source, progress.skips)
        if late := self.ledger.late_records(progress):
            partition_notes.log_late_records(str(self.flow), progress.source, late)
            self.meters.takeovers.may_double += late
        self.meters.apply(progress, wall_ms())
        if progress.records:
            self._services.topic_used(self.target_topic(progress.source))
        stopped = self.ledger.apply(progress)
        self._hold_if_full()
        self._sync(progress.source, progress.runs)
        if stopped:
            self._stopped(self.ledger.entries[progress.source], has_drained=True)

    def _stopped(self, entry: Entry, *, has_drained: bool = False) -> None:
        """Handle an entry that has just stopped; ``has_drained``: whether all that was sent of it is acknowledged."""
        if entry.gap is not None and self._settings.gap_policy.goes_on(entry.gap):
            log.warning("%s: %s %s: %s", self._name, entry.pair.source, entry.state, entry.reason)
            entry.resume_past_gap(has_drained=has_drained)
            self._changes.look()
        else:
            self._report_stopped(entry)

    def _sync(self, source: TopicPartition, runs: Iterable[Run]) -> None:
        if self._services.syncs is not None:
            self._services.syncs.acknowledged(source, runs)

    async def _commit_forever(self) -> None:
        while True:
            await is_set_within(self._filled, min(_COMMIT_S, self._settings.flush_interval_ms / 1000))
            self._filled.clear()
            self._tell()
            if self._loaded:
                try:
                    await self._commit_of(self.ledger, time.monotonic())
                except RetriableError as error:
                    waits = "copying is paused; " if self._is_held else ""
                    log.warning("%s: positions could not be stored: %s; %sretrying", self._name, error, waits)

    async def _commit(self) -> None:
        await self._commit_of(self.ledger)

    async def _commit_rest(self) -> None:
        """Store everything except partitions that another task has taken meanwhile."""
        while True:
            try:
                return await self._commit()
            except PositionsTaken as error:
                log.warning("%s: %s; storing the others", self._name, error)

    async def _commit_of(self, ledger: Ledger, now_s: float | None = None) -> None:
        async with self._committing:
            commits: list[Commit] = []
            try:
                async for commit in in_turns(ledger.take_commits(now_s)):
                    commits.append(commit)
                if commits:
                    await self._write(commits)
            except PositionsTaken as error:
                ledger.give_back(commits)
                for source in error.sources:
                    ledger.drop(source)  # because its stored position has to be read again
                raise
            except BaseException:
                ledger.give_back(commits)
                raise
            async for commit in in_turns(commits):
                ledger.commit_succeeded(commit)
            if commits:
                self._hold_if_full()
            if self._services.syncs is not None:
                self._services.syncs.commit()

    async def _write(self, commits: Sequence[Commit]) -> None:
        with timed_commit(self._services.meter):
            await self._store.commit(commits)

    def _tell(self, *, is_last: bool = False) -> None:
        """Pass on what was skipped, to the log, and what was counted, to the metrics of the worker's task."""
        self._skip_log.report(time.monotonic(), is_last=is_last)
        if self._services.meter is not None:
            self.meters.tell(self._services.meter)

    def _hold_if_full(self) -> None:
        """Put the slice on hold while too much is copied and not stored."""
        is_full = self.ledger.must_wait()
        if self._slice is None or is_full == self._is_held:
            return
        self._is_held = is_full
        self._slice.hold(is_held=is_full)
        if is_full:
            self._filled.set()
