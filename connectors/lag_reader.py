"""Read the lag of a flow from its two clusters, whether a worker runs or not, and watch whether both answer. The lag
compares stored positions with the source's end offsets; only the first waiting batch of each partition is read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final
from uuid import UUID

from kafka.protocol.admin import DescribeLogDirsRequest

from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, closing, gather_limited, in_turns, unless, wall_ms
from connect.kafka.error_causes import CAUSES, Causes
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, known_offsets, list_offset
from connect.wire import batch as wire
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.dataplane import fetch_api
from connectors.flow_progress import (
    NOTHING_KNOWN,
    SOURCE,
    TARGET,
    UNKNOWN,
    ClusterContact,
    Contact,
    FlowLag,
    PartitionLag,
    furthest,
    lag_of,
    since_text,
)
from connectors.formats.types import FlowName, TopicPartition
from connectors.internal_topics import read_copied
from connectors.topic_sync.partition_assignment import begin_of, first_offsets, selected

log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
_WITHIN_S: Final = 5.0
#: A cluster that hangs is noticed within this time.
NOTICED_WITHIN_S: Final = 10.0


class ContactWatch:
    """Watches the clusters of one running flow, which the caller owns; ``contact`` is the result so far. Of the flows
    that share a cluster, the first logs that it does not answer, once a minute."""

    def __init__(self, flow: FlowName, source: Cluster, target: Cluster, causes: Causes = CAUSES) -> None:
        self.flow, self._causes = flow, causes
        self._clusters = {SOURCE: source, TARGET: target}
        self._sides = {SOURCE: ClusterContact(), TARGET: ClusterContact()}
        self._watched = {side: causes.watch(each) for side, each in self._clusters.items()}
        #: Set while the source does not answer.
        self.source_is_silent = asyncio.Event()
        self._scope = Scope(str(flow))
        for side in self._clusters:
            self._scope.spawn(self._ask_forever(side), f"{flow}: does the {side} answer?")

    @property
    def contact(self) -> Contact:
        return Contact(self._sides[SOURCE], self._sides[TARGET])

    async def stop(self) -> None:
        await self._scope.close()
        for watched in self._watched.values():
            self._causes.unwatch(watched)

    async def _ask_forever(self, side: str) -> None:
        name = self._clusters[side].name
        while True:
            before = self._sides[side]
            self._sides[side] = found = await self._asked(side, before)
            self._causes.asked(self._watched[side], answers=bool(found.answers))
            if side == SOURCE and found.answers:
                self.source_is_silent.clear()
            elif side == SOURCE:
                self.source_is_silent.set()
            if not found.answers and self._causes.is_news(name):
                self._say(side, found)
            elif found.answers and before.answers is False:
                self._causes.over(name)
                log.info("%s: %s cluster %s answers again", self.flow, side, name)
            await asyncio.sleep(_EVERY_S)

    async def _asked(self, side: str, before: ClusterContact) -> ClusterContact:
        try:
            return await asked(self._clusters[side], before)
        except PermanentError as error:
            return replace(before, answers=False, reason=str(error))

    def _say(self, side: str, found: ClusterContact) -> None:
        log.warning(
            "%s: %s cluster %s does not answer %s%s: %s",
            self.flow,
            side,
            self._clusters[side].name,
            since_text(found.answered_ms),
            ", so its lag is unknown" if side == SOURCE else "",
            found.reason,
        )


async def asked(cluster: Cluster, before: ClusterContact) -> ClusterContact:
    """Return whether a cluster answers now, and ``before`` with the reason if not. Raises PermanentError."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            await cluster.metadata(())
    except TimeoutError:
        return replace(before, answers=False, reason=f"no answer within {_WITHIN_S:.0f} s")
    except RetriableError as error:
        return replace(before, answers=False, reason=str(error))
    return ClusterContact(answers=True, answered_ms=wall_ms())


#: One batch is returned whatever its size (KIP-74).
_SMALLEST: Final = fetch_api.FetchLimits(0, 0, 1, 1, fetch_api.READ_UNCOMMITTED)
_AT_ONCE: Final = 8
_FRESH_S: Final = 1.0
_V2: Final = 2
#: Partitions whose oldest waiting record is looked up at a time; a partition that does not move is looked up once.
_MOST_STAMPS: Final = 1000


NOTHING: Final = FlowLag(())


class LagReader:
    """Reads the lag of one flow; ``store`` is its target. Keeps a waiting record's timestamp until the copy moves."""

    def __init__(self, settings: MirrorSourceSettings, source: Cluster, store: Cluster) -> None:
        self._settings, self.source, self.store = settings, source, store
        #: Whether the clusters answered the last :meth:`look`.
        self.contact = NOTHING_KNOWN
        self._stamps: dict[TopicPartition, tuple[int, int]] = {}

    async def all(self) -> FlowLag:
        """Read every partition that the flow selects, in order, by stored positions."""
        # Positions first: records copied meanwhile then make the lag too large, never too small.
        return await self.of(await self.positions(), _MOST_STAMPS)

    async def positions(self) -> dict[TopicPartition, int]:
        """Return where the flow continues, or begins, in every partition that it selects."""
        settings, source = self._settings, self.source
        topics = selected(settings.should_mirror, (await source.metadata(None)).topics)
        partitions = [TopicPartition(topic.name, index) for topic in topics for index in sorted(topic.partitions)]
        stored = await self.stored(partitions) if partitions else {}
        fresh = [one for one in partitions if one not in stored]
        return stored | await first_offsets(source, fresh, begin_of(settings))

    async def look(self, last: FlowLag = NOTHING) -> FlowLag:
        """Read as :meth:`all`; if a cluster does not answer, return what is still known of ``last``. Raises permanent
        errors, such as a missing right."""
        before = self.contact
        sides = await asyncio.gather(asked(self.source, before.source), asked(self.store, before.target))
        self.contact = Contact(*sides)
        if silent := [side.reason for side in sides if side.answers is False]:
            return last.lost(self._settings.flow, "; ".join(dict.fromkeys(silent)))
        try:
            found = await self.all()
        except RetriableError as error:
            return last.lost(self._settings.flow, str(error))
        return replace(found, known_ms=wall_ms())

    async def stored(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset of partitions that have one."""
        copied = await read_copied(self.store, self._settings, partitions)
        return {one: offset + 1 for one, offset in copied.items()}

    async def of(self, positions: Mapping[TopicPartition, int], most_stamps: int) -> FlowLag:
        """Return the lag of those of ``positions`` that the source has; the timestamp of the oldest waiting record is
        read for the ``most_stamps`` partitions of greatest lag."""
        source, settings = self.source, self._settings
        topics = (await source.metadata({topic for topic, _ in positions})).topics
        partitions = [
            one for one in sorted(positions) if one.topic in topics and one.partition in topics[one.topic].partitions
        ]
        if not partitions:
            return FlowLag(())
        isolation = READ_COMMITTED if settings.read_committed else READ_UNCOMMITTED
        (starts, unknown), (ends, endless), sizes = await asyncio.gather(
            known_offsets(source, partitions, EARLIEST),
            known_offsets(source, partitions, LATEST, isolation),
            _sizes(source, partitions),
        )
        found = []
        nameless: dict[TopicPartition, str] = {}
        async for one in in_turns(partitions):
            if one in starts and one in ends:
                try:
                    remote = settings.remote_topic(one.topic)
                except PermanentError as error:  # the topic has no name there, so it is not mirrored
                    nameless[one] = str(error)
                    continue
                found.append(lag_of(*one, remote, positions[one], starts[one], ends[one], sizes.get(one, -1)))
        aged = await self._aged(found, {name: topic.topic_id for name, topic in topics.items()}, most_stamps)
        why_not = [*unknown.items(), *endless.items(), *nameless.items()]
        return FlowLag(tuple(aged), {str(TopicPartition(*one)): why for one, why in why_not})

    async def _aged(
        self, lags: Sequence[PartitionLag], ids: Mapping[str, UUID | None], most: int
    ) -> list[PartitionLag]:
        behind = {TopicPartition(one.topic, one.partition): one async for one in in_turns(lags) if one.records}
        oldest = {one: lag.end - lag.records for one, lag in behind.items()}
        self._stamps = {one: stamp for one, stamp in self._stamps.items() if oldest.get(one) == stamp[0]}
        await asyncio.sleep(0)
        unknown = [lag for one, lag in behind.items() if one not in self._stamps]
        wanted = [TopicPartition(lag.topic, lag.partition) for lag in furthest(unknown, most)]

        async def look(one: TopicPartition) -> None:
            topic = fetch_api.TopicOnWire(one.topic, ids[one.topic])
            stamp_ms = await _timestamp(self.source, topic, one.partition, oldest[one])
            if stamp_ms >= 0:
                self._stamps[one] = (oldest[one], stamp_ms)

        await gather_limited(look, wanted, _AT_ONCE)
        return [self._with_age(one) async for one in in_turns(lags)]

    def _with_age(self, one: PartitionLag) -> PartitionLag:
        known = self._stamps.get(TopicPartition(one.topic, one.partition))
        return one if not one.records or known is None else replace(one, ms=max(wall_ms() - known[1], 0))


class SharedLag:
    """The lag of a flow for all callers of a worker; concurrent callers wait for one read."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._last = NOTHING
        self._fresh_until_s = 0.0

    async def read(
        self, settings: MirrorSourceSettings, source: Cluster, store: Cluster, watch: ContactWatch | None = None
    ) -> FlowLag:
        """Return a lag at most a second old; without a read if ``watch`` finds that the source does not answer. Errors
        are those of :meth:`LagReader.look`."""
        silent = asyncio.Event() if watch is None else watch.source_is_silent
        async with self._reading:
            began_s = time.monotonic()
            if not silent.is_set() and began_s > self._fresh_until_s:
                reading = LagReader(settings, source, store).look(self._last)
                if (found := await unless(silent, reading, f"lag of {settings.flow}")) is not None:
                    self._last, self._fresh_until_s = found, began_s + _FRESH_S
            if watch is not None and silent.is_set():
                known = watch.contact.source
                self._last = self._last.lost(settings.flow, known.reason, known.answered_ms)
                self._fresh_until_s = began_s
            return self._last


@asynccontextmanager
async def lag_reader(settings: MirrorSourceSettings, clients: FlowClients) -> AsyncIterator[LagReader]:
    """Open a reader for callers that run no worker."""
    source = Cluster(clients.source_admin(), settings.source_alias)
    store = Cluster(clients.offsets(), settings.target_alias)
    async with closing(source, store):
        yield LagReader(settings, source, store)


async def _sizes(source: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of each partition's log at its leader, if the broker shows them."""
    metadata = await source.metadata({topic for topic, _ in partitions})
    leaders: dict[int, dict[str, list[int]]] = {}
    for topic, index in dict.fromkeys(partitions):
        if (leader := metadata.leader(topic, index)) is not None:
            leaders.setdefault(leader, {}).setdefault(topic, []).append(index)
    found: dict[TopicPartition, int] = {}
    for leader, topics in leaders.items():
        rows = [DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=of) for name, of in topics.items()]
        try:
            answer = await (await source.connection(leader)).call(DescribeLogDirsRequest(topics=rows))
        except HeliographError:
            continue  # sizes are only a hint for people; the rest holds without them
        for directory in answer.results:
            for topic_row in directory.topics:
                for row in topic_row.partitions:
                    if not row.is_future_key:
                        found[TopicPartition(topic_row.name, row.partition_index)] = row.partition_size
    return found


async def last_checkpoint_ms(settings: MirrorSourceSettings, target: Cluster) -> int:
    """Return when a checkpoint of the flow was last written, in milliseconds since 1970; -1 if none was. Raises
    RetriableError if the target does not answer."""
    topic = settings.policy.checkpoints_topic(settings.source_alias)
    found = (await target.metadata({topic})).topics.get(topic)
    if found is None or not found.partitions:
        return UNKNOWN
    try:
        end = await list_offset(target, (topic, 0), LATEST)
    except SecurityError:
        return UNKNOWN  # readers of a verdict need no right on checkpoints
    return await _timestamp(target, fetch_api.TopicOnWire(topic, found.topic_id), 0, end - 1) if end else UNKNOWN


async def _timestamp(source: Cluster, topic: fetch_api.TopicOnWire, index: int, offset: int) -> int:
    """Return the timestamp of the batch at ``offset``, in milliseconds since 1970; -1 if it has none or was deleted."""
    try:
        row = await fetch_api.fetch_from_leader(source, topic, index, offset, _SMALLEST)
    except HeliographError:
        return -1  # the age of one partition; the rest holds without it
    for start, size, magic in wire.extents(row.records):
        if magic == _V2:
            return wire.read_header(row.records[start : start + size]).max_timestamp
    return -1
