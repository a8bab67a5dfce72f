"""Read the source's partitions for a slice: fetch loops for each broker, from the leader or a replica in our own rack.

A partition is fetched while it holds less than its share of unacknowledged bytes and the slice less than its bound,
so memory stays bounded whatever the target does. A distant broker has several loops. Leaders come from metadata, looked
up again whenever a partition has none.

Replicas (KIP-392): a leader that knows our rack names a replica in it, if there is one, in place of records (Kafka
``RackAwareReplicaSelector``). That replica is asked from then on. The leader is asked again now and then, as replicas
come and go, and at once when the replica fails; it sends the records itself then, for it alone can say what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, cast

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import Scope
from connect.kafka.connection import Connection
from connect.kafka.error_causes import because
from connect.wire import fetch_produce
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import fetch_api, log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.error_codes import unread
from connectors.dataplane.batches.fetched_batches import CORRUPT_TRIES, CorruptBatch
from connectors.dataplane.fetch_api import FetchSession, TopicOnWire
from connectors.dataplane.leader_connections import Leaders, Pace

#: When the leader is asked again: after Java's ``metadata.max.age.ms`` (``SubscriptionState.preferredReadReplica``).
REVISIT_S: Final = 300.0
#: How long leaders are not told the rack after a replica failed: they name it until they know that it is gone.
SHUN_S: Final = 10.0


class Nearby:
    """Of one slice; ``now_s`` is a steady clock."""

    def __init__(self, rack: str, now_s: Callable[[], float]) -> None:
        self._rack = rack
        self._now_s = now_s
        self._until_s: dict[PartitionCopier, float] = {}
        self._shunned_until_s = 0.0

    def rack(self) -> str:
        """What a fetch says."""
        return self._rack if self._now_s() >= self._shunned_until_s else ""

    def follow(self, copier: PartitionCopier) -> None:
        """Its leader named another replica."""
        self._until_s.pop(copier, None)  # what is due first stands first
        self._until_s[copier] = self._now_s() + REVISIT_S

    def __contains__(self, copier: PartitionCopier) -> bool:
        """Whether it is read from another than its leader."""
        return copier in self._until_s

    def overdue(self) -> list[PartitionCopier]:
        """Those whose leaders are to be asked again."""
        now_s = self._now_s()
        return [*takewhile(lambda copier: now_s >= self._until_s[copier], self._until_s)]

    def forget(self, copier: PartitionCopier) -> None:
        self._until_s.pop(copier, None)

    def fail(self, copier: PartitionCopier) -> None:
        """Nothing to come of the replica; of no effect where it was read from its leader."""
        if self._until_s.pop(copier, None) is not None:
            self._shunned_until_s = self._now_s() + SHUN_S


log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
_FINISH_LOOK_S: Final = 0.02
#: What is asked for at once should arrive in 5 s (``leader_connections.py``).
_FINISH_S: Final = 6.0
#: What a broker found itself.
_DAMAGED: Final = "its broker says that the batch at source offset {} is damaged (CORRUPT_MESSAGE)"
#: While some partitions wait for the target, a long poll for the others must not hold them up. It waits twice as long
#: each time that nothing comes and they still wait.
_BUSY_WAIT_MS: Final = 5
#: What is asked of a broker before its rate is known.
_FIRST_FETCH_BYTES: Final = 512 * 1024
#: After so long others have their turn, the link to the worker among them: an answer may take seconds to be opened.
_TURN_S: Final = 0.01
#: A batch that waits keeps the answer that it came in. One that is a smaller part of it than this is copied out, or a
#: partition that the target does not take would keep all others' bytes.
_PART_OF_ANSWER: Final = 8
#: A broker is far if no answer that had something to bring began sooner, of so many. Its fetches overlap: a single
#: one would leave the link idle for a round trip.
_FAR_S: Final = 0.02
_FAR_ANSWERS: Final = 5
_FAR_LOOPS: Final = 4
#: A leader may refuse an offset that is there when it has just moved; one that goes on to has another log.
_REFUSED_TRIES: Final = 3
#: So many partitions or topics are named in a line of the log.
_MOST_NAMED: Final = 3


class FetchLoop:
    """Fetches from one broker, one request at a time, what the copiers placed there want. ``number``: of several loops
    of a broker, from 1."""

    def __init__(
        self, reader: SourceReader, cluster: Cluster, settings: SliceSettings, node: int, number: int = 1
    ) -> None:
        self.wake = asyncio.Event()
        self.is_far = number > 1
        self._reader = reader
        self._cluster = cluster
        self._settings = settings
        self._node = node
        self._purpose = "copy" if number == 1 else f"copy {number}"
        self._wait_s = math.inf
        self._answers = 0
        self._placed: dict[PartitionCopier, tuple[TopicOnWire, int]] = {}
        self._epochs: dict[PartitionCopier, int] = {}
        self._full: set[PartitionCopier] = set()  # they hold enough and are left out until they have room
        self._by_key: dict[fetch_api.Key, PartitionCopier] = {}
        self._session: FetchSession[tuple[TopicOnWire, int]] = FetchSession()
        self._corrupt: dict[PartitionCopier, int] = {}
        self._fetching: Connection | None = None
        self._is_ending = False
        self._pace = Pace(_FIRST_FETCH_BYTES, settings.fetch_max_bytes)
        self._busy_wait_ms = _BUSY_WAIT_MS

    def add(self, copier: PartitionCopier, leader_epoch: int) -> None:
        plan = copier.plan
        self._placed[copier] = (TopicOnWire(plan.source.topic, plan.source_topic_id), plan.source.partition)
        self._epochs[copier] = leader_epoch
        self._by_key = {}
        self._ask_for(copier)
        self.wake.set()

    @property
    def placed(self) -> int:
        """How many copiers it reads for."""
        return len(self._placed)

    def hand_over_to(self, others: Sequence[FetchLoop]) -> None:
        """Share the copiers out evenly. No fetch may be under way."""
        for number, copier in enumerate(list(self._placed)):
            if place := number % (len(others) + 1):
                self._drop(copier)
                others[place - 1].add(copier, self._epochs[copier])

    async def finish(self) -> bool:
        """Fetch no more, but take an answer of which a part has arrived: on a slow link it took seconds.

        Return whether there was one. It is waited for as long as the slice has room, and for 6 s at most.
        """
        self._is_ending = True
        if self._fetching is None or not self._fetching.is_receiving:
            return False
        until_s = self._reader.now_s() + _FINISH_S
        while self._takes_an_answer() and self._reader.now_s() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_FINISH_LOOK_S)
        return True

    def _takes_an_answer(self) -> bool:
        fetching = self._fetching
        return fetching is not None and (fetching.is_receiving or self._reader.has_room())

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
        connection = await self._cluster.connection(self._node, self._purpose)
        version = fetch_api.fetch_version(connection, (topic for topic, _ in self._placed.values()))
        self._by_key = {}
        self._pace = Pace(_FIRST_FETCH_BYTES, self._settings.fetch_max_bytes)
        while self._placed:
            self.wake.clear()
            self._revisit()
            for copier in list(self._full):
                self._ask_for(copier)
            if self._session.wants_any and self._reader.has_room() and not self._is_ending:
                self._fetching = connection
                try:
                    await self._fetch(connection, version)
                finally:
                    self._fetching = None
                if not self.is_far and self._answers >= _FAR_ANSWERS and self._wait_s >= _FAR_S:
                    self.is_far = True
                    self._reader.spread(self._node, self)
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
        elif copier.buffered_bytes < self._held_bytes and not copier.gave_back:
            if copier in self._full:
                self._full.discard(copier)
                self._busy_wait_ms = _BUSY_WAIT_MS
            self._session.want(key, (copier.fetch_offset, self._epochs[copier], copier.last_fetched_epoch))
        else:
            self._full.add(copier)
            self._session.leave(key)

    @property
    def _held_bytes(self) -> int:
        """A partition is fetched again as long as it holds less."""
        return self._settings.partition_held_bytes(self._reader.partitions)

    def _revisit(self) -> None:
        """Have leaders asked again that are due. No answer need tell of these: a replica that has lost touch with its
        leader has no news, and answers name only what is new."""
        for copier in self._reader.nearby.overdue():
            if copier in self._placed:
                self._drop(copier)
                self._reader.nearby.forget(copier)
                self._reader.lose(copier)

    def _drop(self, copier: PartitionCopier) -> None:
        key = self._placed.pop(copier, None)
        if key is not None:
            self._full.discard(copier)
            self._session.leave(key)

    def _named(self, version: int) -> dict[fetch_api.Key, PartitionCopier]:
        if not self._by_key:
            self._by_key = {(topic.key(version), index): copier for copier, (topic, index) in self._placed.items()}
        return self._by_key

    async def _fetch(self, connection: Connection, version: int) -> None:
        settings = self._settings
        request = self._session.request()
        # A faulted one is not to have room again within milliseconds.
        is_busy = any(not copier.faulted for copier in self._full)
        limits = fetch_api.FetchLimits(
            min(self._busy_wait_ms, settings.fetch_max_wait_ms) if is_busy else settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            self._pace.limit_bytes,
            settings.partition_fetch_bytes(self._reader.partitions, is_far=self.is_far),
            fetch_api.READ_COMMITTED if settings.read_committed else fetch_api.READ_UNCOMMITTED,
            self._reader.nearby.rack(),
        )
        body = fetch_api.encode_fetch(
            version, limits, (request.session_id, request.epoch), request.partitions, request.forgotten
        )
        # Taken now: a copier that replaces another while this is under way did not ask for the answer.
        named = self._named(version)
        self._pace.begin(self._reader.now_s())
        answer = await fetch_api.fetch(connection, version, body, limits.max_wait_ms)
        fetched_bytes = sum(len(row.records) for row in answer.partitions)
        if fetched_bytes:
            self._pace.moved(fetched_bytes, self._reader.now_s(), is_idle=True)
            self._wait_s = min(self._wait_s, connection.waited_s)
            self._answers += 1
        self._busy_wait_ms = _BUSY_WAIT_MS if fetched_bytes else self._busy_wait_ms * 2
        if answer.error_code in error_codes.SESSION_LOST:
            self._session.lost()
            return
        if answer.error_code:
            raise RetriableError(f"fetch refused: {error_codes.code_name(answer.error_code)}")
        self._session.answered(answer.session_id)
        await self._hand_over(answer.partitions, named)
        if answer.throttle_time_ms:
            await asyncio.sleep(answer.throttle_time_ms / 1000)

    async def _hand_over(
        self, rows: Iterable[fetch_produce.FetchedPartition], named: Mapping[fetch_api.Key, PartitionCopier]
    ) -> None:
        """Give copiers what is theirs. Whatever happens to one in between, it gets no more once it is let go of."""
        fed: set[PartitionCopier] = set()
        ends_s = self._reader.now_s() + _TURN_S
        for row in rows:
            copier = named.get((row.topic, row.partition))
            if copier is None or copier not in self._placed:
                continue
            asked = self._session.asked(self._placed[copier])
            if asked is not None and asked[0] != copier.fetch_offset:
                # It gave back what came before this answer, which would leave a gap.
                self._ask_for(copier)
                continue
            if self._take(copier, row):
                fed.add(copier)
                for _ in self._feed(copier, row):
                    if self._reader.now_s() < ends_s:
                        continue
                    self._reader.took(fed)
                    fed = {copier}
                    await self._give_way()
                    ends_s = self._reader.now_s() + _TURN_S
            self._ask_for(copier)
        self._reader.took(fed)

    async def _give_way(self) -> None:
        """Let others have their turn, and wait until there is room: what is opened may be many times what was sent."""
        await asyncio.sleep(0)
        while not self._reader.has_room():
            self.wake.clear()
            await self.wake.wait()

    def _take(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> bool:
        """Whether there is something to be fed with."""
        if not copier.is_read:
            return False
        if (row.diverging or row.error_code) and copier in self._reader.nearby:
            self._leave(copier)
            return False
        if row.diverging is not None:
            self._drop(copier)
            self._reader.look_into(copier, self._epochs[copier], row.diverging)
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
        return bool(row.records)

    def _feed(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> Iterator[None]:
        """A batch at each step."""
        fetched = row.records
        if len(fetched) * _PART_OF_ANSWER < len(cast(bytearray, fetched.obj)):
            fetched = memoryview(bytearray(fetched))
        try:
            for _ in copier.taking(fetched, row.aborted):
                taken_to = copier.fetch_offset
                yield
                if copier not in self._placed or not copier.is_read or copier.fetch_offset != taken_to:
                    return
        except CorruptBatch as error:
            self._found_corrupt(copier, error)
        except MemoryError:
            raise  # which says nothing of the batch
        except Exception as error:
            # A payload that does not open though its CRC is right: no new fetch mends it, and the others go on.
            where = f"source {copier.plan.source}: a batch behind offset {copier.fetch_offset - 1}"
            log.error("%s: %s cannot be opened", self._settings.flow, where, exc_info=error)
            copier.stop(f"{where} cannot be opened: {type(error).__name__}: {error}", "source-unreadable")
        else:
            self._corrupt.pop(copier, None)

    def _note_extent(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> None:
        is_stable = self._settings.read_committed and row.last_stable_offset >= 0
        end = row.last_stable_offset if is_stable else row.high_watermark
        # Another replica hears of the end after the leader.
        copier.high_watermark = max(end, copier.high_watermark) if copier in self._reader.nearby else end
        copier.log_start_offset = row.log_start_offset

    def _refused(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> None:
        source = copier.plan.source
        if row.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            self._drop(copier)
            self._reader.look_into(copier, self._epochs[copier])
        elif row.error_code == error_codes.CORRUPT_MESSAGE:
            self._found_corrupt(copier, CorruptBatch(copier.fetch_offset, _DAMAGED))
        elif row.error_code == error_codes.UNKNOWN_SERVER_ERROR:
            # A broker on its way down says so of all that it has no code for; Java's consumer fetches again too.
            name = error_codes.code_name(row.error_code)
            cause = because(f"{self._settings.source_alias}: {name}")
            log.warning("%s: %s: %s; trying again", self._settings.flow, source, name, extra=cause)
            self._leave(copier)
        elif row.error_code in error_codes.RETRIABLE:
            self._leave(copier)
        else:
            copier.stop(
                f"source {source} {unread(source.topic, row.error_code)}, then start the flow again",
                error_codes.code_name(row.error_code),
            )

    def _found_corrupt(self, copier: PartitionCopier, error: CorruptBatch) -> None:
        if copier in self._reader.nearby:
            log.error("%s: %s: %s; its leader is asked", self._settings.flow, copier.plan.source, error)
            self._leave(copier)
            return
        tries = self._corrupt[copier] = self._corrupt.get(copier, 0) + 1
        log.error("%s: %s: %s (try %d)", self._settings.flow, copier.plan.source, error, tries)
        if tries >= CORRUPT_TRIES:
            copier.stop(f"source {copier.plan.source}: {error}; repair or skip it by hand", "source-corrupt")
        else:
            # After a moment, and from its leader of then: it may just be on its way from a failing disk.
            self._leave(copier)

    def _leave(self, copier: PartitionCopier) -> None:
        self._drop(copier)
        self._reader.lose(copier)


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
        self.now_s = clock
        self.partitions = 0
        self._holding: set[PartitionCopier] = set()
        self._is_held = False
        self._unplaced: set[PartitionCopier] = set()
        self._gone_since: dict[str, float] = {}
        self._refusals: dict[PartitionCopier, int] = {}
        self._loops: dict[int, list[FetchLoop]] = {}
        #: Which partitions are read from another replica than their leader.
        self.nearby = Nearby(settings.rack, clock)
        self._placing = asyncio.Event()
        self._is_placing = False
        self._scope = Scope(f"source of {settings.flow}")

    def start(self, copiers: Collection[PartitionCopier], leaders: Leaders) -> None:
        """Read these from their positions, from the leaders that are known."""
        self.partitions += len(copiers)
        for copier in copiers:
            plan = copier.plan
            # A leader of an epoch before that of a record copied already is a former one.
            self._cluster.leader_epochs.saw(
                plan.source.topic, plan.source_topic_id, plan.source.partition, plan.last_source_epoch
            )
            if (leader := leaders.of(plan.source, plan.source_topic_id, plan.last_source_epoch)) is None:
                self._unplaced.add(copier)
            else:
                self._loop(leader.node).add(copier, leader.epoch)
        self._placing.set()
        if not self._is_placing:
            self._is_placing = True
            self._spawn(self._place_forever(), f"place {self._settings.flow}")

    async def finish(self) -> bool:
        """Fetch no more; return whether answers that had begun to arrive were taken, once they are."""
        return any(await asyncio.gather(*(loop.finish() for loop in self._every_loop())))

    async def stop(self) -> None:
        await self._scope.close()

    def wake(self) -> None:
        """Acknowledgements made room: loops that waited may fetch again."""
        for loop in self._every_loop():
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
        self.nearby.fail(copier)
        if copier.is_read:
            self._unplaced.add(copier)
            self._placing.set()

    def follow(self, copier: PartitionCopier, node: int, leader_epoch: int) -> None:
        """Its leader named this node to read from."""
        self.nearby.follow(copier)
        self._loop(node).add(copier, leader_epoch)

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
        self._scope.spawn(coroutine, name).add_done_callback(self._ended)

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
        waiting = {copier for copier in self._unplaced if copier.is_read}
        if not waiting:
            return
        metadata = await self._cluster.metadata({copier.plan.source.topic for copier in waiting})
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
        if gone := sorted({copier.plan.source.topic for copier in waiting} & self._gone_since.keys()):
            names = ", ".join(gone[:_MOST_NAMED])
            cause = because(f"{self._settings.source_alias}: no topic {names}")
            log.warning("%s: source topic %s does not exist; trying again", self._settings.flow, names, extra=cause)
        elif waiting:
            names = ", ".join(sorted(str(copier.plan.source) for copier in waiting)[:_MOST_NAMED])
            cause = because(f"{self._settings.source_alias}: no leader")  # whichever partitions lack one at a time
            log.warning("%s: no leader for source %s; trying again", self._settings.flow, names, extra=cause)

    def _is_certain(self, name: str, topic: TopicMetadata | None) -> bool:
        """Whether a topic is there, or has been missing for long enough."""
        if topic is not None and topic.exists:
            self._gone_since.pop(name, None)
            return True
        now_s = self.now_s()
        return now_s - self._gone_since.setdefault(name, now_s) > log_divergence.GONE_AFTER_S

    async def _explain(self, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None) -> None:
        plan = copier.plan
        while copier.is_read:
            try:
                found = await log_divergence.explain_source(self._cluster, copier, leader_epoch, diverging)
            except log_divergence.LeaderChanged as error:
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
                *(found or log_divergence.source_another(plan.source, copier.fetch_offset, copier.last_fetched_epoch))
            )

    def spread(self, node: int, loop: FetchLoop) -> None:
        """A broker is far: share out what ``loop``, its only one, reads."""
        others = [self._begin(node, number) for number in range(2, min(_FAR_LOOPS, loop.placed) + 1)]
        loop.hand_over_to(others)

    def _every_loop(self) -> Iterator[FetchLoop]:
        return (loop for loops in self._loops.values() for loop in loops)

    def _loop(self, node: int) -> FetchLoop:
        """The loop of a broker that has least to read."""
        if node not in self._loops:
            return self._begin(node, 1)
        return min(self._loops[node], key=lambda loop: loop.placed)

    def _begin(self, node: int, number: int) -> FetchLoop:
        loop = FetchLoop(self, self._cluster, self._settings, node, number)
        self._loops.setdefault(node, []).append(loop)
        self._spawn(loop.run(), f"fetch {self._settings.flow} node {node}, loop {number}")
        return loop
