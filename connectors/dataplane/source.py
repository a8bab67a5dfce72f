"""The reading half of a slice: one fetch loop per source leader, feeding the partitions' copiers.

A partition is fetched while it holds less than one fetch of unacknowledged bytes and the slice less than its
bound, so memory stays bounded whatever the target does. Leaders come from metadata, looked up again whenever a
partition has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.wire import hot
from connectors.dataplane import codes, reading
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.cut import CorruptBatch
from connectors.dataplane.fetch_session import FetchSession
from connectors.dataplane.plan import SliceSettings
from connectors.dataplane.reading import TopicOnWire

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
#: While some partitions wait for the target, a long poll for the others must not hold them up.
_BUSY_WAIT_MS: Final = 5
#: Damage on the way heals with a new fetch; damage in the source's log does not.
_CORRUPT_TRIES: Final = 3


class SourceReader:
    """Owns the fetch loops. ``taken`` is called with the copiers that got something, ``fail`` ends the slice."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SliceSettings,
        taken: Callable[[Iterable[PartitionCopier]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._taken = taken
        self._fail = fail
        self._copiers: list[PartitionCopier] = []
        self._unplaced: set[PartitionCopier] = set()
        self._leader_epochs: dict[PartitionCopier, int] = {}
        self._loops: dict[int, _LeaderLoop] = {}
        self._placing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, copiers: Iterable[PartitionCopier]) -> None:
        self._copiers = list(copiers)
        self._unplaced = set(self._copiers)
        self._placing.set()
        self._spawn(self._place_forever(), f"place {self._settings.flow}")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self) -> None:
        """Acknowledgements made room: loops that waited may fetch again."""
        for loop in self._loops.values():
            loop.wake.set()

    def has_room(self) -> bool:
        buffered = sum(copier.buffered_bytes for copier in self._copiers if not copier.stopped)
        return buffered < self._settings.buffer_bytes

    def lose(self, copier: PartitionCopier) -> None:
        """Its leader is unknown from here on until metadata names one."""
        self._unplaced.add(copier)
        self._placing.set()

    def took(self, copiers: Iterable[PartitionCopier]) -> None:
        self._taken(copiers)

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop ends by cancellation only; what else ended it must not leave its partitions standing."""
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
        waiting = {copier for copier in self._unplaced if not copier.stopped}
        metadata = await self._cluster.metadata({copier.plan.source.topic for copier in waiting})
        for copier in waiting:
            plan = copier.plan
            topic = metadata.topics.get(plan.source.topic)
            if topic is None:
                continue
            if plan.source_topic_id and topic.topic_id and topic.topic_id != plan.source_topic_id:
                copier.stop(
                    f"source topic {plan.source.topic} was deleted and made anew (topic id {topic.topic_id}, "
                    f"was {plan.source_topic_id}); restart the flow from the offset you choose",
                    "source-recreated",
                )
                self._unplaced.discard(copier)
                continue
            partition = topic.partitions.get(plan.source.partition)
            if partition is None or partition.leader < 0:
                continue
            self._leader_epochs[copier] = partition.leader_epoch
            self._unplaced.discard(copier)
            self._loop(partition.leader).add(copier, partition.leader_epoch)
        self._unplaced = {copier for copier in self._unplaced if not copier.stopped}
        if leaderless := [str(copier.plan.source) for copier in waiting & self._unplaced]:
            log.warning("%s: no leader for source %s; trying again", self._settings.flow, ", ".join(leaderless[:3]))

    def _loop(self, node: int) -> _LeaderLoop:
        if node not in self._loops:
            loop = self._loops[node] = _LeaderLoop(self, self._cluster, self._settings, node)
            self._spawn(loop.run(), f"fetch {self._settings.flow} node {node}")
        return self._loops[node]


class _LeaderLoop:
    """Fetches from one broker, one request at a time, what the copiers placed there want."""

    def __init__(self, reader: SourceReader, cluster: Cluster, settings: SliceSettings, node: int) -> None:
        self.wake = asyncio.Event()
        self._reader = reader
        self._cluster = cluster
        self._settings = settings
        self._node = node
        self._topics: dict[PartitionCopier, TopicOnWire] = {}
        self._epochs: dict[PartitionCopier, int] = {}
        self._session: FetchSession[tuple[TopicOnWire, int]] = FetchSession()
        self._corrupt: dict[PartitionCopier, int] = {}

    def add(self, copier: PartitionCopier, leader_epoch: int) -> None:
        plan = copier.plan
        self._topics[copier] = TopicOnWire(plan.source.topic, plan.source_topic_id)
        self._epochs[copier] = leader_epoch
        self.wake.set()

    async def run(self) -> None:
        while True:
            try:
                await self._fetch_while_connected()
            except RetriableError as error:
                self._session.lost()
                log.warning("%s: source node %d: %s; trying again", self._settings.flow, self._node, error)
                for copier in list(self._topics):
                    self._leave(copier)
                await asyncio.sleep(_RETRY_S)
            if not self._topics:
                self.wake.clear()
                await self.wake.wait()

    async def _fetch_while_connected(self) -> None:
        connection = await self._cluster.connection(self._node, "copy")
        version = reading.fetch_version(connection, self._topics.values())
        while self._topics:
            self.wake.clear()
            wanted = self._wanted()
            if not wanted:
                await self.wake.wait()
                continue
            await self._fetch(connection, version, wanted)

    def _wanted(self) -> dict[tuple[TopicOnWire, int], PartitionCopier]:
        for copier in [copier for copier in self._topics if copier.stopped]:
            del self._topics[copier]
        if not self._reader.has_room():
            return {}
        limit = self._settings.partition_max_bytes
        return {
            (topic, copier.plan.source.partition): copier
            for copier, topic in self._topics.items()
            if copier.buffered_bytes < limit
        }

    async def _fetch(
        self, connection: Connection, version: int, wanted: dict[tuple[TopicOnWire, int], PartitionCopier]
    ) -> None:
        settings = self._settings
        positions = {
            key: (copier.fetch_offset, self._epochs[copier], copier.last_fetched_epoch)
            for key, copier in wanted.items()
        }
        request = self._session.request(positions)
        limits = reading.FetchLimits(
            settings.fetch_max_wait_ms if len(wanted) == len(self._topics) else _BUSY_WAIT_MS,
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.partition_max_bytes,
            reading.READ_COMMITTED if settings.read_committed else reading.READ_UNCOMMITTED,
        )
        body = reading.encode_fetch(
            version, limits, (request.session_id, request.epoch), request.partitions, request.forgotten
        )
        answer = await reading.fetch(connection, version, body, limits.max_wait_ms)
        if answer.error_code in codes.SESSION_LOST:
            self._session.lost()
            return
        if answer.error_code:
            raise RetriableError(f"fetch refused: {codes.name(answer.error_code)}")
        self._session.answered(answer.session_id)
        by_key = {(topic.key(version), index): copier for (topic, index), copier in wanted.items()}
        fed = [
            copier
            for row in answer.partitions
            if (copier := by_key.get((row.topic, row.partition))) is not None and self._take(copier, row)
        ]
        self._reader.took(fed)
        if answer.throttle_time_ms:
            await asyncio.sleep(answer.throttle_time_ms / 1000)

    def _take(self, copier: PartitionCopier, row: hot.FetchedPartition) -> bool:
        if row.diverging is not None:
            epoch, end = row.diverging
            copier.stop(
                f"source {copier.plan.source} was truncated: leader epoch {epoch} ends at offset {end}, "
                f"but {copier.fetch_offset} had been read",
                "source-truncated",
            )
            return False
        if row.error_code:
            self._refused(copier, row)
            return False
        copier.high_watermark = (
            row.last_stable_offset
            if self._settings.read_committed and row.last_stable_offset >= 0
            else row.high_watermark
        )
        copier.log_start_offset = row.log_start_offset
        try:
            copier.take(row.records, row.aborted)
        except CorruptBatch as error:
            self._found_corrupt(copier, error)
        except Exception as error:
            # A payload that does not open though its CRC is right: no new fetch mends it, and the others go on.
            where = f"source {copier.plan.source}: a batch behind offset {copier.fetch_offset - 1}"
            log.error("%s: %s cannot be opened", self._settings.flow, where, exc_info=error)
            copier.stop(f"{where} cannot be opened: {type(error).__name__}: {error}", "source-unreadable")
        else:
            self._corrupt.pop(copier, None)
        return bool(row.records)

    def _refused(self, copier: PartitionCopier, row: hot.FetchedPartition) -> None:
        source = copier.plan.source
        if row.error_code == codes.OFFSET_OUT_OF_RANGE:
            copier.stop(
                f"source {source} no longer holds offset {copier.fetch_offset} "
                f"(retention overran the position, or the log was truncated)",
                "source-gap",
            )
        elif row.error_code in codes.RETRIABLE:
            self._leave(copier)
        else:
            copier.stop(f"source {source} refuses a fetch: {codes.name(row.error_code)}", codes.name(row.error_code))

    def _found_corrupt(self, copier: PartitionCopier, error: CorruptBatch) -> None:
        tries = self._corrupt[copier] = self._corrupt.get(copier, 0) + 1
        log.error("%s: %s: %s (try %d)", self._settings.flow, copier.plan.source, error, tries)
        if tries >= _CORRUPT_TRIES:
            copier.stop(f"source {copier.plan.source}: {error}; repair or skip it by hand", "source-corrupt")

    def _leave(self, copier: PartitionCopier) -> None:
        self._topics.pop(copier, None)
        self._reader.lose(copier)
