"""Read the source's partitions for a slice: place each on a fetch loop of its leader, and bound the memory in use.

A partition is fetched while its unacknowledged bytes are below its share and those of the slice below its bound, so
memory stays bounded whatever the target does. A distant broker has several loops. Metadata names the leaders, and is
requested again whenever a partition has none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from connect.core.errors import RetriableError
from connect.core.wording import named
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import Scope
from connect.kafka.error_causes import because
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import log_divergence
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.fetch_loop import QUIET, FetchLoop, Nearby
from connectors.dataplane.leader_connections import Leaders

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
_FAR_LOOPS: Final = 4
#: With more partitions of a broker, quiet ones have a loop of their own. A fetch costs a broker about 10 us for each
#: partition of its session.
_MANY: Final = 100
#: A new leader may refuse an offset that exists; one that refuses it this often has another log.
_REFUSED_TRIES: Final = 3
#: Most partitions or topics named in one log line.
_MOST_NAMED: Final = 3


@dataclass(eq=False, repr=False)
class SourceReader:
    """The owner of the fetch loops. ``taken`` is called with copiers that got records; ``fail`` ends the slice.
    ``answer_s`` is how long the target takes to answer at present."""

    cluster: Cluster
    settings: SliceSettings
    taken: Callable[[Iterable[PartitionCopier]], None]
    fail: Callable[[BaseException], None]
    _: KW_ONLY
    answer_s: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.monotonic
    partitions: int = 0
    #: How often the next batch was found damaged, by whichever loop.
    damaged: dict[PartitionCopier, int] = field(default_factory=dict)
    #: How often its leader has refused a position in a row.
    refusals: dict[PartitionCopier, int] = field(default_factory=dict)
    _holding: set[PartitionCopier] = field(default_factory=set)
    _is_held: bool = False
    _unplaced: set[PartitionCopier] = field(default_factory=set)
    _missing_since_s: dict[str, float] = field(default_factory=dict)
    _loops: dict[int, list[FetchLoop]] = field(default_factory=dict)
    _quiet: dict[int, FetchLoop] = field(default_factory=dict)
    _placing: asyncio.Event = field(default_factory=asyncio.Event)
    _is_placing: bool = False

    def __post_init__(self) -> None:
        #: Partitions that are read from a replica other than their leader.
        self.nearby = Nearby(self.settings.rack, self.clock)
        self._scope = Scope(f"source of {self.settings.flow}")

    def start(self, copiers: Collection[PartitionCopier], leaders: Leaders) -> None:
        """Read these partitions from their positions, first those with a known leader."""
        self.partitions += len(copiers)
        for copier in copiers:
            plan = copier.plan
            # A leader with a lower epoch than a copied record is a former leader.
            self.cluster.leader_epochs.saw(
                plan.source.topic, plan.source_topic_id, plan.source.partition, plan.last_source_epoch
            )
            if (leader := leaders.of(plan.source, plan.source_topic_id, plan.last_source_epoch)) is None:
                self._unplaced.add(copier)
            else:
                # Most of many have nothing to copy, and the first answer shows which have.
                quiet = self._quiet_loop(leader.node)
                loop = self._loop(leader.node) if quiet is None or quiet.is_waiting else quiet
                loop.add(copier, leader.epoch)
        self._placing.set()
        if not self._is_placing:
            self._is_placing = True
            self._spawn(self._place_forever(), f"place {self.settings.flow}")

    async def finish(self) -> bool:
        """Stop fetching, and wait for partly received answers; return whether there were any."""
        return any(await asyncio.gather(*(loop.finish() for loop in self._every_loop())))

    async def stop(self) -> None:
        await self._scope.close()

    def wake(self) -> None:
        """Let waiting loops fetch again after acknowledgements made room."""
        for loop in self._every_loop():
            loop.wake.set()

    def hold(self, *, is_held: bool) -> None:
        """Pause fetching while the worker cannot store positions, or continue."""
        self._is_held = is_held
        self.wake()

    def has_room(self) -> bool:
        """Return whether more may be fetched. Partitions that cannot send have another bound of the same size, and give
        back what exceeds it, so they take no room from the others."""
        if self._is_held:
            return False
        self._holding = {copier for copier in self._holding if copier.held_bytes}
        faulted = [copier for copier in self._holding if copier.faulted]
        held_bytes = sum(copier.held_bytes for copier in self._holding)
        faulted_bytes = sum(copier.held_bytes for copier in faulted)
        for keep in (1, 0):
            if faulted_bytes >= self.settings.buffer_bytes:
                for copier in faulted:
                    copier.give_back(keep)
                held_bytes -= faulted_bytes
                faulted_bytes = sum(copier.held_bytes for copier in faulted)
                held_bytes += faulted_bytes
        return max(held_bytes - faulted_bytes, faulted_bytes) < self.settings.buffer_bytes

    def lose(self, copier: PartitionCopier) -> None:
        """Treat the partition's leader as unknown until metadata names one."""
        self.nearby.fail(copier)
        if copier.is_read:
            self._unplaced.add(copier)
            self._placing.set()

    def follow(self, copier: PartitionCopier, node: int, leader_epoch: int) -> None:
        """Read from this node, which the leader named."""
        self.nearby.follow(copier)
        self._loop(node).add(copier, leader_epoch)

    def diagnose_log(
        self, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None = None
    ) -> None:
        """Find out why the leader of ``leader_epoch`` refuses the position; stop the partition, or place it again.
        ``diverging``: (leader epoch, its end) if the leader says that its log differs from what was read."""
        self._spawn(self._explain(copier, leader_epoch, diverging), f"look into {copier.plan.source}")

    def took(self, copiers: Collection[PartitionCopier]) -> None:
        self._holding.update(copiers)
        self.taken(copiers)

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        self._scope.spawn(coroutine, name, self.fail)  # else its partitions would stop unnoticed

    async def _place_forever(self) -> None:
        while True:
            await self._placing.wait()
            self._placing.clear()
            try:
                await self._place()
            except RetriableError as error:
                log.warning("%s: %s; retrying", self.settings.flow, error)
            # Also when all were placed, so that a leader that refuses is not asked as fast as it answers.
            await asyncio.sleep(_RETRY_S)
            if self._unplaced:
                self._placing.set()

    async def _place(self) -> None:
        waiting = {copier for copier in self._unplaced if copier.is_read}
        if not waiting:
            return
        metadata = await self.cluster.metadata({copier.plan.source.topic for copier in waiting})
        for copier in waiting:
            if not copier.is_read:
                continue
            source = copier.plan.source
            topic = metadata.topics.get(source.topic)
            expected, end = (source.topic, copier.plan.source_topic_id), copier.high_watermark
            verdict = log_divergence.of_topic("source", topic, expected, source, copier.fetch_offset, end)
            if not self._is_certain(source.topic, topic):
                continue
            if verdict is not None:
                copier.stop_reading(*verdict)
                continue
            partition = topic.partitions.get(source.partition) if topic else None
            if partition is None or partition.leader < 0:
                continue
            self._unplaced.discard(copier)
            self._loop(partition.leader).add(copier, partition.leader_epoch)
        self._unplaced = {copier for copier in self._unplaced if copier.is_read}
        waiting &= self._unplaced
        if gone := sorted({copier.plan.source.topic for copier in waiting} & self._missing_since_s.keys()):
            names = named(gone, _MOST_NAMED)
            cause = because(f"{self.settings.source_alias}: no topic {names}")
            log.warning("%s: source topic %s does not exist; retrying", self.settings.flow, names, extra=cause)
        elif waiting:
            names = named(sorted(copier.plan.source for copier in waiting), _MOST_NAMED)
            cause = because(f"{self.settings.source_alias}: no leader")  # the same cause for any partitions
            log.warning("%s: no leader for source %s; retrying", self.settings.flow, names, extra=cause)

    def _is_certain(self, name: str, topic: TopicMetadata | None) -> bool:
        """Return whether a topic exists, or has been missing long enough to be considered deleted."""
        if topic is not None and topic.exists:
            self._missing_since_s.pop(name, None)
            return True
        now_s = self.clock()
        return now_s - self._missing_since_s.setdefault(name, now_s) > log_divergence.DELETED_AFTER_S

    async def _explain(self, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None) -> None:
        plan = copier.plan
        while copier.is_read:
            try:
                found = await log_divergence.explain_source(self.cluster, copier, leader_epoch, diverging)
            except log_divergence.LeaderChanged as error:
                log.info("%s: %s; asking its leader", self.settings.flow, error)
                self.lose(copier)
                return
            except RetriableError as error:
                log.warning("%s: source %s refuses its position: %s", self.settings.flow, plan.source, error)
                await asyncio.sleep(_RETRY_S)
                continue
            tries = self.refusals[copier] = self.refusals.get(copier, 0) + 1
            if found is None and tries < _REFUSED_TRIES:
                self.lose(copier)
                return
            copier.stop_reading(
                *(found or log_divergence.source_another(plan.source, copier.fetch_offset, copier.last_fetched_epoch))
            )

    def spread(self, loop: FetchLoop) -> None:
        """Add loops for a distant broker, and distribute the copiers of ``loop``, its only one."""
        numbers = range(2, min(_FAR_LOOPS, self._placed_at(loop.node)) + 1)
        others = [self._begin(loop.node, number) for number in numbers]
        self._loops[loop.node] += others
        loop.hand_over_to(others)

    def share(self, loop: FetchLoop) -> None:
        """Divide a broker's partitions between its loops and its loop of quiet ones. ``loop`` is about to fetch. Only a
        loop that is about to fetch, or has no fetch in flight, gets partitions: until then the other one goes on with
        them, so that none waits for a long poll to end."""
        quiet = self._quiet_loop(loop.node)
        if quiet is None:
            return
        if (busy := self._loop(loop.node)) is loop or not busy.is_fetching:
            quiet.move(quiet.awake(), busy)
        if quiet is loop or not quiet.is_fetching:
            for one in self._loops[loop.node]:
                one.move(one.quiet(), quiet)

    def _quiet_loop(self, node: int) -> FetchLoop | None:
        if node not in self._quiet and self._placed_at(node) > _MANY:
            self._quiet[node] = self._begin(node, QUIET)
        return self._quiet.get(node)

    def _placed_at(self, node: int) -> int:
        return sum(loop.placed for loop in self._every_loop() if loop.node == node)

    def _every_loop(self) -> Iterator[FetchLoop]:
        yield from (loop for loops in self._loops.values() for loop in loops)
        yield from self._quiet.values()

    def _loop(self, node: int) -> FetchLoop:
        """Return the loop of a broker that has the fewest copiers."""
        if node not in self._loops:
            self._loops[node] = [self._begin(node, 1)]
        return min(self._loops[node], key=lambda loop: loop.placed)

    def _begin(self, node: int, number: int) -> FetchLoop:
        loop = FetchLoop(self, self.cluster, self.settings, node, number)
        self._spawn(loop.run(), f"fetch {self.settings.flow} node {node}, loop {number}")
        return loop
