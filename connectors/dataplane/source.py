"""The reading half of a slice: one fetch loop per source broker, feeding the partitions' copiers.

A partition is fetched while it holds less than one fetch of unacknowledged bytes and the slice less than its
bound, so memory stays bounded whatever the target does. Leaders come from metadata, looked up again whenever a
partition has none; a replica nearer than the leader is read where the leader names one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connectors.dataplane import codes, lost, verdicts
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.fetch_loop import FetchLoop
from connectors.dataplane.leaders import Leaders
from connectors.dataplane.nearby import Nearby
from connectors.dataplane.plan import SliceSettings

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
#: A leader may refuse an offset that is there when it has just moved; one that goes on to has another log.
_REFUSED_TRIES: Final = 3


class SourceReader:
    """Owns the fetch loops. ``taken`` is called with the copiers that got something, ``fail`` ends the slice."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SliceSettings,
        taken: Callable[[Iterable[PartitionCopier]], None],
        fail: Callable[[BaseException], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._taken = taken
        self._fail = fail
        self._clock = clock
        self._holding: set[PartitionCopier] = set()
        self._is_held = False
        self._unplaced: set[PartitionCopier] = set()
        self._gone_since: dict[str, float] = {}
        self._refusals: dict[PartitionCopier, int] = {}
        self._loops: dict[int, FetchLoop] = {}
        self._nearby = Nearby(settings.rack)
        self._placing = asyncio.Event()
        self._is_placing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, copiers: Collection[PartitionCopier], leaders: Leaders) -> None:
        """Read these from their positions, from the leaders that are known."""
        self.add(copiers)
        for copier in copiers:
            plan = copier.plan
            if (leader := leaders.of(plan.source, plan.source_topic_id, plan.last_source_epoch)) is not None:
                self._unplaced.discard(copier)
                self._loop(leader.node).add(copier, leader.epoch)
        if not self._is_placing:
            self._is_placing = True
            self._spawn(self._place_forever(), f"place {self._settings.flow}")

    def add(self, copiers: Iterable[PartitionCopier]) -> None:
        """Read these as well, from their positions."""
        for copier in copiers:
            plan = copier.plan
            # A leader of an epoch before that of a record copied already is a former one.
            self._cluster.leader_epochs.saw(
                plan.source.topic, plan.source_topic_id, plan.source.partition, plan.last_source_epoch
            )
            self._unplaced.add(copier)
        self._placing.set()

    async def finish(self) -> bool:
        """Fetch no more; return whether answers that had begun to arrive were taken, once they are."""
        return any(await asyncio.gather(*(loop.finish() for loop in self._loops.values())))

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Acknowledgements made room: loops that waited may fetch again."""
        for loop in self._loops.values():
            loop.wake.set()

    def hold(self, *, is_held: bool) -> None:
        """Fetch nothing more, or continue, because the worker cannot store positions, or can again."""
        self._is_held = is_held
        self.wake()

    def has_room(self) -> bool:
        """Whether more may be fetched. Partitions that cannot send have a bound of their own, as large again, and give
        back what is above it, so that they leave all of the others' room to the others."""
        if self._is_held:
            return False
        self._holding = {copier for copier in self._holding if copier.held_bytes}
        faulted = [copier for copier in self._holding if copier.faulted]
        held_bytes = sum(copier.held_bytes for copier in self._holding)
        faulted_bytes = sum(copier.held_bytes for copier in faulted)
        for keep in (1, 0):
            if faulted_bytes >= self._settings.buffer_bytes:
                for copier in faulted:
                    copier.give_back(keep)
                held_bytes -= faulted_bytes
                faulted_bytes = sum(copier.held_bytes for copier in faulted)
                held_bytes += faulted_bytes
        return max(held_bytes - faulted_bytes, faulted_bytes) < self._settings.buffer_bytes

    def lose(self, copier: PartitionCopier) -> None:
        """Its leader is unknown from here on until metadata names one."""
        self._nearby.fail(copier, self._clock())
        if copier.is_read:
            self._unplaced.add(copier)
            self._placing.set()

    def now_s(self) -> float:
        return self._clock()

    def rack(self) -> str:
        """What leaders are told, who may name a replica within it."""
        return self._nearby.rack(self._clock())

    def is_followed(self, copier: PartitionCopier) -> bool:
        """Whether it is read from another replica than its leader."""
        return copier in self._nearby

    def follow(self, copier: PartitionCopier, node: int, leader_epoch: int) -> None:
        """Its leader named this node to read from."""
        self._nearby.follow(copier, self._clock())
        self._loop(node).add(copier, leader_epoch)

    def overdue(self) -> list[PartitionCopier]:
        """Those read from another replica for so long that their leaders are to be asked again, at a cost of no more
        than they are."""
        return self._nearby.overdue(self._clock())

    def revisit(self, copier: PartitionCopier) -> None:
        self._nearby.forget(copier)
        self.lose(copier)

    def look_into(self, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None = None) -> None:
        """The leader of ``leader_epoch`` refuses the position: stop the partition with the reason, or place it again.

        ``diverging``: (leader epoch, its end) if the leader says that its log differs from what was read.
        """
        self._spawn(self._explain(copier, leader_epoch, diverging), f"look into {copier.plan.source}")

    def goes_on(self, copier: PartitionCopier) -> None:
        """Its leader takes the position."""
        self._refusals.pop(copier, None)

    def took(self, copiers: Collection[PartitionCopier]) -> None:
        self._holding.update(copiers)
        self._taken(copiers)

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop ends by cancellation only; what else ended it must not leave its partitions standing."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _place_forever(self) -> None:
        while True:
            await self._placing.wait()
            self._placing.clear()
            try:
                await self._place()
            except RetriableError as error:
                log.warning("%s: %s; trying again", self._settings.flow, error)
            # Also where all were placed: a leader that refuses is not asked again as fast as it can answer.
            await asyncio.sleep(_RETRY_S)
            if self._unplaced:
                self._placing.set()

    async def _place(self) -> None:
        waiting = {copier for copier in self._unplaced if copier.is_read}
        if not waiting:
            return
        metadata = await self._cluster.metadata({copier.plan.source.topic for copier in waiting})
        for copier in waiting:
            if not copier.is_read:
                continue
            plan = copier.plan
            topic = metadata.topics.get(plan.source.topic)
            if topic is None or topic.error_code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                self._stop_if_gone(copier)
                continue
            self._gone_since.pop(plan.source.topic, None)
            if plan.source_topic_id and topic.topic_id and topic.topic_id != plan.source_topic_id:
                copier.stop_reading(*lost.source_made_anew(copier, topic.topic_id, plan.source_topic_id))
                continue
            partition = topic.partitions.get(plan.source.partition)
            if partition is None or partition.leader < 0:
                continue
            self._unplaced.discard(copier)
            self._loop(partition.leader).add(copier, partition.leader_epoch)
        self._unplaced = {copier for copier in self._unplaced if copier.is_read}
        waiting &= self._unplaced
        if gone := sorted({copier.plan.source.topic for copier in waiting} & self._gone_since.keys()):
            log.warning("%s: source topic %s does not exist; trying again", self._settings.flow, ", ".join(gone[:3]))
        elif leaderless := [str(copier.plan.source) for copier in waiting]:
            log.warning("%s: no leader for source %s; trying again", self._settings.flow, ", ".join(leaderless[:3]))

    def _stop_if_gone(self, copier: PartitionCopier) -> None:
        topic, now_s = copier.plan.source.topic, self._clock()
        if now_s - self._gone_since.setdefault(topic, now_s) > lost.GONE_AFTER_S:
            copier.stop_reading(
                *verdicts.deleted("source", topic, copier.plan.source, copier.fetch_offset, copier.high_watermark)
            )

    async def _explain(self, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None) -> None:
        plan = copier.plan
        while copier.is_read:
            try:
                found = await lost.explain_source(self._cluster, copier, leader_epoch, diverging)
            except lost.LeaderChanged as error:
                log.info("%s: %s; asking its leader", self._settings.flow, error)
                self.lose(copier)
                return
            except RetriableError as error:
                log.warning("%s: source %s refuses its position: %s", self._settings.flow, plan.source, error)
                await asyncio.sleep(_RETRY_S)
                continue
            tries = self._refusals[copier] = self._refusals.get(copier, 0) + 1
            if found is None and tries < _REFUSED_TRIES:
                self.lose(copier)
                return
            copier.stop_reading(
                *(found or verdicts.source_another(plan.source, copier.fetch_offset, copier.last_fetched_epoch))
            )

    def _loop(self, node: int) -> FetchLoop:
        if node not in self._loops:
            loop = self._loops[node] = FetchLoop(self, self._cluster, self._settings, node)
            self._spawn(loop.run(), f"fetch {self._settings.flow} node {node}")
        return self._loops[node]
