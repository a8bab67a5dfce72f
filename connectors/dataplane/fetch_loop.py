"""Fetch from one source broker, one request at a time, for the copiers placed there; or from replicas in our rack.

Replicas (KIP-392): a leader that knows our rack answers with a replica in it, if any, instead of records (Kafka
``RackAwareReplicaSelector``). Fetches then go to that replica. They return to the leader from time to time, because
replicas come and go, and at once when the replica fails, because only the leader can say what is wrong.

Quiet partitions: a broker looks at every partition of a session for each fetch, whether it has news or not. So where
there are many, those without records have a loop, and so a session, of their own (``SourceReader.share``).

Records that arrive one by one: a fetch that has reached the ends of its logs is followed by the next one after the time
in which the target answers. A leader of the target gets one request after the other, so what is fetched sooner waits
for its turn, and each fetch costs both brokers and us the same for a record as for hundreds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, cast

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.kafka.error_causes import because
from connect.wire import fetch_produce
from connectors.control_link.protocol import SliceSettings
from connectors.dataplane import fetch_api
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.error_codes import unread
from connectors.dataplane.batches.fetched_batches import CORRUPT_TRIES, CorruptBatch
from connectors.dataplane.fetch_api import FetchSession, TopicOnWire
from connectors.dataplane.leader_connections import Pace

if TYPE_CHECKING:
    from connectors.dataplane.source_reader import SourceReader

log = logging.getLogger(__name__)

#: Time until the leader is asked again: Java's ``metadata.max.age.ms`` (``SubscriptionState.preferredReadReplica``).
REVISIT_S: Final = 300.0
#: How long fetches omit the rack after a replica failed: leaders name the replica until they know that it is down.
LEADER_ONLY_S: Final = 10.0
_RETRY_S: Final = 0.25
_FINISH_LOOK_S: Final = 0.02
#: One request asks for what should arrive in 5 s (``leader_connections.py``).
_FINISH_S: Final = 6.0
_DAMAGED: Final = "its broker reports that the batch at source offset {} is damaged (CORRUPT_MESSAGE)"
#: A long poll waits only this long while some partitions wait for the target, because it must not delay them. The wait
#: doubles with each empty answer while they still wait.
_BUSY_WAIT_MS: Final = 5
#: The fetch size before a broker's rate is known.
_FIRST_FETCH_BYTES: Final = 512 * 1024
#: After this time the loop yields to others, such as the link to the worker: decoding an answer may take seconds.
_TURN_S: Final = 0.01
#: A waiting batch keeps the whole answer it came in. Records that are less than this fraction of the answer are copied
#: out, because a partition that the target does not accept would otherwise keep the bytes of all others.
_PART_OF_ANSWER: Final = 8
#: A broker is far if none of this number of non-empty answers began sooner. It gets several fetches at once, because
#: one would leave the link idle for a round trip.
_FAR_S: Final = 0.02
_FAR_ANSWERS: Final = 5
#: The number of the loop for quiet partitions.
QUIET: Final = 0
#: How long a partition is without records before it counts as quiet.
_QUIET_AFTER_S: Final = 5.0
#: A fetch of quiet partitions waits this multiple of ``fetch.max.wait.ms``, but no longer than the second figure only
#: because of that: a broker closes idle connections and evicts idle sessions. Records end the wait.
_QUIET_WAITS: Final = 4
_LONGEST_QUIET_MS: Final = 30_000
#: Most quiet partitions that change loops at a time, because each takes the event loop about 7 us.
_MOST_MOVED: Final = 1000
#: The longest pause between two fetches because the target takes its time.
_LONGEST_PAUSE_S: Final = 0.005
#: The pause for each quiet partition after a fetch that brought records: twice what it cost the broker.
_QUIET_PAUSE_S: Final = 20e-6


class Nearby:
    """The partitions of one slice that are read from a replica in our rack; ``now_s`` is a steady clock."""

    def __init__(self, rack: str, now_s: Callable[[], float]) -> None:
        self._rack = rack
        self._now_s = now_s
        self._until_s: dict[PartitionCopier, float] = {}
        self._leader_only_until_s = 0.0

    def rack(self) -> str:
        """Return the rack that a fetch names; empty for none."""
        return self._rack if self._now_s() >= self._leader_only_until_s else ""

    def follow(self, copier: PartitionCopier) -> None:
        """Note that the leader named another replica."""
        self._until_s.pop(copier, None)  # because the first due must be first in the order
        self._until_s[copier] = self._now_s() + REVISIT_S

    def __contains__(self, copier: PartitionCopier) -> bool:
        """Return whether the partition is read from a replica other than its leader."""
        return copier in self._until_s

    def overdue(self) -> list[PartitionCopier]:
        """Return the copiers whose leaders must be asked again."""
        now_s = self._now_s()
        return [*takewhile(lambda copier: now_s >= self._until_s[copier], self._until_s)]

    def forget(self, copier: PartitionCopier) -> None:
        self._until_s.pop(copier, None)

    def fail(self, copier: PartitionCopier) -> None:
        """Note that the replica failed; no effect if the partition was read from its leader."""
        if self._until_s.pop(copier, None) is not None:
            self._leader_only_until_s = self._now_s() + LEADER_ONLY_S


class FetchLoop:
    """One of a broker's fetch loops; ``number`` counts them from 1, or is :data:`QUIET`."""

    def __init__(
        self, reader: SourceReader, cluster: Cluster, settings: SliceSettings, node: int, number: int = 1
    ) -> None:
        self.wake = asyncio.Event()
        self.is_far = number > 1
        self._reader = reader
        self._cluster = cluster
        self._settings = settings
        self.node = node
        self._number = number
        self._purpose = "copy" if number == 1 else f"copy {number}"
        #: When each copier was added, or last had records; the longest ago first.
        self._stirred_s: dict[PartitionCopier, float] = {}
        #: Copiers of a quiet loop that have records.
        self._awake: dict[PartitionCopier, None] = {}
        #: Whether copiers were added of which it is not known where their logs end.
        self._has_new = False
        self._pause_s = 0.0
        self._wait_s = math.inf
        self._answers = 0
        self._placed: dict[PartitionCopier, tuple[TopicOnWire, int]] = {}
        self._epochs: dict[PartitionCopier, int] = {}
        self._full: set[PartitionCopier] = set()  # they hold enough and are not fetched until they have room
        self._by_key: dict[fetch_api.Key, PartitionCopier] = {}
        self._session: FetchSession[tuple[TopicOnWire, int]] = FetchSession()
        self._fetching: Connection | None = None
        #: Whether a fetch in flight may wait for records.
        self.is_waiting = False
        self._is_ending = False
        self._pace = Pace(_FIRST_FETCH_BYTES, settings.fetch_max_bytes)
        self._busy_wait_ms = _BUSY_WAIT_MS

    def add(self, copier: PartitionCopier, leader_epoch: int) -> None:
        plan = copier.plan
        self._placed[copier] = (TopicOnWire(plan.source.topic, plan.source_topic_id), plan.source.partition)
        self._epochs[copier] = leader_epoch
        self._stir(copier)
        self._has_new |= copier.high_watermark < 0
        self._by_key = {}
        self._ask_for(copier)
        self.wake.set()

    @property
    def placed(self) -> int:
        return len(self._placed)

    def _stir(self, copier: PartitionCopier) -> None:
        self._stirred_s.pop(copier, None)
        self._stirred_s[copier] = self._reader.clock()

    @property
    def is_fetching(self) -> bool:
        return self._fetching is not None

    def quiet(self) -> list[PartitionCopier]:
        """Return the copiers that have reached the end of their logs and had no records for a while."""
        until_s = self._reader.clock() - _QUIET_AFTER_S
        still = takewhile(lambda copier: self._stirred_s[copier] <= until_s, self._stirred_s)
        found = (one for one in still if one.fetch_offset >= one.high_watermark >= 0 and one not in self._full)
        return [*islice(found, _MOST_MOVED)]

    def awake(self) -> list[PartitionCopier]:
        """Return the copiers of a quiet loop that have records."""
        return [*islice(self._awake, _MOST_MOVED)]

    def move(self, copiers: Iterable[PartitionCopier], to: FetchLoop) -> None:
        """Let another loop fetch these. What a fetch in flight brings of them is fetched again."""
        for copier in copiers:
            self._drop(copier)
            to.add(copier, self._epochs[copier])

    def hand_over_to(self, others: Sequence[FetchLoop]) -> None:
        """Distribute the copiers evenly. No fetch may be in flight."""
        for number, copier in enumerate(list(self._placed)):
            if place := number % (len(others) + 1):
                self.move([copier], others[place - 1])

    async def finish(self) -> bool:
        """Stop fetching, but wait for a partly received answer, which took seconds on a slow link; return whether there
        was one. The wait lasts while the slice has room, and 6 s at most."""
        self._is_ending = True
        if self._fetching is None or not self._fetching.is_receiving:
            return False
        until_s = self._reader.clock() + _FINISH_S
        while self._takes_an_answer() and self._reader.clock() < until_s:  # noqa: ASYNC110
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
                log.warning("%s: source node %d: %s; retrying", self._settings.flow, self.node, error)
                for copier in list(self._placed):
                    self._leave(copier)
                await asyncio.sleep(_RETRY_S)
            if not self._placed:
                self.wake.clear()
                await self.wake.wait()

    async def _fetch_while_connected(self) -> None:
        connection = await self._cluster.connection(self.node, self._purpose)
        version = fetch_api.fetch_version(connection, (topic for topic, _ in self._placed.values()))
        self._by_key = {}
        self._pace = Pace(_FIRST_FETCH_BYTES, self._settings.fetch_max_bytes)
        while self._placed:
            self.wake.clear()
            self._revisit()
            self._reader.share(self)
            if not self._placed:
                return
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            for copier in list(self._full):
                self._ask_for(copier)
            if self._session.wants_any and self._reader.has_room() and not self._is_ending:
                self._fetching = connection
                try:
                    await self._fetch(connection, version)
                finally:
                    self._fetching = None
                if self._number == 1 and not self.is_far and self._answers >= _FAR_ANSWERS and self._wait_s >= _FAR_S:
                    self.is_far = True
                    self._reader.spread(self)
            else:
                await self.wake.wait()

    def _ask_for(self, copier: PartitionCopier) -> None:
        """Put the partition's position into the next request; leave it out if it holds enough, drop it if it stopped.
        Called for partitions that may have changed only, because a request's cost must not grow with all partitions."""
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
        """A partition is fetched while it holds fewer bytes than this."""
        return self._settings.partition_held_bytes(self._reader.partitions)

    def _revisit(self) -> None:
        """Return due partitions to their leaders. An answer cannot trigger this: a replica that lost its leader has no
        news, and answers name only what is new."""
        for copier in self._reader.nearby.overdue():
            if copier in self._placed:
                self._drop(copier)
                self._reader.nearby.forget(copier)
                self._reader.lose(copier)

    def _drop(self, copier: PartitionCopier) -> None:
        key = self._placed.pop(copier, None)
        if key is not None:
            self._full.discard(copier)
            self._awake.pop(copier, None)
            del self._stirred_s[copier]
            self._session.leave(key)

    def _max_wait_ms(self) -> int:
        if self._has_new:
            self._has_new = False
            return 0  # because others may be added, which would wait for the answer
        most_ms = self._settings.fetch_max_wait_ms
        # A faulted partition will not have room within milliseconds.
        if any(not copier.faulted for copier in self._full):
            return min(self._busy_wait_ms, most_ms)
        if self._number != QUIET or self._settings.fetch_min_bytes > 1:
            return most_ms  # because few records must not wait longer for others than the settings say
        return max(min(most_ms * _QUIET_WAITS, _LONGEST_QUIET_MS), most_ms)

    def _named(self, version: int) -> dict[fetch_api.Key, PartitionCopier]:
        if not self._by_key:
            self._by_key = {(topic.key(version), index): copier for copier, (topic, index) in self._placed.items()}
        return self._by_key

    async def _fetch(self, connection: Connection, version: int) -> None:
        await connection.unmuted()
        settings = self._settings
        request = self._session.request()
        limits = fetch_api.FetchLimits(
            self._max_wait_ms(),
            settings.fetch_min_bytes,
            self._pace.limit_bytes,
            settings.partition_fetch_bytes(self._reader.partitions, is_far=self.is_far),
            fetch_api.READ_COMMITTED if settings.read_committed else fetch_api.READ_UNCOMMITTED,
            self._reader.nearby.rack(),
        )
        body = fetch_api.encode_fetch(
            version, limits, (request.session_id, request.epoch), request.partitions, request.forgotten
        )
        # Taken now, because a copier that replaces another during the fetch did not ask for the answer.
        named = self._named(version)
        self._pace.begin(self._reader.clock())
        self.is_waiting = limits.max_wait_ms > 0
        try:
            answer = await fetch_api.fetch(connection, version, body, limits.max_wait_ms)
        finally:
            self.is_waiting = False
        connection.mute(answer.throttle_time_ms)
        fetched_bytes = sum(len(row.records) for row in answer.partitions)
        if fetched_bytes:
            self._pace.moved(fetched_bytes, self._reader.clock(), is_idle=True)
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
        self._pause_s = self._pause_after(answer.partitions, named) if fetched_bytes else 0.0

    def _pause_after(
        self, rows: Iterable[fetch_produce.FetchedPartition], named: Mapping[fetch_api.Key, PartitionCopier]
    ) -> float:
        if self._number == QUIET:
            return self.placed * _QUIET_PAUSE_S
        fetched = (named[key] for row in rows if (key := (row.topic, row.partition)) in named)
        if any(copier.fetch_offset < copier.high_watermark for copier in fetched):
            return 0.0
        return min(self._reader.answer_s(), _LONGEST_PAUSE_S)

    async def _hand_over(
        self, rows: Iterable[fetch_produce.FetchedPartition], named: Mapping[fetch_api.Key, PartitionCopier]
    ) -> None:
        """Give each copier its part of the answer; a copier that was dropped meanwhile gets nothing more."""
        fed: set[PartitionCopier] = set()
        ends_s = self._reader.clock() + _TURN_S
        for row in rows:
            copier = named.get((row.topic, row.partition))
            if copier is None or copier not in self._placed:
                continue
            asked = self._session.asked(self._placed[copier])
            if asked is not None and asked[0] != copier.fetch_offset:
                # The copier gave back what came before this answer, so taking it would leave a gap.
                self._ask_for(copier)
                continue
            if self._take(copier, row):
                fed.add(copier)
                for _ in self._feed(copier, row):
                    if self._reader.clock() < ends_s:
                        continue
                    self._reader.took(fed)
                    fed = {copier}
                    await self._give_way()
                    ends_s = self._reader.clock() + _TURN_S
            self._ask_for(copier)
        self._reader.took(fed)

    async def _give_way(self) -> None:
        """Yield to others, and wait for room: decoded records may take many times the memory of the bytes sent."""
        await asyncio.sleep(0)
        while not self._reader.has_room():
            self.wake.clear()
            await self.wake.wait()

    def _take(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> bool:
        """Act on one row of an answer; return whether it has records to feed."""
        if not copier.is_read:
            return False
        if (row.diverging or row.error_code) and copier in self._reader.nearby:
            self._leave(copier)
            return False
        if row.diverging is not None:
            self._drop(copier)
            self._reader.diagnose_log(copier, self._epochs[copier], row.diverging)
            return False
        if row.error_code:
            self._refused(copier, row)
            return False
        self._note_extent(copier, row)
        if row.preferred_read_replica >= 0:
            self._drop(copier)
            self._reader.follow(copier, row.preferred_read_replica, self._epochs[copier])
            return False
        if row.records or copier.high_watermark > copier.fetch_offset:
            self._stir(copier)
            if self._number == QUIET:
                self._awake[copier] = None
        self._reader.refusals.pop(copier, None)
        return bool(row.records)

    def _feed(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> Iterator[None]:
        """Feed the copier, a batch at each step."""
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
            raise  # because it says nothing about the batch
        except Exception as error:
            # The payload cannot be decoded although its CRC is right: a new fetch would not help. Others continue.
            where = f"source {copier.plan.source}: a batch after offset {copier.fetch_offset - 1}"
            log.error("%s: %s cannot be decoded", self._settings.flow, where, exc_info=error)
            remedy = "skip it by hand, or delete it at the source"
            copier.stop(f"{where} cannot be decoded: {type(error).__name__}: {error}; {remedy}", "source-unreadable")
        else:
            self._reader.damaged.pop(copier, None)

    def _note_extent(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> None:
        is_stable = self._settings.read_committed and row.last_stable_offset >= 0
        end = row.last_stable_offset if is_stable else row.high_watermark
        # A follower learns the end after the leader.
        known = copier.high_watermark if copier in self._reader.nearby else end
        copier.reaches(max(end, known), row.log_start_offset)

    def _refused(self, copier: PartitionCopier, row: fetch_produce.FetchedPartition) -> None:
        source = copier.plan.source
        if row.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            self._drop(copier)
            self._reader.diagnose_log(copier, self._epochs[copier])
        elif row.error_code == error_codes.CORRUPT_MESSAGE:
            self._found_corrupt(copier, CorruptBatch(copier.fetch_offset, _DAMAGED))
        elif row.error_code == error_codes.UNKNOWN_SERVER_ERROR:
            # A broker that shuts down answers so when it has no code for an exception. Java's consumer also retries.
            name = error_codes.code_name(row.error_code)
            cause = because(f"{self._settings.source_alias}: {name}")
            log.warning("%s: source %s: %s; retrying", self._settings.flow, source, name, extra=cause)
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
            log.error("%s: source %s: %s; asking its leader", self._settings.flow, copier.plan.source, error)
            self._leave(copier)
            return
        tries = self._reader.damaged[copier] = self._reader.damaged.get(copier, 0) + 1
        log.error("%s: source %s: %s (try %d)", self._settings.flow, copier.plan.source, error, tries)
        if tries >= CORRUPT_TRIES:
            copier.stop(f"source {copier.plan.source}: {error}; repair or skip it by hand", "source-corrupt")
        else:
            # Retry later, from the leader of that time: leadership may be moving away from a failing disk.
            self._leave(copier)

    def _leave(self, copier: PartitionCopier) -> None:
        self._drop(copier)
        self._reader.lose(copier)
