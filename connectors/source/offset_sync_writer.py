"""Decide when an offset sync is due, and write the syncs of one task without delaying its copy. Kafka's
``OffsetSyncWriter`` handles single records, this one whole runs, at a cost that grows with the due syncs only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from connect.core.errors import HeliographError
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Pauses, Scope, closing, is_set_within
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.kafka.log.topic_admin import Admin, TopicExists
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings, OffsetSyncsSettings
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import Run, TopicPartition

#: Pending syncs of one partition. A reader keeps no more (``OffsetSyncStore``), spaced wider the older they are.
_MOST_WAITING: Final = 64


class Offsets(NamedTuple):
    upstream: int
    downstream: int


@dataclass(slots=True)
class SyncedPartition:
    """The last acknowledged and the last synced record of a source partition (``OffsetSyncWriter.PartitionState``)."""

    upstream: int = -1
    downstream: int = -1
    synced_downstream: int = -1

    def advance(self, run: Run, lag_max: int) -> range:
        """Add a run of acknowledged records; return the upstream offsets that a sync is due for. A sync is due for the
        first record; when the last sync is more than ``lag_max`` records old; when upstream offsets skip or go back;
        and when downstream offsets go back."""
        upstream, downstream, count = run
        far = self.synced_downstream + 1 + lag_max - downstream
        at_once = (
            self.synced_downstream == -1 or far <= 0 or upstream - self.upstream != 1 or downstream < self.downstream
        )
        # Within a run only the distance makes a sync due.
        due = range(upstream + (0 if at_once else far), upstream + count, max(lag_max + 1, 1))
        if due:
            self.synced_downstream = downstream + due[-1] - upstream
        self.upstream, self.downstream = upstream + count - 1, downstream + count - 1
        return due


class PendingOffsetSyncs:
    """The pending syncs of one task, in order. A due sync may be written at once. The last record of each partition may
    be synced at a commit, due or not, so that the sync of an idle partition is up to date. Of pending syncs Java keeps
    the newest of each partition; this class keeps some more, spaced wider the older they are."""

    def __init__(self, lag_max: int) -> None:
        self._lag_max = lag_max
        self._states: dict[TopicPartition, SyncedPartition] = {}
        self._pending: dict[TopicPartition, list[Offsets]] = {}
        self._delayed: dict[TopicPartition, Offsets] = {}

    def acknowledged(self, source: TopicPartition, runs: Iterable[Run]) -> None:
        """Add acknowledged records of a source partition, in order."""
        state = self._states.setdefault(source, SyncedPartition())
        for run in runs:
            due = state.advance(run, self._lag_max)
            if due:
                difference = run[1] - run[0]
                # Always keep the last one.
                every = -(-len(due) // _MOST_WAITING)
                self._queue(source, [Offsets(upstream, upstream + difference) for upstream in reversed(due[::-every])])
            if due and due[-1] == state.upstream:
                self._delayed.pop(source, None)
            else:
                self._delayed[source] = Offsets(state.upstream, state.downstream)

    def commit(self) -> None:
        """Queue the delayed syncs, because positions were stored."""
        delayed, self._delayed = self._delayed, {}
        for source, pair in delayed.items():
            self._queue(source, [pair])

    def waiting(self) -> int:
        """Return how many syncs may be written now."""
        return sum(map(len, self._pending.values()))

    def leave(self, sources: Iterable[TopicPartition]) -> list[OffsetSync]:
        """Forget partitions that another task copies from now on; return their pending syncs, delayed ones too."""
        left: list[OffsetSync] = []
        for source in sources:
            if source in self._delayed:
                self._queue(source, [self._delayed.pop(source)])
            left += _syncs_of(source, self._pending.pop(source, ()))
            self._states.pop(source, None)
        return left

    def keep_newest(self) -> None:
        """Drop all pending syncs except the newest of each partition."""
        self._pending = {source: pairs[-1:] for source, pairs in self._pending.items()}

    def take(self, most: int) -> list[OffsetSync]:
        """Take at most ``most`` syncs to write now; :meth:`give_back` them if the write fails."""
        taken: list[OffsetSync] = []
        while self._pending and len(taken) < most:
            source = next(iter(self._pending))
            pairs = self._pending.pop(source)
            room = most - len(taken)
            taken += _syncs_of(source, pairs[:room])
            if pairs[room:]:
                self._pending[source] = pairs[room:]
        return taken

    def give_back(self, syncs: Iterable[OffsetSync]) -> None:
        """Queue syncs that were not written before newer ones, except those of partitions that have left."""
        newer, self._pending = self._pending, {}
        for sync in syncs:
            source = TopicPartition(sync.topic, sync.partition)
            if source not in self._states:
                continue
            self._pending.setdefault(source, []).append(Offsets(sync.upstream_offset, sync.downstream_offset))
        for source, pairs in newer.items():
            self._queue(source, pairs)

    def _queue(self, source: TopicPartition, pairs: list[Offsets]) -> None:
        waiting = self._pending.setdefault(source, [])
        if waiting and pairs[0].upstream <= waiting[-1].upstream:
            # Because a reader drops all its syncs when upstream offsets go back.
            waiting.clear()
        waiting += pairs
        while len(waiting) > _MOST_WAITING:
            half = len(waiting) // 2
            waiting[:half] = waiting[:half:2]


def _syncs_of(source: TopicPartition, pairs: Iterable[Offsets]) -> list[OffsetSync]:
    return [OffsetSync(source.topic, source.partition, *pair) for pair in pairs]


log = logging.getLogger(__name__)

#: How often to check for the topic. Java creates it only when its connector starts.
LOOK_EVERY_S: Final = 30.0
#: The only one that Java's ``MirrorSourceTask`` writes to and ``OffsetSyncStore`` reads.
_PARTITION: Final = 0
#: Syncs in a request; one request is in flight. Java has ten records in flight.
_MOST_AT_ONCE: Final = 1000
#: Between two requests, because a copy at full rate makes syncs due all the time, and REST shares the loop.
_PAUSE_S: Final = 0.1
_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 30.0
_LAST_WRITE_S: Final = 2.0

Write = Callable[[Iterable[OutRecord]], Awaitable[None]]


def topic_of_syncs(settings: OffsetSyncsSettings) -> NewTopic:
    """Return the topic as Java creates it."""
    return NewTopic(settings.topic, 1, settings.replication_factor, {"cleanup.policy": "compact"})


class OffsetSyncsTopic:
    """Keeps the offset-syncs topic in existence. ``label`` starts each log line; ``close`` closes ``admin``."""

    def __init__(self, settings: OffsetSyncsSettings, admin: Admin, label: str) -> None:
        self._wanted = topic_of_syncs(settings)
        self._admin, self._label = admin, label
        self._is_there = False
        self._said = ""

    async def ensure(self) -> None:
        """Create the topic if it is missing. Log each error once, with the ACL to grant if one is missing."""
        try:
            await self._make()
        except HeliographError as error:
            if str(error) != self._said:
                log.warning(
                    "%s: the offset-syncs topic may be missing: %s (offset-syncs.topic.replication.factor=%s); trying "
                    "again in %g s",
                    self._label,
                    error,
                    self._wanted.replication_factor,
                    LOOK_EVERY_S,
                )
            self._said = str(error)
        else:
            self._is_there, self._said = True, ""

    async def close(self) -> None:
        await self._admin.close()

    async def _make(self) -> None:
        topic = self._wanted.name
        if topic in await self._admin.describe_topics([topic]):
            return
        if self._is_there:
            log.warning("%s: topic %s was deleted; creating it again", self._label, topic)
            self._is_there = False
        outcome = (await self._admin.create_topics([self._wanted]))[topic]
        if outcome is None:
            log.info("%s: topic %s was created", self._label, topic)
        elif not isinstance(outcome, TopicExists):
            raise outcome


class SyncWriter:
    """Writes offset syncs in the background, one request at a time, from the acknowledged runs and commits it gets. A
    context manager. Its exit writes pending syncs, for two seconds at most, and none if the last write failed. A failed
    write is logged once and retried, and the copy continues. A request that timed out may arrive after the next one;
    readers then drop their older syncs, and translate to earlier offsets, never to later ones. With exactly-once, runs
    are added when their transaction is committed, and syncs are written outside of it. ``label``: starts each log line.
    ``lag_max``: the value of ``offset.lag.max``. ``write``: writes to the cluster that has the topic, as
    ``PlainWriter.write``."""

    def __init__(self, label: str, topic: str, lag_max: int, write: Write) -> None:
        self._label, self._topic = label, topic
        self._syncs = PendingOffsetSyncs(lag_max)
        self._write_records = write
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = asyncio.Event()
        self._one_request = asyncio.Lock()
        self._scope = Scope(f"offset syncs of {self._label}")
        self._said = ""

    def acknowledged(self, source: TopicPartition, runs: Iterable[Run]) -> None:
        """Add runs of records that the target has acknowledged."""
        self._syncs.acknowledged(source, runs)
        self._wake()

    def commit(self) -> None:
        """Let delayed syncs be written, because positions were stored, or there were none to store."""
        self._syncs.commit()
        self._wake()

    async def leave(self, sources: Collection[TopicPartition]) -> None:
        """Write the pending syncs of partitions that another task gets, before that task may write their syncs. After
        two seconds the rest is dropped, because after the other task's syncs it would make readers drop those."""
        syncs = self._syncs.leave(sources)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WRITE_S), self._one_request:
                for at in range(0, 0 if self._said else len(syncs), _MOST_AT_ONCE):
                    await self._write(syncs[at : at + _MOST_AT_ONCE])

    async def __aenter__(self) -> Self:
        self._scope.spawn(self._write_forever(), f"offset syncs of {self._label}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        if self._syncs.waiting() > _MOST_AT_ONCE:
            self._syncs.keep_newest()
        try:
            if not self._said:
                async with asyncio.timeout(_LAST_WRITE_S):
                    await self._idle.wait()
        except TimeoutError:
            log.warning("%s: the last offset syncs were not written to %s", self._label, self._topic)
        finally:
            await self._scope.close()

    def _wake(self) -> None:
        self._idle.clear()
        self._wanted.set()

    async def _write_forever(self) -> None:
        pauses = Pauses(_RETRY_S, _MAX_RETRY_S)
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (count := await self._write_some()) is not None:
                if not count:
                    await pauses.wait()
                    continue
                pauses.over()
                if count < _MOST_AT_ONCE:
                    await is_set_within(self._ending, _PAUSE_S)
            if not self._wanted.is_set():
                self._idle.set()

    async def _write_some(self) -> int | None:
        """Send one request; return how many syncs it wrote, 0 if it failed, None if no sync is pending."""
        async with self._one_request:
            syncs = self._syncs.take(_MOST_AT_ONCE)
            if not syncs:
                return None
            if await self._write(syncs):
                return len(syncs)
            self._syncs.give_back(syncs)
            return 0

    async def _write(self, syncs: Sequence[OffsetSync]) -> bool:
        records = [OutRecord(self._topic, sync.key(), sync.value(), partition=_PARTITION) for sync in syncs]
        try:
            await self._write_records(records)
        except HeliographError as error:
            if str(error) != self._said:
                log.warning("%s: offset syncs are not written: %s; retrying, the copy continues", self._label, error)
            self._said = str(error)
            return False
        except Exception as error:
            if not self._said:
                log.error("%s: offset syncs are not written", self._label, exc_info=error)
            self._said = repr(error)
            return False
        if self._said:
            log.info("%s: offset syncs are written to %s again", self._label, self._topic)
            self._said = ""
        return True


def syncs_topic(settings: MirrorSourceSettings, clients: FlowClients) -> OffsetSyncsTopic | None:
    """Return the flow's topic, which the caller closes; None if it writes no syncs."""
    syncs = settings.offset_syncs
    if syncs is None:
        return None
    admin = clients.open_admin(clients.offset_syncs_admin(), _place(settings, syncs))
    return OffsetSyncsTopic(syncs, admin, settings.flow)


@asynccontextmanager
async def sync_writer(
    settings: MirrorSourceSettings, clients: FlowClients, task: int
) -> AsyncIterator[SyncWriter | None]:
    """Run a task's writer within the context; None if the flow writes no syncs."""
    syncs = settings.offset_syncs
    if syncs is None:
        yield None
        return
    cluster = Cluster(clients.offset_syncs_producer(task), _place(settings, syncs))
    writer = SyncWriter(f"{settings.flow} task {task}", syncs.topic, syncs.lag_max, PlainWriter(cluster).write)
    async with closing(cluster), writer as made:
        yield made


def _place(settings: MirrorSourceSettings, syncs: OffsetSyncsSettings) -> str:
    return settings.source_alias if syncs.on_source else settings.target_alias
