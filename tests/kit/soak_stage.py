"""What a soak run plays with: two clusters, topics of every fate and their feeders, readers of both sides, a mirror."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from kafka import TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at, stock_admin
from tests.kit.log_reader import Key, LogReader
from tests.kit.members import until
from tests.kit.mirror import EXACTLY_ONCE, HANDOVERS, Mirror, in_sync, replicated
from tests.kit.processes import DeadlinePassed, Role, find
from tests.kit.soak_feed import Feeder
from tests.kit.soak_judge import Seen
from tests.kit.soak_plan import ALIAS, DROPPED, FILTERING, Fate, Feed
from tests.kit.stored import stored_positions
from tests.kit.topics import make_topics

_READ_EVERY_S: Final = 0.1
_DIGEST_BYTES: Final = 8
_TIMESTAMP: Final = struct.Struct(">q")
#: Retention and compaction look at their work often.
_EAGER: Final = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    # Else what was deleted within a minute of a broker's SIGKILL is back, and the mirror has passed it over.
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}
_POLL_S: Final = 0.2
_DEADLINE_S: Final = 180.0
#: REQUEST_TIMED_OUT, and INVALID_REPLICATION_FACTOR: no broker that could have it.
_NOT_YET: Final = (7, 38)


class Observer:
    """Use as an async context manager; it reads until then."""

    def __init__(
        self, bootstrap: str, *, committed: bool, dropped: str | None = None, skips_deleted: bool = False
    ) -> None:
        """Records with a header ``dropped`` are not seen; ``skips_deleted``: nor what is deleted uncommitted."""
        self._dropped = dropped
        self._reader = LogReader(bootstrap, self._take, committed=committed, skips_deleted=skips_deleted)
        self._reading = asyncio.Lock()
        self._lives: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.seen: dict[Key, list[Seen]] = {}

    async def __aenter__(self) -> Self:
        await self._reader.open()
        self._task = asyncio.create_task(self._run(), name="observer")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._reader.close()

    async def follow(self, topics: Mapping[str, int]) -> None:
        """From their beginnings, now or as soon as they are there: names and partitions."""
        async with self._reading:
            for topic, partitions in topics.items():
                self._reader.follow(topic, partitions)
                for index in range(partitions):
                    self.seen.setdefault((topic, index), [])

    async def end_life(self, topic: str) -> None:
        """The topic will be deleted: what comes under its name later is of another one. All of it has to be read."""
        async with self._reading:
            self._reader.forget(topic)
            self._lives[topic] = self._lives.get(topic, 0) + 1

    async def at_end(self) -> None:
        """All that there is now has been read. Raises what the reader ended with."""
        assert self._task is not None, "it is opened"
        if self._task.done():
            self._task.result()
        async with self._reading:
            await self._reader.read_to_end()

    @property
    def records(self) -> int:
        return sum(len(seen) for seen in self.seen.values())

    async def _run(self) -> None:
        while True:
            async with self._reading:
                await self._reader.read_to_end()
            await asyncio.sleep(_READ_EVERY_S)

    def _take(self, key: Key, position: int, batch: Any) -> None:
        seen, life = self.seen[key], self._lives.get(key[0], 0)
        for record in batch:
            if record.offset >= position and self._dropped not in (name for name, _ in record.headers):
                seen.append(Seen(life, record.offset, _digest(record.key), _content(record)))


def _content(record: Any) -> int:
    parts = [record.key, record.value, _TIMESTAMP.pack(record.timestamp)]
    for name, value in record.headers:
        parts += [name.encode(), value]
    return _digest(*parts)


def _digest(*parts: bytes | None) -> int:
    """Of all parts, their borders, and which of them are null."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        found.update(b"-" if part is None else b"%d:" % len(part))
        found.update(part or b"")
    return int.from_bytes(found.digest(), "big")


class SoakStage:
    """Use as an async context manager; whatever was started is ended on the way out, the mirror first."""

    def __init__(
        self,
        directory: Path,
        feeds: list[Feed],
        *,
        seed: int,
        records_per_s: float,
        exactly_once: bool,
        target_nodes: int,
    ) -> None:
        self._directory = directory
        self.records_per_s_of_topic = records_per_s / len(feeds)
        self._seed = seed
        self._properties = EXACTLY_ONCE if exactly_once else {}
        self._target_nodes = target_nodes
        self._exactly_once = exactly_once
        self._exits = contextlib.AsyncExitStack()
        self.feeds = {feed.topic: feed for feed in feeds}
        self.feeders: dict[str, Feeder] = {}
        #: The ids of the topics that had a name one after the other.
        self.lives: dict[str, list[UUID]] = {}

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as exits:
            self.us, self.eu = [
                exits.enter_context(cluster)
                for cluster in await asyncio.gather(_started("us", 1), _started("eu", self._target_nodes))
            ]
            self._source = await exits.enter_async_context(cluster_at(self.us.bootstrap, "us"))
            self._admin = exits.enter_context(stock_admin(self.us.bootstrap))
            self.source = await exits.enter_async_context(
                Observer(self.us.bootstrap, committed=True, dropped=DROPPED, skips_deleted=True)
            )
            self.target = await exits.enter_async_context(Observer(self.eu.bootstrap, committed=self._exactly_once))
            exits.callback(self._cancel_feeders)
            self.mirror = exits.enter_context(Mirror(self._mirror_properties(), self._directory))
            self._exits = exits.pop_all()
        for feed in self.feeds.values():
            if feed.fate is not Fate.LATE:
                await self.make(feed)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    def _mirror_properties(self) -> Mapping[str, str]:
        """Two tasks for all topics, epochs that change meanwhile, and a flow from the same source that filters."""
        filtered = [feed.topic for feed in self.feeds.values() if feed.alias == FILTERING]
        return {
            "clusters": f"{ALIAS}, {FILTERING}, eu",
            f"{ALIAS}.bootstrap.servers": self.us.bootstrap,
            f"{FILTERING}.bootstrap.servers": self.us.bootstrap,
            "eu.bootstrap.servers": self.eu.bootstrap,
            f"{ALIAS}->eu.enabled": "true",
            f"{ALIAS}->eu.topics": ".*",
            f"{ALIAS}->eu.topics.exclude": ", ".join(filtered),
            f"{FILTERING}->eu.enabled": "true",
            f"{FILTERING}->eu.topics": ", ".join(filtered),
            f"{FILTERING}->eu.transforms": "sift",
            f"{FILTERING}->eu.transforms.sift.type": "Filter",
            f"{FILTERING}->eu.transforms.sift.predicate": "spam",
            f"{FILTERING}->eu.predicates": "spam",
            f"{FILTERING}->eu.predicates.spam.type": "HasHeaderKey",
            f"{FILTERING}->eu.predicates.spam.name": DROPPED,
            **{f"{alias}->eu.consumer.isolation.level": "read_committed" for alias in (ALIAS, FILTERING)},
            "on.source.gap": "skip",
            "on.topic.recreated": "restart",
            **replicated(self._target_nodes),
            "tasks.max": "2",
            "refresh.topics.interval.seconds": "5",
            "refresh.look.interval.ms": "1000",
            **HANDOVERS,
            **self._properties,
        }

    def _cancel_feeders(self) -> None:
        for feeder in self.feeders.values():
            feeder.cancel()

    async def make(self, feed: Feed, partitions: int | None = None) -> None:
        count = partitions or feed.partitions
        new = NewTopic(feed.topic, num_partitions=count, replication_factor=1, topic_configs=dict(feed.configs))
        await until(lambda: self._is_made(new), f"{feed.topic} is made", _DEADLINE_S)
        known = (await self._source.metadata({feed.topic})).topics[feed.topic].topic_id
        assert known is not None, "these brokers have topic ids"
        self.lives.setdefault(feed.topic, []).append(known)
        if feed.target_configs is not None:
            replicas = min(3, self._target_nodes)
            await make_topics(self.eu.bootstrap, {feed.remote: count}, feed.target_configs, replicas)
        await self._follow(feed.topic, count)
        feeder = self.feeders[feed.topic] = Feeder(
            self.us.bootstrap, feed, self.records_per_s_of_topic, f"{self._seed}/{len(self.lives[feed.topic])}"
        )
        feeder.partitions = count
        if feed.target_configs is None:
            feeder.begin()

    def feed_what_retention_takes(self) -> None:
        """Once the mirror runs: of what is gone before its first look it knows nothing."""
        for topic, feeder in self.feeders.items():
            if self.feeds[topic].target_configs is not None:
                feeder.begin()

    async def _is_made(self, new: Any) -> bool:
        """One of the name may still be on its way out, and a broker that was frozen not be let in again yet."""
        rows = await asyncio.to_thread(lambda: self._admin.create_topics([new], raise_errors=False))
        code = rows["topics"][0]["error_code"]
        if code in _NOT_YET:
            return False
        assert code in (0, 36), rows
        topics = (await self._source.metadata({new.name})).topics
        has_leaders = [row.leader >= 0 for topic in topics.values() for row in topic.partitions.values()]
        fresh = topics[new.name].topic_id not in self.lives.get(new.name, [])
        return fresh and len(has_leaders) == new.num_partitions and all(has_leaders)

    async def _follow(self, topic: str, partitions: int) -> None:
        await self.source.follow({topic: partitions})
        await self.target.follow({self.feeds[topic].remote: partitions})

    async def grow(self, topic: str) -> None:
        feeder = self.feeders[topic]
        wanted = feeder.partitions + 1
        # A producer that does not know them yet would be wrong about its topic.
        await feeder.pause()

        async def has_grown() -> bool:
            with contextlib.suppress(KafkaError):  # of a broker that was frozen, or that grew it and did not answer
                await asyncio.to_thread(lambda: self._admin.create_partitions({topic: wanted}))
            rows = (await self._source.metadata({topic})).topics[topic].partitions
            return len(rows) == wanted and all(row.leader >= 0 for row in rows.values())

        await until(has_grown, f"{topic} has {wanted} partitions", _DEADLINE_S)
        await self._follow(topic, wanted)
        feeder.partitions = wanted
        feeder.resume()

    async def recreate(self, topic: str) -> None:
        """All that was written to it has been seen before."""
        feeder = self.feeders[topic]
        await feeder.stop()
        await self.source.at_end()
        await self.source.end_life(topic)

        async def is_gone() -> bool:
            with contextlib.suppress(UnknownTopicOrPartitionError):  # it was deleted, and nobody said so
                await asyncio.to_thread(lambda: self._admin.delete_topics([topic]))
            return True

        await self._until_answered(is_gone, f"{topic} is deleted")
        await self.make(self.feeds[topic], feeder.partitions)

    async def cut(self, topic: str, chance: random.Random, *, unread: bool = False) -> str:
        """Delete before an offset that is not copied yet, and return that; ``unread``: also not read."""
        feeder = self.feeders[topic]
        partition = chance.randrange(feeder.partitions)
        least = await self._behind_unread(topic, partition) if unread else 0
        await feeder.pause()
        await self.source.at_end()
        end = await self._end(topic, partition)
        copied = (await stored_positions(self.eu.bootstrap, ALIAS, {topic: feeder.partitions})).get(
            (topic, partition), 0
        )
        before = chance.randint(max(min(copied, end), least), end)
        if before:
            cut = {TopicPartition(topic, partition): before}
            await self._until_answered(
                lambda: asyncio.to_thread(lambda: self._admin.delete_records(cut)), f"{topic}-{partition} is cut"
            )
        feeder.resume()
        return f"{topic}-{partition} begins at {before}, {copied} was stored, it ended at {end}"

    async def _behind_unread(self, topic: str, partition: int) -> int:
        """Behind the first record that is committed from now on."""
        end = await self._end(topic, partition)

        def behind() -> int | None:
            return next((seen.offset + 1 for seen in self.source.seen[topic, partition] if seen.offset >= end), None)

        async def is_written() -> bool:
            await self.source.at_end()
            return behind() is not None

        await until(is_written, f"{topic}-{partition} has a record that nobody has read", _DEADLINE_S)
        found = behind()
        assert found is not None, "it is written"
        return found

    async def _end(self, topic: str, partition: int) -> int:
        return (await list_offsets(self._source, [(topic, partition)], LATEST))[topic, partition]

    async def copies(self, least: int, deadline_s: float) -> None:
        """Returns when so many records more have come; DeadlinePassed, or that the mirror has ended."""
        before = self.target.records

        async def has_copied() -> bool:
            await self.target.at_end()
            return self.target.records >= before + least

        await self.mirror.until(has_copied, "the mirror copies", deadline_s)

    async def _offsets_not_stored(self) -> int:
        """Return how far the stored offsets are behind the ends of the source."""
        counts = {topic: feeder.partitions for topic, feeder in self.feeders.items()}
        wanted = [(topic, index) for topic, count in counts.items() for index in range(count)]
        ends = await list_offsets(self._source, wanted, LATEST)
        stored: dict[tuple[str, int], int] = {}
        for alias in (ALIAS, FILTERING):
            own = {topic: count for topic, count in counts.items() if self.feeds[topic].alias == alias}
            stored |= await stored_positions(self.eu.bootstrap, alias, own)
        return sum(abs(ends[key] - stored.get(key, 0)) for key in wanted)

    def victims(self, role: Role) -> list[Any]:
        return find(self.mirror.pid, role)

    async def _until_answered(self, ask: Callable[[], Awaitable[object]], what: str) -> None:
        """A broker that was killed or frozen a moment ago may not answer yet."""

        async def is_done() -> bool:
            try:
                await ask()
            except KafkaError as error:
                if not error.retriable:
                    raise
                return False
            return True

        await until(is_done, what, _DEADLINE_S)

    async def until_all_stored(self, idle_s: float) -> None:
        """Until the stored offsets are the source's ends; DeadlinePassed after ``idle_s`` without progress."""
        least, idle_since_s = await self._offsets_not_stored(), time.monotonic()
        while least:
            if time.monotonic() - idle_since_s > idle_s:
                raise DeadlinePassed(f"no offset was stored for {idle_s:g} s, {least} offsets before the source's ends")
            await asyncio.sleep(_POLL_S)
            if (missing := await self._offsets_not_stored()) < least:
                least, idle_since_s = missing, time.monotonic()


async def _started(name: str, nodes: int) -> KafkaCluster:
    return await asyncio.to_thread(lambda: KafkaCluster.start(name, nodes=nodes, config={**_EAGER, **in_sync(nodes)}))
