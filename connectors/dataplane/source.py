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
from connect.kafka.connection import Connection
from connect.wire import hot
from connectors.dataplane import codes, lost, reading, verdicts
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.cut import CORRUPT_TRIES, CorruptBatch
from connectors.dataplane.fetch_session import FetchSession
from connectors.dataplane.nearby import Nearby
from connectors.dataplane.plan import SliceSettings
from connectors.dataplane.reading import TopicOnWire
from connectors.dataplane.refusals import unread

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
#: While some partitions wait for the target, a long poll for the others must not hold them up.
_BUSY_WAIT_MS: Final = 5
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
        self._unplaced: set[PartitionCopier] = set()
        self._gone_since: dict[str, float] = {}
        self._refusals: dict[PartitionCopier, int] = {}
        self._loops: dict[int, _BrokerLoop] = {}
        self._nearby = Nearby(settings.rack)
        self._placing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, copiers: Iterable[PartitionCopier]) -> None:
        self.add(copiers)
        self._spawn(self._place_forever(), f"place {self._settings.flow}")

    def add(self, copiers: Iterable[PartitionCopier]) -> None:
        """Read these as well, from where they stand."""
        self._unplaced.update(copiers)
        self._placing.set()

    def remove(self, copiers: Iterable[PartitionCopier]) -> None:
        """Let go of these, which take nothing more: see ``PartitionCopier.discard_unsent``."""
        for copier in copiers:
            self._unplaced.discard(copier)
            self._refusals.pop(copier, None)
            self._nearby.forget(copier)
            for loop in self._loops.values():
                loop.remove(copier)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Acknowledgements made room: loops that waited may fetch again."""
        for loop in self._loops.values():
            loop.wake.set()

    def has_room(self) -> bool:
        self._holding = {copier for copier in self._holding if copier.buffered_bytes and not copier.stopped}
        return sum(copier.buffered_bytes for copier in self._holding) < self._settings.buffer_bytes

    def lose(self, copier: PartitionCopier) -> None:
        """Its leader is unknown from here on until metadata names one."""
        self._nearby.fail(copier, self._clock())
        if copier.is_read:
            self._unplaced.add(copier)
            self._placing.set()

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

    def is_to_revisit(self, copier: PartitionCopier) -> bool:
        """Whether it was read from another replica for so long that its leader is to be asked again."""
        return self._nearby.is_over(copier, self._clock())

    def revisit(self, copier: PartitionCopier) -> None:
        self._nearby.forget(copier)
        self.lose(copier)

    def look_into(self, copier: PartitionCopier, diverging: tuple[int, int] | None = None) -> None:
        """Its leader does not go on where it stands: it stops with what is found out, or is placed again.

        ``diverging``: (leader epoch, its end) where the leader says that its log parts from what was read.
        """
        self._spawn(self._explain(copier, diverging), f"look into {copier.plan.source}")

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

    async def _explain(self, copier: PartitionCopier, diverging: tuple[int, int] | None) -> None:
        plan = copier.plan
        while copier.is_read:
            try:
                found = await lost.explain_source(self._cluster, copier, diverging)
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

    def _loop(self, node: int) -> _BrokerLoop:
        if node not in self._loops:
            loop = self._loops[node] = _BrokerLoop(self, self._cluster, self._settings, node)
            self._spawn(loop.run(), f"fetch {self._settings.flow} node {node}")
        return self._loops[node]


class _BrokerLoop:
    """Fetches from one broker, one request at a time, what the copiers placed there want."""

    def __init__(self, reader: SourceReader, cluster: Cluster, settings: SliceSettings, node: int) -> None:
        self.wake = asyncio.Event()
        self._reader = reader
        self._cluster = cluster
        self._settings = settings
        self._node = node
        self._placed: dict[PartitionCopier, tuple[TopicOnWire, int]] = {}
        self._epochs: dict[PartitionCopier, int] = {}
        self._full: set[PartitionCopier] = set()  # they hold enough and are left out until they have room
        self._by_key: dict[reading.Key, PartitionCopier] = {}
        self._session: FetchSession[tuple[TopicOnWire, int]] = FetchSession()
        self._corrupt: dict[PartitionCopier, int] = {}

    def add(self, copier: PartitionCopier, leader_epoch: int) -> None:
        plan = copier.plan
        self._placed[copier] = (TopicOnWire(plan.source.topic, plan.source_topic_id), plan.source.partition)
        self._epochs[copier] = leader_epoch
        self._by_key = {}
        self._ask_for(copier)
        self.wake.set()

    def remove(self, copier: PartitionCopier) -> None:
        self._drop(copier)
        self._epochs.pop(copier, None)
        self._corrupt.pop(copier, None)

    async def run(self) -> None:
        while True:
            try:
                await self._fetch_while_connected()
            except RetriableError as error:
                self._session.lost()
                log.warning("%s: source node %d: %s; trying again", self._settings.flow, self._node, error)
                for copier in list(self._placed):
                    self._leave(copier)
                await asyncio.sleep(_RETRY_S)
            if not self._placed:
                self.wake.clear()
                await self.wake.wait()

    async def _fetch_while_connected(self) -> None:
        connection = await self._cluster.connection(self._node, "copy")
        version = reading.fetch_version(connection, (topic for topic, _ in self._placed.values()))
        self._by_key = {}
        while self._placed:
            self.wake.clear()
            for copier in list(self._full):
                self._ask_for(copier)
            if self._session.wants_any and self._reader.has_room():
                await self._fetch(connection, version)
            else:
                await self.wake.wait()

    def _ask_for(self, copier: PartitionCopier) -> None:
        """Let the next request name it where it stands, unless it holds enough; a stopped one is done with.

        Called where one of this may have changed, for a request must not cost what all partitions are.
        """
        key = self._placed.get(copier)
        if key is None:
            return
        if not copier.is_read:
            self._drop(copier)
        elif self._reader.is_to_revisit(copier):
            self._drop(copier)
            self._reader.revisit(copier)
        elif copier.buffered_bytes < self._settings.partition_max_bytes:
            self._full.discard(copier)
            self._session.want(key, (copier.fetch_offset, self._epochs[copier], copier.last_fetched_epoch))
        else:
            self._full.add(copier)
            self._session.leave(key)

    def _drop(self, copier: PartitionCopier) -> None:
        key = self._placed.pop(copier, None)
        if key is not None:
            self._full.discard(copier)
            self._session.leave(key)

    def _named(self, version: int) -> dict[reading.Key, PartitionCopier]:
        if not self._by_key:
            self._by_key = {(topic.key(version), index): copier for copier, (topic, index) in self._placed.items()}
        return self._by_key

    async def _fetch(self, connection: Connection, version: int) -> None:
        settings = self._settings
        request = self._session.request()
        limits = reading.FetchLimits(
            _BUSY_WAIT_MS if self._full else settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.partition_max_bytes,
            reading.READ_COMMITTED if settings.read_committed else reading.READ_UNCOMMITTED,
            self._reader.rack(),
        )
        body = reading.encode_fetch(
            version, limits, (request.session_id, request.epoch), request.partitions, request.forgotten
        )
        # Of now: whoever takes a partition's place while this is under way did not ask for what is answered.
        named = self._named(version)
        answer = await reading.fetch(connection, version, body, limits.max_wait_ms)
        if answer.error_code in codes.SESSION_LOST:
            self._session.lost()
            return
        if answer.error_code:
            raise RetriableError(f"fetch refused: {codes.name(answer.error_code)}")
        self._session.answered(answer.session_id)
        fed = []
        for row in answer.partitions:
            copier = named.get((row.topic, row.partition))
            if copier is None or copier not in self._placed:
                continue
            if self._take(copier, row):
                fed.append(copier)
            self._ask_for(copier)
        self._reader.took(fed)
        if answer.throttle_time_ms:
            await asyncio.sleep(answer.throttle_time_ms / 1000)

    def _take(self, copier: PartitionCopier, row: hot.FetchedPartition) -> bool:
        if not copier.is_read:
            return False
        if (row.diverging or row.error_code) and self._reader.is_followed(copier):
            self._leave(copier)
            return False
        if row.diverging is not None:
            self._drop(copier)
            self._reader.look_into(copier, row.diverging)
            return False
        if row.error_code:
            self._refused(copier, row)
            return False
        self._note_extent(copier, row)
        if row.preferred_read_replica >= 0:
            self._drop(copier)
            self._reader.follow(copier, row.preferred_read_replica, self._epochs[copier])
            return False
        self._reader.goes_on(copier)
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

    def _note_extent(self, copier: PartitionCopier, row: hot.FetchedPartition) -> None:
        is_stable = self._settings.read_committed and row.last_stable_offset >= 0
        end = row.last_stable_offset if is_stable else row.high_watermark
        # Another replica hears of the end after the leader.
        copier.high_watermark = max(end, copier.high_watermark) if self._reader.is_followed(copier) else end
        copier.log_start_offset = row.log_start_offset

    def _refused(self, copier: PartitionCopier, row: hot.FetchedPartition) -> None:
        source = copier.plan.source
        if row.error_code == codes.OFFSET_OUT_OF_RANGE:
            self._drop(copier)
            self._reader.look_into(copier)
        elif row.error_code in codes.RETRIABLE:
            self._leave(copier)
        else:
            copier.stop(
                f"source {source} {unread(source.topic, row.error_code)}, then start the flow again",
                codes.name(row.error_code),
            )

    def _found_corrupt(self, copier: PartitionCopier, error: CorruptBatch) -> None:
        if self._reader.is_followed(copier):
            log.error("%s: %s: %s; its leader is asked", self._settings.flow, copier.plan.source, error)
            self._leave(copier)
            return
        tries = self._corrupt[copier] = self._corrupt.get(copier, 0) + 1
        log.error("%s: %s: %s (try %d)", self._settings.flow, copier.plan.source, error, tries)
        if tries >= CORRUPT_TRIES:
            copier.stop(f"source {copier.plan.source}: {error}; repair or skip it by hand", "source-corrupt")

    def _leave(self, copier: PartitionCopier) -> None:
        self._drop(copier)
        self._reader.lose(copier)
