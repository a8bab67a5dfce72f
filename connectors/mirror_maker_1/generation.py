"""Copy the partitions that a group member has, for one generation: each to the partition of the same number if the
target's topic has as many partitions, by key if it has another number or if there is a message handler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from connect.core.errors import PermanentError, RetriableError
from connect.core.wording import named
from connect.kafka.concurrency import Pauses, Scope, is_set_within, wall_ms
from connect.kafka.log.transactions import Superseded
from connectors.flow_progress import PartitionView, is_stopped
from connectors.formats.gap import GapKind, GapPolicy, OnSourceGap, OnTopicRecreated
from connectors.formats.types import TopicPartition
from connectors.mirror_maker_1 import by_key_task
from connectors.mirror_maker_1.by_key_task import ByKeyTask
from connectors.mirror_maker_1.consumer_group import GroupOffsets, GroupPositionStore
from connectors.mirror_maker_1.process_context import ProcessContext, UnsendableRecord
from connectors.mirror_maker_1.topics import TopicRefusals, make_missing, shown
from connectors.source.connector import refuse_old_clusters
from connectors.source.positions.partition_notes import PartitionsStopped
from connectors.source.slice_handle import SliceFenced, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.2
_RETRY_S: Final = 0.5
_MAX_RETRY_S: Final = 5.0
#: How often to check whether topics that were left out can be copied.
_LEFT_OUT_S: Final = 30.0
#: As a consumer continues after lost records: at the first record that is left, so as to lose the least.
_GAPS: Final = GapPolicy(OnSourceGap.SKIP, OnTopicRecreated.RESTART)


class Copying:
    """The copy of one member and one generation. ``partitions`` were assigned by the leader; ``refused`` keeps what was
    logged of topics that the target refused to create; ``holds`` says, in the lease thread, whether the partitions are
    still ours."""

    def __init__(
        self,
        context: ProcessContext,
        offsets: GroupOffsets,
        partitions: Collection[TopicPartition],
        refused: TopicRefusals,
        holds: Callable[[], bool],
    ) -> None:
        self._context, self._offsets = context, offsets
        self._partitions = sorted(partitions)
        self._refused, self._holds = refused, holds
        #: Partition counts of the target's topics, which decide how each topic is copied.
        self.target_counts: dict[str, int] = {}
        self.copies_by_key = False
        #: Topics that one of the clusters does not have.
        self._left_out: set[str] = set()
        self._stopping = asyncio.Event()
        self._makers: list[Callable[[], MirrorSourceTask | ByKeyTask]] = []
        self._tasks: dict[int, MirrorSourceTask | ByKeyTask] = {}

    def stop(self) -> None:
        """Ask for a clean end; ``run`` returns when all that was sent is acknowledged and stored."""
        self._stopping.set()
        for task in self._tasks.values():
            task.stop()

    def view(self) -> list[PartitionView]:
        now_ms = wall_ms()
        return [one for task in self._tasks.values() for one in task.view(now_ms)]

    async def run(self) -> None:
        """Run until :meth:`stop`, or until a topic that was left out can be copied. When cancelled, it ends at once and
        stores nothing, because the partitions belong to another member. Raises UnsendableRecord if a record can never
        be sent, and the process is to end, and PermanentError if rights are missing, or Spark cannot be started."""
        if not self._partitions:
            await self._stopping.wait()
            return
        await self._kept_up(self._begin)
        async with Scope(self._name) as scope:
            running = [scope.spawn(self._keep(number), f"copy of {self._name}") for number in range(len(self._makers))]
            if self._left_out:
                running.append(scope.spawn(self._look_for_left_out(), f"topics left out of {self._name}"))
            watching = scope.spawn(self._watch(), f"refusals of {self._name}")
            waiting = {*running, watching}
            while not all(task.done() for task in running):
                done, waiting = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
                errors = [error for task in done if (error := task.exception()) is not None]
                if errors:  # an error that ends the process goes first
                    raise min(errors, key=lambda error: not isinstance(error, PermanentError))

    async def _begin(self) -> None:
        """Find out how each partition is copied."""
        await refuse_old_clusters(self._context.clusters.source, self._context.clusters.target)
        paired, by_key = await self._shared_out()
        if paired:
            self._makers.append(lambda: self._pair_task(paired))
        if by_key:
            self.copies_by_key = True
            log.info("%s: %d partitions are copied by key", self._name, len(by_key))
            self._makers.append(lambda: ByKeyTask(self._context, self._offsets, by_key, self._holds))

    async def _keep(self, number: int) -> None:
        async def copy() -> None:
            task = self._tasks[number] = self._makers[number]()
            if not self._stopping.is_set():
                await task.run()

        await self._kept_up(copy)

    async def _kept_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Retry until it succeeds, or until :meth:`stop`."""
        pauses = Pauses(_RETRY_S, _MAX_RETRY_S)
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                await work()
                return
            except PartitionsStopped as error:
                log.error("%s", error)
                await self._stopping.wait()
            except (RetriableError, Superseded, SliceFenced) as error:
                # A member that fences us has our partitions, and the coordinator soon says so. Otherwise they are ours.
                if self._stopping.is_set():
                    log.warning("%s: at its end: %s; its successor finds out what had arrived", self._name, error)
                    return
                if time.monotonic() - began_s > _MAX_RETRY_S:
                    pauses.over()
                delay_s = pauses.next_s()
                log.warning("%s: copy failed: %s; retrying in %.1f s", self._name, error, delay_s)
                await is_set_within(self._stopping, delay_s)

    async def _shared_out(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return partitions that are copied to those of the same number, and partitions that are copied by key."""
        context = self._context
        names = {partition.topic for partition in self._partitions}
        if context.settings.options.handler is not None:
            return [], self._partitions
        source = await shown(context.clusters.source, names)
        if gone := names - source.keys():
            missing = named(sorted(gone))
            log.warning("%s: the source does not have %s now; the other topics are copied", self._name, missing)
        target = await make_missing(context.clusters, context.admin, source, self._refused, self._stopping)
        self._left_out = names - target.keys()
        self.target_counts = {name: len(topic.partitions) for name, topic in target.items()}
        alike = {name for name, count in self.target_counts.items() if len(source[name].partitions) == count}
        return (
            [one for one in self._partitions if one.topic in alike],
            [one for one in self._partitions if one.topic in target.keys() - alike],
        )

    async def _look_for_left_out(self) -> None:
        """End this generation cleanly once both clusters have such a topic: the next one includes it."""
        while not await is_set_within(self._stopping, _LEFT_OUT_S):
            with contextlib.suppress(RetriableError):
                clusters, admin = self._context.clusters, self._context.admin
                source = await shown(clusters.source, self._left_out)
                if found := await make_missing(clusters, admin, source, self._refused, self._stopping):
                    log.info("%s: %s can be copied now", self._name, named(sorted(found)))
                    self.stop()

    def _pair_task(self, partitions: Sequence[TopicPartition]) -> MirrorSourceTask:
        context, options = self._context, self._context.settings.options
        settings = TaskSettings(
            flow=context.source.flow_name,
            transactional_id=context.transactional_id(),
            partitions=tuple(partitions),
            remote_topic=lambda topic: topic,
            slice=context.slice_settings(),
            flush_interval_ms=options.commit_interval_ms,
            reset_to=context.source.reset_to,
            logs_skipped=True,
            gap_policy=_GAPS,
            reported=lambda entry: by_key_task.stop_message(
                entry.state, entry.pair.source, entry.reason, self._group_id
            ),
        )
        services = TaskServices(context.engine, context.links, context.clusters, context.admin)
        return MirrorSourceTask(settings, services, GroupPositionStore(self._offsets))

    async def _watch(self) -> None:
        """Raise :class:`UnsendableRecord` once a partition cannot continue, if that is to end the process."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._context.settings.options.aborts:
                continue
            for one in self.view():
                # If a topic is deleted while it is copied, that is intended.
                if is_stopped(one.state) and one.state != GapKind.SOURCE_DELETED.label:
                    raise UnsendableRecord(self._reported(one))

    def _reported(self, one: PartitionView) -> str:
        source = one.source
        # It may have stopped just now, before its task has worded the reason.
        reason = by_key_task.stop_message_at_end(one.state, source, one.reason, self._group_id)
        return f"{source} cannot be copied further than source offset {one.next_source_offset}: {reason}"

    @property
    def _group_id(self) -> str:
        return self._context.source.group.group_id

    @property
    def _name(self) -> str:
        return self._context.name
